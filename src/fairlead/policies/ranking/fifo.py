"""First in, first out: order by submission; with priorities by (−priority, submission). The baseline of the field (Philly,
ATC'19)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order


@dataclass(frozen=True)
class Fifo:
    """Run jobs in the order of their submission. Strict: no job overtakes the head of the queue, unless `backfill`."""

    paper: ClassVar[str] = "Jeon et al., ATC'19 (Philly)"
    backfill: bool = False  # jobs behind one that does not fit may start before it
    preempt: bool = False  # jobs may be preempted for jobs that come before them in the order

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return in_order(view, backfill=self.backfill, preempt=self.preempt, valid_until=math.inf), memo


@dataclass(frozen=True)
class FifoPriority:
    """Run jobs of higher priority first, by submission among equals; they preempt jobs of lower priority."""

    paper: ClassVar[str] = "Jeon et al., ATC'19 (Philly)"
    backfill: bool = False  # jobs behind one that does not fit may start before it
    preempt: bool = True  # jobs may be preempted for jobs that come before them in the order

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        key = -view.jobs.priority
        return in_order(view, key, backfill=self.backfill, preempt=self.preempt, valid_until=math.inf), memo


@dataclass(frozen=True)
class FifoAnyType:
    """Run jobs in the order of their submission, each on a random GPU type with room.

    Order: by submission, strict. A job stays on its type until it ends (the baseline of Gavel §7.3). The draw is the job's
    own."""

    paper: ClassVar[str] = "Gavel §7.3 (Narayanan et al., OSDI'20)"
    seed: int = 0  # seed of the random draws

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs, running = view.jobs, view.jobs.running
        if not len(jobs):
            return Selection.empty(), memo
        held = np.bincount(jobs.type[running], jobs.held[running], minlength=len(view.capacity))
        free = (view.capacity - held.astype(np.int64)).tolist()
        numbers, types, workers = (column[running].tolist() for column in (jobs.number, jobs.type, jobs.held))
        usable = (jobs.fits & view.rates.runs_on[view.rates.row])[~running].tolist()
        head = None
        for number, want, mask in zip(jobs.number[~running].tolist(), jobs.workers[~running].tolist(), usable):
            order = stream(self.seed, "fifo-any-type", number).permutation(len(free)).tolist()
            found = next((type_ for type_ in order if mask >> type_ & 1 and free[type_] >= want), None)
            if found is None:
                head = number
                break
            free[found] -= want
            numbers.append(number)
            types.append(found)
            workers.append(want)
            if not any(free):
                break
        chosen, on, sizes = (np.array(column, dtype=np.int64) for column in (numbers, types, workers))
        return Selection(chosen, on, sizes, valid_until=math.inf, head=head, strict=True), memo
