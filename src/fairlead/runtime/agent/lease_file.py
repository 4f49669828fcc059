"""The agent's side of a lease page. A worker maps its page into memory; the agent reads and writes the same file by system
calls. Truncating a mapped file kills the process that touches it, and a worker must not be able to kill its agent. The content
of a page is not trusted."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, fields
from pathlib import Path

from fairlead.client.lease_page import MAGIC, SIZE, Field, Page, Stage

_MAX_COUNT = 2**53  # the largest count that a float represents exactly


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker last wrote into its page."""

    stage: int = Stage.STARTING
    steps: int = 0
    saved: int = 0
    began_at: int = 0  # steps at which its rate begins
    began_ns: int = 0  # and when
    last_ns: int = 0  # when the last step ended
    batch_size: int = 0
    renewals: int = 0
    wants_more: int = 0  # the renewal that it asks for, 0: none
    opened: int = 0  # 1: it reads its page


_STATUS = [(Field[field.name.upper()], "_ns" in field.name) for field in fields(WorkerStatus)]
_NUMBERS = struct.Struct(f"={SIZE // 8}Q")


class LeaseFile:
    """A lease page, opened by the agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._last, self._last_page = WorkerStatus(), b""
        numbers = self._numbers(self._read())
        self._routes = 0 if numbers is None else numbers[Field.ROUTES]

    @classmethod
    def create(cls, path: Path, max_steps: int, max_s: float) -> LeaseFile:
        """A new page with the bounds of a lease."""
        Page.create(path).close()
        made = cls(path)
        made._set_bounds(max_steps, max_s)
        return made

    def status(self) -> WorkerStatus:
        page = self._read()
        if page != self._last_page and (numbers := self._numbers(page)) is not None:
            found = (numbers[field] if is_time else min(numbers[field], _MAX_COUNT) for field, is_time in _STATUS)
            self._last, self._last_page = WorkerStatus(*found), page
        return self._last

    @property
    def is_lost(self) -> bool:
        """Whether `status` has never found a valid page."""
        return not self._last_page

    def revoke(self) -> None:
        self._write(Field.REVOKED, 1)

    def extend(self, renewal: int, max_steps: int, max_s: float) -> None:
        self._set_bounds(max_steps, max_s)
        self._write(Field.RENEWALS, renewal)

    def route(self, batch: int, rate: float, share: float) -> None:
        """Write the routing of requests. The count is odd meanwhile, so that the worker never combines two routes."""
        writing = self._routes % _MAX_COUNT | 1
        self._write(Field.ROUTES, writing)
        self._write(Field.ROUTE_BATCH, batch)
        self._write(Field.ROUTE_RATE, round(rate * 1000))
        self._write(Field.ROUTE_PART, round(share * 1e6))
        self._routes = writing + 1
        self._write(Field.ROUTES, self._routes)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _set_bounds(self, max_steps: int, max_s: float) -> None:
        self._write(Field.MAX_STEPS, max_steps)
        self._write(Field.MAX_MS, round(max_s * 1000))

    def _read(self) -> bytes:
        return os.pread(self._file, SIZE, 0)

    def _numbers(self, page: bytes) -> tuple[int, ...] | None:
        numbers = _NUMBERS.unpack(page) if len(page) == SIZE else None
        return numbers if numbers is not None and numbers[Field.MAGIC] == MAGIC else None

    def _write(self, field: Field, value: int) -> None:
        os.pwrite(self._file, struct.pack("=Q", value), field * 8)
