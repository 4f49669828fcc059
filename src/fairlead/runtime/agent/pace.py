"""How fast a worker is now. Its lease page says when a launch began and how far it is, which makes a mean; where its pace
changes for good, as when somebody comes to its accelerator or leaves it, the mean counts from there on. A pause, as for a
checkpoint, is no change. It knows no clock: times are the worker's own, and so are its lies."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

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
