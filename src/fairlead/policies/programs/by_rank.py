"""The most that the jobs of all classes do together, each counting by a weight of its own, over a supply of speeds:

    max Σ_m weight_m · r_m    such that the demands r can be dealt out of the supply Y   (supply.py says when that is)

Inside a class the optimum is plain: laid out from the fastest to none, the supply goes to its members from the heaviest to the
lightest, a unit of time each. With U(τ) = Σ_{w: T_w > τ} Y_w, the time at higher speeds than τ, and F(u) the weight of the u
heaviest members, that is worth

    V_g(Y) = ∫ F(U(τ)) dτ

F is concave, and so is V; a tangent of F at each τ is a linear bound on it. So the program has a column for each way and a few
for the worth of each class, however many jobs there are, and a row for those bounds alone that some solution has violated: the
layout of that solution says where the tangents touch. The speeds of a class are cut into blocks, each with a worth and bounds
of its own: one bound for all of a class would be wrong as a whole as soon as it is wrong at one speed. It ends in an optimum,
not near one.

Bounds that held at the last moment's optimum are nearly right at the next. They are kept, as layouts, which saves time; the
optimum does not depend on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.programs.classes import lots
from fairlead.policies.programs.program import Model
from fairlead.policies.programs.sifting import Sifted
from fairlead.policies.programs.supply import Supply
from fairlead.policies.programs.ways import Ways

_ROUNDS = 500
_GAP = 1e-11
_EXACT = 1e-8  # what rounding may leave of the gap where no bound is violated any more
_USED = 1e-10
_BLOCKS = 6  # of a class's speeds, at most, and each for at least as many members
_PARTS = (0.0, 0.5)  # of a class's members at full speed: where the first tangents touch
_DIGITS = 10  # of speeds: who is as fast as another is so whichever way the solver came to it
_APART = 1e-7
"""By up to so much, of a fastest type's speed at full weight, time counts less on one way than on another that is as good."""


@dataclass(frozen=True)
class Layout:
    """A class's supply from the fastest on: each speed, and how many units of time end with it."""

    speed: Floats
    until: Floats

    def is_as(self, other: Layout) -> bool:
        return np.array_equal(self.until, other.until) and np.array_equal(self.speed, other.speed)


@dataclass(frozen=True)
class Near:
    """What proved an optimum: by the key of a class, layouts and the blocks on which their bounds held, and which ways were
    used, by the keys of their classes and the type."""

    bounds: Mapping[Any, Sequence[tuple[Layout, Ints]]] = field(default_factory=dict)
    ways: frozenset[tuple[Any, Any, int]] = frozenset()


@dataclass(frozen=True)
class Stretches:
    """Speeds from the highest to 0, between two of which there is neither one of a layout nor the end of a block."""

    low: Floats  # the lower end of each
    width: Floats
    time: Floats  # spent at higher speeds
    block: Ints


class Ranked:
    """The weights of a class's members, heaviest first, and the speeds that they can have, in a few blocks: block b has those
    above `ends[b + 1]` up to `ends[b]`."""

    def __init__(self, weights: Floats, speed: Floats) -> None:
        self.weights, self._speed = weights, speed
        self._at = np.concatenate((weights, [0.0]))
        self._sum = np.concatenate(([0.0], weights.cumsum()))
        distinct = np.unique(speed)[::-1]
        self.blocks = min(len(distinct), _BLOCKS, 1 + len(weights) // _BLOCKS)
        first = np.arange(self.blocks) * len(distinct) // max(self.blocks, 1)
        self.ends: Floats = np.concatenate((distinct[first], [0.0]))
        self._rising = self.ends[::-1].copy()
        self.block: Ints = self.blocks - self._rising[1:].searchsorted(speed) - 1  # of each speed

    def stretches(self, layout: Layout) -> Stretches:
        ends = np.concatenate((layout.speed, self.ends))
        ends.sort()
        ends = ends[::-1]
        low = ends[1:]
        faster = len(layout.speed) - layout.speed[::-1].searchsorted(low, side="right")
        time = np.concatenate(([0.0], layout.until))[faster]
        block = np.maximum(self.blocks - self._rising.searchsorted(low, side="right"), 0)  # a layout may be from elsewhere
        return Stretches(low, np.minimum(ends[:-1], self.ends[0]) - np.minimum(low, self.ends[0]), time, block)

    def worth(self, laid: Stretches) -> Floats:
        """By block."""
        many = np.minimum(laid.time, len(self.weights)).astype(np.int64)
        return self._by_block(laid, laid.width * (self._sum[many] + (laid.time - many) * self._at[many]))

    def bounds(self, laid: Stretches) -> tuple[Floats, Floats, Floats]:
        """What a unit of time at each speed adds at most to the worth of its own block, and in each block what a unit at a
        higher speed adds, and what is there without any."""
        end = np.minimum(laid.time + _USED, len(self.weights)).astype(np.int64)
        slope = self._at[end]
        reached = np.minimum(np.maximum(self._speed[:, None] - laid.low, 0.0), laid.width)
        mine = (reached * (self.block[:, None] == laid.block)) @ slope
        without = self._by_block(laid, laid.width * (self._sum[end] - end * slope))
        return mine, self._by_block(laid, laid.width * slope), without

    def _by_block(self, laid: Stretches, column: Floats) -> Floats:
        total: Floats = np.bincount(laid.block, column, minlength=self.blocks).astype(np.float64, copy=False)
        return total

    def dealt(self, layout: Layout) -> Floats:
        """The speed of each member."""
        time = np.concatenate(([0.0], layout.until))
        work = np.concatenate(([0.0], np.cumsum(np.diff(time) * layout.speed)))
        each: Floats = np.diff(np.interp(np.arange(len(self.weights) + 1), time, work))
        return each


def most_by_weight(supply: Supply, weight: Floats, near: Near) -> tuple[Floats, Floats, Near]:
    """`weight` is by job, above 0. The time on each way, the speed of each job as a part of its class's fastest, and
    what proves the optimum; `near` is such of another moment."""
    order = np.lexsort((-weight, supply.of))
    members = np.split(order, np.cumsum(supply.count.astype(np.int64))[:-1])
    speeds = np.split(supply.ways.sides.speed, supply.ways.sides.first[1:-1])
    ranked = [Ranked(weight[mine], speed) for mine, speed in zip(members, speeds)]
    program = _Bounded(supply.name, supply.ways, ranked, supply.classes.keys, near)
    used, proof = program.solve()
    speed = np.zeros(len(weight))
    for mine, rank, layout in zip(members, ranked, program.layouts(used)):
        speed[mine] = rank.dealt(layout).round(_DIGITS)
    return used, speed, proof


@dataclass(frozen=True)
class _Laid:
    """A class's supply, and what it is worth by block."""

    layout: Layout
    stretches: Stretches
    worth: Floats


class _Bounded:
    """The program: a column for each way, then for each block of each class its worth, then the time at higher speeds than its
    own. Rows for resources, for the time of each class, for the time above each block, then the bounds."""

    def __init__(self, name: str, ways: Ways, ranked: Sequence[Ranked], keys: Sequence[Any], near: Near) -> None:
        self.ways, self.ranked, self.keys = ways, ranked, keys
        sides, width, classes, resources = ways.sides, len(ways), len(ranked), len(ways.there_is)
        blocks = np.array([rank.blocks for rank in ranked])
        self._first: Ints = np.concatenate(([0], blocks.cumsum()))  # by class: where its blocks begin among all
        every = int(self._first[-1])
        block = np.concatenate([rank.block for rank in ranked]) + self._first[sides.owner]  # of each side
        self._worth, self._above = width, width + every
        way, resource = (ways.use > 0).nonzero()
        later = np.delete(np.arange(every), self._first[:-1][blocks > 0])  # blocks with another one above
        higher = resources + classes + np.arange(every)  # rows, by block
        follows = (block + 1 < self._first[sides.owner + 1]).nonzero()[0]  # sides that are above some block
        entries = (
            np.concatenate((resource, resources + sides.owner, higher, higher[later], higher[block[follows] + 1])),
            np.concatenate((way, sides.way, self._above + np.arange(every), self._above + later - 1, sides.way[follows])),
            np.concatenate(
                (ways.use[way, resource], sides.weight, np.ones(every), -np.ones(len(later)), -sides.weight[follows])
            ),
        )
        named = [*keys, ()]
        whose = (ways.one.tolist(), ways.two.tolist(), ways.types.tolist())
        place = lots((named[one], named[two], kind, speed) for one, two, kind, speed in zip(*whose, ways.speed.tolist()))
        self._cost: Floats = -_APART * place * ways.speed
        cost = np.concatenate((self._cost, np.ones(every), np.zeros(every)))
        most = [(rank.ends[:-1] - rank.ends[1:]) * rank.weights.sum() for rank in ranked]
        upper = np.concatenate((np.full(width, np.inf), *most, np.full(every, np.inf)))
        count = np.array([len(rank.weights) for rank in ranked], dtype=np.float64)
        room = np.concatenate((1.0 * ways.there_is, count, np.zeros(every)))
        self._base = len(room)
        self._whose = [(named[one], named[two], kind) for one, two, kind in zip(*whose)]
        likely = np.array([way in near.ways for way in self._whose], dtype=np.bool_)
        first = np.concatenate(((ways.two < 0) | likely, np.ones(2 * every, dtype=np.bool_)))
        bounds = (np.zeros(len(cost)), upper, np.full(len(room), -np.inf), room)
        self.program = Sifted(name, Model(cost, *bounds, entries), first, tolerance=1e-10)
        laid: list[tuple[int, Layout, Stretches, Ints]] = []
        self._bounds: list[tuple[int, Layout, int]] = []  # by row: a class, a layout, a block
        for group, (rank, key) in enumerate(zip(ranked, keys)):
            known = near.bounds.get(key, ())
            some = [(_even(rank, part), np.arange(rank.blocks)) for part in (_PARTS[:1] if known else _PARTS)]
            some += [(layout, blocks[blocks < rank.blocks]) for layout, blocks in known]
            laid += [(group, layout, rank.stretches(layout), blocks) for layout, blocks in some]
        self._bind(laid)

    def solve(self) -> tuple[Floats, Near]:
        """The time on each way, and what proves that it is the optimum."""
        best, used = -np.inf, np.zeros(len(self.ways))
        laid: Sequence[_Laid] = ()
        for _ in range(_ROUNDS):
            found = self.program.solve()
            time, thought = found.values[: self._worth].clip(min=0.0), found.values[self._worth : self._above]
            laid = self._laid(self.layouts(time), laid)
            worth = np.concatenate([one.worth for one in laid])
            value = float(worth.sum() + self._cost @ time)
            if value > best:
                best, used = value, time
            gap = (found.objective - best) / max(found.objective, 1e-300)
            short = thought - worth > _USED * np.maximum(worth, 1.0)
            if gap <= _GAP or (not short.any() and gap <= _EXACT):
                return used, self._proof(used, found.duals[self._base :] > _USED)
            if not short.any():
                break
            parts = [short[begin:end] for begin, end in pairwise(self._first.tolist())]
            self._bind(
                [(g, laid[g].layout, laid[g].stretches, part.nonzero()[0]) for g, part in enumerate(parts) if part.any()]
            )
        raise SolverError(self.program.name, f"no optimum in {_ROUNDS} rounds")

    def layouts(self, time: Floats) -> list[Layout]:
        """By class."""
        sides = self.ways.sides
        amount = time[sides.way] * sides.weight
        used = (amount > _USED).nonzero()[0]
        ends = sides.owner[used].searchsorted(np.arange(len(self.ranked) + 1))
        speed, amount = sides.speed[used], amount[used]
        return [Layout(speed[begin:end], amount[begin:end].cumsum()) for begin, end in pairwise(ends)]

    def _laid(self, layouts: Sequence[Layout], before: Sequence[_Laid]) -> Sequence[_Laid]:
        """By class; in most rounds many are laid out as before."""
        laid: list[_Laid] = []
        for group, (rank, layout) in enumerate(zip(self.ranked, layouts)):
            if before and layout.is_as(before[group].layout):
                laid.append(before[group])
            else:
                stretches = rank.stretches(layout)
                laid.append(_Laid(layout, stretches, rank.worth(stretches)))
        return laid

    def _bind(self, bounds: Sequence[tuple[int, Layout, Stretches, Ints]]) -> None:
        """Bounds by layouts of classes, on some of their blocks."""
        sides = self.ways.sides
        rows: list[Ints] = []
        columns: list[Ints] = []
        values: list[Floats] = []
        above: list[Floats] = []
        made = 0
        for group, layout, laid, blocks in bounds:
            rank, first, many = self.ranked[group], int(self._first[group]) + blocks, len(blocks)
            mine, higher, without = rank.bounds(laid)
            row = np.full(rank.blocks, -1, dtype=np.int64)
            row[blocks] = np.arange(made, made + many)
            own = row[rank.block]
            some = ((own >= 0) & (mine > 0)).nonzero()[0]
            side = sides.first[group] + some
            rows += [own[some], row[blocks], row[blocks]]
            columns += [sides.way[side], self._worth + first, self._above + first]
            values += [-mine[some] * sides.weight[side], np.ones(many), -higher[blocks]]
            above.append(without[blocks])
            self._bounds += [(group, layout, block) for block in blocks.tolist()]
            made += many
        entries = (np.concatenate(rows), np.concatenate(columns), np.concatenate(values))
        self.program.add_rows(np.full(made, -np.inf), np.concatenate(above), entries)

    def _proof(self, used: Floats, holds: Bools) -> Near:
        held: dict[int, tuple[int, Layout, list[int]]] = {}
        for at in holds.nonzero()[0].tolist():
            group, layout, block = self._bounds[at]
            held.setdefault(id(layout), (group, layout, []))[2].append(block)
        bounds: dict[Any, list[tuple[Layout, Ints]]] = {}
        for group, layout, blocks in held.values():
            bounds.setdefault(self.keys[group], []).append((layout, np.array(blocks)))
        return Near(bounds, frozenset(self._whose[way] for way in (used > _USED).nonzero()[0].tolist()))


def _even(rank: Ranked, part: float) -> Layout:
    """As if so many of the members ran at full speed."""
    return Layout(rank.ends[:1], np.array([float(round(part * len(rank.weights)))]))
