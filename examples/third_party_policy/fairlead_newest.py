"""A policy in a package of its own: the most recent job first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.plugin import Memo, Selection, Snapshot, in_order


@dataclass(frozen=True)
class NewestFirst:
    """Run the most recent job first: key = −submission. New jobs start at once, and old jobs wait."""

    backfill: bool = True
    preempt: bool = True

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        key = -view.jobs.submitted_s
        return in_order(view, key, backfill=self.backfill, preempt=self.preempt, valid_until=math.inf), memo
