"""Water filling: levels rise together until nobody can be lifted without lowering somebody else (Gavel §4.3, §4.4).

The level of a job is s_m·throughput(m, X) / throughput(m, X_equal), for agnostic forms s_m·Σ_j x_mj. Jobs belong to parties.
The levels of a party add up to B_e, which grows as fast as its weight while any of its jobs can be lifted; inside, a party
shares it out by weighted fairness, level_m = min(w_m·λ_e, cap_m), or in order, each job up to its cap before the next.

A cap is at first what a job reaches alone. Levels rise until the cluster is full, which prices p for the types' time prove: at
these the levels cost all there is. Since levels never fall, that stays so, and whoever could rise only on types that have a
price is capped where it stands, the others where they would begin to pay. From then on nobody needs more of those types, so
the next prices are for another one: with J types the cluster fills up at most J times, whatever the weights and however many
the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.classes import classes_of
from fairlead.policies.max_min import even_mix, normalised, nothing
from fairlead.policies.room import Fit, Room

DUST = 1e-9
"""A type has a price if all of its time costs more than this part of what all types cost."""

_STEPS = 300


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Equal, weighted time for all, and what some cannot use goes to the others: water filling that knows no types."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return filled(view, Parties.one(len(view.jobs)), aware=False), memo


@dataclass(frozen=True)
class MaxMinFairnessWaterFillingPerf:
    """Equal, weighted progress for all, and what some cannot use goes to the others: heterogeneity-aware water filling.

    Pareto efficient: no job's throughput can be raised without lowering another's.
    """

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return filled(view, Parties.one(len(view.jobs)), aware=True), memo


@dataclass(frozen=True)
class Parties:
    """Who shares with whom: job i belongs to party `of[i]`; `weight` and `in_order` (rather than fair) are by party."""

    of: Ints
    weight: Floats
    in_order: Bools

    @classmethod
    def one(cls, jobs: int) -> Parties:
        """All jobs together, fairly."""
        return cls(np.zeros(jobs, dtype=np.int64), np.ones(1), np.zeros(1, dtype=np.bool_))

    def only(self, chosen: Bools) -> Parties:
        """The parties of some of the jobs."""
        present, of = np.unique(self.of[chosen], return_inverse=True)
        return Parties(of, self.weight[present], self.in_order[present])


def filled(view: Snapshot, parties: Parties, *, aware: bool) -> Allocation:
    """The allocation by water filling of a view's jobs."""
    classes = classes_of(view, alike=not aware, by_weight=False)
    if not len(classes):
        return nothing(view)
    if aware:
        room = Room.at_will("water filling", normalised(classes, view.capacity), classes.workers, view.capacity)
    else:
        room = Room.in_mixes("water filling", even_mix(classes, view.capacity), classes.workers, view.capacity)
    here = classes.of >= 0
    jobs = view.jobs
    kind = classes.of[here]
    level, fit = fill(room, kind, jobs.weight[here], parties.only(here))
    time = np.zeros((len(jobs), len(view.capacity)))
    time[here] = room.time(fit, kind, level, jobs.workers[here])
    return Allocation.alone(jobs.number, time)


def fill(room: Room, kind: Ints, weight: Floats, parties: Parties) -> tuple[Floats, Fit]:
    """The level of each job, and how they all fit."""
    top = room.top[kind]
    cap, level, priced = top, np.zeros(len(kind)), np.zeros(len(room.capacity), dtype=np.bool_)
    for _ in range(len(room.capacity) + 1):
        rise = _Rise.begin(level, cap, weight, parties)
        level, fit, full_at = _until_full(room, kind, rise)
        if full_at is None:
            return level, fit
        priced = _joined(priced, full_at * room.capacity)  # full at these prices and at earlier ones is full at their sum
        cap = np.minimum(cap, np.maximum(level, room.free_level(priced)[kind]))
        if not (cap - level > 1e-12 * top).any():
            return level, fit
    raise SolverError(room.name, "prices that do not grow")


def _joined(priced: Bools, cost: Floats) -> Bools:
    """The types that have a price now. There is always a new one, however small its price."""
    rest = np.where(priced, 0.0, cost)
    return priced | (rest > min(DUST, float(rest.max()) / 2))


def _until_full(room: Room, kind: Ints, rise: _Rise) -> tuple[Floats, Fit, Floats | None]:
    """As far as there is room: the levels, how they fit, and at which prices the cluster is full (None: all are at their caps).

    From above: levels too high give prices, at which levels that are not too high are affordable; they may still be too high.
    """
    clock, prices, trace = rise.end, None, 0.0 * room.capacity
    while True:
        level = rise.levels(clock)
        fit = room.fit(room.demand(kind, level))
        if fit.has_room:
            return level, fit, prices
        trace = 1e-15 * (trace + fit.prices)  # so that a price too small for the solver is not lost
        earlier = _affordable(room, kind, rise, fit.prices, clock)
        if not earlier < clock:  # no number lies between
            if not fit.has_nearly_room:
                raise SolverError(room.name, f"levels that are too high by {fit.excess:g} and cannot be lowered")
            return level, fit, fit.prices + trace
        clock, prices = earlier, fit.prices + trace


def _affordable(room: Room, kind: Ints, rise: _Rise, prices: Floats, late: float) -> float:
    """The moment, before the `late` one, at which the levels cost all there is: a monotone function's root, by false position
    with the value at an end that stays halved (Illinois), and every fourth time by halves, as the function may be flat."""
    hull = room.hull(prices)

    def over(clock: float) -> float:
        return float((room.demand(kind, rise.levels(clock)) * hull).sum()) - 1.0

    early, below, above = 0.0, over(0.0), over(late)
    if below >= 0:
        return 0.0
    if above <= 0:
        return late
    side = 0
    for step in range(1, _STEPS):
        clock = (early * above - late * below) / (above - below)
        if step % 4 == 0 or not early < clock < late:
            clock = (early + late) / 2
            if not early < clock < late:
                break
        cost = over(clock)
        if abs(cost) <= 1e-14:
            return clock
        if cost > 0:
            late, above = clock, cost
            below = below / 2 if side > 0 else below
            side = 1
        else:
            early, below = clock, cost
            above = above / 2 if side < 0 else above
            side = -1
    return early


@dataclass(frozen=True)
class _Rise:
    """How levels rise by the clock from where they are, as long as only caps stop them.

    Jobs are in `order`: by party, and inside by submission, or by the λ at which they reach their caps where it shares fairly.
    Then λ_e = max_i (B_e − before_i) / speed_i, as B_e = Σ_m min(w_m·λ_e, cap_m) is concave in λ_e.
    """

    parties: Parties
    order: Ints
    first: Ints  # by party, where it begins
    of: Ints  # the party
    cap: Floats
    weight: Floats
    before: Floats  # the caps of those who come earlier, in the same party
    speed: Floats  # the weights of the others
    start: Floats  # by party, the sum of its levels
    room: Floats  # by party, how much its levels can rise

    @classmethod
    def begin(cls, level: Floats, cap: Floats, weight: Floats, parties: Parties) -> _Rise:
        of, count = parties.of, len(parties.weight)
        start, end = (np.bincount(of, column, minlength=count).astype(np.float64) for column in (level, cap))
        order = np.lexsort((np.where(parties.in_order[of], 0.0, cap / weight), of))
        of, cap, weight = of[order], cap[order], weight[order]
        first = of.searchsorted(np.arange(count))
        caps, weights = (np.concatenate(([0.0], np.cumsum(column))) for column in (cap, weight))
        behind = np.append(first[1:], len(of))
        before, speed = caps[:-1] - caps[first[of]], weights[behind[of]] - weights[:-1]
        if speed.min(initial=np.inf) <= 0:
            raise SolverError("water filling", "weights that differ by more than numbers can hold")
        return cls(parties, order, first, of, cap, weight, before, speed, start, np.maximum(end - start, 0.0))

    @property
    def end(self) -> float:
        """When all are at their caps."""
        return float((self.room / self.parties.weight).max())

    def levels(self, clock: float) -> Floats:
        total = self.start + np.minimum(self.parties.weight * clock, self.room)
        ahead = total[self.of] - self.before
        if not self.parties.in_order.all():
            fair = np.maximum.reduceat(ahead / self.speed, self.first)[self.of] * self.weight
            ahead = np.where(self.parties.in_order[self.of], ahead, fair)
        level = np.empty(len(self.of))
        level[self.order] = np.clip(ahead, 0.0, self.cap)
        return level
