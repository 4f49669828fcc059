"""A policy in a package of its own: the newest job first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order


@dataclass(frozen=True)
class YoungestFirst:
    """Run whoever came last first: key = −submission. Good for whoever has just pressed enter, hard on everybody else."""

    backfill: bool = True
    preempt: bool = True

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        key = -view.jobs.submitted_s
        return in_order(view, key, backfill=self.backfill, preempt=self.preempt, valid_until=math.inf), memo
