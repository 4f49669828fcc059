"""What a worker prints, kept in pieces of bounded size. A piece is named by the place of its first byte in all that was ever
printed, so a reader's offset stays good when old pieces go. Standard library only: the stub writes, the agent reads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_DIGITS = 20


class Excerpt(NamedTuple):
    """`data` stands at `offset`, which is later than asked for where older pieces are gone; go on reading at `next`."""

    offset: int
    data: bytes

    @property
    def next(self) -> int:
        return self.offset + len(self.data)


class LogWriter:
    """Appends; begins a new piece when the present one is full, and removes the oldest of more than `pieces`."""

    def __init__(self, directory: Path, piece_bytes: int, pieces: int) -> None:
        self._directory, self._piece_bytes, self._pieces = directory, piece_bytes, pieces
        self._at = 0
        self._room = 0
        self._file = -1
        self.lost = 0  # bytes that the disk did not take

    def write(self, data: bytes) -> None:
        while data:
            try:
                if self._room <= 0:
                    self._begin()
                written = os.write(self._file, data[: self._room])
            except OSError:
                # A job does not stop because nobody can keep what it says.
                self.lost += len(data)
                return
            self._at += written
            self._room -= written
            data = data[written:]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> None:
        path = self._directory / str(self._at).zfill(_DIGITS)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.close()
        self._file, self._room = file, self._piece_bytes
        for old in _pieces(self._directory)[: -self._pieces]:
            with contextlib.suppress(FileNotFoundError):
                (self._directory / old).unlink()


def read(directory: Path, offset: int, limit: int) -> Excerpt:
    """At most `limit` bytes from `offset` on, which below 0 counts from the end; nothing where nothing was printed since."""
    names = _pieces(directory)
    if not names:
        return Excerpt(max(offset, 0), b"")
    if offset < 0:
        offset = max(0, int(names[-1]) + (directory / names[-1]).stat().st_size + offset)
    offset = max(offset, int(names[0]))
    data = b""
    for name, after in zip(names, [*names[1:], ""]):
        end = int(after) if after else None
        if len(data) >= limit or (end is not None and end <= offset):
            continue
        try:
            with open(directory / name, "rb") as file:
                file.seek(offset + len(data) - int(name))
                data += file.read(limit - len(data))
        except FileNotFoundError:  # it went while we looked: begin with what is there now
            return read(directory, offset, limit)
    return Excerpt(offset, data)


def _pieces(directory: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.isdigit())
    except FileNotFoundError:
        return []
