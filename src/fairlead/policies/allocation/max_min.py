"""Max-min fairness over weighted, normalised effective throughput (Gavel §4.1; LAS as an optimization problem):

    max_X min_m  (1/w_m) · s_m · throughput(m, X) / throughput(m, X_equal)

Job m has weight w_m and s_m workers; X_mj is its fraction of time on type j, of which there are N_j. X_equal gives a job the
same time on every accelerator of the cluster: on type j the fraction N_j / ΣN. The type-agnostic form
treats all types as equal and gives every job the same mix of them. Water filling (§4.3) is lexicographic max-min over the
levels of lp/water_filling_model.py,

    level_m = s_m·throughput(m, X) / throughput(m, X_equal),   for the agnostic form s_m·Σ_j x_mj."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.base import water_fill
from fairlead.policies.allocation.lp.analytic_centre import centre
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions, check_optimum, colocated_gain, spread_gain
from fairlead.policies.allocation.lp.job_classes import (
    JobClasses,
    break_ties_by_class,
    classes_of,
    even_mix,
    fill_fixed_mix,
    no_allocation,
    normalized_rates,
)
from fairlead.policies.allocation.lp.max_min_program import MaxMinProgram, divide_among_members
from fairlead.policies.allocation.lp.per_job_model import all_differ, max_min_by_blocks
from fairlead.policies.allocation.lp.water_filling_model import ShareGroups


@dataclass(frozen=True)
class MaxMinFairness:
    """Give all jobs equal time by weight (max-min fairness), without regard to GPU types.

    Which `optimum`: `throughput` leaves nothing idle (water filling), `centre` is where an interior-point solver ends."""

    paper: ClassVar[str] = "Gavel §4.1 (Narayanan et al., OSDI'20)"
    optimum: Literal["throughput", "centre"] = "throughput"
    """Which of several optimal solutions is taken: the one with the highest throughput, or the analytic centre."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view, type_agnostic=True)
        if not len(classes):
            return no_allocation(view), memo
        if self.optimum == "centre":
            each = analytic_centre_shares(classes, view.capacity, classes.rates * classes.workers[:, None])
        else:
            mix = even_mix(classes, view.capacity)
            each = mix * fill_fixed_mix(classes, mix, view.capacity)[:, None]
        return classes.each(view, each), memo


@dataclass(frozen=True)
class MaxMinFairnessPerf(SharingOptions):
    """Give all jobs equal progress by weight: heterogeneity-aware max-min fairness.

    `optimum`: `throughput` has the highest total progress, `centre` is where an interior-point solver (as Gavel's) ends."""

    paper: ClassVar[str] = "Gavel §4.1 (Narayanan et al., OSDI'20)"
    optimum: Literal["throughput", "centre"] = "throughput"
    """Which of several optimal solutions is taken: the one with the highest throughput, or the analytic centre."""
    _program: MaxMinProgram = field(
        default_factory=lambda: MaxMinProgram("max-min fairness"), init=False, repr=False, compare=False
    )

    _prices: list[Floats] = field(default_factory=list, init=False, repr=False, compare=False)  # of jobs that all differ

    def __post_init__(self) -> None:
        check_optimum("max-min-fairness-perf", self.optimum, self)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo
        classes = classes.for_sharing(view) if self.space_sharing else classes
        gain = normalized_rates(classes, view.capacity)
        if self.optimum == "centre":
            return classes.each(view, analytic_centre_shares(classes, view.capacity, gain)), memo
        if self.alone and all_differ(classes, merged=True):
            near = self._prices[0] if self._prices and self._prices[0].shape[2] == len(view.capacity) else None
            shares, near = max_min_by_blocks("max-min fairness", classes, view.capacity, gain, near)
            self._prices[:] = [near]
            return classes.each(view, shares), memo
        paired = colocated_gain(classes, view, gain) if self.space_sharing else None
        spread = spread_gain(classes, view, gain) if self.placement_sensitive else None
        worth = gain if spread is None else np.concatenate((gain, spread.gain), axis=1)
        weight_total = classes.count * classes.weight
        filled = self._program.solve(
            classes, view.capacity, gain, weight_total, paired, lambda: break_ties_by_class(worth, classes), spread
        )
        return divide_among_members(classes, view, filled), memo


def analytic_centre_shares(classes: JobClasses, capacity: Ints, gain: Floats) -> Floats:
    """The analytic centre of all optima: x of a member of each class."""
    return centre(classes.count, classes.workers, classes.weight, capacity, gain)


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Max-min fairness of time by water filling: jobs share what other jobs cannot use, without regard to GPU types."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return water_fill(view, ShareGroups.one(len(view.jobs)), aware=False), memo


@dataclass(frozen=True)
class MaxMinFairnessWaterFillingPerf(SharingOptions):
    """Max-min fairness of progress by water filling: jobs share what other jobs cannot use; heterogeneity-aware.

    Pareto efficient: no job's throughput can be raised without lowering another's."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return water_fill(view, ShareGroups.one(len(view.jobs)), aware=True, sharing=self), memo
