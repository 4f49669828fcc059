"""The shortest time in which all jobs can be done (Gavel §4.2):

    min_X max_m  left_m / throughput(m, X)

left_m is its number of steps left. The job that takes longest even alone on its fastest type gets that type; for the others
the smallest feasible makespan is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import NO_SHARING, SharingOptions, check_optimum
from fairlead.policies.allocation.lp.deadlines import Optimum, RemainingWork, min_level_allocation
from fairlead.policies.allocation.lp.job_classes import classes_of, no_allocation


@dataclass(frozen=True)
class MinTotalDuration:
    """Minimize the makespan as an open shop scheduling problem (OSSP), without regard to GPU types."""

    paper: ClassVar[str] = "Gonzalez and Sahni, JACM'76 (open shop); Gavel §4.2 (Narayanan et al., OSDI'20)"
    optimum: Optimum = "throughput"
    """Which of several optimal solutions is taken: the one with the highest throughput, or the analytic centre."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return _min_makespan(view, memo, self.optimum, type_agnostic=True)


@dataclass(frozen=True)
class MinTotalDurationPerf(SharingOptions):
    """Minimize the makespan; heterogeneity-aware."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    optimum: Optimum = "throughput"
    """Which of several optimal solutions is taken: the one with the highest throughput, or the analytic centre."""

    def __post_init__(self) -> None:
        check_optimum("min-total-duration-perf", self.optimum, self)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return _min_makespan(view, memo, self.optimum, sharing=self)


def _min_makespan(
    view: Snapshot, memo: Memo, optimum: Optimum, *, type_agnostic: bool = False, sharing: SharingOptions = NO_SHARING
) -> tuple[Allocation, Memo]:
    classes = classes_of(view, type_agnostic=type_agnostic)
    if not len(classes):
        return no_allocation(view), memo
    ones = np.ones(len(view.jobs))
    remaining = RemainingWork(view.jobs.steps_left, unit=ones, spent=0.0 * ones)
    return min_level_allocation(
        "makespan", view, classes, remaining, memo, type_agnostic=type_agnostic, sharing=sharing, optimum=optimum
    )
