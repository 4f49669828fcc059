"""`fairlead up` as a child of this process, for as long as somebody wants it: ports of the system's choice, everything in one
folder, and no process left behind, not even where this one is killed."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.core.errors import FairleadError
from fairlead.runtime.people import ControlPlane, RefusedRequest, Unreachable

PATIENCE_S = 60.0
JOURNAL = "journal.sqlite"


class NotUp(FairleadError):
    """The cluster did not come up, or went away."""


@contextlib.contextmanager
def embedded(root: Path, *options: str) -> Iterator[ControlPlane]:
    """A cluster whose nodes are all there; `options` are those of `fairlead up`, such as --cluster. Its journal is `root /
    JOURNAL`, what it logs is `root / "log"`."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    http, agents = _free_ports()
    command = [sys.executable, "-m", "fairlead.cli.main", "up", "--leashed"]
    command += ["--root", str(root), "--http", http, "--agents", agents]
    with open(root / "log", "wb") as log:
        process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=log)
    with process:  # which holds the leash until it has ended
        try:
            yield _answering(process, root, http)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _answering(process: subprocess.Popen[bytes], root: Path, http: str) -> ControlPlane:
    deadline, token = time.monotonic() + PATIENCE_S, root / "admin.token"
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, Unreachable, RefusedRequest):
            plane = ControlPlane(f"http://{http}", token.read_text().strip())
            if all(node["up"] and node["connected"] for node in plane.nodes()):
                return plane
        time.sleep(0.1)
    said = (root / "log").read_text(errors="replace").strip().splitlines()
    raise NotUp(f"the cluster did not come up: {said[-1] if said else f'no word within {PATIENCE_S:g} s'}")


def _free_ports() -> tuple[str, str]:
    """Two that are free now; both are held while they are looked for, so that they are two."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return (f"127.0.0.1:{one.getsockname()[1]}", f"127.0.0.1:{other.getsockname()[1]}")
