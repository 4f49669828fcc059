"""Policies that take their time, or fail. A policy, or the solver of a policy of shares, works in a thread of its own; a
decision waits for it as long as its round allows, and then goes on with what was said last. The answer is used by the first
decision that finds it there, with the moment that it is about. One that fails is asked again in the next round.

These are the only stages that look at a clock, and they are only there on wall time. What was answered is in the plan and the
memo that the decision leaves, and so in the journal: a replay does not ask again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from fairlead.core.allocation import Allocation, AllocationPending
from fairlead.core.errors import FairleadError
from fairlead.core.events import Memo
from fairlead.core.plan import Observations, Rates, Selection
from fairlead.core.reasons import Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated, Allocator, Estimator, LearningEstimator, Mechanism, PlanningPolicy, Policy, Stages
from fairlead.runtime.control.async_decider import Trouble, in_a_thread

LONGEST_PATIENCE_S = 10.0
PATIENCE_WITHOUT_ROUNDS_S = 1.0

T = TypeVar("T")


class Question(Generic[T]):
    """One at a time, answered in a thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._answer: Future[T] | None = None
        self._moment: Snapshot | None = None  # that the answer is about

    @property
    def open(self) -> bool:
        return self._answer is not None

    def within(self, seconds: float, view: Snapshot, ask: Callable[[Snapshot], T]) -> tuple[T, Snapshot | None]:
        """The answer, if it is there in so many seconds, or `AllocationPending`: this question's, or that of an earlier one,
        with the moment that was about."""
        late = self._answer is not None
        if self._answer is None:
            self._moment = view
            self._answer = in_a_thread(self._name, lambda: ask(view))
        wait_for([self._answer], None if seconds == math.inf else seconds)
        if not self._answer.done():
            raise AllocationPending(f"the {self._name} is being computed")
        answer, self._answer = self._answer, None
        return answer.result(), self._moment if late else None


class Ahead:
    """An allocator that says `AllocationPending` where the true one fails, or takes longer than `patience_s`."""

    def __init__(self, allocator: Allocator, patience_s: float, trouble: Trouble) -> None:
        self._allocator, self._patience_s, self._trouble = allocator, patience_s, trouble
        self._question: Question[tuple[Allocation, Memo]] = Question("allocation")

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        try:
            return self.within(0.0 if self._question.open else self._patience_s, view, memo)
        except AllocationPending:
            raise
        except Exception as problem:  # nothing of it is used; it is asked again in the next round
            self._trouble.failed("allocation", problem)
            raise AllocationPending(str(problem)) from problem

    def within(self, seconds: float, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        lasting = view if self._question.open else _lasting(view)
        (allocation, own), moment = self._question.within(
            seconds, lasting, lambda moment: self._allocator.allocate(moment, memo)
        )
        return (allocation if moment is None else replace(allocation, moment=moment)), own


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
        except AllocationPending:
            return self.mechanism.select(_Patiently(self.ahead), view, memo)


class Standing:
    """A policy whose last selection stands where it fails or takes longer than `patience_s`. Nobody new starts then: only the
    policy knows who is next. Where its memo is a plan, that one stands instead, round by round, and who is next starts. A
    selection that no decision could be made of does not stand: the one before it does, and where that one came to nothing
    either, who runs."""

    def __init__(self, policy: Policy, patience_s: float, trouble: Trouble) -> None:
        self._policy, self._patience_s, self._trouble = policy, patience_s, trouble
        self._question: Question[tuple[Selection, Memo]] = Question("policy")
        self._last: Selection | None = None  # that a decision was made of
        self._used: Selection | None = None  # by the last decision, whatever came of it
        self._made = 0  # decisions, when it was used

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        self._look_back()
        patience_s = 0.0 if self._question.open else self._patience_s
        try:
            (selection, left), moment = self._question.within(patience_s, view, lambda asked: self._policy.select(asked, memo))
            if moment is not None:
                selection = _of_those_here(selection, view)
        except AllocationPending:
            self._trouble.late("policy")
            return self._stands(view, memo), memo
        except Exception as problem:
            self._trouble.failed("policy", problem)
            return self._stands(view, memo), memo
        self._used = selection
        return selection, left

    def _look_back(self) -> None:
        """What became of the selection that was used last."""
        if self._trouble.made > self._made:
            self._last = self._used
        elif self._used is self._last:
            self._last = None
        self._used, self._made = self._last, self._trouble.made

    def _stands(self, view: Snapshot, memo: Memo) -> Selection:
        last = self._planned(view, memo)
        if last is None:
            last = _who_runs(view) if self._last is None else _of_those_here(self._last, view)
        others = np.setdiff1d(view.jobs.number[~view.jobs.running], last.jobs).tolist()
        return replace(last, head=None, reasons=dict.fromkeys(others, Unplaced.no_decision(self._trouble.kind)))

    def _planned(self, view: Snapshot, memo: Memo) -> Selection | None:
        """What the policy's plan has for this moment, unless the last decision could not be made with it."""
        if not isinstance(self._policy, PlanningPolicy) or memo is None or self._last is None:
            return None
        try:
            return replace(self._policy.interim_selection(view, memo), valid_until=None, revisit=view.time)
        except Exception as problem:
            self._trouble.failed("plan", problem)
            return None


class _Once:
    """An estimation that two threads may ask."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimation, self._turn = estimator, threading.RLock()

    def rates(self, view: Snapshot) -> Rates:
        with self._turn:
            return self._estimation.rates(view)


class _OnceLearning(_Once):
    def __init__(self, estimator: LearningEstimator) -> None:
        super().__init__(estimator)
        self._learning = estimator

    def observe(self, view: Snapshot) -> Observations:
        with self._turn:
            return self._learning.observe(view)


def unhurried(stages: Stages, trouble: Trouble) -> Stages:
    """The same scheduler, whose rounds do not wait for a policy or a solver."""
    patience_s = min(stages.round_s / 2, LONGEST_PATIENCE_S) if stages.round_s else PATIENCE_WITHOUT_ROUNDS_S
    policy, estimator = stages.policy, stages.estimator
    if isinstance(policy, Allocated):
        return replace(stages, policy=Unhurried(Ahead(policy.allocator, patience_s, trouble), policy.mechanism))
    shared = _OnceLearning(estimator) if isinstance(estimator, LearningEstimator) else _Once(estimator)
    return replace(stages, policy=Standing(policy, patience_s, trouble), estimator=shared)


def _lasting(view: Snapshot) -> Snapshot:
    """A copy with the rates of this moment: estimation goes on learning in another thread."""
    rates, lasting = view.rates, view.detached()

    def known(asked: Snapshot) -> Rates:
        if asked.jobs is not lasting.jobs:
            raise FairleadError("an allocator that works beside the loop knows the rates of the jobs in its view, of no others")
        return rates

    return lasting.with_changes(estimate=known)


def _of_those_here(selection: Selection, view: Snapshot) -> Selection:
    """What was said of jobs that are still there; it promises nothing for later."""
    here = selection.only(np.isin(selection.jobs, view.jobs.number))
    head = selection.head if selection.head in view.jobs.number else None
    return replace(here, valid_until=None, revisit=view.time, head=head)


def _who_runs(view: Snapshot) -> Selection:
    """Everybody stays as they are; who shares an accelerator goes on sharing it."""
    jobs = view.jobs.only(view.jobs.running)
    places = view.device_map.last[jobs.number]
    if view.routes:  # they share by their routes
        places = np.where(np.isin(jobs.number, list(view.routes)), -1 - jobs.number, places)
    shared = len(np.unique(places)) < len(places)
    return Selection(jobs.number, jobs.type, jobs.held, places if shared else None, routes=view.routes, revisit=view.time)
