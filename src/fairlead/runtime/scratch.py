"""Folders for a while, in the system's place for such. Whoever made one removes it at its end; where it was killed, the next
one who makes one does.

Its maker holds a lock on a file in it. The system lets go of that with the maker's process, however it ended, and wherever its
number means another process. Folders without that file are nobody's to remove: they are older, just being made, or where a file
system knows no locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
