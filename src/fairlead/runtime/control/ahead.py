"""Allocations that take their time. A solver works in a thread of its own; a decision waits for it as long as its round allows,
and then goes on with the last allocation. The answer is used by the first decision that finds it there, with the moment that it
is about.

This is the one stage that looks at a clock, and it is only there on wall time. What it answered is in the memo that the
decision leaves, and so in the journal: a replay does not ask it again."""

from __future__ import annotations

import logging
import math
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace

from fairlead.core.allocation import Allocation, NotYet
from fairlead.core.errors import FairleadError, SolverError
from fairlead.core.events import Memo
from fairlead.core.plan import Rates, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated, Allocator, Mechanism, Stages
from fairlead.runtime.control.aside import in_a_thread

log = logging.getLogger(__name__)

LONGEST_PATIENCE_S = 10.0
PATIENCE_WITHOUT_ROUNDS_S = 1.0


class Ahead:
    """An allocator that says `NotYet` where the true one takes longer than `patience_s`."""

    def __init__(self, allocator: Allocator, patience_s: float) -> None:
        self._allocator, self._patience_s = allocator, patience_s
        self._answer: Future[tuple[Allocation, Memo]] | None = None
        self._moment: Snapshot | None = None  # that the answer is about

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        try:
            return self.within(0.0 if self._answer is not None else self._patience_s, view, memo)
        except SolverError as problem:  # nothing of it is used; it is asked again in the next round
            log.error("allocation failed, the last one stands", extra={"why": str(problem)})
            raise NotYet(str(problem)) from problem

    def within(self, seconds: float, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        """The answer, where it is there in so many seconds: this question's, or that of an earlier one."""
        late = self._answer is not None
        if self._answer is None:
            moment = self._moment = _lasting(view)
            self._answer = in_a_thread("allocation", lambda: self._allocator.allocate(moment, memo))
        wait_for([self._answer], None if seconds == math.inf else seconds)
        if not self._answer.done():
            raise NotYet("the allocation is being computed")
        answer, self._answer = self._answer, None
        allocation, own = answer.result()
        return (replace(allocation, moment=self._moment) if late else allocation), own


@dataclass(frozen=True)
class _Patiently:
    ahead: Ahead

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return self.ahead.within(math.inf, view, memo)


@dataclass(frozen=True)
class Unhurried:
    """A policy of shares whose mechanism goes on with the last allocation while the next is computed. A mechanism that cannot
    is asked again once it is there."""

    ahead: Ahead
    mechanism: Mechanism

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        try:
            return self.mechanism.select(self.ahead, view, memo)
        except NotYet:
            return self.mechanism.select(_Patiently(self.ahead), view, memo)


def unhurried(stages: Stages) -> Stages:
    """The same scheduler, whose rounds do not wait for a solver."""
    if not isinstance(stages.policy, Allocated):
        return stages
    patience_s = min(stages.round_s / 2, LONGEST_PATIENCE_S) if stages.round_s else PATIENCE_WITHOUT_ROUNDS_S
    return replace(stages, policy=Unhurried(Ahead(stages.policy.allocator, patience_s), stages.policy.mechanism))


def _lasting(view: Snapshot) -> Snapshot:
    """A copy with the rates of this moment: estimation goes on learning in another thread."""
    rates, lasting = view.rates, view.detached()

    def known(asked: Snapshot) -> Rates:
        if asked.jobs is not lasting.jobs:
            raise FairleadError("an allocator that works beside the loop knows the rates of the jobs in its view, of no others")
        return rates

    return lasting.but(estimate=known)
