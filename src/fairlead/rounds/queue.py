"""Gavel's Algorithm 1: entries of an allocation in the order of their keys, each taken where its type has room and none of its
jobs has been taken before. It knows columns and capacities, not what the keys mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.holdings import NONE
from fairlead.core.operands import NO


@dataclass(frozen=True)
class Taken:
    """The entries that run, in their order; what is free by type; which jobs are busy."""

    entries: Ints
    free: list[int]
    busy: Bools


def take(keys: Sequence[Floats | Ints], jobs: Ints, mates: Ints, types: Ints, workers: Ints, capacity: Ints) -> Taken:
    """Higher keys go first; the last of them counts most (as in `lexsort`), then the entry's place. An entry's job, and the one
    beside it (-1: nobody), are positions in `workers`."""
    free, busy = capacity.tolist(), bytearray(len(workers) + 1)  # the last one stands for nobody
    chosen: list[Ints] = []
    paired = len(mates) > 0 and mates.item(mates.argmax()) >= 0
    left = sum(free)
    # Where jobs queue up most have no turn. In order are put, at a time, as many as would fill the cluster: of those with an
    # entry on each type only one of them can run.
    size, rest = left * max(1, len(jobs) // max(1, int(workers.sum()))), np.arange(len(jobs))
    while left and len(rest):
        entries, rest = _ahead(keys[-1], rest, size)
        order = entries[np.lexsort([-key[entries] for key in keys])]
        mine = jobs[order]
        others: Iterable[int] = mates[order].tolist() if paired else repeat(-1)
        columns = (column.tolist() for column in (mine, types[order], workers[mine]))
        taken: list[int] = []
        for place, job, kind, want, other in zip(range(len(order)), *columns, others):
            if busy[job] or free[kind] < want or busy[other]:
                continue
            free[kind] -= want
            left -= want
            busy[job] = 1
            if other >= 0:
                busy[other] = 1
            taken.append(place)
            if not left:
                break
        chosen.append(order[taken])
        if left and len(rest):  # where gangs leave a few accelerators free, a long line has few who can use them
            room = np.array(free)
            rest = rest[(room > NO)[types[rest]]]
            mine = jobs[rest]
            may = workers[mine] <= room[types[rest]]
            may &= ~np.frombuffer(busy, dtype=np.bool_)[mine]
            rest = rest[may]
    entries = np.concatenate(chosen) if chosen else NONE
    return Taken(entries, free, np.frombuffer(busy, dtype=np.bool_)[:-1])


def _ahead(key: Floats | Ints, entries: Ints, size: int) -> tuple[Ints, Ints]:
    """Those of the entries with the highest keys, `size` of them and whoever has the same key as the last; and the others."""
    if len(entries) <= 2 * size:
        return entries, entries[:0]
    mine = key[entries]
    last = len(mine) - 1 - size
    ahead = mine >= np.partition(mine, last)[last]
    return entries[ahead], entries[~ahead]
