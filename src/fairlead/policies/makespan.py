"""The shortest time in which all jobs can be done (Gavel §4.2):

    min_X max_m  left_m / throughput(m, X)

left_m are the steps that remain. A job that takes longest even alone on its fastest type gets that, and does not hold the
others back: they go on to the least duration at which what they need fits the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.in_time import in_time


@dataclass(frozen=True)
class MinTotalDuration:
    """All jobs done as soon as possible, whatever the accelerator (OSSP, open shop): makespan that knows no types."""

    paper: ClassVar[str] = "Gonzalez and Sahni, JACM'76 (open shop); Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return _allocated(view, alike=True), memo


@dataclass(frozen=True)
class MinTotalDurationPerf:
    """All jobs done as soon as possible, each on the types that bring this about: heterogeneity-aware makespan."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return _allocated(view, alike=False), memo


def _allocated(view: Snapshot, *, alike: bool) -> Allocation:
    count = len(view.jobs)
    x = in_time("makespan", view, view.jobs.steps_left, np.ones(count), np.zeros(count), alike=alike)
    return Allocation.alone(view.jobs.number, x)
