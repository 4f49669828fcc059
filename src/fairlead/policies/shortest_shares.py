"""Shortest job first over types (Gavel §4.2):

    min_X min_m  left_m / throughput(m, X)

The optimum is the job that would be done first on its fastest type, alone there; then the same among the others, with what is
left of the cluster, and so on. Company goes by the same line and does not change the optimum: nobody comes beside the job that
is done first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.in_line import beside, in_pairs, taken, whole_shares
from fairlead.policies.programs.classes import classes_of
from fairlead.policies.programs.company import Sharing


@dataclass(frozen=True)
class ShortestJobFirstPerf(Sharing):
    """The job that can be done first has its fastest type to itself, then the next, on the fastest type with room for it.

    With `space_sharing`, who finds no room of its own goes beside whoever it does best with, if that pays, but for the first.
    With `placement_sensitive`, a gang that finds no room together may do better on another type.
    """

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        fastest = classes.by_job(classes.rates.max(axis=1))
        lasts = np.divide(view.jobs.steps_left, fastest, out=np.full(len(view.jobs), np.inf), where=fastest > 0)
        line = lasts.argsort(kind="stable")
        got = taken(view, classes, line, strict=False, placement_sensitive=self.placement_sensitive)
        if self.space_sharing:
            hosts = got.copy()
            hosts[line[:1]] = -1
            return in_pairs(view, got, beside(view, hosts, line[1:], {})), memo
        return Allocation.alone(view.jobs.number, whole_shares(got, len(view.capacity))), memo
