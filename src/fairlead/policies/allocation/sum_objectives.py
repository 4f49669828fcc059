"""Objectives over the sum of all jobs (Gavel §4.2): total throughput, throughput per cost, and the latter with deadlines:

    max_X Σ_m throughput(m, X)            max_X Σ_m throughput(m, X) / Σ_m Σ_j s_m·price_j·X_mj
                                          s.t. throughput(m, X) ≥ left_m / (time to the deadline of m)

Per cost, a job's throughput counts in units of its best throughput per cost: then each job uses the types that are cheapest for
it, and none starves because its steps are expensive. `normalized: false` adds plain steps per second, as in the paper's
formula, and serves only the jobs with the most steps per cost. Among allocations of the best ratio, the one with the highest
throughput is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.demand_model import DemandModel, ModelAnswer, solve_with_sharing
from fairlead.policies.allocation.lp.job_classes import classes_of, no_allocation
from fairlead.policies.allocation.lp.level_search import FITS

_MARGIN_ROUNDS = 5
_ROUND_S = 360.0  # where the scheduler has no rounds

_FREE = 1e-3
"""The price of a type without one, as a fraction of the lowest price of another type."""


@dataclass(frozen=True)
class MaxSumThroughputPerf(SharingOptions):
    """Maximize the total steps per second; `normalized`: relative to each job's fastest GPU type."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    normalized: bool = False  # count each job in units of the rate on its fastest type

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo

        def answer(model: DemandModel, _: ModelAnswer | None) -> ModelAnswer:
            rates = model.classes.rates
            required = model.to_demands(np.zeros(len(model.class_of)))
            unit = rates.max(axis=1) if self.normalized else np.ones(len(rates))
            return ModelAnswer(model.maximize(required, model.worth(unit)), required)

        return solve_with_sharing("total throughput", view, classes, self, answer)[0], memo


@dataclass(frozen=True)
class MinCost(SharingOptions):
    """Maximize throughput per cost, at each GPU type's price per hour; without prices, all types cost the same.

    It is recomputed when a price changes. Later prices are not known to it."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    normalized: bool = True  # count each job in units of its best throughput per cost

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo
        return solve_with_sharing("cost", view, classes, self, lambda model, _: self._cheapest(view, model))[0], memo

    def changes_s(self, view: Snapshot) -> Sequence[float]:
        """When prices change: the allocation is computed again then."""
        return view.cluster.price_changes_s

    def _cheapest(self, view: Snapshot, model: DemandModel) -> ModelAnswer:
        return _best_buy(view, model, np.zeros(len(model.class_of)), normalized=self.normalized)


@dataclass(frozen=True)
class MinCostSlo(MinCost):
    """Maximize throughput per cost while meeting deadlines.

    Deadlines out of reach do not bind. Where the others are too much for the cluster, the jobs whose deadlines cost most at the
    prices of the bottlenecks lose theirs first, so that the fewest do. Each gets a reason. Since rounds realise shares only
    roughly, jobs aim to be done `margin_s` before their deadlines (five rounds by default), or as much of it as all can be."""

    margin_s: float | None = None  # jobs aim to finish this many seconds before their deadlines; default: 5 rounds

    def __post_init__(self) -> None:
        if self.margin_s is not None:
            require(0 <= self.margin_s < math.inf, "policy min-cost-slo", "seconds, at least 0", "margin_s", self.margin_s)

    def _margins_s(self, round_s: float) -> tuple[float, ...]:
        """The margins to try, the largest first; where not even an eighth fits, none."""
        margin_s = _MARGIN_ROUNDS * (round_s or _ROUND_S) if self.margin_s is None else self.margin_s
        return margin_s, margin_s / 2, margin_s / 4, margin_s / 8, 0.0

    def _cheapest(self, view: Snapshot, model: DemandModel) -> ModelAnswer:
        jobs, fastest = view.jobs.only(model.present), model.fastest
        left_s = jobs.submitted_s + jobs.deadline_s - view.time
        wanted = np.isfinite(left_s) & (jobs.steps_left > 0)
        exact = np.divide(jobs.steps_left, left_s, out=np.full(len(jobs), np.inf), where=left_s > 0)
        reachable = wanted & (exact <= fastest * (1.0 + FITS))
        for margin_s in self._margins_s(view.round_s):  # no deadline is given up for the sake of a margin
            early_s = left_s - margin_s
            early = np.divide(jobs.steps_left, early_s, out=np.full(len(jobs), np.inf), where=early_s > 0)
            need = np.where(reachable, np.minimum(early, fastest), 0.0)
            if model.fit(model.to_demands(need)).excess <= FITS:
                break
        kept, over = _kept(model, need, reachable)
        missed = {
            "it is out of reach": wanted & ~reachable,
            "others' deadlines need the GPUs": reachable & ~kept,
        }
        reasons = {
            int(jobs.number[i]): Reasons.deadline_infeasible(
                what, left_s=round(float(left_s[i]), 3), needed_s=round(float(jobs.steps_left[i] / fastest[i]), 3)
            )
            for what, late in missed.items()
            for i in late.nonzero()[0].tolist()
        }
        return _best_buy(view, model, np.where(kept, need, 0.0), reasons, over, normalized=self.normalized)


def _best_buy(
    view: Snapshot,
    model: DemandModel,
    floor: Floats,
    reasons: Mapping[int, Reason] | None = None,
    over: float = 0.0,
    *,
    normalized: bool,
) -> ModelAnswer:
    classes, price = model.classes, prices(view)
    unit = np.ones(len(classes))
    if normalized:
        unit = (classes.rates / (price[None, :] * classes.workers[:, None])).max(axis=1)
    required = model.to_demands(floor)
    return ModelAnswer(model.maximize_ratio(required, model.worth(unit), price, over), required, reasons or {})


def prices(view: Snapshot) -> Floats:
    """The present cost of an accelerator of each type; never 0, so that ratios are defined."""
    listed = view.cluster.prices_at(view.time)
    dear = listed > 0
    if not dear.any():
        return np.ones(len(listed))
    return np.where(dear, listed, _FREE * listed[dear].min())


def _kept(model: DemandModel, need: Floats, wanted: Bools) -> tuple[Bools, float]:
    """Which of the wanted deadlines are kept, and the excess of their demands. The jobs that cost most at the prices of a
    program are left out until the rest is affordable; jobs left out too early come back, cheapest first, as far as they
    fit."""

    def required(chosen: Bools) -> Any:
        return model.to_demands(np.where(chosen, need, 0.0))

    kept = wanted
    fit = model.fit(required(kept))
    steps = 0
    while fit.excess > FITS:
        job_costs = model.job_costs(required(kept), fit)
        order = _dearest(job_costs, kept)
        rest = job_costs.sum() - np.cumsum(job_costs[order])
        enough = int((rest > 1.0).sum()) + 1
        kept = kept.copy()
        kept[order[:enough]] = False
        fit = model.fit(required(kept))
        steps += 1
    if steps > 1:
        job_costs = model.job_costs(model.to_demands(need), fit)
        back = _dearest(job_costs, wanted & ~kept)[::-1]
        room = 1.0 + FITS - float(job_costs[kept].sum())
        few, many = 0, int((np.cumsum(job_costs[back]) <= room).sum())  # `few` jobs fit, more than `many` do not
        while few < many:
            middle = (few + many + 1) // 2
            trial = kept.copy()
            trial[back[:middle]] = True
            found = model.fit(required(trial))
            if found.excess <= FITS:
                few, fit = middle, found
            else:
                many = middle - 1
        kept = kept.copy()
        kept[back[:few]] = True
    return kept, float(fit.excess)


def _dearest(job_costs: Floats, among: Bools) -> Ints:
    """Positions by falling cost; of equals, the later job first."""
    at = among.nonzero()[0]
    return at[np.lexsort((-at, -job_costs[at]))]
