"""Programs for jobs that all differ: a block of columns for each job instead of one for each class (see hull_model.py). An
interior-point method with an exact end solves them (block_interior_point.py, block_vertex.py). HiGHS is the fallback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.block_interior_point import BlockProgram, interior_path
from fairlead.policies.allocation.lp.block_responses import PricedBlocks, Responses
from fairlead.policies.allocation.lp.block_vertex import FEW_JOBS, Basis, VertexSearch
from fairlead.policies.allocation.lp.hull_model import SPARE, AloneModel
from fairlead.policies.allocation.lp.job_classes import JobClasses, break_ties_by_class
from fairlead.policies.allocation.lp.level_search import (
    FITS,
    BudgetExcess,
    DeadlineDemands,
    PricedFit,
    affordable_level,
    min_level,
    newton_excess,
)
from fairlead.policies.allocation.lp.program import TOLERANCE

MIN_CLASSES = 256
"""With more classes than these, and classes of few jobs, a block for each job is faster."""

_SLACK = 1e-8
_TOP = 1.0 - 1e-12  # a demand from this part of the fastest rate on is met only there
_COLD = 3e-3  # the gap at which the first prices of a level search are good enough
_RATIOS = 30
_CLOSE = 1e-8  # of a level: costs are nearly linear in it
_NEWTON, _REPEATS = 2, 2  # steps to a level from seven right digits of it, and bases that it may pass
_STEP = 1e-6  # of the time, over which demands are seen to rise


_ALIKE = 2.0**-32  # rates that differ less are in the same proportion; they have 36 bits


def all_differ(classes: JobClasses, *, merged: bool = False) -> bool:
    """Whether there are so many classes that jobs should have blocks of their own; `merged`: a block serves a whole class.

    No two may have rates in the same proportion: either could lean, and the path to the optimum would decide which."""
    if len(classes) <= MIN_CLASSES or not (merged or int(classes.count.max()) == 1):
        return False
    part = classes.rates / classes.rates.max(axis=1)[:, None]
    place, reach = np.zeros(len(part)), 0.0  # those that are alike are close on a line, too
    for type_, factor in enumerate(np.sqrt(np.arange(2.0, part.shape[1] + 2.0)).tolist()):
        place += part[:, type_] * factor
        reach += _ALIKE * factor
    order = place.argsort(kind="stable")
    near = (np.diff(place[order]) < reach).nonzero()[0]
    return not bool((np.abs(part[order[near]] - part[order[near + 1]]) < _ALIKE).all(axis=1).any())


@dataclass(frozen=True)
class JobDemands:
    """Demands of jobs as parts of their fastest rates."""

    part: Floats


class PerJobModel(AloneModel):
    """The jobs of one view, each alone on types, for any demands; `merged`: one job stands for all of its class. `near` are
    earlier prices, as of a `HullModel`."""

    def __init__(
        self, name: str, classes: JobClasses, capacity: Ints, near: Floats | None = None, *, merged: bool = False
    ) -> None:
        self.name, self.classes, self.capacity = name, classes, capacity
        self.present = np.arange(len(classes)) if merged else (classes.class_of >= 0).nonzero()[0]
        self.class_of = self.present if merged else classes.class_of[self.present]
        rates = np.ascontiguousarray(classes.rates.T).take(self.class_of, axis=1)
        self.fastest: Floats = rates.max(axis=0)
        self._workers = (classes.workers * (classes.count if merged else 1))[self.class_of].astype(np.float64)
        types, jobs = rates.shape
        self._room = np.maximum(capacity, 1).astype(np.float64)
        rate, load = np.zeros((types + 1, jobs)), np.zeros((types + 1, jobs))
        np.divide(rates, self.fastest, out=rate[1:])
        np.divide(self._workers, self._room[:, None], out=load[1:])
        usable = rate > 0
        usable[0] = True
        load *= usable
        self._blocks = BlockProgram(rate, load, usable, np.zeros(jobs), np.ones(types))
        one_fastest = (rate >= _TOP).sum(axis=0) == 1
        self._on_fastest: tuple[Bools, Ints] = (one_fastest, rate.argmax(axis=0))
        self._prices = None if near is None or not near[0, 0].any() else near[0, 0] / float(near[0, 0].sum())
        self._worth_prices = None if near is None or not near[1, 0].any() else near[1, 0]
        self._last: tuple[Floats, PricedFit] | None = None
        self._basis: Basis | None = None  # of the last fit
        self._responses: Responses | None = None  # the last ones

    # Demands.

    def to_demands(self, demand: Floats) -> JobDemands:
        """Throughputs by job as parts of the fastest."""
        return JobDemands(np.minimum(np.maximum(demand / self.fastest, 0.0), 1.0))

    @property
    def hints(self) -> Floats:
        """The last prices, for the next moment; in the form of a `HullModel`."""
        kept = np.zeros((2, 12, len(self.capacity)))
        for place, prices in zip(kept, (self._prices, self._worth_prices)):
            if prices is not None:
                place[0] = prices
        return kept

    def cost_at(self, prices: Floats) -> Callable[[Floats], float]:
        """The function from throughputs to their cost at these prices; 1 is the whole budget."""
        return lambda demand: float(self._bill(self.to_demands(demand).part, prices * self._room)[0].sum())

    def job_costs(self, required: JobDemands, fit: PricedFit) -> Floats:
        """The cost of each job's demand at the prices of a fit; 1 is the whole budget."""
        return self._bill(required.part, fit.prices * self._room)[0]

    def _bill(self, part: Floats, prices: Floats) -> tuple[Floats, Floats]:
        """What each job's demand costs, and how fast that rises."""
        found = PricedBlocks(replace(self._blocks, base=part), self._responses).responses(prices)
        self._responses = found
        return found.demand_price * part - found.time_price, found.demand_price

    # Programs.

    def fit(self, required: JobDemands, *, at_least: bool = False) -> PricedFit:
        """min θ such that the demands take at most (1 + θ) of every type, and the prices that prove it. With `at_least`,
        the last prices may prove a clear excess, which is then returned without the time."""
        part, types = required.part, len(self.capacity)
        if at_least and self._prices is not None:
            excess = float(self._bill(part, self._prices)[0].sum()) - 1.0
            if excess > TOLERANCE:
                return PricedFit(excess, self._prices / self._room, np.zeros((0, types)))
        program = replace(self._blocks, base=part, growth=np.ones(types), level_gain=-1.0)
        settled, program, open_ = self._settle(program)
        if not len(open_) or not program.base.any():  # what is settled takes a part of one type, or of none
            load = (self._blocks.load[1:] * settled).sum(axis=1)
            prices = (np.arange(types) == load.argmax()).astype(np.float64)
            excess = float(load.max()) - 1.0
        else:
            near = self._responses if len(open_) == len(part) else None
            found = VertexSearch(self.name, program, near).optimum(self._prices, self._basis)
            self._basis = found.basis
            settled[:, open_] = found.time
            prices, excess = found.prices / float(found.prices.sum()), found.level
        self._prices = prices
        fit = PricedFit(excess, prices / self._room, np.ascontiguousarray(settled.T))
        self._last = (part, fit)
        return fit

    def _settle(self, program: BlockProgram) -> tuple[Floats, BlockProgram, Ints]:
        """Settle jobs that need all of their time on their fastest types: the time so far, types × jobs, the program of the
        other jobs, and these."""
        one, fastest = self._on_fastest
        settled = (program.base >= _TOP) & one
        time = np.zeros(self._blocks.load[1:].shape)
        if not settled.any():
            return time, program, np.arange(program.jobs)
        at = settled.nonzero()[0]
        time[fastest[at] - 1, at] = 1.0
        open_ = (~settled).nonzero()[0]
        return time, program.only(open_, (program.load[1:] * time).sum(axis=1)), open_

    def maximize(self, required: JobDemands, worth: Floats, over: float = 0.0) -> Floats:
        """The time that meets the demands and maximises Σ worth_gj × time of g on j; `over` is a tolerated excess."""
        gain = self._by_block(worth)
        program = replace(self._blocks, base=required.part, gain=gain, room=self._blocks.room + max(over, 0.0))
        last = self._last
        tight = last is not None and last[1].excess > -FITS and np.array_equal(last[0], required.part)
        if last is not None and tight:
            return self._beyond(program, last[1])
        time, program, open_ = self._settle(program)
        if len(open_):
            try:
                found = VertexSearch(self.name, program).optimum(self._worth_prices)
            except SolverError:  # the excess is known up to a rounding error, by which the demands may not fit
                found = VertexSearch(self.name, replace(program, room=program.room + _SLACK)).optimum(None)
            time[:, open_], self._worth_prices = found.time, found.prices
        return np.ascontiguousarray(time.T)

    def _beyond(self, program: BlockProgram, fit: PricedFit) -> Floats:
        """The same where demands just fit: types with a price are full, and the jobs that pay keep their time. The others meet
        their demands on the remaining types, of which some time is left over."""
        prices = fit.prices * self._room
        spare = np.append(True, prices <= SPARE)
        costs = self._bill(program.base, np.where(spare[1:], 0.0, prices))[0]
        usable = program.usable & spare[:, None]
        free = (costs <= SPARE * (program.load[1:] * prices[:, None]).max(axis=0)) & usable[1:].any(axis=0)
        time = np.ascontiguousarray(fit.used.T) / (1.0 + max(fit.excess, 0.0))
        time[:, free] = 0.0
        rate = np.where(usable, program.rate, 0.0)
        top = rate.max(axis=0)
        at_top = free & (program.base >= top * _TOP)  # they need all of their time on a remaining type
        time[rate.argmax(axis=0)[at_top] - 1, at_top.nonzero()[0]] = 1.0
        open_ = (free & ~at_top).nonzero()[0]
        if len(open_):
            masked = replace(program, rate=rate, load=np.where(usable, program.load, 0.0), usable=usable)
            rest = masked.only(open_, (program.load[1:] * time).sum(axis=1))
            room = np.where(spare[1:], np.maximum(rest.room, 0.0), 1.0)
            found = VertexSearch(self.name, replace(rest, room=room)).optimum(self._worth_prices)
            time[:, open_], self._worth_prices = found.time, found.prices
        return np.ascontiguousarray(time.T)

    def _by_block(self, by_class: Floats) -> Floats:
        """Values of classes × types by type and job, with idle time."""
        return np.concatenate((np.zeros((1, len(self.class_of))), by_class.T[:, self.class_of])) * self._blocks.usable

    def maximize_ratio(self, required: JobDemands, worth: Floats, prices: Floats, over: float = 0.0) -> Floats:
        """The time that meets the demands with the highest Σ worth·time / Σ prices·accelerator time, then with most of both:
        the ratio is the number λ for which max Σ (worth − λ·price)·time is 0 (Dinkelbach)."""
        gain = self._by_block(worth)
        pay = self._by_block(prices * self.classes.workers[:, None])
        gain, pay = gain / float(gain.max()), pay / float(pay.max())
        room = self._blocks.room + max(over, 0.0)
        program = replace(self._blocks, base=required.part, gain=gain, room=room, pay=pay)
        time, program, open_ = self._settle(program)
        kept = float((gain[1:] * time).sum()), float((pay[1:] * time).sum())
        if not len(open_):
            return np.ascontiguousarray(time.T)
        assert program.gain is not None
        assert program.pay is not None
        gain, pay = program.gain, program.pay
        near, ratio = self._worth_prices, 0.0
        with np.errstate(all="ignore"):
            for point in interior_path(program, (1e-3,)):
                near, ratio = point.prices, point.ratio
        best, plain = None, replace(program, pay=None)
        for _ in range(_RATIOS):
            found = VertexSearch(self.name, replace(plain, gain=gain - ratio * pay)).optimum(near)
            near = found.prices
            total = float((gain[1:] * found.time).sum()) + kept[0], float((pay[1:] * found.time).sum()) + kept[1]
            new = total[0] / max(total[1], 1e-300)
            if best is None or new > ratio:
                best = found
            done = abs(new - ratio) <= 1e-13 * new
            ratio = max(new, ratio) if best is found else ratio
            if done:
                break
        assert best is not None
        # With a slightly lower ratio the same columns gain, and a little more of them is better.
        more = VertexSearch(self.name, replace(plain, gain=gain - ratio * (1.0 - 1e-7) * pay)).optimum(near)
        total = float((gain[1:] * more.time).sum()) + kept[0], float((pay[1:] * more.time).sum()) + kept[1]
        time[:, open_] = more.time if total[0] >= ratio * total[1] * (1.0 - 1e-10) else best.time
        self._worth_prices = near
        return np.ascontiguousarray(time.T)

    # Demands that fall as a level rises.

    def min_level(
        self, demand: DeadlineDemands, lowest: float, highest: float, guess: float = 0.0
    ) -> tuple[float, JobDemands, PricedFit]:
        """The least level at which the demands fit, the demands, and the fit. A good `guess` saves time."""
        if self._prices is None:
            pool = self._workers / self.fastest / float(self.capacity.sum())
            spending = newton_excess(demand, lambda r: (float((pool * r).sum()) - 1.0, pool))
            guess = self._first_prices(demand, affordable_level(spending, lowest, highest, max(guess, lowest)))

        def spending_at(prices: Floats) -> BudgetExcess:
            def cost(r: Floats) -> tuple[float, Floats]:
                costs, rise = self._bill(np.minimum(r / self.fastest, 1.0), prices)
                return float(costs.sum()) - float(prices.sum()), rise / self.fastest

            return newton_excess(demand, cost)

        first = lowest
        if self._prices is not None:
            first = affordable_level(spending_at(self._prices), lowest, highest, guess, _CLOSE)
        level, wanted, fit = min_level(
            self.name,
            demand.at,
            lambda r: self.fit(self.to_demands(r), at_least=True),
            lambda fit: spending_at(fit.prices * self._room),
            first,
            highest,
            _CLOSE,
        )
        return self._by_basis(level, lowest, self.to_demands(wanted), fit, spending_at, demand)

    def _by_basis(
        self,
        level: float,
        lowest: float,
        required: JobDemands,
        fit: PricedFit,
        spending_at: Callable[[Floats], BudgetExcess],
        demand: DeadlineDemands,
    ) -> tuple[float, JobDemands, PricedFit]:
        """The level again, from the prices of its fit alone, so that its bytes do not depend on the search."""
        for _ in range(_REPEATS):
            spending, near = spending_at(fit.prices * self._room), float(significant(np.array(level)))
            for _ in range(_NEWTON):
                near = spending(near)[1]
            if near == level or level <= lowest or not abs(near - level) <= FITS * level:
                break
            kept, wanted = self._last, self.to_demands(demand.at(near))
            again = self.fit(wanted)
            if not again.has_room:
                self._last = kept
                break
            same, level, required, fit = np.array_equal(again.prices, fit.prices), near, wanted, again
            if same:
                break
        return level, required, fit

    def _first_prices(self, demand: DeadlineDemands, guess: float) -> float:
        """Set nearly right prices; returns a level near the least one, which is `guess` or above it."""

        stride = -(-len(self.fastest) // FEW_JOBS) if len(self.fastest) > 2 * FEW_JOBS else 1
        some = np.arange(0, len(self.fastest), stride)
        demand, fastest = demand.only(some), self.fastest[some]

        def linearized(t: float) -> tuple[Floats, Floats]:
            t = min(max(t, 1e-3), 2.0)
            r, falls = demand(guess / t)
            part, slope = r / fastest, -falls / fastest * (guess / (t * t))
            slope = np.where(part > _NEARLY_TOP, 0.0, slope)
            return np.minimum(part, _NEARLY_TOP) - slope * t, slope

        program, level = replace(self._blocks, slope=np.zeros(len(self.fastest)), level_gain=1.0), guess
        if stride > 1:
            program = replace(program, load=program.load * stride).only(some)
        with np.errstate(all="ignore"):
            for point in interior_path(program, (_COLD,), linearized):
                self._prices, level = point.prices / float(point.prices.sum()), guess / max(point.level, 1e-3)
        return level

    def likely_fits(self, demand: Callable[[float], Floats], end: float) -> Sequence[PricedFit]:
        """A fit with nearly right prices for demands that rise until the moment `end`; none if they may always fit."""
        every = self.to_demands(demand(end)).part
        if float(self._bill(every, np.ones(len(self.capacity)) / len(self.capacity))[0].sum()) <= 1.0:
            return ()

        def linearized(t: float) -> tuple[Floats, Floats]:
            t = min(max(t, 1e-3), 1.0 - _STEP)
            part = np.minimum(demand(end * t) / self.fastest, _NEARLY_TOP)
            slope = (np.minimum(demand(end * (t + _STEP)) / self.fastest, _NEARLY_TOP) - part) / _STEP
            return part - slope * t, slope

        program = replace(self._blocks, slope=np.zeros(len(self.fastest)), level_gain=1.0)
        with np.errstate(all="ignore"):
            for point in interior_path(program, (_COLD,), linearized):
                self._prices = point.prices / float(point.prices.sum())
                return (PricedFit(0.0, self._prices / self._room, np.zeros((0, len(self.capacity)))),)
        return ()

    # Answers.

    def shares(self, required: JobDemands, used: Floats) -> Floats:
        return self._by_row(used)


_NEARLY_TOP = 0.999


def max_min_by_blocks(
    name: str, classes: JobClasses, capacity: Ints, gain: Floats, near: Floats | None
) -> tuple[Floats, Floats]:
    """Max-min fairness over classes (see max_min.py): the time of a member of each, and prices for the next moment. What is
    left over goes to the highest total gain."""
    model = PerJobModel(name, classes, capacity, near, merged=True)
    unit = classes.rates.max(axis=1) / gain.max(axis=1)
    left = classes.weight * unit
    soonest = left / model.fastest
    zero = np.zeros(len(left))
    demand = DeadlineDemands(left, zero + 1.0, zero, soonest, zero)
    alone = float(soonest.max())
    _, required, fit = model.min_level(demand, alone, alone)
    used = fit.used / (1.0 + max(fit.excess, 0.0))
    if not model.is_full(fit):
        used = model.maximize(required, break_ties_by_class(gain, classes) * classes.count[:, None], fit.excess)
    return used, model.hints
