"""Water filling: levels rise together until no job can be raised without lowering another (Gavel §4.3, §4.4).

The level of a job is s_m·throughput(m, X) / throughput(m, X_equal), for agnostic forms s_m·Σ_j x_mj. Jobs belong to groups. The
levels of a group add up to B_e, which grows as fast as its weight while any of its jobs can be raised. Inside, a group divides
it by weighted fairness, level_m = min(w_m·λ_e, cap_m), or in order, each job up to its cap before the next. A group of
groups divides its sum among them in the same way, by weighted fairness.

A cap is at first what a job reaches alone. Levels rise until the cluster is full, which prices p for the types' time prove: at
these, the levels cost the whole budget. Since levels never fall, this stays true. A job that could rise only on types with a
price is capped at its level, the others where they would begin to pay. From then on no job needs more of those types, so the
next prices are for another type: with J types the cluster fills at most J times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.demand_model import PricedModel
from fairlead.policies.allocation.lp.level_search import FitResult, PricedFit
from fairlead.policies.allocation.lp.throughput_polytope import PolytopeFit, SortedDemands, SpeedPrices, ThroughputPolytope

DUST = 1e-9
"""Costs of at most this fraction of the cluster count as 0."""

_TRACE = 1e-15
_REMEMBERED = 8


F = TypeVar("F", bound=FitResult)


class FillModel(ABC, Generic[F]):
    """The model that is filled: how levels fit, and which jobs rise for free. `top` is by job; it fills at most `times`."""

    def __init__(self, name: str, top: Floats, times: int) -> None:
        self.name, self.top, self.times = name, top, times

    @abstractmethod
    def fit(self, level: Floats) -> F: ...
    @abstractmethod
    def cost(self, fit: F) -> Callable[[Floats], float]: ...
    @abstractmethod
    def record_full(self, fit: F) -> None:
        """Remember the prices of a fit."""

    @abstractmethod
    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """By job, the level that is free at the prices of the last overflow and all before."""

    def known(self, rise: _Rise) -> Sequence[F]:
        """Fits whose prices may be good for levels as they rise."""
        return ()

    def self_pairs(self, level: Floats, fit: F) -> bool:
        """Whether levels fit, but cannot be disaggregated."""
        return False


class _OfTypes(FillModel[F]):
    """With J types it fills at most J times: from a full type on, no job needs more of it."""

    def __init__(self, name: str, top: Floats, capacity: Ints) -> None:
        super().__init__(name, top, len(capacity) + 1)
        self._capacity = capacity
        self._prices: Floats = np.zeros(len(capacity))
        self._priced: Bools = np.zeros(len(capacity), dtype=np.bool_)

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """Full at these prices and at earlier ones is full at their sum. There is always a new price, however small."""
        rest = np.where(self._priced, 0.0, self._prices * self._capacity)
        self._priced = self._priced | (rest > min(DUST, float(rest.max()) / 2))
        self._prices = 0.0 * self._prices
        return self._without(self._priced)

    @abstractmethod
    def _without(self, priced: Bools) -> Floats:
        """By job, the level that it reaches without these types."""


class FlexibleFill(_OfTypes[PricedFit]):
    """Jobs use types in any mix."""

    def __init__(self, demands: PricedModel, top: Floats) -> None:
        super().__init__(demands.name, top, demands.capacity)
        self._demands, self._unit = demands, demands.fastest / top

    def to_demands(self, level: Floats) -> Any:
        return self._demands.to_demands(level * self._unit)

    def fit(self, level: Floats) -> PricedFit:
        return self._demands.fit(self.to_demands(level), at_least=True)

    def known(self, rise: _Rise) -> Sequence[PricedFit]:
        if any(one.in_order.any() for one in rise.divisions):  # one job after the other rises: not smooth enough
            return ()
        return self._demands.likely_fits(lambda clock: rise.levels(clock) * self._unit, rise.end)

    def record_full(self, fit: PricedFit) -> None:
        """Keep a trace of earlier prices: a price too small for the solver is not lost if it was once larger."""
        self._prices = fit.prices + _TRACE * self._prices

    def cost(self, fit: PricedFit) -> Callable[[Floats], float]:
        cost = self._demands.cost_at(fit.prices)
        return lambda level: cost(level * self._unit)

    def _without(self, priced: Bools) -> Floats:
        fastest: Floats = np.where(priced, 0.0, self._demands.classes.rates).max(axis=1)
        level: Floats = fastest[self._demands.class_of] / self._unit
        return level


@dataclass(frozen=True)
class MixLoad(FitResult):
    """The excess, and the fullest type."""

    fullest: int


class FixedMixFill(_OfTypes[MixLoad]):
    """Jobs use types in fixed proportions, jobs × types; their level is their accelerator time."""

    def __init__(self, mix: Floats, workers: Ints, capacity: Ints) -> None:
        super().__init__("water filling", workers.astype(np.float64), capacity)
        self._use = mix / np.maximum(capacity, 1)

    def fit(self, level: Floats) -> MixLoad:
        load = level @ self._use
        return MixLoad(float(load.max()) - 1.0, int(load.argmax()))

    def record_full(self, fit: MixLoad) -> None:
        self._prices = np.zeros(len(self._capacity))
        self._prices[fit.fullest] = 1.0 / self._capacity[fit.fullest]

    def cost(self, fit: MixLoad) -> Callable[[Floats], float]:
        use = self._use[:, fit.fullest]
        return lambda level: float(level @ use)

    def _without(self, priced: Bools) -> Floats:
        return np.where((self._use[:, priced] > 0).any(axis=1), 0.0, self.top)


class PolytopeFill(FillModel[PolytopeFit]):
    """Jobs may be co-located or spread. It fills at most as often as classes have speeds."""

    def __init__(self, polytope: ThroughputPolytope, top: Floats, earlier: PolytopeFill | None = None) -> None:
        """`earlier` was filled with the same jobs in larger classes: what exceeded it exceeds this one."""
        super().__init__(polytope.name, top, len(polytope.cols.sides.col) + len(polytope.classes) + 1)
        self._polytope = polytope
        self._bill = SpeedPrices(np.zeros((len(polytope.classes), 0)), np.zeros((len(polytope.classes), 0)))
        self._known: list[tuple[PolytopeFit, Callable[[Floats], float]]] = []
        self._free = np.ones(len(polytope.classes))  # by class, as a part of its fastest
        if earlier is not None:
            origin = polytope.start_from(earlier._polytope)
            fits = [replace(fit, bill=fit.bill.split(origin)) for fit, _ in earlier._known]
            self._known = [(fit, self._cost(fit)) for fit in fits]
            self._free = earlier._free[origin]

    def to_demands(self, level: Floats) -> SortedDemands:
        return self._polytope.to_demands(level / self.top * self._polytope.fastest)

    def fit(self, level: Floats) -> PolytopeFit:
        return self._polytope.fit(self.to_demands(level), at_least=True)

    def used(self, fit: PolytopeFit) -> Floats:
        """The time on each column, no more than there is."""
        return fit.used / (1.0 + max(fit.excess, 0.0))

    def self_pairs(self, level: Floats, fit: PolytopeFit) -> bool:
        return bool(self._polytope.beside_themselves(self.to_demands(level), self.used(fit)))

    def record_full(self, fit: PolytopeFit) -> None:
        self._bill = fit.bill
        others = [known for known in self._known if known[0] is not fit]
        self._known = [(fit, self.cost(fit)), *others][:_REMEMBERED]

    def known(self, rise: _Rise) -> Sequence[PolytopeFit]:
        return [fit for fit, _ in self._known]

    def cost(self, fit: PolytopeFit) -> Callable[[Floats], float]:
        return next((cost for known, cost in self._known if known is fit), None) or self._cost(fit)

    def _cost(self, fit: PolytopeFit) -> Callable[[Floats], float]:
        job, column = (fit.bill.price > 0)[self._polytope.class_of].nonzero()
        of, top = self._polytope.class_of[job], self.top[job]
        speed, price = fit.bill.speed[of, column] * top, fit.bill.price[of, column] / top
        return lambda level: float(np.maximum(level[job] - speed, 0.0) @ price)

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """No job goes beyond the least speed that has a price. This always stops some job."""
        of, bill = self._polytope.class_of, self._bill
        rising = (cap - level > 1e-12 * self.top).nonzero()[0]
        open_ = np.zeros(len(self._free), dtype=np.bool_)
        open_[of[rising]] = True
        price = np.where((bill.speed < self._free[:, None]) & open_[:, None], bill.price, 0.0)
        dear = price > min(DUST, float(price.max(initial=0.0)) / 2)
        least = np.where(dear, bill.speed, np.inf).min(axis=1)
        self._free = np.minimum(self._free, least)
        free: Floats = self._free[of] * self.top
        return free


_STEPS = 300
_SURE = 1e-5  # how clearly earlier prices must show that levels are below or above full
_AROUND = 1e-6


@dataclass(frozen=True)
class ShareGroups:
    """Groups that share: job i belongs to group `of[i]`; `weight` and `in_order` (instead of fair) are by group. `above` are
    groups of these groups."""

    of: Ints
    weight: Floats
    in_order: Bools
    above: ShareGroups | None = None

    @classmethod
    def one(cls, jobs: int) -> ShareGroups:
        """All jobs in one fair group."""
        return cls(np.zeros(jobs, dtype=np.int64), np.ones(1), np.zeros(1, dtype=np.bool_))

    def only(self, chosen: Bools | Ints) -> ShareGroups:
        """The groups of some of the jobs."""
        present, of = np.unique(self.of[chosen], return_inverse=True)
        above = None if self.above is None else self.above.only(present)
        return ShareGroups(of, self.weight[present], self.in_order[present], above)


@dataclass(frozen=True)
class FillResult(Generic[F]):
    """Levels by job, their fit, and the levels and caps from which they rose the last time."""

    level: Floats
    fit: F
    before: Floats
    cap: Floats


def fill_levels(model: FillModel[F], weight: Floats, groups: ShareGroups, so_far: FillResult[F] | None = None) -> FillResult[F]:
    """The level of each job. `so_far` are levels with self-pairing of larger classes; filling resumes before them."""
    top = model.top
    level, cap = (np.zeros(len(top)), top) if so_far is None else (so_far.before, so_far.cap)
    for _ in range(model.times):
        before, (level, fit, full) = level, _until_full(model, _Rise.begin(level, cap, weight, groups))
        reached = FillResult(level, fit, before, cap)
        if not full or model.self_pairs(level, fit):
            return reached
        cap = np.minimum(cap, np.maximum(level, model.free_level(level, cap)))
        if not (cap - level > 1e-12 * top).any():
            return reached
    raise SolverError(model.name, "prices that do not grow")


def _until_full(model: FillModel[F], rise: _Rise) -> tuple[Floats, F, bool]:
    """Raise levels as far as there is room, from above, by the prices of levels that are too high: the levels, their fit, and
    whether the cluster is full."""
    clock, full = rise.end, False
    start, level = rise.levels(0.0), rise.levels(clock)
    for earlier in model.known(rise):
        cost = model.cost(earlier)
        below, above = cost(start) - 1.0, cost(level) - 1.0
        if below < -_SURE and above > _SURE:
            clock, full = _affordable(rise, cost, clock, below, above), True
            level = rise.levels(clock)
            model.record_full(earlier)
    while True:
        fit = model.fit(level)
        if fit.has_room:
            return level, fit, full
        model.record_full(fit)
        cost, full = model.cost(fit), True
        before = _affordable(rise, cost, clock, cost(start) - 1.0, cost(level) - 1.0)
        if not before < clock:  # no number lies between
            if not fit.has_nearly_room:
                raise SolverError(model.name, "levels that are too high and cannot be lowered")
            return level, fit, full
        clock, level = before, rise.levels(before)


def _affordable(rise: _Rise, cost: Callable[[Floats], float], late: float, below: float, above: float) -> float:
    """The moment before `late` at which the levels cost the budget, by false position (Illinois) and bisection. `below` and
    `above` are the costs beyond the budget at the start and the end."""
    early = 0.0
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
        value = cost(rise.levels(clock)) - 1.0
        if abs(value) <= 1e-13:
            early = clock
            break
        if value > 0:
            late, above = clock, value
            below = below / 2 if side > 0 else below
            side = 1
        else:
            early, below = clock, value
            above = above / 2 if side < 0 else above
            side = -1
    return _apart_from_search(rise, cost, early)


def _apart_from_search(rise: _Rise, cost: Callable[[Floats], float], clock: float) -> float:
    """The same moment from seven of its digits and the costs around it, so that its bytes do not depend on the search."""
    near = float(significant(np.array(clock)))
    first, last = near * (1.0 - _AROUND), near * (1.0 + _AROUND)
    below, above = (cost(rise.levels(at)) - 1.0 for at in (first, last))
    if not below < 0 < above:
        return clock
    exact = (first * above - last * below) / (above - below)
    return exact if abs(cost(rise.levels(exact)) - 1.0) <= 1e-13 else clock


@dataclass(frozen=True)
class _Division:
    """How the sums of groups are divided among their members while only caps limit these. Members are in `order`: by group,
    and inside by submission or λ at the cap; then λ_e = max_i (B_e − before_i) / speed_i, as B_e = Σ_m min(w_m·λ_e, cap_m) is
    concave in λ_e."""

    order: Ints
    first: Ints  # by group, where it begins
    of: Ints  # the group
    cap: Floats
    weight: Floats
    before: Floats  # the caps of earlier members of the same group
    speed: Floats  # the weights of the others
    in_order: Bools  # by group
    none_fair: bool  # whether all groups divide in order

    @classmethod
    def begin(cls, cap: Floats, weight: Floats, groups: ShareGroups) -> _Division:
        of, count = groups.of, len(groups.weight)
        order = np.lexsort((np.where(groups.in_order[of], 0.0, cap / weight), of))
        of, cap, weight = of[order], cap[order], weight[order]
        first = of.searchsorted(np.arange(count))
        caps = np.concatenate(([0.0], np.cumsum(cap)))
        before = caps[:-1] - caps[first[of]]
        # From behind and group by group: differences of sums would lose small weights.
        parts = [np.cumsum(part[::-1])[::-1] for part in np.split(weight, first[1:])]
        speed = np.concatenate(parts) if parts else weight
        return cls(order, first, of, cap, weight, before, speed, groups.in_order, bool(groups.in_order.all()))

    def divide(self, total: Floats) -> Floats:
        """By member, its part of the sums by group."""
        ahead = total[self.of] - self.before
        if not self.none_fair:
            fair = np.maximum.reduceat(ahead / self.speed, self.first)[self.of] * self.weight
            ahead = np.where(self.in_order[self.of], ahead, fair)
        level = np.empty(len(self.of))
        level[self.order] = np.minimum(np.maximum(ahead, 0.0), self.cap)
        return level


@dataclass(frozen=True)
class _Rise:
    """How levels rise with the clock while only caps stop them: first the sums of the uppermost groups, by weight; these are
    divided down to the jobs."""

    weight: Floats  # by uppermost group
    start: Floats  # the sum of its levels
    room: Floats  # how much its levels can rise
    divisions: tuple[_Division, ...]  # from above

    @classmethod
    def begin(cls, level: Floats, cap: Floats, weight: Floats, groups: ShareGroups) -> _Rise:
        divisions: list[_Division] = []
        below: ShareGroups | None = groups
        while below is not None:
            divisions.insert(0, _Division.begin(cap, weight, below))
            level, cap = (np.bincount(below.of, one, minlength=len(below.weight)).astype(np.float64) for one in (level, cap))
            weight, below = below.weight, below.above
        return cls(weight, level, np.maximum(cap - level, 0.0), tuple(divisions))

    @property
    def end(self) -> float:
        """The moment when all are at their caps."""
        return float((self.room / self.weight).max())

    def levels(self, clock: float) -> Floats:
        total = self.start + np.minimum(self.weight * clock, self.room)
        for division in self.divisions:
            total = division.divide(total)
        return total
