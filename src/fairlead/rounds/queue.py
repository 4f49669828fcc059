"""Gavel's Algorithm 1: entries of an allocation in the order of their keys, each taken where its type has room and none of its
jobs has been taken before. It knows columns and capacities, not what the keys mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints

_DEEP = 1
"""So many entries for each accelerator are put in order at a time; where jobs queue up, most have no turn anyway."""


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
    size, rest = _DEEP * left, np.arange(len(first))
    while left and len(rest):
        entries, rest = _ahead(keys[-1], rest, size)
        order = entries[np.lexsort([-key[entries] for key in keys])]
        one = numbers.searchsorted(first[order])
        columns = [order, one, types[order], workers[one]]
        if paired:
            two = second[order]
            columns.append(np.where(two >= 0, numbers.searchsorted(two), -1))
        else:
            columns.append(np.full(len(order), -1))
        for entry, mine, kind, want, other in zip(*(column.tolist() for column in columns)):
            if free[kind] < want or busy[mine] or busy[other]:
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
