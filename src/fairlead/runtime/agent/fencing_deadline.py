"""The fencing deadline of a node: the file by which its agent tells all shims until when jobs may run. Standard library only:
shims read it."""

from __future__ import annotations

import errno
import math
import os
import struct
from pathlib import Path

_TIMES = struct.Struct("=dd")


class FencingDeadline:
    """Until when the jobs of a node may run without the control plane: two monotonic times in a file. The agent moves them with
    every renewal of its lease. All shims read them, since a killed agent cannot stop its jobs. After these times the control
    plane relies on nothing running here any more. A restart of the machine invalidates them, but each launch follows a renewal.

    It fails closed. A shim begins with the times of its launch spec. It keeps the last times that it has read while the file is
    missing, short or damaged, so the job stops then. Nothing is launched while the file cannot be written and read back.

    Shims of former versions read the file `lifeline`; it stays as a second name of the same file."""

    def __init__(self, root: Path) -> None:
        self.path, former = root / "fencing-deadline", root / "lifeline"
        if former.exists() and not self.path.exists():
            os.link(former, self.path)
        self._file = self._open()
        self.times = (math.inf, math.inf)  # as last moved by this agent; infinite: not yet

    def move(self, stop_s: float, kill_s: float) -> None:
        """Raises `OSError`: shims may not read these times."""
        self.times = stop_s, kill_s
        self.check()

    def check(self) -> None:
        """Make sure that shims read the times, where there are any. Raises `OSError`: they may not."""
        if self.times[0] == math.inf:
            return
        try:
            in_place = os.path.samestat(os.lstat(self.path), os.fstat(self._file))
        except OSError:
            in_place = False
        if not in_place:
            self.close()
            self._file = self._open()
        os.pwrite(self._file, _TIMES.pack(*self.times), 0)
        if fencing_times(str(self.path)) != self.times:
            raise OSError(errno.EIO, "the fencing deadline cannot be read back", str(self.path))

    @property
    def moved_at(self) -> float:
        """Unix time of the last renewal: until then the agent was alive."""
        return os.fstat(self._file).st_mtime

    def close(self) -> None:
        """Close the file; the times stay."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def fencing_times(path: str) -> tuple[float, float] | None:
    """When jobs are asked to save and leave, and when the last of them must be gone; None: the file cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            stop_s, kill_s = _TIMES.unpack(os.read(file, _TIMES.size))
        finally:
            os.close(file)
    except (OSError, struct.error):
        return None
    return (stop_s, kill_s) if -math.inf < stop_s < math.inf and stop_s <= kill_s else None
