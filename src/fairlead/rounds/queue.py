"""Gavel's Algorithm 1: entries of an allocation in the order of their keys, each taken where its type has room and none of its
jobs has been taken before. It knows columns and capacities, not what the keys mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.holdings import NONE


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
    left, wants = sum(free), workers[jobs]
    # Where jobs queue up most have no turn. In order are put, at a time, as many as would fill the cluster: of those with an
    # entry on each type only one of them can run.
    size = left if len(jobs) <= 2 * left else left * max(1, len(jobs) // max(1, int(workers.sum())))
    order, waiting = _ahead(keys, None, size)
    while left and len(order):
        others: Iterable[int] = mates[order].tolist() if paired else repeat(-1)
        columns = (column[order].tolist() for column in (jobs, types, wants))
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
        if not left or waiting is None:
            break
        # Where gangs leave a few accelerators free, a long line has few who can use them.
        waiting &= wants <= np.array(free)[types]
        waiting &= ~np.frombuffer(busy, dtype=np.bool_)[jobs]
        order, waiting = _ahead(keys, waiting, size)
    entries = np.concatenate(chosen) if chosen else NONE
    return Taken(entries, free, np.frombuffer(busy, dtype=np.bool_)[:-1])


def _ahead(keys: Sequence[Floats | Ints], waiting: Bools | None, size: int) -> tuple[Ints, Bools | None]:
    """Of the entries that wait (None: all), in their order, those that are ahead: `size` of them and whoever has the same key
    as the last; and which wait behind them, if not all of them are."""
    key, behind = keys[-1], None
    entries = None if waiting is None else waiting.nonzero()[0]
    mine = key if entries is None else key[entries]
    if len(mine) > 2 * size:
        last = len(mine) - 1 - size
        least = np.partition(mine, last)[last]
        ahead = (mine >= least).nonzero()[0]
        entries = ahead if entries is None else entries[ahead]
        behind = key < least
        if waiting is not None:
            behind &= waiting
    if entries is None:
        return np.lexsort([-key for key in keys]), None
    return entries[np.lexsort([-key[entries] for key in keys])], behind
