"""Gavel's Algorithm 1: entries of an allocation in the order of their keys, each taken where its type has room and none of its
jobs has been taken before. It knows columns and capacities, not what the keys mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints

_DEEP = 3
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
    """Lower keys go first; the last of them counts most (as in `lexsort`), then the entry's place. An entry's jobs are known by
    number; `second` is -1 where there is none. `numbers`, which ascend, and `workers` are by job."""
    free, busy, chosen = capacity.tolist(), bytearray(len(numbers) + 1), list[int]()  # the last one stands for nobody
    left = sum(free)
    for entries in _waves(keys[-1], _DEEP * left):
        if chosen:
            entries = entries[np.array(free)[types[entries]] > 0]
        order = entries[np.lexsort([key[entries] for key in keys])]
        one, two = numbers.searchsorted(first[order]), second[order]
        if two.max(initial=-1) >= 0:
            two = np.where(two >= 0, numbers.searchsorted(two), -1)
        columns = (order, one, two, types[order], workers[one])
        for entry, mine, other, kind, want in zip(*(column.tolist() for column in columns)):
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
        if not left:
            break
    return Taken(np.array(chosen, dtype=np.int64), free, np.frombuffer(busy, dtype=np.bool_)[:-1])


def _waves(key: Floats | Ints, size: int) -> Iterator[Ints]:
    """All entries, those with lower keys in earlier parts; who have the same key are in one."""
    rest = np.arange(len(key))
    while len(rest) > 2 * size > 0:
        mine = key[rest]
        ahead = mine <= np.partition(mine, size)[size]
        yield rest[ahead]
        rest = rest[~ahead]
    if len(rest):
        yield rest
