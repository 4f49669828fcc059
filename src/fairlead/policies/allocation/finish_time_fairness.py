"""Finish-time fairness, the objective of Themis (Gavel §4.2):

    min_X max_m ρ_m,   ρ_m = (t_m + left_m / throughput(m, X)) / (t_m^isolated + left_m / throughput(m, X^isolated))

X^isolated is 1/n of the cluster for each of the n jobs that can run: N_j / (n·s_m) of the time on type j, scaled to sum to 1 at
most. t_m is the time since submission. t_m^isolated is the time in which a 1/n share would have done the steps done so far:
steps since the last allocation / the isolated throughput of then, summed up in the memo.

ρ_m ≤ ρ is a demand, throughput ≥ left_m / (ρ·isolated_m − t_m). A job that cannot reach ρ even alone on its fastest type gets
that type; the others go on to the least ρ at which the demands fit the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import canonical
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import NO_SHARING, SharingOptions, check_optimum
from fairlead.policies.allocation.lp.deadlines import Optimum, RemainingWork, fastest_of, min_level_allocation
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, no_allocation

PAPER = "Themis (Mahajan et al., NSDI'20); Gavel §4.2 (Narayanan et al., OSDI'20)"


@dataclass(frozen=True)
class FinishTimeFairness:
    """Minimize the worst finish time relative to a 1/n share, without regard to GPU types (Themis)."""

    paper: ClassVar[str] = PAPER
    optimum: Optimum = "throughput"
    """Which of several optimal solutions is taken: the one with the highest throughput, or the analytic centre."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return _min_max_rho(view, memo, self.optimum, type_agnostic=True)


@dataclass(frozen=True)
class FinishTimeFairnessPerf(SharingOptions):
    """Minimize the worst finish time relative to a 1/n share; heterogeneity-aware.

    A 1/n share is always that of a job alone on types at full speed."""

    paper: ClassVar[str] = PAPER
    optimum: Optimum = "throughput"
    """Which of several optimal solutions is taken: the one with the highest throughput, or the analytic centre."""

    def __post_init__(self) -> None:
        check_optimum("finish-time-fairness-perf", self.optimum, self)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return _min_max_rho(view, memo, self.optimum, sharing=self)


def _min_max_rho(
    view: Snapshot, memo: Memo, optimum: Optimum, *, type_agnostic: bool = False, sharing: SharingOptions = NO_SHARING
) -> tuple[Allocation, Memo]:
    classes = classes_of(view, type_agnostic=type_agnostic)
    left = view.jobs.steps_left
    rate = canonical(isolated_rates(view, classes, type_agnostic=type_agnostic))
    spent = isolated_s(view, left, memo)
    kept: dict[str, Any] = {"number": view.jobs.number.copy(), "left": left, "rate": rate, "isolated_s": spent}
    if not len(classes):
        return no_allocation(view), kept
    alone = spent + np.divide(left, rate, out=np.zeros(len(left)), where=rate > 0)
    remaining = RemainingWork(left, unit=alone, spent=view.time - view.jobs.submitted_s)
    name = "finish-time fairness"
    x, near = min_level_allocation(
        name, view, classes, remaining, memo, type_agnostic=type_agnostic, sharing=sharing, optimum=optimum
    )
    return x, {**kept, **near}


def isolated_rates(view: Snapshot, classes: JobClasses, *, type_agnostic: bool) -> Floats:
    """Each job's throughput with 1/n of the cluster to itself; 0 for a job that can run nowhere at the moment."""
    jobs = max(1, int(np.count_nonzero(classes.class_of >= 0)))
    share = (classes.rates > 0) * (view.capacity / jobs) / classes.workers[:, None]
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    if type_agnostic:
        return classes.by_job(share.sum(axis=1)) * fastest_of(view, classes)
    return classes.by_job((classes.rates * share).sum(axis=1))


def isolated_s(view: Snapshot, left: Floats, memo: Memo) -> Floats:
    """The time that a 1/n share would have taken for what each job has done so far."""
    spent = np.zeros(len(left))
    if memo is None or not len(left):
        return spent
    assert isinstance(memo, Mapping)
    known: Ints = memo["number"]
    if not len(known):
        return spent
    at = np.minimum(known.searchsorted(view.jobs.number), len(known) - 1)
    same = known[at] == view.jobs.number
    rate, done = memo["rate"][at], memo["left"][at] - left
    grown = memo["isolated_s"][at] + np.divide(done, rate, out=np.zeros(len(left)), where=rate > 0)
    return np.where(same, np.maximum(grown, 0.0), 0.0)
