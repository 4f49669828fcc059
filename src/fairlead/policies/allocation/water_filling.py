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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import NO_SHARING, SharingOptions
from fairlead.policies.allocation.lp.demands import Demands
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of
from fairlead.policies.allocation.lp.levels import Fitted
from fairlead.policies.allocation.lp.shared_programs import MANY, Answer, Means, shared
from fairlead.policies.allocation.lp.throughput_polytope import Supply
from fairlead.policies.allocation.lp.water_filling_model import AtWill, InMixes, InSupply
from fairlead.policies.allocation.max_min import even_mix, normalised, nothing

_STEPS = 300
_SURE = 1e-5  # how far from full, or too full, levels must be at other prices to be told so by them


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Equal, weighted time for all, and what some cannot use goes to the others: water filling that knows no types."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return filled(view, Parties.one(len(view.jobs)), aware=False), memo


@dataclass(frozen=True)
class MaxMinFairnessWaterFillingPerf(SharingOptions):
    """Equal, weighted progress for all, and what some cannot use goes to the others: heterogeneity-aware water filling.

    Pareto efficient: no job's throughput can be raised without lowering another's.
    """

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return filled(view, Parties.one(len(view.jobs)), aware=True, sharing=self), memo


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


def filled(view: Snapshot, parties: Parties, *, aware: bool, sharing: SharingOptions = NO_SHARING) -> Allocation:
    """The allocation by water filling of a view's jobs."""
    classes = classes_of(view, alike=not aware, by_weight=False)
    if not len(classes):
        return nothing(view)
    if aware and not (sharing.alone and len(view.capacity) <= MANY):
        return _supplied(view, classes, parties, sharing)
    here = classes.of >= 0
    jobs, kind = view.jobs, classes.of[here]
    weight, parties = jobs.weight[here], parties.only(here)
    if aware:
        demands = Demands("water filling", classes, view.capacity)
        vessel = AtWill(demands, normalised(classes, view.capacity).max(axis=1)[kind])
        reached = fill(vessel, weight, parties)
        time = demands.shares(vessel.asked(reached.level), reached.fit.used) / (1.0 + max(reached.fit.excess, 0.0))
        return Allocation.alone(jobs.number, time)
    mix, workers = even_mix(classes, view.capacity)[kind], jobs.workers[here]
    load = fill(InMixes("water filling", mix, workers, view.capacity), weight, parties)
    time = np.zeros((len(jobs), len(view.capacity)))
    time[here] = mix * (load.level / (workers * (1.0 + max(load.fit.excess, 0.0))))[:, None]
    return Allocation.alone(jobs.number, time)


def _supplied(view: Snapshot, classes: JobClasses, parties: Parties, sharing: SharingOptions) -> Allocation:
    """The same where jobs may share accelerators or stand apart."""

    def answer(means: Means, before: Answer | None) -> Answer:
        assert isinstance(means, Supply)
        equal = means.classes.rates @ (view.capacity / view.capacity.sum())
        top = means.ways.fastest / equal * means.classes.workers
        here = np.zeros(len(view.jobs), dtype=np.bool_)
        here[means.there] = True
        so_far, earlier = (None, None) if before is None else before.level
        vessel = InSupply(means, top[means.of], earlier)
        reached = fill(vessel, view.jobs.weight[here], parties.only(here), so_far)
        return Answer(vessel.used(reached.fit), vessel.asked(reached.level), level=(reached, vessel))

    return shared("water filling", view, classes, sharing, answer)[0]


F = TypeVar("F", bound=Fitted)


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
