"""What a worker says about itself: lines of JSON in a file, each an object of names and numbers. Lines that are anything else
are counted and passed over, and so are names that are too many; a worker that writes faster than anybody reads loses its
oldest lines. `NaN` and `Infinity`, which Python writes, are told as infinity, and so is what is too large."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import deque
from itertools import pairwise
from pathlib import Path

from fairlead.runtime.protocol.orders import MAX_METRICS

LINE = 4096
AT_ONCE = 1 << 18
BACKLOG = 1 << 24
NAME = 200


class WorkerReports:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._mark = os.open(path.with_name(path.name + ".read"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._offset = self._marked = int.from_bytes(os.pread(self._mark, 8, 0), "little")
        os.pwrite(self._mark, self._offset.to_bytes(8, "little"), 0)
        self._torn = False  # the next line's beginning was skipped
        self._names: set[str] = set()
        self.ignored = 0

    def read(self) -> list[tuple[str, float]]:
        """The numbers of the whole lines since the last call, in their order, at most so many bytes of them. Whoever asks again
        has dealt with what was read before: only then is it marked as read, for the next agent."""
        if self._offset != self._marked:
            with contextlib.suppress(OSError):
                os.pwrite(self._mark, self._offset.to_bytes(8, "little"), 0)
            self._marked = self._offset
        size = os.fstat(self._file).st_size
        if size < self._offset:
            self._offset = 0
        if size - self._offset > BACKLOG:
            self._offset, self._torn = size - AT_ONCE, True
            self.ignored += 1
        data = os.pread(self._file, AT_ONCE, self._offset)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > LINE:
            self._offset += len(data)
            self._torn = True
            return []
        self._offset += whole
        said: list[tuple[str, float]] = []
        for line in data[:whole].splitlines():
            if self._torn:
                self._torn = False
                self.ignored += 1
                continue
            numbers = _numbers(line)
            if numbers is None:
                self.ignored += 1
            else:
                said += self._known(numbers)
        return said

    def _known(self, numbers: list[tuple[str, float]]) -> list[tuple[str, float]]:
        room = MAX_METRICS - len(self._names)
        self._names |= set(list(dict.fromkeys(name for name, _ in numbers if name not in self._names))[:room])
        known = [(name, value) for name, value in numbers if name in self._names]
        self.ignored += len(known) < len(numbers)
        return known

    def rest(self) -> list[tuple[str, float]]:
        """All that is left, when the worker has ended."""
        said: list[tuple[str, float]] = []
        for _ in range(BACKLOG // AT_ONCE + 1):
            before = self._offset
            said += self.read()
            if self._offset == before:
                break
        return said

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            os.close(self._mark)
            self._file = -1


def _numbers(line: bytes) -> list[tuple[str, float]] | None:
    if len(line) > LINE:
        return None
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not all(_is_number(value) and _is_name(name) for name, value in said.items()):
        return None
    return [(name, float(value) if abs(value) <= 1e308 else math.inf) for name, value in said.items()]


def _is_name(name: str) -> bool:
    """One that can be sent and shown; JSON can spell halves of characters."""
    return len(name) <= NAME and name.isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# How fast a worker is now. Its lease page says when a launch began and how far it is, which makes a mean; where its pace
# changes for good, as when somebody comes to its accelerator or leaves it, the mean counts from there on. A pause, as for a
# checkpoint, is no change. It knows no clock: times are the worker's own, and so are its lies.

PIECE_NS = int(2.5e9)
FEWEST_STEPS = 2
PIECES = 4  # that all must differ from the mean, in the same direction, for a change
CHANGED = 0.15
"""By how much of the mean."""


class Pace:
    def __init__(self) -> None:
        self._begin = (0, 0)  # steps and the moment from which the mean counts
        self._launch = (0, 0)
        self._marks: deque[tuple[int, int]] = deque(maxlen=PIECES + 1)

    def see(self, began_at: int, began_ns: int, steps: int, last_ns: int) -> float:
        """Steps per second; 0 while nothing is known. The first two are when the worker says that its rate begins."""
        if (began_at, began_ns) != self._launch:
            self._launch = self._begin = (began_at, began_ns)
            self._marks = deque([self._begin], maxlen=PIECES + 1)
        if not began_ns or steps <= began_at or last_ns <= began_ns:
            return 0.0
        at, then = self._marks[-1]
        if steps >= at + FEWEST_STEPS and last_ns >= then + PIECE_NS:
            self._marks.append((steps, last_ns))
            self._look()
        return _rate(self._begin, (steps, last_ns))

    def _look(self) -> None:
        """A stretch begins anew where all of the last pieces were faster than the mean of it, or all were slower."""
        if len(self._marks) <= PIECES:
            return
        mean = _rate(self._begin, self._marks[-1])
        marks = list(self._marks)
        pieces = [_rate(one, next_) for one, next_ in pairwise(marks)]
        if min(pieces) > (1 + CHANGED) * mean or max(pieces) < (1 - CHANGED) * mean:
            self._begin = marks[0]


def _rate(begin: tuple[int, int], end: tuple[int, int]) -> float:
    steps, passed_ns = end[0] - begin[0], end[1] - begin[1]
    return steps / passed_ns * 1e9 if steps > 0 and passed_ns > 0 else 0.0
