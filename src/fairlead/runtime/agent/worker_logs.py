"""A worker's output, kept in files of bounded size. A file's name is the position of its first byte in the whole output, so a
reader's offset stays valid when old files are removed. Standard library only: the shim writes, the agent reads."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

_DIGITS = 20
_LOG_NAME = re.compile(r"0{5}[0-9]{15}")  # a job may put other files there


class LogExcerpt(NamedTuple):
    """`data` starts at `offset`, which is later than requested if older files are gone; continue reading at `next`."""

    offset: int
    data: bytes

    @property
    def next(self) -> int:
        return self.offset + len(self.data)


class LogWriter:
    """Appends output; starts a new file when the current one is full, and keeps the last `pieces` files."""

    def __init__(self, directory: Path, piece_bytes: int, pieces: int) -> None:
        self._directory, self._piece_bytes, self._pieces = directory, piece_bytes, pieces
        self._at = 0
        self._room = 0
        self._file = -1
        self.lost = 0  # bytes that the disk did not take
        self.copy = -1  # a file that gets the same output

    def write(self, data: bytes) -> None:
        """Append output. A job does not stop because its output cannot be written."""
        if self.copy >= 0:
            with contextlib.suppress(OSError):
                os.write(self.copy, data)
        while data:
            try:
                if self._room <= 0:
                    self._begin()
                written = os.write(self._file, data[: self._room])
            except OSError:
                self.lost += len(data)
                return
            self._at += written
            self._room -= written
            data = data[written:]

    def close(self) -> None:
        self._close_file()
        if self.copy >= 0:
            os.close(self.copy)
            self.copy = -1

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        path = self._directory / str(self._at).zfill(_DIGITS)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._close_file()
        self._file, self._room = file, self._piece_bytes
        for old in _log_files(self._directory)[: -self._pieces]:
            with contextlib.suppress(FileNotFoundError):
                (self._directory / old).unlink()


def read_log_files(directory: Path, offset: int, limit: int) -> LogExcerpt:
    """At most `limit` bytes from `offset` on; a negative offset counts from the end."""
    names = _log_files(directory)
    if not names:
        return LogExcerpt(max(offset, 0), b"")
    if offset < 0:
        offset = max(0, int(names[-1]) + (directory / names[-1]).stat().st_size + offset)
    offset = max(offset, int(names[0]))
    data = b""
    for name, after in zip(names, [*names[1:], ""]):
        end = int(after) if after else None
        if len(data) >= limit or (end is not None and end <= offset):
            continue
        try:
            file = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                data += os.pread(file, limit - len(data), offset + len(data) - int(name))
            finally:
                os.close(file)
        except FileNotFoundError:  # it was removed meanwhile: start with the oldest that is left
            return read_log_files(directory, offset, limit)
    return LogExcerpt(offset, data)


def _log_files(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if _LOG_NAME.fullmatch(name))
    except FileNotFoundError:
        return []
