"""`fairlead up` as a child process in a folder, with free ports; and temporary folders for it. The child ends with its standard
input, so that a killed parent leaves no process behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from fairlead.core.errors import FairleadError
from fairlead.runtime.http_client import CONNECTION, ControlPlaneClient, RefusedRequest, Unreachable

START_WITHIN_S = 180.0  # on a busy machine; a failed start is noticed at once
JOURNAL = "journal.sqlite"


class ClusterStartError(FairleadError):
    """The cluster did not start, or ended."""


@contextlib.contextmanager
def embedded(root: Path, *options: str) -> Iterator[ControlPlaneClient]:
    """Run `fairlead up` with these options in a folder until the block ends; all nodes are up at the start."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / CONNECTION.name).unlink(missing_ok=True)  # of a killed cluster
    command = [sys.executable, "-m", "fairlead.cli.main", "up", "--leashed", "--root", str(root)]
    command += ["--http", "127.0.0.1:0", "--agents", "127.0.0.1:0"]  # a port that is found free first may be taken by then
    with open(root / "log", "wb") as log:
        process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        yield _wait_until_up(process, root)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()  # closes its standard input


def _wait_until_up(process: subprocess.Popen[bytes], root: Path) -> ControlPlaneClient:
    deadline, connection = time.monotonic() + START_WITHIN_S, root / CONNECTION.name
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, Unreachable, RefusedRequest):
            plane = ControlPlaneClient(**orjson.loads(connection.read_bytes()))
            if all(node["up"] and node["connected"] for node in plane.nodes()):
                return plane
        time.sleep(0.1)
    lines = (root / "log").read_text(errors="replace").strip().splitlines()
    raise ClusterStartError(f"the cluster did not start: {lines[-1] if lines else f'no answer within {START_WITHIN_S:g} s'}")


PREFIX = "fairlead-"
_HELD = ".held"


@contextlib.contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """Create a temporary folder, and remove it at the end of the block. The process holds a lock on a file in it. The system
    releases the lock when the process ends, and the next call removes the folders of processes that were killed. A folder
    without the file is left alone: it may belong to another program."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{what}-", ignore_cleanup_errors=True) as folder:
        draft = Path(folder) / f"{_HELD}.new"
        with open(draft, "w") as held:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(held, fcntl.LOCK_EX)
                draft.rename(draft.with_name(_HELD))  # it never exists without its lock
            yield Path(folder)


def _remove_abandoned() -> None:
    for held in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_HELD}"):
        with contextlib.suppress(OSError), open(held, "r+") as file:  # in use, not ours, or removed meanwhile
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(held.parent, ignore_errors=True)
