"""Who holds which accelerators. One bookkeeping for the state, for the simulated world and for tests; it decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairlead.core.cluster import Ints

NONE: Ints = np.empty(0, dtype=np.int64)


class Holdings:
    """Accelerators by job. They lie in one pool, job after job: many jobs are looked up at once, and a gang costs no more
    than a single worker. What is let go leaves a gap; when the pool's end is reached, it is packed anew."""

    def __init__(self, accelerators: int, capacity: int = 256) -> None:
        self.accelerators = accelerators
        self.first: Ints = np.full(capacity, -1, dtype=np.int64)  # by job number; -1: holds nothing
        self.last: Ints = np.full(capacity, -1, dtype=np.int64)  # where it last began, for stickiness
        self.size: Ints = np.zeros(capacity, dtype=np.int64)  # how many each job holds
        self._start: Ints = np.zeros(capacity, dtype=np.int64)  # where in the pool
        self._pool: Ints = np.empty(4096 + 256 * accelerators, dtype=np.int64)
        self._end = 0  # of what is used of the pool
        self._occupancy: Ints | None = None  # as of the last change

    def reserve(self, size: int) -> None:
        old = len(self.first)
        if size > old:
            grown = max(size, 2 * old) - old
            self.first = np.concatenate((self.first, np.full(grown, -1, dtype=np.int64)))
            self.last = np.concatenate((self.last, np.full(grown, -1, dtype=np.int64)))
            self.size = np.concatenate((self.size, np.zeros(grown, dtype=np.int64)))
            self._start = np.concatenate((self._start, np.zeros(grown, dtype=np.int64)))

    @property
    def occupancy(self) -> Ints:
        """How many jobs there are on each accelerator; counted when asked for."""
        if self._occupancy is None:
            self._occupancy = np.bincount(self.flat(self.size.nonzero()[0]), minlength=self.accelerators)
        return self._occupancy

    def of(self, number: int) -> Ints:
        start = self._start.item(number)
        return self._pool[start : start + self.size.item(number)].copy()

    def flat(self, numbers: Ints) -> Ints:
        """All accelerators of these jobs, who all hold something, job after job."""
        sizes = self.size[numbers]
        ends = sizes.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        if total == len(numbers):  # of these, nobody holds more than one
            return self.first[numbers]
        at = (self._start[numbers] - ends + sizes).repeat(sizes)
        held: Ints = self._pool[at + np.arange(total)]
        return held

    def take(self, jobs: Ints, offsets: Ints, accelerators: Ints) -> None:
        """Job i takes `accelerators[offsets[i]:offsets[i+1]]`."""
        if self._end + len(accelerators) > len(self._pool):
            self._pack(len(accelerators))
        firsts = accelerators[offsets[:-1]]
        self.first[jobs] = firsts
        self.last[jobs] = firsts
        self.size[jobs] = offsets[1:] - offsets[:-1]
        self._start[jobs] = offsets[:-1] + self._end
        end = self._end + len(accelerators)
        self._pool[self._end : end] = accelerators
        self._end = end
        self._occupancy = None

    def release(self, jobs: Ints) -> None:
        """These jobs, which all hold something, let go."""
        self.first[jobs] = -1
        self.size[jobs] = 0
        self._occupancy = None

    def copy(self) -> Holdings:
        other = Holdings(self.accelerators, 0)
        other.first, other.last, other.size = self.first.copy(), self.last.copy(), self.size.copy()
        other._start, other._pool, other._end = self._start.copy(), self._pool.copy(), self._end
        return other

    def _pack(self, more: int) -> None:
        """Close the gaps, and see to it that `more` fits behind."""
        holders = self.size.nonzero()[0]
        held = self.flat(holders)
        if 2 * (len(held) + more) > len(self._pool):
            self._pool = np.empty(4 * (len(held) + more), dtype=np.int64)
        self._pool[: len(held)] = held
        sizes = self.size[holders]
        self._start[holders] = sizes.cumsum() - sizes
        self._end = len(held)


def ragged(parts: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Offsets and the flat column of several arrays."""
    arrays = list(parts)
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    return offsets, np.concatenate(arrays) if arrays else NONE
