"""Least attained service: key = attained / weight, where attained is run time or accelerator time (run time × accelerators
held).

A running job's key grows, a waiting one's does not; the selection is valid until the first of the former reaches one of the
latter. Without rounds, equal jobs would take turns at every moment. There, a running job may exceed a waiting one by a part of
its service, so that the number of turns grows with the logarithm of the service, not with time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import first_crossing, in_order

TURN = 1 / 32
"""Without rounds: by which part of its attained service a running job may exceed a waiting one before they are compared."""


@dataclass(frozen=True)
class LeastAttainedService:
    """Run the job with the least attained service first, by GPU time or by time, per weight."""

    paper: ClassVar[str] = "Tiresias §3.2 (Gu et al., NSDI'19); Gavel §4.1"
    by: Literal["accelerator-time", "time"] = "accelerator-time"  # service is run time times GPUs, or run time alone
    backfill: bool = True  # jobs behind one that does not fit may start before it

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        by_accelerator = self.by == "accelerator-time"
        key = jobs.accelerator_s if by_accelerator else jobs.run_s
        if view.weighted:
            key = key / jobs.weight
        selection = in_order(view, key, backfill=self.backfill, valid_until=math.inf)
        at = jobs.position_of(selection.jobs)
        growth = selection.workers if by_accelerator else np.ones(len(at))
        if view.weighted:
            growth = growth / jobs.weight[at]
        return selection.until(first_crossing(view.time, key, at, growth, 0.0 if view.round_s else TURN)), memo
