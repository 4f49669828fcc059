"""Who holds which accelerators. One bookkeeping for the state, for the simulated world and for tests; it decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairlead.core.cluster import Ints

NONE: Ints = np.empty(0, dtype=np.int64)


class Holdings:
    """Accelerators by job. A single accelerator is a number in a column; only gangs need an array of their own."""

    def __init__(self, accelerators: int, capacity: int = 256) -> None:
        self.occupancy: Ints = np.zeros(accelerators, dtype=np.int64)  # jobs on each accelerator
        self.first: Ints = np.full(capacity, -1, dtype=np.int64)  # by job number; -1: holds nothing
        self.last: Ints = np.full(capacity, -1, dtype=np.int64)  # where it last began, for stickiness
        self.size: Ints = np.zeros(capacity, dtype=np.int64)  # how many each job holds
        self.gangs: dict[int, Ints] = {}

    def reserve(self, size: int) -> None:
        old = len(self.first)
        if size > old:
            grown = max(size, 2 * old) - old
            self.first = np.concatenate((self.first, np.full(grown, -1, dtype=np.int64)))
            self.last = np.concatenate((self.last, np.full(grown, -1, dtype=np.int64)))
            self.size = np.concatenate((self.size, np.zeros(grown, dtype=np.int64)))

    def of(self, number: int) -> Ints:
        gang = self.gangs.get(number)
        if gang is not None:
            return gang
        first = self.first[number]
        return NONE if first < 0 else np.array([first], dtype=np.int64)

    def flat(self, numbers: Ints) -> Ints:
        """All accelerators of these jobs, job after job without an order that anyone may rely on."""
        if not self.gangs:
            return self.first[numbers]
        gang = self.size[numbers] > 1
        if not gang.any():
            return self.first[numbers]
        parts = [self.gangs[number] for number in numbers[gang].tolist()]
        return np.concatenate((self.first[numbers[~gang]], *parts))

    def take(self, jobs: Ints, offsets: Ints, accelerators: Ints) -> None:
        """Job i takes `accelerators[offsets[i]:offsets[i+1]]`."""
        firsts = accelerators[offsets[:-1]]
        self.first[jobs] = firsts
        self.last[jobs] = firsts
        self.size[jobs] = offsets[1:] - offsets[:-1]
        if len(accelerators) > len(jobs):
            bounds = offsets.tolist()
            for number, start, end in zip(jobs.tolist(), bounds, bounds[1:]):
                if end - start > 1:
                    self.gangs[number] = accelerators[start:end]
        _count(self.occupancy, accelerators, 1)

    def release(self, jobs: Ints) -> None:
        """These jobs, which all hold something, let go."""
        held = self.flat(jobs)
        _count(self.occupancy, held, -1)
        self.first[jobs] = -1
        if self.gangs:
            for number in jobs[self.size[jobs] > 1].tolist():
                del self.gangs[number]
        self.size[jobs] = 0

    def copy(self) -> Holdings:
        other = Holdings(0, 0)
        other.occupancy, other.first, other.last = self.occupancy.copy(), self.first.copy(), self.last.copy()
        other.size, other.gangs = self.size.copy(), dict(self.gangs)
        return other


def ragged(parts: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Offsets and the flat column of several arrays."""
    arrays = list(parts)
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    return offsets, np.concatenate(arrays) if arrays else NONE


def _count(occupancy: Ints, accelerators: Ints, step: int) -> None:
    """`np.add.at` is slow; an accelerator occurs twice only where jobs share it."""
    if len(accelerators) < 2:
        occupancy[accelerators] += step
    elif step > 0:
        occupancy += np.bincount(accelerators, minlength=len(occupancy))
    else:
        occupancy -= np.bincount(accelerators, minlength=len(occupancy))
