"""The lease page: a small file in shared memory between a job's worker and the agent that started it. Each worker has one. The
agent writes some fields and the worker the others, so neither waits for the other, and reading it costs no system call. Numbers
are unsigned 64-bit integers in the byte order of the machine."""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from pathlib import Path

MAGIC = 0x3145_5341_454C_4C46  # "FLLEASE1"
SIZE = 4096

PAGE = "FAIRLEAD_LEASE"  # the environment variable with the page's path; not set outside Fairlead


class Field(IntEnum):
    """The index of each number."""

    MAGIC = 0
    # Written by the agent.
    REVOKED = 1  # 1: stop after the next step. In a gang, only the leader's page is revoked; it informs the others.
    MAX_STEPS = 2  # of this launch, 0: no bound
    MAX_MS = 3  # of this launch in milliseconds, 0: no bound
    RENEWALS = 4  # how often the bounds above were extended; counts up after they were
    ROUTES = 5  # counts up before and after the three below are written, so it is odd meanwhile. 0: no requests
    ROUTE_BATCH = 6  # requests at once
    ROUTE_RATE = 7  # thousandths of requests a second, to all replicas
    ROUTE_PART = 8  # millionths of them, for this one
    # Written by the worker.
    STAGE = 16  # how far it is: a `Stage`
    STEPS = 17  # done since the job began, over all its launches
    SAVED = 18  # steps in its last checkpoint
    BEGAN_NS = 19  # monotonic, when this launch did its first step, or the last of a batch size; the rate is since
    BEGAN_AT = 20  # steps at that moment
    LAST_NS = 21  # monotonic, when the last step ended
    WANTS_MORE = 22  # the renewal that it requests when three quarters of the bounds are used: RENEWALS + 1, or 0
    BATCH_SIZE = 23  # the current one, 0: unknown
    OPENED = 24  # 1: it reads this page; before that, and in a script without a lease, it has to be signalled


class Stage(IntEnum):
    """The stage of a worker."""

    STARTING = 0
    RUNNING = 1
    SAVING = 2
    YIELDED = 3  # saved and left because the lease ended
    FINISHED = 4  # did its last step


class Page:
    """The numbers of one page, read and written in place."""

    def __init__(self, path: Path | str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.numbers = memoryview(self._map).cast("Q")
        if self.numbers[Field.MAGIC] != MAGIC:
            raise ValueError(f"{path}: not a lease page")

    @classmethod
    def create(cls, path: Path) -> Page:
        """A new page, all zero except the magic; it appears complete or not at all."""
        draft = path.with_name(path.name + ".new")
        draft.write_bytes(MAGIC.to_bytes(8, "little" if memoryview(b"\1\0").cast("H")[0] == 1 else "big").ljust(SIZE, b"\0"))
        os.replace(draft, path)
        return cls(path)

    def __getitem__(self, field: Field) -> int:
        return self.numbers[field]

    def __setitem__(self, field: Field, value: int) -> None:
        self.numbers[field] = value

    def close(self) -> None:
        self.numbers.release()
        self._map.close()
