"""Gavel's Algorithm 1: entries of an allocation in the order of their keys, each taken where its type has room and none of its
jobs has been taken before. It knows columns and capacities, not what the keys mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints


@dataclass(frozen=True)
class Taken:
    """The entries that run, in their order; what is free by type; which jobs are busy."""

    entries: Ints
    free: list[int]
    busy: Bools


def take(
    keys: Sequence[Floats | Ints], first: Ints, second: Ints, types: Ints, numbers: Ints, workers: Ints, capacity: Ints
) -> Taken:
    """Higher keys go first; the last of them counts most (as in `lexsort`), then the entry's place. An entry's jobs are known
    by number; `second` is -1 where there is none. `numbers`, which ascend, and `workers` are by job."""
    free, busy = capacity.tolist(), bytearray(len(numbers) + 1)  # the last one stands for nobody
    chosen: list[int] = []
    paired = second.max(initial=-1) >= 0
    left = sum(free)
    # Where jobs queue up most have no turn. In order are put, at a time, as many as would fill the cluster: of those with an
    # entry on each type only one of them can run.
    size, rest = left * max(1, len(first) // max(1, int(workers.sum()))), np.arange(len(first))
    while left and len(rest):
        entries, rest = _ahead(keys[-1], rest, size)
        order = entries[np.lexsort([-key[entries] for key in keys])]
        one = numbers.searchsorted(first[order])
        others: Iterable[int] = repeat(-1)
        if paired:
            two = second[order]
            others = np.where(two >= 0, numbers.searchsorted(two), -1).tolist()
        columns = (column.tolist() for column in (order, one, types[order], workers[one]))
        for entry, mine, kind, want, other in zip(*columns, others):
            if busy[mine] or free[kind] < want or busy[other]:
                continue
            free[kind] -= want
            left -= want
            busy[mine] = 1
            if other >= 0:
                busy[other] = 1
            chosen.append(entry)
            if not left:
                break
        if left and len(rest):
            rest = rest[_may_still_run(first[rest], types[rest], free, busy, numbers, workers)]
    return Taken(np.array(chosen, dtype=np.int64), free, np.frombuffer(busy, dtype=np.bool_)[:-1])


def _ahead(key: Floats | Ints, entries: Ints, size: int) -> tuple[Ints, Ints]:
    """Those of the entries with the highest keys, `size` of them and whoever has the same key as the last; and the others."""
    if len(entries) <= 2 * size:
        return entries, entries[:0]
    mine = key[entries]
    last = len(mine) - 1 - size
    ahead = mine >= np.partition(mine, last)[last]
    return entries[ahead], entries[~ahead]


def _may_still_run(first: Ints, types: Ints, free: list[int], busy: bytearray, numbers: Ints, workers: Ints) -> Ints:
    """Which entries have room on their type and a job that has not been taken: where gangs leave a few accelerators free, a
    long line has few who can use them."""
    at = (np.array(free) > 0)[types].nonzero()[0]
    job = numbers.searchsorted(first[at])
    fits = workers[job] <= np.array(free)[types[at]]
    fits &= ~np.frombuffer(busy, dtype=np.bool_)[job]
    return at[fits]
