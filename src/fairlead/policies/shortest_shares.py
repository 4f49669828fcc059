"""Shortest job first over types (Gavel §4.2):

    min_X min_m  left_m / throughput(m, X)

The optimum is the job that would be done first on its fastest type, alone there; then the same among the others, with what is
left of the cluster, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.classes import classes_of
from fairlead.policies.in_line import taken, whole_shares


@dataclass(frozen=True)
class ShortestJobFirstPerf:
    """The job that can be done first has its fastest type to itself, then the next, on the fastest type with room for it."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        fastest = classes.by_job(classes.rates.max(axis=1))
        lasts = np.divide(view.jobs.steps_left, fastest, out=np.full(len(view.jobs), np.inf), where=fastest > 0)
        got = taken(view, classes, lasts.argsort(kind="stable"), strict=False)
        return Allocation.alone(view.jobs.number, whole_shares(got, len(view.capacity))), memo
