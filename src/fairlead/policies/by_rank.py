"""The most that the jobs of all classes do together, each counting by a weight of its own, over a supply of speeds:

    max Σ_m weight_m · r_m    such that the demands r can be dealt out of the supply Y   (supply.py says when that is)

Inside a class the optimum is plain: laid out from the fastest to none, the supply goes to its members from the heaviest to the
lightest, a unit of time each. With their weights w_1 ≥ w_2 ≥ … ≥ w_n, and w_n+1 = 0, that is worth

    V_g(Y) = Σ_k (w_k − w_k+1) · min_τ [ k·τ + Σ_w max(T_w − τ, 0)·Y_w ]

where τ is best the speed at which the k-th unit ends. V is concave, and any choice of τ for each k is a linear bound on it. So
the program has a column for each way and one for the worth of each class, however many jobs there are, and a row for those
bounds alone that some solution has violated: the layout of that solution is the choice of τ. It ends in an optimum, not near
one.

Bounds that held at the last moment's optimum are nearly right at the next. They are kept, as layouts, which saves time; the
optimum does not depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.classes import lots
from fairlead.policies.program import Program
from fairlead.policies.supply import Supply
from fairlead.policies.ways import Ways

_ROUNDS = 500
_GAP = 1e-11
_EXACT = 1e-8  # what rounding may leave of the gap where no bound is violated any more
_USED = 1e-10
_DIGITS = 10  # of speeds: who is as fast as another is so whichever way the solver came to it
_APART = 1e-7
"""By up to so much, of a fastest type's speed at full weight, time counts less on one way than on another that is as good."""


@dataclass(frozen=True)
class Layout:
    """A class's supply from the fastest on: each speed, and how many units of time end with it."""

    speed: Floats
    until: Floats


Layouts = Mapping[Any, Sequence[Layout]]
"""By the key of a class."""

_NONE = Layout(np.zeros(0), np.zeros(0))


class Ranked:
    """The weights of a class's members, heaviest first."""

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self._at = np.append(weights, 0.0)
        ranks = np.arange(1, len(weights) + 1)
        self._sum = np.concatenate(([0.0], np.cumsum((self._at[:-1] - self._at[1:]) * ranks)))

    def bound(self, layout: Layout, speed: Floats) -> tuple[Floats, float]:
        """What a unit of time at each speed adds to the class's worth at most, and what it has without any."""
        end = np.minimum(layout.until + _USED, len(self.weights)).astype(np.int64)
        begin = np.concatenate(([0], end))
        fall = self._at[begin[:-1]] - self._at[end]
        gain: Floats = np.maximum(speed[:, None] - layout.speed, 0.0) @ fall + self._at[begin[-1]] * speed
        return gain, float((self._sum[end] - self._sum[begin[:-1]]) @ layout.speed)

    def dealt(self, layout: Layout) -> Floats:
        """The speed of each member."""
        time = np.concatenate(([0.0], layout.until))
        work = np.concatenate(([0.0], np.cumsum(np.diff(time) * layout.speed)))
        each: Floats = np.diff(np.interp(np.arange(len(self.weights) + 1), time, work))
        return each


def most_by_weight(supply: Supply, weight: Floats, near: Layouts) -> tuple[Floats, Floats, Layouts]:
    """`weight` is by job, above 0. The time on each way, the speed of each job as a part of its class's fastest, and the
    layouts that prove the optimum; `near` are such of another moment."""
    order = np.lexsort((-weight, supply.of))
    members = np.split(order, np.cumsum(supply.count.astype(np.int64))[:-1])
    ranked = [Ranked(weight[mine]) for mine in members]
    program = _Bounded(supply.name, supply.ways, ranked, supply.classes.keys, near)
    used, tight = program.solve()
    speed = np.zeros(len(weight))
    for mine, rank, layout in zip(members, ranked, program.layouts(used)):
        speed[mine] = rank.dealt(layout).round(_DIGITS)
    return used, speed, tight


class _Bounded:
    """The program: a column for each way, then one for the worth of each class; rows for resources, for the time of each class,
    then the bounds."""

    def __init__(self, name: str, ways: Ways, ranked: Sequence[Ranked], keys: Sequence[Any], near: Layouts) -> None:
        self.ways, self.ranked, self.keys = ways, ranked, keys
        sides, width, classes = ways.sides, len(ways), len(ranked)
        self._base = len(ways.there_is) + classes
        way, resource = (ways.use > 0).nonzero()
        entries = (
            np.concatenate((resource, len(ways.there_is) + sides.owner)),
            np.concatenate((way, sides.way)),
            np.concatenate((ways.use[way, resource], sides.weight)),
        )
        named = [*keys, ()]
        whose = zip(ways.one.tolist(), ways.two.tolist(), ways.types.tolist(), ways.speed.tolist())
        place = lots((named[one], named[two], kind, speed) for one, two, kind, speed in whose)
        cost = np.concatenate((-_APART * place * ways.speed, np.ones(classes)))
        self._cost = cost[:width]
        most = np.concatenate((np.full(width, np.inf), [rank.weights.sum() for rank in ranked]))
        count = [len(rank.weights) for rank in ranked]
        room = np.concatenate((1.0 * ways.there_is, np.array(count, dtype=np.float64)))
        below = np.full(self._base, -np.inf)
        self.program = Program(name, cost, np.zeros(len(cost)), most, below, room, entries, tolerance=1e-10)
        self._bounds: list[tuple[int, Layout]] = []
        here = [(group, layout) for group, key in enumerate(keys) for layout in near.get(key, ())]
        self._bind([*((group, _NONE) for group in range(classes)), *here])

    def solve(self) -> tuple[Floats, Layouts]:
        """The time on each way, and the bounds that hold there."""
        best, used = -np.inf, np.zeros(len(self.ways))
        for _ in range(_ROUNDS):
            found = self.program.solve()
            time, thought = found.values[: len(self.ways)].clip(min=0.0), found.values[len(self.ways) :]
            layouts = self.layouts(time)
            worth = np.array([float(rank.weights @ rank.dealt(layout)) for rank, layout in zip(self.ranked, layouts)])
            value = float(worth.sum() + self._cost @ time)
            if value > best:
                best, used = value, time
            gap = (found.objective - best) / max(found.objective, 1e-300)
            short = (thought - worth > _USED * np.maximum(worth, 1.0)).nonzero()[0].tolist()
            if gap <= _GAP or (not short and gap <= _EXACT):
                return used, self._tight(found.duals[self._base :] > _USED)
            if not short:
                break
            self._bind([(group, layouts[group]) for group in short])
        raise SolverError(self.program.name, f"no optimum in {_ROUNDS} rounds")

    def layouts(self, time: Floats) -> list[Layout]:
        """By class."""
        sides = self.ways.sides
        amount = time[sides.way] * sides.weight
        used = (amount > _USED).nonzero()[0]
        used = used[np.lexsort((-sides.speed[used], sides.owner[used]))]
        ends = sides.owner[used].searchsorted(np.arange(len(self.ranked) + 1))
        speed, amount = sides.speed[used], amount[used]
        return [Layout(speed[begin:end], amount[begin:end].cumsum()) for begin, end in pairwise(ends)]

    def _bind(self, bounds: list[tuple[int, Layout]]) -> None:
        sides, width = self.ways.sides, len(self.ways)
        rows: list[Ints] = []
        columns: list[Ints] = []
        values: list[Floats] = []
        above = np.zeros(len(bounds))
        for row, (group, layout) in enumerate(bounds):
            mine = slice(sides.first[group], sides.first[group + 1])
            gain, above[row] = self.ranked[group].bound(layout, sides.speed[mine])
            some = gain > 0
            columns += [sides.way[mine][some], np.array([width + group])]
            values += [-(gain * sides.weight[mine])[some], np.ones(1)]
            rows.append(np.full(np.count_nonzero(some) + 1, row))
        entries = (np.concatenate(rows), np.concatenate(columns), np.concatenate(values))
        self.program.add_rows(np.full(len(bounds), -np.inf), above, entries)
        self._bounds += bounds

    def _tight(self, holds: Bools) -> Layouts:
        tight: dict[Any, list[Layout]] = {}
        for at in holds.nonzero()[0].tolist():
            group, layout = self._bounds[at]
            if len(layout.speed):
                tight.setdefault(self.keys[group], []).append(layout)
        return tight
