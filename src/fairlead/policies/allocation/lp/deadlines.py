"""The allocation with the least level ρ at which every job is done in time:

    min ρ   s.t.   throughput(m, X) ≥ min(fastest_m, left_m / (ρ·unit_m − spent_m))   for every job m

What is left over is then used for the highest total throughput. With `optimum=centre`, the analytic centre of the optima of the
plain program is taken instead; there, no job goes on past one that cannot be in time. With unit 1 and nothing spent, ρ is the
makespan; with the time of a fair share as the unit it is finish-time fairness (Gavel §4.2). With `type_agnostic`, a job is as
fast on every type as on its fastest, and jobs that may use the same types have the same mix of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import RATE_BITS, canonical, significant
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.analytic_centre import centre
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.demand_model import DemandModel, ModelAnswer, solve_with_sharing
from fairlead.policies.allocation.lp.hull_model import no_prices
from fairlead.policies.allocation.lp.job_classes import JobClasses, even_mix
from fairlead.policies.allocation.lp.level_search import DeadlineDemands, affordable_level, newton_excess

Optimum: TypeAlias = Literal["throughput", "centre"]

LEAST = 10 * NEGLIGIBLE
"""Every job gets at least this part of the time on its fastest type; less would be lost to rounding."""

_ROOM = 1e-8  # how much more than the cluster may be used where demands just fit


@dataclass(frozen=True)
class RemainingWork:
    """By job of a view: the steps `left`, the `unit` in which its time counts, and the time `spent`."""

    left: Floats
    unit: Floats
    spent: Floats

    def of(self, jobs: Ints, fastest: Floats, least: Floats) -> tuple[DeadlineDemands, float, float]:
        """The demands of some jobs by level, and the lowest and highest level that any of them could reach alone."""
        left, unit, spent = self.left[jobs], self.unit[jobs], self.spent[jobs]
        unit = np.maximum(unit, 1e-9)  # for jobs without steps left and without time spent
        soonest = np.maximum(left / fastest, 1e-300)
        alone = (spent + soonest) / unit  # the least ρ of each
        return DeadlineDemands(left, unit, spent, soonest, least), float(alone.min()), float(alone.max())


def min_level_allocation(
    name: str,
    view: Snapshot,
    classes: JobClasses,
    remaining: RemainingWork,
    memo: Memo,
    *,
    type_agnostic: bool,
    sharing: SharingOptions,
    optimum: Optimum,
) -> tuple[Allocation, Mapping[str, Any]]:
    """Find the allocation of the least level. `memo` holds the last level and prices, which shorten the search."""
    near: Mapping[str, Any] = memo if isinstance(memo, Mapping) and "prices" in memo else {"level": 0.0, "prices": None}
    if type_agnostic:
        remaining = RemainingWork(remaining.left / fastest_of(view, classes), remaining.unit, remaining.spent)
        if (classes.rates > 0).all():
            x, found = _in_one_pool(view, classes, remaining, near)
            return x if optimum == "throughput" else _analytic_centre(view, classes, remaining, found["level"]), found

    def answer(model: DemandModel, before: ModelAnswer | None) -> ModelAnswer:
        demand, lowest, highest = remaining.of(model.present, model.fastest, _least(view, model.present) * model.fastest)
        guess = float(near["level"])
        if before is not None:
            lowest = guess = max(before.level, lowest)
        level, required, fit = model.min_level(demand, lowest, highest, guess)
        used = fit.used
        if not model.is_full(fit):  # some capacity is left
            top = np.zeros(len(model.classes))
            top[model.class_of] = model.fastest
            unit = np.where(top > 0, top, 1.0) / model.classes.workers
            # Demands that just fit leave the solver a region thinner than its tolerance, whose corners are not reproducible.
            over = fit.excess + _ROOM if fit.excess > -_ROOM else 0.0
            used = model.maximize(required, model.worth(unit, ordered=True), over)
        return ModelAnswer(used, required, {}, _hints(level, model.hints), level)

    x, kept = solve_with_sharing(name, view, classes, sharing, answer, near["prices"])
    if optimum == "centre" and kept:
        return _analytic_centre(view, classes, remaining, kept["level"]), kept
    if type_agnostic:
        x = Allocation.alone(view.jobs.number, _same_mix(classes, view, x.matrix(view.jobs.number, len(view.capacity))))
    return x, kept or near


def _hints(level: float, prices: Floats | None) -> dict[str, Any]:
    """The starting point of the next solve, for the memo."""
    return {"level": float(canonical(np.array(level))), "prices": None if prices is None else canonical(prices)}


def _in_one_pool(
    view: Snapshot, classes: JobClasses, remaining: RemainingWork, near: Mapping[str, Any]
) -> tuple[Allocation, Mapping[str, Any]]:
    """If every job can use every type: demands fit as soon as their sum does."""
    at, size = (classes.class_of >= 0).nonzero()[0], float(view.capacity.sum())
    ones = np.ones(len(at))
    demand, lowest, highest = remaining.of(at, ones, _least(view, at) * ones)
    rise = view.jobs.workers[at] / size
    spending = newton_excess(demand, lambda r: (float(rise @ r) - 1.0, rise))
    level = affordable_level(spending, lowest, highest, float(near["level"]))
    x = np.zeros((len(view.jobs), len(view.capacity)))
    x[at] = demand(level)[0][:, None] * even_mix(classes, view.capacity)[classes.class_of[at]]
    prices = no_prices(len(view.capacity)) if near["prices"] is None else near["prices"]
    return Allocation.alone(view.jobs.number, x), _hints(level, prices)


def _least(view: Snapshot, at: Ints) -> float:
    crowd = 100.0 * float(view.jobs.workers[at].sum())
    scarcest = min(float(count) for count in view.capacity.tolist() if count > 0)
    return min(LEAST, scarcest / crowd)


def _analytic_centre(view: Snapshot, classes: JobClasses, remaining: RemainingWork, level: float) -> Allocation:
    """The analytic centre of all allocations that meet every job's demand."""
    at = (classes.class_of >= 0).nonzero()[0]
    rates = classes.rates[classes.class_of[at]]
    fastest = rates.max(axis=1)
    demand, _, highest = remaining.of(at, fastest, _least(view, at) * fastest)
    need = demand(max(level, highest))[0]
    ones = np.ones(len(need), dtype=np.int64)
    x = np.zeros((len(view.jobs), len(view.capacity)))
    x[at] = centre(ones, view.jobs.workers[at], ones.astype(np.float64), view.capacity, rates / need[:, None])
    return Allocation.alone(view.jobs.number, x)


def fastest_of(view: Snapshot, classes: JobClasses) -> Floats:
    """Each job's rate on the fastest type that it may use; 1 for a job that can run nowhere."""
    fastest = significant(view.rates.fastest, RATE_BITS)
    if not (classes.rates > 0).all():
        fastest = significant((view.rates.of_jobs * (classes.by_job(classes.rates) > 0)).max(axis=1), RATE_BITS)
    return np.where(classes.class_of >= 0, fastest, 1.0)


def _same_mix(classes: JobClasses, view: Snapshot, x: Floats) -> Floats:
    """The same total time for each job, in the same mix for all jobs that may use the same types."""
    usable = classes.rates > 0
    total = x.sum(axis=1, keepdims=True)
    mask = classes.by_job(usable @ (1.0 * (1 << np.arange(usable.shape[1]))))
    _, pool = np.unique(mask, return_inverse=True)
    load = x * view.jobs.workers[:, None]
    used = np.zeros((int(pool.max()) + 1, x.shape[1]))
    np.add.at(used, pool, load)
    mixed: Floats = total * (used / np.maximum(used.sum(axis=1, keepdims=True), 1e-300))[pool]
    return mixed
