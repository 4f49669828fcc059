"""A control group for each worker, where the agent was given a part of the hierarchy (version 2) to make them in. It is the
only thing that nobody leaves and that dies all at once; without it an agent relies on stubs that adopt their orphans."""

from __future__ import annotations

import contextlib
from pathlib import Path


class Cgroup:
    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, path: Path, pid: int) -> Cgroup:
        """A new one with this process in it, and so all that it will start."""
        path.mkdir(exist_ok=True)  # it was left by an agent that died before anything began
        made = cls(path)
        try:
            (path / "cgroup.procs").write_text(str(pid))
        except OSError:
            made.remove()
            raise
        return made

    def kill(self) -> bool:
        """Everybody in it, the stub too; True where none was left."""
        try:
            if not (self._path / "cgroup.procs").read_text():
                return True
            (self._path / "cgroup.kill").write_text("1")
        except FileNotFoundError:
            return True
        return False

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # not empty yet, or gone
            self._path.rmdir()
