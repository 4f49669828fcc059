"""What water filling fills: a cluster on which jobs are alone on types, at will or in fixed mixes, or a supply in which they
may also share accelerators or stand apart. A vessel remembers at which prices it was full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.hull_model import GridDemands, HullFit, HullModel
from fairlead.policies.allocation.lp.level_search import FitResult
from fairlead.policies.allocation.lp.throughput_polytope import PolytopeFit, SortedDemands, SpeedPrices, ThroughputPolytope

DUST = 1e-9
"""What costs no more than this part of all there is has no price."""

_TRACE = 1e-15
_REMEMBERED = 8


class _OfTypes(ABC):
    """With J types it fills up at most J times: from a full type on nobody needs more of it."""

    def __init__(self, name: str, top: Floats, capacity: Ints) -> None:
        self.name, self.top, self.times = name, top, len(capacity) + 1
        self._capacity = capacity
        self._prices: Floats = np.zeros(len(capacity))
        self._priced: Bools = np.zeros(len(capacity), dtype=np.bool_)

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """Full at these prices and at earlier ones is full at their sum. There is always a new price, however small."""
        rest = np.where(self._priced, 0.0, self._prices * self._capacity)
        self._priced = self._priced | (rest > min(DUST, float(rest.max()) / 2))
        self._prices = 0.0 * self._prices
        return self._without(self._priced)

    def clashes(self, level: Floats, fit: FitResult) -> bool:
        return False  # everybody is alone

    @abstractmethod
    def _without(self, priced: Bools) -> Floats:
        """By job, the level that it reaches without these types."""


class AtWill(_OfTypes):
    """For jobs that use types as suits the whole."""

    def __init__(self, demands: HullModel, top: Floats) -> None:
        super().__init__(demands.name, top, demands.capacity)
        self._demands, self._unit = demands, demands.fastest / top

    def required(self, level: Floats) -> GridDemands:
        return self._demands.required(level * self._unit)

    def fit(self, level: Floats) -> HullFit:
        return self._demands.fit(self.required(level))

    def overflows(self, fit: HullFit) -> None:
        """A price too small for the solver is not lost if it was once larger."""
        self._prices = fit.prices + _TRACE * self._prices

    def known(self) -> Sequence[HullFit]:
        return ()  # demands themselves know the prices of before

    def cost(self, fit: HullFit) -> Callable[[Floats], float]:
        cost = self._demands.cost_at(fit.prices)
        return lambda level: cost(level * self._unit)

    def _without(self, priced: Bools) -> Floats:
        fastest: Floats = np.where(priced, 0.0, self._demands.classes.rates).max(axis=1)
        level: Floats = fastest[self._demands.of] / self._unit
        return level


@dataclass(frozen=True)
class Load(FitResult):
    """And of which type there is least."""

    fullest: int


class InMixes(_OfTypes):
    """For jobs that use types in fixed proportions, jobs × types; their level is their accelerator time."""

    def __init__(self, name: str, mix: Floats, workers: Ints, capacity: Ints) -> None:
        super().__init__(name, workers.astype(np.float64), capacity)
        self._use = mix / np.maximum(capacity, 1)

    def fit(self, level: Floats) -> Load:
        load = level @ self._use
        return Load(float(load.max()) - 1.0, int(load.argmax()))

    def overflows(self, fit: Load) -> None:
        self._prices = np.zeros(len(self._capacity))
        self._prices[fit.fullest] = 1.0 / self._capacity[fit.fullest]

    def known(self) -> Sequence[Load]:
        return ()

    def cost(self, fit: Load) -> Callable[[Floats], float]:
        use = self._use[:, fit.fullest]
        return lambda level: float(level @ use)

    def _without(self, priced: Bools) -> Floats:
        return np.where((self._use[:, priced] > 0).any(axis=1), 0.0, self.top)


class InSupply:
    """It fills up at most as often as there are speeds of classes to be had: from then on nobody of the class goes beyond."""

    def __init__(self, supply: ThroughputPolytope, top: Floats, earlier: InSupply | None = None) -> None:
        """`earlier` was filled with the same jobs in larger classes: whatever was too much for it is too much for this one."""
        self.name, self.top = supply.name, top
        self.times = len(supply.cols.sides.col) + len(supply.classes) + 1
        self._supply = supply
        self._bill = SpeedPrices(np.zeros((len(supply.classes), 0)), np.zeros((len(supply.classes), 0)))
        self._known: list[tuple[PolytopeFit, Callable[[Floats], float]]] = []
        self._free = np.ones(len(supply.classes))  # by class, as a part of its fastest
        if earlier is not None:
            origin = supply.follows(earlier._supply)
            fits = [replace(fit, bill=fit.bill.of(origin)) for fit, _ in earlier._known]
            self._known = [(fit, self._cost(fit)) for fit in fits]
            self._free = earlier._free[origin]

    def required(self, level: Floats) -> SortedDemands:
        return self._supply.required(level / self.top * self._supply.fastest)

    def fit(self, level: Floats) -> PolytopeFit:
        return self._supply.fit(self.required(level), at_least=True)

    def used(self, fit: PolytopeFit) -> Floats:
        """The time on each way, no more than there is."""
        return fit.used / (1.0 + max(fit.excess, 0.0))

    def clashes(self, level: Floats, fit: PolytopeFit) -> bool:
        return bool(self._supply.beside_themselves(self.required(level), self.used(fit)))

    def overflows(self, fit: PolytopeFit) -> None:
        self._bill = fit.bill
        others = [known for known in self._known if known[0] is not fit]
        self._known = [(fit, self.cost(fit)), *others][:_REMEMBERED]

    def known(self) -> Sequence[PolytopeFit]:
        return [fit for fit, _ in self._known]

    def cost(self, fit: PolytopeFit) -> Callable[[Floats], float]:
        return next((cost for known, cost in self._known if known is fit), None) or self._cost(fit)

    def _cost(self, fit: PolytopeFit) -> Callable[[Floats], float]:
        job, column = (fit.bill.price > 0)[self._supply.of].nonzero()
        of, top = self._supply.of[job], self.top[job]
        speed, price = fit.bill.speed[of, column] * top, fit.bill.price[of, column] / top
        return lambda level: float(np.maximum(level[job] - speed, 0.0) @ price)

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """Nobody goes beyond the least speed that has a price. There is always somebody whom that stops."""
        of, bill = self._supply.of, self._bill
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
_SURE = 1e-5  # how far from full, or too full, levels must be at other prices to be told so by them

F = TypeVar("F", bound=FitResult)


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


@dataclass(frozen=True)
class Reached(Generic[F]):
    """Levels by job, how they fit, and from where, and up to which caps, they rose the last time."""

    level: Floats
    fit: F
    before: Floats
    cap: Floats


class Vessel(Protocol[F]):
    """What is filled: how levels of jobs fit, at which prices, and who pays nothing for more."""

    @property
    def name(self) -> str: ...
    @property
    def top(self) -> Floats: ...  # by job, what it reaches alone
    @property
    def times(self) -> int: ...  # how often it fills up at most
    def fit(self, level: Floats) -> F: ...
    def cost(self, fit: F) -> Callable[[Floats], float]: ...
    def overflows(self, fit: F) -> None: ...  # its prices are remembered
    def known(self) -> Sequence[F]: ...  # whose prices may be good for other levels too
    def free_level(self, level: Floats, cap: Floats) -> Floats: ...  # at the prices of the last overflow and all before
    def clashes(self, level: Floats, fit: F) -> bool: ...  # nobody can be given this, although it fits


def fill(vessel: Vessel[F], weight: Floats, parties: Parties, so_far: Reached[F] | None = None) -> Reached[F]:
    """The level of each job. `so_far`: levels that clashed, of a vessel that was larger; it goes on from before them.

    Where levels clash, they are not the last."""
    top = vessel.top
    level, cap = (np.zeros(len(top)), top) if so_far is None else (so_far.before, so_far.cap)
    for _ in range(vessel.times):
        before, (level, fit, full) = level, _until_full(vessel, _Rise.begin(level, cap, weight, parties))
        reached = Reached(level, fit, before, cap)
        if not full or vessel.clashes(level, fit):
            return reached
        cap = np.minimum(cap, np.maximum(level, vessel.free_level(level, cap)))
        if not (cap - level > 1e-12 * top).any():
            return reached
    raise SolverError(vessel.name, "prices that do not grow")


def _until_full(vessel: Vessel[F], rise: _Rise) -> tuple[Floats, F, bool]:
    """As far as there is room: the levels, how they fit, and whether the cluster is full (or else all are at their caps).

    From above: levels too high give prices, at which levels that are not too high are affordable; they may still be too high.
    """
    clock, full = rise.end, False
    start, level = rise.levels(0.0), rise.levels(clock)
    for earlier in vessel.known():
        cost = vessel.cost(earlier)
        below, above = cost(start) - 1.0, cost(level) - 1.0
        if below < -_SURE and above > _SURE:
            clock, full = _affordable(rise, cost, clock, below, above), True
            level = rise.levels(clock)
            vessel.overflows(earlier)
    while True:
        fit = vessel.fit(level)
        if fit.has_room:
            return level, fit, full
        vessel.overflows(fit)
        cost, full = vessel.cost(fit), True
        before = _affordable(rise, cost, clock, cost(start) - 1.0, cost(level) - 1.0)
        if not before < clock:  # no number lies between
            if not fit.has_nearly_room:
                raise SolverError(vessel.name, "levels that are too high and cannot be lowered")
            return level, fit, full
        clock, level = before, rise.levels(before)


def _affordable(rise: _Rise, cost: Callable[[Floats], float], late: float, below: float, above: float) -> float:
    """The moment, before the `late` one, at which the levels cost all there is: a monotone function's root, by false position
    with the value at an end that stays halved (Illinois), and every fourth time by halves, as the function may be flat. At the
    start they cost so much more than all as `below` says, and so much more at the end as `above`."""
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
            return clock
        if value > 0:
            late, above = clock, value
            below = below / 2 if side > 0 else below
            side = 1
        else:
            early, below = clock, value
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
    in_order: bool  # whether all parties share in order

    @classmethod
    def begin(cls, level: Floats, cap: Floats, weight: Floats, parties: Parties) -> _Rise:
        of, count = parties.of, len(parties.weight)
        start, end = (np.bincount(of, column, minlength=count).astype(np.float64) for column in (level, cap))
        order = np.lexsort((np.where(parties.in_order[of], 0.0, cap / weight), of))
        of, cap, weight = of[order], cap[order], weight[order]
        first = of.searchsorted(np.arange(count))
        caps = np.concatenate(([0.0], np.cumsum(cap)))
        before = caps[:-1] - caps[first[of]]
        # From behind and party by party: differences of sums would lose weights that are small beside others.
        parts = [np.cumsum(part[::-1])[::-1] for part in np.split(weight, first[1:])]
        speed = np.concatenate(parts) if parts else weight
        return cls(
            parties,
            order,
            first,
            of,
            cap,
            weight,
            before,
            speed,
            start,
            np.maximum(end - start, 0.0),
            bool(parties.in_order.all()),
        )

    @property
    def end(self) -> float:
        """When all are at their caps."""
        return float((self.room / self.parties.weight).max())

    def levels(self, clock: float) -> Floats:
        total = self.start + np.minimum(self.parties.weight * clock, self.room)
        ahead = total[self.of] - self.before
        if not self.in_order:
            fair = np.maximum.reduceat(ahead / self.speed, self.first)[self.of] * self.weight
            ahead = np.where(self.parties.in_order[self.of], ahead, fair)
        level = np.empty(len(self.of))
        level[self.order] = np.minimum(np.maximum(ahead, 0.0), self.cap)
        return level
