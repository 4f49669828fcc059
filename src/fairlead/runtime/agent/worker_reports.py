"""What a worker reports: lines of JSON in a file, each an object of names and numbers; and its step rate, from its lease page.
Both come from the worker and are not trusted."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections import deque
from itertools import pairwise
from pathlib import Path

from fairlead.runtime.protocol.orders import MAX_METRIC_NAME, MAX_METRICS

MAX_LINE = 4096
CHUNK = 1 << 18
MAX_BACKLOG = 1 << 24


class WorkerReports:
    """Reads a worker's report file. Other lines, and names beyond the limit, are ignored. A worker that writes
    faster than the agent reads loses its oldest lines. `NaN`, `Infinity` and too large numbers are read as infinity."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe must not block
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        self._mark = os.open(path.with_name(path.name + ".read"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._offset = self._marked = int.from_bytes(os.pread(self._mark, 8, 0), "little")
        os.pwrite(self._mark, self._offset.to_bytes(8, "little"), 0)
        self._torn = False  # the start of the next line was skipped
        self._names: set[str] = set()

    def read(self) -> list[tuple[str, float]]:
        """The numbers of the complete lines since the last call, of at most `CHUNK` bytes. A call marks what the call before
        returned as read, for the next agent: the caller has processed it."""
        if self._offset != self._marked:
            with contextlib.suppress(OSError):
                os.pwrite(self._mark, self._offset.to_bytes(8, "little"), 0)
            self._marked = self._offset
        size = os.fstat(self._file).st_size
        if size < self._offset:
            self._offset = 0
        if size - self._offset > MAX_BACKLOG:
            self._offset, self._torn = size - CHUNK, True
        data = os.pread(self._file, CHUNK, self._offset)
        complete = data.rfind(b"\n") + 1
        if not complete and len(data) > MAX_LINE:
            self._offset += len(data)
            self._torn = True
            return []
        self._offset += complete
        found: list[tuple[str, float]] = []
        for line in data[:complete].splitlines():
            numbers = None if self._torn else _numbers(line)
            self._torn = False
            if numbers is not None:
                found += self._allowed(numbers)
        return found

    def rest(self) -> list[tuple[str, float]]:
        """Everything that is left, after the worker has ended."""
        found: list[tuple[str, float]] = []
        for _ in range(MAX_BACKLOG // CHUNK + 1):
            before = self._offset
            found += self.read()
            if self._offset == before:
                break
        return found

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            os.close(self._mark)
            self._file = -1

    def _allowed(self, numbers: list[tuple[str, float]]) -> list[tuple[str, float]]:
        room = MAX_METRICS - len(self._names)
        self._names |= set(list(dict.fromkeys(name for name, _ in numbers if name not in self._names))[:room])
        return [(name, value) for name, value in numbers if name in self._names]


def _numbers(line: bytes) -> list[tuple[str, float]] | None:
    if len(line) > MAX_LINE:
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not all(type(value) in (int, float) for value in values.values()):
        return None
    if not all(
        len(name) <= MAX_METRIC_NAME and name.isprintable() for name in values
    ):  # JSON can contain incomplete characters
        return None
    return [(name, float(value) if abs(value) <= 1e308 else math.inf) for name, value in values.items()]


_SEGMENT_NS = int(2.5e9)
_MIN_STEPS = 2
_SEGMENTS = 4  # that must all differ from the mean, in the same direction, for a change
_CHANGE = 0.15  # as a share of the mean


class StepRate:
    """The step rate of a worker: the mean since its launch, or since its speed last changed for good, such as when another job
    came to its accelerator or left it. A pause, such as for a checkpoint, is not a change. All times are the worker's own."""

    def __init__(self) -> None:
        self._begin = (0, 0)  # steps and time from which the mean counts
        self._launch = (0, 0)
        self._marks: deque[tuple[int, int]] = deque(maxlen=_SEGMENTS + 1)

    def update(self, began_at: int, began_ns: int, steps: int, last_ns: int) -> float:
        """Steps per second, 0 while unknown. `began_at` and `began_ns` are where the worker says that its rate begins."""
        if (began_at, began_ns) != self._launch:
            self._launch = self._begin = (began_at, began_ns)
            self._marks = deque([self._begin], maxlen=_SEGMENTS + 1)
        if not began_ns or steps <= began_at or last_ns <= began_ns:
            return 0.0
        at, then = self._marks[-1]
        if steps >= at + _MIN_STEPS and last_ns >= then + _SEGMENT_NS:
            self._marks.append((steps, last_ns))
            self._detect_change()
        return _rate(self._begin, (steps, last_ns))

    def _detect_change(self) -> None:
        """The mean starts again where the last segments were all faster than it, or all slower."""
        if len(self._marks) <= _SEGMENTS:
            return
        mean = _rate(self._begin, self._marks[-1])
        marks = list(self._marks)
        rates = [_rate(one, other) for one, other in pairwise(marks)]
        if min(rates) > (1 + _CHANGE) * mean or max(rates) < (1 - _CHANGE) * mean:
            self._begin = marks[0]


def _rate(begin: tuple[int, int], end: tuple[int, int]) -> float:
    steps, passed_ns = end[0] - begin[0], end[1] - begin[1]
    return steps / passed_ns * 1e9 if steps > 0 and passed_ns > 0 else 0.0
