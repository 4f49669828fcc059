"""How the batch sizes of generated jobs change, by mode:

    static     never
    accordion  declared and largest in turns: small while gradients change fast, at first and at times later (Shockwave §5)
    gns        doubles up to the largest, as gradient noise grows; every division of the steps is equally likely
    expert     a schedule that somebody wrote: multiples of the declared batch size, each for a share of the steps; the job
               declares it

The largest is what the table has for the model with these workers. A job declared with it stays as it is. This module knows no
job but what is passed in, and takes its chances from there too."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.job import batch_size_of, kind_of, model_of
from fairlead.core.schedule import EXPERT, Schedule
from fairlead.workloads.profiles import ThroughputTable

Parts = tuple[tuple[int, float], ...]
Multiples = tuple[tuple[float, float], ...]

MODES = ("static", "accordion", "gns", EXPERT)

DRAWS = 32
"""Numbers in [0, 1) for a job: no batch size doubles more often."""

_TRACE = 1e-9  # a share so small is none
_FIRST = (0.25, 0.35)  # of the steps, for which Accordion begins small
_AGAIN, _LATER, _SHORT = 0.25, (0.4, 0.75), (0.02, 0.06)  # how many return to it, when, and for how long


def sizes_of(table: ThroughputTable, kind: str, workers: int) -> tuple[int, ...]:
    """The batch sizes at which a kind's model runs wherever the kind does, ascending."""
    first = table.alone[table.row(kind, workers)] > 0
    known = (
        (batch_size_of(other), row) for row, (other, many) in enumerate(table.keys) if many == workers and _alike(other, kind)
    )
    return tuple(sorted(size for size, row in known if size is not None and (table.alone[row][first] > 0).all()))


def parts_of(mode: str, kind: str, sizes: Sequence[int], schedule: Multiples, draws: Floats) -> Parts:
    """The regimes of one job: (batch size, share of the steps)."""
    declared = batch_size_of(kind)
    if declared is None or mode == "static":
        return ()
    if mode == EXPERT:
        return tuple((_nearest(sizes, declared * multiple), share) for multiple, share in schedule)
    larger = [size for size in sizes if size > declared]
    if not larger:
        return ((declared, 1.0),)
    return _accordion(declared, larger[-1], draws) if mode == "accordion" else _doubling(declared, larger, draws)


def as_declared(parts: Parts) -> Schedule:
    """Regimes as an owner's schedule: of the declared steps, behind which no share counts, and to whose end the last one goes
    on."""
    declared: list[tuple[int, float]] = []
    left = 1.0
    for size, share in (*parts[:-1], (parts[-1][0], 1.0)):
        share = min(share, left)
        if declared and declared[-1][0] == size:
            declared[-1] = (size, declared[-1][1] + share)
        elif share > _TRACE:
            declared.append((size, share))
        left -= share
    return tuple(declared)


def mean_rate(parts: Parts, table: ThroughputTable, kind: str, workers: int, column: int) -> float:
    """Declared steps per second over all of a job's regimes, on one type."""
    declared = batch_size_of(kind) or 1
    rates = [float(table.alone[table.row(kind_of(model_of(kind), size), workers), column]) for size, _ in parts]
    return 1.0 / math.fsum(share * declared / (size * rate) for (size, share), rate in zip(parts, rates))


def _accordion(small: int, large: int, draws: Floats) -> Parts:
    chance, *rest = draws[:4].tolist()
    first, later, short = (low + (high - low) * draw for (low, high), draw in zip((_FIRST, _LATER, _SHORT), rest))
    if chance >= _AGAIN:
        return ((small, first), (large, 1.0 - first))
    return ((small, first), (large, later - first), (small, short), (large, 1.0 - later - short))


def _doubling(declared: int, larger: Sequence[int], draws: Floats) -> Parts:
    doubled = [declared * 2**power for power in range((larger[-1] // declared).bit_length())]
    sizes = [size for size in doubled if size == declared or size in larger]
    gaps = -np.log1p(-draws[: len(sizes)])  # exponential: uniform over all divisions
    return tuple(zip(sizes, (gaps / gaps.sum()).tolist()))


def _nearest(sizes: Sequence[int], wanted: float) -> int:
    """The largest that is not above it, or the smallest."""
    return max((size for size in sizes if size <= wanted), default=min(sizes))


def _alike(kind: str, other: str) -> bool:
    return model_of(kind) == model_of(other)
