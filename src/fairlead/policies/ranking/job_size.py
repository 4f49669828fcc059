"""Policies by job size: shortest job, shortest remaining time, largest gang.

Run time is steps / estimated rate on the job's fastest type. Between events, what remains of a running job only shrinks, so the
order between running and waiting jobs does not change, and a selection is valid until an event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order


@dataclass(frozen=True)
class ShortestJobFirst:
    """Start the job with the shortest run time first: key = steps / rate. Running jobs stay, unless `preempt`."""

    paper: ClassVar[str] = "Gavel §4 (Narayanan et al., OSDI'20)"
    backfill: bool = True  # jobs behind one that does not fit may start before it
    preempt: bool = False  # jobs may be preempted for jobs that come before them in the order

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        key = view.jobs.steps / view.rates.fastest
        return in_order(view, key, backfill=self.backfill, preempt=self.preempt, valid_until=math.inf), memo


@dataclass(frozen=True)
class ShortestRemainingTimeFirst:
    """Run the job with the least remaining work: key = (steps − done) / rate, × workers with `by_accelerator_time`."""

    paper: ClassVar[str] = "Tiresias §3 (Gu et al., NSDI'19)"
    by_accelerator_time: bool = False  # rank by remaining run time times workers
    backfill: bool = True  # jobs behind one that does not fit may start before it

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        key = view.jobs.steps_left / view.rates.fastest
        if self.by_accelerator_time:
            key = key * view.jobs.workers
        return in_order(view, key, backfill=self.backfill, valid_until=math.inf), memo


@dataclass(frozen=True)
class LargestFirst:
    """Start the largest gang first: key = −workers. It keeps whole nodes in use and makes small jobs wait."""

    paper: ClassVar[str] = "classic bin packing (first fit decreasing)"
    backfill: bool = True  # jobs behind one that does not fit may start before it
    preempt: bool = False  # jobs may be preempted for jobs that come before them in the order

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return in_order(view, -view.jobs.workers, backfill=self.backfill, preempt=self.preempt, valid_until=math.inf), memo
