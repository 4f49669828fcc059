"""What a control plane keeps in addition to the events of its journal: tokens, code archives, marks. They are named files in
a folder or in the database of the journal (`PostgresFiles`), so that the loss of a machine loses none. It knows no format."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from fairlead.files import atomic_write, make_folder

_BOOT = Path("/proc/sys/kernel/random/boot_id")
TOKENS, ORIGIN, ALIVE, CODE, LAUNCH_KEY, LOGS, ALERTS = "tokens.json", "origin", "alive", "code", "launch.key", "logs", "alerts"
"""The names; `code` and `logs` are folders."""


class StoredFile(NamedTuple):
    """What is known about a file without reading it."""

    size: int
    owner: str  # a user, or empty
    used_s: float  # Unix time of the last write or `touch`


class ControlFiles(Protocol):
    """Named files. A name may have one folder in it, as in `code/x.zip`."""

    where: str  # for messages
    remote: bool  # whether a call may take seconds

    def read(self, name: str) -> bytes | None: ...

    def part(self, name: str, offset: int, size: int) -> tuple[bytes, int] | None:
        """Part of a file and the size of all of it; None if it is missing."""
        ...

    def version(self, name: str) -> object:
        """A value that changes with the content; None if it is missing."""
        ...

    def write(self, name: str, content: bytes, owner: str = "") -> None:
        """Replace a file, durable on return."""
        ...

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a file by what `change` makes of it; no other process writes it meanwhile."""
        ...

    def touch(self, name: str) -> float | None:
        """Note that a file is used; return when it was used before, or None if it is missing."""
        ...

    def remove(self, name: str) -> None: ...

    def listed(self, folder: str = "") -> dict[str, StoredFile]:
        """The files of a folder by their full names."""
        ...

    def room(self) -> tuple[float, float]:
        """Free and total bytes of the disk."""
        ...

    def clock(self) -> tuple[str, float]:
        """The name and the seconds of a clock that runs on while the control plane does not; empty if there is none."""
        ...


class FolderFiles:
    """Files in a folder that only its owner may read."""

    remote = False

    def __init__(self, root: Path) -> None:
        self._root, self.where = root, str(root)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def part(self, name: str, offset: int, size: int) -> tuple[bytes, int] | None:
        try:
            with (self._root / name).open("rb") as file:
                file.seek(max(0, offset))
                return file.read(size), os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def version(self, name: str) -> object:
        try:
            stat = os.stat(self._root / name)
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def write(self, name: str, content: bytes, owner: str = "") -> None:
        path = self._root / name
        if path.parent != self._root:
            make_folder(path.parent, 0o700)
        if owner:
            atomic_write(path.with_suffix(".user"), owner.encode(), private=True)
        atomic_write(path, content, private=True)

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        lock = os.open(self._root / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.write(name, change(self.read(name)))
        finally:
            os.close(lock)

    def touch(self, name: str) -> float | None:
        try:
            before = (self._root / name).stat().st_mtime
            os.utime(self._root / name)
        except FileNotFoundError:
            return None
        return before

    def remove(self, name: str) -> None:
        for path in (self._root / name, (self._root / name).with_suffix(".user")):
            path.unlink(missing_ok=True)

    def listed(self, folder: str = "") -> dict[str, StoredFile]:
        found: dict[str, StoredFile] = {}
        for path in (self._root / folder).glob("*"):
            if path.is_file() and path.suffix not in (".user", ".lock") and not path.name.startswith("."):
                stat = path.stat()
                found[str(path.relative_to(self._root))] = StoredFile(stat.st_size, self._owner(path), stat.st_mtime)
        return found

    def room(self) -> tuple[float, float]:
        disk = shutil.disk_usage(self._root)
        return disk.free, disk.total

    def clock(self) -> tuple[str, float]:
        """Of this boot of this machine."""
        return _BOOT.read_text().strip() if _BOOT.exists() else "", time.clock_gettime(time.CLOCK_BOOTTIME)

    @staticmethod
    def _owner(path: Path) -> str:
        try:
            return path.with_suffix(".user").read_text()
        except OSError:  # stored by an earlier version
            return ""
