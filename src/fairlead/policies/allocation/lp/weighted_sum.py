"""The maximal weighted sum of throughputs, each job with its own weight, over a throughput polytope:

    max Σ_m weight_m · r_m    such that the demands r can be disaggregated from the time Y

Inside a class, the time goes from the fastest column to the heaviest member, one unit each. With U(τ) = Σ_{w: T_w > τ} Y_w, the
time at speeds above τ, and F(u) the weight of the u heaviest members, this is worth

    V_g(Y) = ∫ F(U(τ)) dτ

F is concave, and so is V; a tangent of F at each τ is a linear bound on it. So the program has a column for each way to run and
a few for the value of each class, and rows only for bounds that some solution has violated: its layout says where the tangents
touch. The speeds of a class are cut into blocks with their own bounds: one bound for a whole class would be wrong everywhere as
soon as it is wrong at one speed. It ends in an exact optimum; bounds of the last one are kept as layouts, which saves time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import INFINITY, ZERO
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.colocation_columns import ThroughputColumns
from fairlead.policies.allocation.lp.job_classes import column_hash_fractions
from fairlead.policies.allocation.lp.program import ColumnGeneration, Model, Program
from fairlead.policies.allocation.lp.rank_weights import USED, RankWeights, SpeedLayouts, ranges
from fairlead.policies.allocation.lp.throughput_polytope import ThroughputPolytope

_ROUNDS = 500
_GAP = 1e-11
_EXACT = 1e-8  # the gap that rounding may leave when no bound is violated
_PARTS = (0.0, 0.5)  # of a class's members at full speed: where the first tangents touch
_DIGITS = 10  # of speeds, so that equal speeds stay equal on every path of the solver
_APART = 1e-7
"""Tie break: up to this fraction of a fastest type's speed at full weight, equal columns differ in value."""

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class WarmStart:
    """The proof of an optimum: layouts by class key, the blocks on which their bounds held, and the used columns."""

    keys: Sequence[Any] = ()
    layouts: SpeedLayouts = field(default_factory=SpeedLayouts.none)
    layout: Ints = field(default_factory=_NONE.copy)  # by bound that held
    block: Ints = field(default_factory=_NONE.copy)
    cols: Sequence[tuple[Any, Any, int]] = ()

    def known_to(self, keys: Sequence[Any], able: Sequence[bool]) -> WarmStart:
        """The part about classes with these keys that are `able` to run."""
        place = {key: group for group, (key, can) in enumerate(zip(keys, able)) if can}
        group = np.array([place.get(key, -1) for key in self.keys], dtype=np.int64)
        kept = (group >= 0).nonzero()[0]
        number = np.full(len(group), -1, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        layout = number[self.layout]
        cols = [
            (place[one], place.get(two, -1), type_)
            for one, two, type_ in self.cols
            if one in place and (two == () or two in place)
        ]
        some = layout >= 0
        layouts = self.layouts.only(kept).of(group[kept])
        return WarmStart([self.keys[at] for at in kept.tolist()], layouts, layout[some], self.block[some], cols)


def maximize_weighted_sum(polytope: ThroughputPolytope, weight: Floats, near: WarmStart) -> tuple[Floats, Floats, WarmStart]:
    """The time by column, the speed of each job as a part of its class's fastest, and a warm start. `weight` is above 0."""
    order = np.lexsort((-weight, polytope.class_of))
    near = near.known_to(polytope.classes.keys, (np.diff(polytope.cols.sides.first) > 0).tolist())
    ranks = RankWeights(weight[order], polytope.count.astype(np.int64), polytope.cols.sides, near.layouts.speed)
    program = _Bounded(polytope.name, polytope.cols, ranks, polytope.classes.keys, near)
    used, proof = program.solve()
    speed = np.zeros(len(weight))
    speed[order] = ranks.member_speeds(ranks.laid(used)).round(_DIGITS)
    return used, speed, proof


class _Bounded:
    """The program: a column for each way to run, then for each block of each class its value, then the time at higher speeds.
    Rows for resources, for the time of each class, for the time above each block, then the bounds."""

    def __init__(self, name: str, cols: ThroughputColumns, ranks: RankWeights, keys: Sequence[Any], near: WarmStart) -> None:
        self.cols, self.ranks, self.keys = cols, ranks, keys
        sides, width, classes, resources = cols.sides, len(cols), len(ranks.count), len(cols.available)
        first, every = ranks.first, int(ranks.first[-1])
        block = ranks.block + first[sides.owner]  # of each side
        self._worth, self._above = width, width + every
        col, resource = (cols.use > 0).nonzero()
        later = np.delete(np.arange(every), first[:-1][ranks.blocks > 0])  # blocks with another one above
        higher = resources + classes + np.arange(every)  # rows, by block
        follows = (block + 1 < first[sides.owner + 1]).nonzero()[0]  # sides that are above some block
        entries = (
            np.concatenate((resource, resources + sides.owner, higher, higher[later], higher[block[follows] + 1])),
            np.concatenate((col, sides.col, self._above + np.arange(every), self._above + later - 1, sides.col[follows])),
            np.concatenate(
                (cols.use[col, resource], sides.weight, np.ones(every), -np.ones(len(later)), -sides.weight[follows])
            ),
        )
        self._cost: Floats = -_APART * column_hash_fractions(keys, cols.one, cols.two, cols.types, cols.speed) * cols.speed
        cost = np.concatenate((self._cost, np.ones(every), np.zeros(every)))
        most = ranks.width * ranks.total[ranks.by_block]
        upper = np.concatenate((np.full(width, np.inf), most, np.full(every, np.inf)))
        room = np.concatenate((1.0 * cols.available, ranks.count, np.zeros(every)))
        self._base = len(room)
        likely = np.zeros((classes, classes + 1, resources), dtype=np.bool_)  # the last class means no co-location
        if near.cols:
            likely[tuple(np.array(near.cols).T)] = True
        initial = np.concatenate(((cols.two < 0) | likely[cols.one, cols.two, cols.types], np.ones(2 * every, dtype=np.bool_)))
        bounds = (np.zeros(len(cost)), upper, np.full(len(room), -np.inf), room)
        self.program = ColumnGeneration(name, Model(cost, *bounds, entries), initial, tolerance=1e-10)
        self._layouts: list[SpeedLayouts] = []
        self._bound: list[tuple[Ints, Ints]] = []  # by row: a layout, counted over all of these, and a block
        self._bind(*self._first_bounds(near))

    def _first_bounds(self, near: WarmStart) -> tuple[SpeedLayouts, Bools]:
        ranks = self.ranks
        all_ = ranks.blocks.nonzero()[0]
        new = np.setdiff1d(all_, near.layouts.group)
        some = [ranks.even(all_, _PARTS[0]), *(ranks.even(new, part) for part in _PARTS[1:])]
        laid = SpeedLayouts.joined(*some, near.layouts)
        order = laid.group.argsort(kind="stable")
        blocks = ranks.blocks[laid.group]
        begin = blocks.cumsum() - blocks
        wanted = np.ones(int(blocks.sum()), dtype=np.bool_)
        known = len(laid.group) - len(near.layouts.group)
        wanted[int(blocks[:known].sum()) :] = False
        held = near.block < blocks[known + near.layout]
        wanted[(begin[known + near.layout] + near.block)[held]] = True
        in_order = ranges(begin[order], blocks[order])
        return laid.only(order), wanted[in_order]

    def solve(self) -> tuple[Floats, WarmStart]:
        """The time on each column, and the warm start that proves the optimum."""
        best, used = -np.inf, np.zeros(len(self.cols))
        for _ in range(_ROUNDS):
            found = self.program.solve()
            time, thought = found.values[: self._worth].clip(min=0.0), found.values[self._worth : self._above]
            laid = self.ranks.laid(time)
            worth = self.ranks.worth(laid)
            value = float(worth.sum() + self._cost @ time)
            if value > best:
                best, used = value, time
            gap = (found.objective - best) / max(found.objective, 1e-300)
            short = thought - worth > USED * np.maximum(worth, 1.0)
            if gap <= _GAP or (not short.any() and gap <= _EXACT):
                return used, self._proof(used, found.duals[self._base :] > USED)
            if not short.any():
                break
            some = np.bincount(self.ranks.by_block[short], minlength=len(self.ranks.count))[laid.group].nonzero()[0]
            self._bind(laid.only(some), short[np.isin(self.ranks.by_block, laid.group[some])])
        raise SolverError(self.program.name, f"no optimum in {_ROUNDS} rounds")

    def _bind(self, laid: SpeedLayouts, wanted: Bools) -> None:
        """Add the bounds of layouts on their `wanted` blocks."""
        ranks, sides = self.ranks, self.cols.sides
        rows, side, mine, higher, without = ranks.bounds(laid)
        blocks = ranks.blocks[laid.group]
        layout, block = np.arange(len(blocks)).repeat(blocks)[wanted], ranges(0 * blocks, blocks)[wanted]
        made = len(block)
        row = np.full(len(wanted), -1, dtype=np.int64)
        row[wanted] = np.arange(made)
        own = row[rows]
        some = (own >= 0).nonzero()[0]
        side, column = side[some], ranks.first[laid.group[layout]] + block
        entries = (
            np.concatenate((own[some], np.arange(made), np.arange(made))),
            np.concatenate((sides.col[side], self._worth + column, self._above + column)),
            np.concatenate((-mine[some] * sides.weight[side], np.ones(made), -higher[wanted])),
        )
        self._bound.append((layout + sum(len(one.group) for one in self._layouts), block))
        self._layouts.append(laid)
        self.program.add_rows(np.full(made, -np.inf), without[wanted], entries)

    def _proof(self, used: Floats, holds: Bools) -> WarmStart:
        layout, block = (np.concatenate(column)[holds] for column in zip(*self._bound))
        kept, layout = np.unique(layout, return_inverse=True)
        laid = SpeedLayouts.joined(*self._layouts).only(kept)
        named, cols = [*self.keys, ()], (used > USED).nonzero()[0]
        whose = zip(self.cols.one[cols].tolist(), self.cols.two[cols].tolist(), self.cols.types[cols].tolist())
        return WarmStart(
            [self.keys[group] for group in laid.group.tolist()],
            laid,
            layout,
            block,
            [(named[one], named[two], type_) for one, two, type_ in whose],
        )


_JOB_GAP = 1e-9
_FEW = 16  # jobs in the first program
_PART = 4


def solve_by_job(
    speed: Floats, load: Floats, weight: Floats, capacity: Floats, near: Floats | None = None
) -> tuple[Ints, Floats, Floats]:
    """max Σ_m weight_m · Σ_j speed_jm · x_mj: the jobs with time, their time by type, and the price of each type. Only jobs
    near another response than their best at the prices are in the program; others join it where new prices change theirs."""
    types, count = speed.shape
    if near is None:
        near = np.zeros(types)
        if count > _FEW:  # what a sample of the jobs would pay for a part of the cluster
            near = solve_by_job(speed[:, ::_PART], load[::_PART], weight[::_PART], capacity / _PART)[2]
    gain, prices = np.where(speed > ZERO, speed * weight, -INFINITY), near
    net = _net(gain, load, near)
    best = net.max(axis=0)
    wants = (best >= ZERO).nonzero()[0]
    theirs = net[:, wants]
    answer = theirs.argmax(axis=0)
    theirs[answer, np.arange(len(wants))] = 0.0  # in its place, to want no type
    lead = np.abs(best)  # of the answer over the next best
    lead[wants] -= theirs.max(axis=0, initial=0.0)
    few = _FEW
    open_ = _least(lead, few)
    for _ in range(_ROUNDS):
        sure = ~open_[wants]
        closed, choice = wants[sure], answer[sure]
        room = capacity - np.bincount(choice, load[closed], minlength=types)
        if room.min() < 0:  # the prices were too low: more than these are to be moved
            few *= 2
            open_ |= _least(lead, few)
            continue
        opened = open_.nonzero()[0]
        value, time, prices = _assigned(gain[:, opened], load[opened], room)
        net = _net(gain, load, prices)
        short = net.max(axis=0, initial=0.0)
        short[closed] -= net[choice, closed]
        short[opened] = ZERO
        worth = value + float(gain[choice, closed].sum())
        if short.sum() <= _JOB_GAP * max(worth, 1e-300):
            break
        open_ |= short > 0.01 * _JOB_GAP * worth / count
    else:
        raise SolverError("FIFO", f"no optimum in {_ROUNDS} rounds")
    active = np.concatenate((closed, opened))
    x = np.concatenate((choice[:, None] == np.arange(types), time))
    order = active.argsort()
    return active[order], x[order], prices


def _net(gain: Floats, load: Floats, prices: Floats) -> Floats:
    """The gain of a job on each type beyond its price."""
    net: Floats = gain - prices[:, None] * load
    return net


def _least(lead: Floats, few: int) -> Bools:
    """The `few` jobs with the least lead, the first of equals."""
    if len(lead) <= few:
        return np.ones(len(lead), dtype=np.bool_)
    last = np.partition(lead, few - 1)[few - 1]
    chosen: Bools = lead <= last
    if np.count_nonzero(chosen) > few:
        equal = (lead == last).nonzero()[0]
        chosen[equal[few - np.count_nonzero(chosen) :]] = False
    return chosen


def _assigned(gain: Floats, load: Floats, room: Floats) -> tuple[float, Floats, Floats]:
    """The program for some jobs and the room that the others leave: its value, the jobs' time by type, and the prices."""
    types, count = gain.shape
    job, type_ = np.isfinite(gain.T).nonzero()
    column = np.arange(len(job))
    none, ones = np.full(types + count, -np.inf), np.ones(len(column))
    entries = (np.concatenate((type_, types + job)), np.concatenate((column, column)), np.concatenate((load[job], ones)))
    above = np.concatenate((room, np.ones(count)))
    found = Program("FIFO", Model(gain[type_, job], 0.0 * ones, ones, none, above, entries)).solve()
    x = np.zeros((count, types))
    x[job, type_] = np.maximum(found.values, ZERO)
    return found.objective, x, np.maximum(found.duals[:types], ZERO)
