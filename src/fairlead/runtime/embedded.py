"""`fairlead up` as a child of this process, for as long as somebody wants it: ports of the system's choice, everything in one
folder, and no process left behind, even by who is killed: the child hangs on its standard input."""

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

PATIENCE_S = 180.0  # of a machine that does much else: one that fails is noticed at once
JOURNAL = "journal.sqlite"


class NotUp(FairleadError):
    """The cluster did not come up, or went away."""


@contextlib.contextmanager
def embedded(root: Path, *options: str) -> Iterator[ControlPlaneClient]:
    """A cluster whose nodes are all there; `options` are those of `fairlead up`, such as --cluster. Its journal is `root /
    JOURNAL`, what it logs is `root / "log"`."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / CONNECTION.name).unlink(missing_ok=True)  # of one that was killed here
    command = [sys.executable, "-m", "fairlead.cli.main", "up", "--leashed", "--root", str(root)]
    command += ["--http", "127.0.0.1:0", "--agents", "127.0.0.1:0"]  # who looks for a free port first may find it taken then
    with open(root / "log", "wb") as log:
        process = subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        yield _answering(process, root)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()  # the leash is let go of too


def _answering(process: subprocess.Popen[bytes], root: Path) -> ControlPlaneClient:
    deadline, connection = time.monotonic() + PATIENCE_S, root / CONNECTION.name
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, Unreachable, RefusedRequest):
            plane = ControlPlaneClient(**orjson.loads(connection.read_bytes()))
            if all(node["up"] and node["connected"] for node in plane.nodes()):
                return plane
        time.sleep(0.1)
    said = (root / "log").read_text(errors="replace").strip().splitlines()
    raise NotUp(f"the cluster did not come up: {said[-1] if said else f'no word within {PATIENCE_S:g} s'}")


# Folders for a while, in the system's place for such. Whoever made one removes it at its end; where it was killed, the next
# one who makes one does.
#
# Its maker holds a lock on a file in it. The system lets go of that with the maker's process, however it ended, and wherever
# its
# number means another process. Folders without that file are nobody's to remove: they are older, just being made, or where a
# file
# system knows no locks.

PREFIX = "fairlead-"
_HELD = ".held"


@contextlib.contextmanager
def scratch(what: str) -> Iterator[Path]:
    """A new folder, gone at the end."""
    remove_left_behind()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{what}-", ignore_cleanup_errors=True) as folder:
        draft = Path(folder) / f"{_HELD}.new"
        with open(draft, "w") as held:
            with contextlib.suppress(OSError):  # some of those over a network have no locks
                fcntl.flock(held, fcntl.LOCK_EX)
                draft.rename(draft.with_name(_HELD))  # never there without its lock
            yield Path(folder)


def remove_left_behind() -> None:
    """Folders of those who were killed."""
    for held in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_HELD}"):
        with contextlib.suppress(OSError), open(held, "r+") as file:  # its maker's at work, somebody else's, or gone meanwhile
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(held.parent, ignore_errors=True)
