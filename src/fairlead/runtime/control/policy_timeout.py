"""Keep rounds going while a policy or a solver takes longer than its round, or fails.

The policy, or the allocator of an allocation policy, works in its own thread. A decision waits for the answer for part of its
round. Without an answer the last allocation or selection stands: jobs end, restart and rotate by it. The first later decision
that finds the answer uses it. A policy that failed is called again in the next round.

These are the only stages that read a clock, and only the runtime adds them. Answers reach the plan and the memo of a decision,
and so the journal: a replay does not call the policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from fairlead.core.allocation import Allocation, AllocationPending
from fairlead.core.events import Memo
from fairlead.core.plan import Observations, Rates, Selection
from fairlead.core.reasons import Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated, Allocator, Estimator, LearningEstimator, PlanningPolicy, Policy, Stages
from fairlead.runtime.control.async_decider import DecisionHealth, in_thread

MAX_WAIT_S = 10.0
WAIT_WITHOUT_ROUNDS_S = 1.0

T = TypeVar("T")


class _Background(Generic[T]):
    """At most one call at a time, in a thread."""

    def __init__(self, name: str, wait_s: float) -> None:
        self._name, self._wait_s = name, wait_s
        self._answer: Future[T] | None = None
        self._view: Snapshot | None = None  # that the answer is for

    def call(self, view: Snapshot, work: Callable[[Snapshot], T]) -> tuple[T, Snapshot | None]:
        """Return the answer, and the earlier view that it is for if it comes from an earlier call.

        Raises:
            AllocationPending: The answer takes longer than a decision may wait. Later calls do not wait.
        """
        late = self._answer is not None
        if self._answer is None:
            self._view = view
            self._answer = in_thread(self._name, lambda: work(view))
        wait_for([self._answer], 0.0 if late else self._wait_s)
        if not self._answer.done():
            raise AllocationPending(f"the {self._name} is being computed")
        answer, self._answer = self._answer, None
        return answer.result(), self._view if late else None


class TimedAllocator:
    """An allocator that raises `AllocationPending` if the inner one fails or is late: the last allocation stands."""

    def __init__(self, allocator: Allocator, wait_s: float, health: DecisionHealth) -> None:
        self._allocator, self._health = allocator, health
        self._background: _Background[tuple[Allocation, Memo]] = _Background("allocation", wait_s)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        """Return the allocation for `view`, or one for an earlier `moment`."""
        try:
            (allocation, own), moment = self._background.call(view, lambda asked: self._allocator.allocate(asked, memo))
        except AllocationPending:
            raise
        except Exception as problem:  # whatever a plug-in raises
            self._health.failed("allocation", problem)
            raise AllocationPending(str(problem)) from problem
        return (allocation if moment is None else replace(allocation, moment=moment)), own


class TimedPolicy:
    """A policy whose last selection stands while it fails or is late. No new job starts then: only the policy knows the order.

    A policy with a plan in its memo (`PlanningPolicy`) follows that plan instead. After a decision that could not be carried
    out, running jobs stay as they are."""

    def __init__(self, policy: Policy, wait_s: float, health: DecisionHealth) -> None:
        self._policy, self._health = policy, health
        self._background: _Background[tuple[Selection, Memo]] = _Background("policy", wait_s)
        self._last: Selection | None = None
        self._decisions = -1  # before `_last` was used

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        """Return the policy's selection, or what stands instead."""
        if self._health.decisions == self._decisions:  # nothing came of the last selection
            self._last = None
        self._decisions = self._health.decisions
        try:
            (selection, left), moment = self._background.call(view, lambda asked: self._policy.select(asked, memo))
            if moment is not None:
                selection = _of_present_jobs(selection, view)
        except AllocationPending:
            self._health.late("policy")
            return self._standing(view, memo), memo
        except Exception as problem:
            self._health.failed("policy", problem)
            return self._standing(view, memo), memo
        self._last = selection
        return selection, left

    def _standing(self, view: Snapshot, memo: Memo) -> Selection:
        last = None if self._last is None else self._planned(view, memo) or _of_present_jobs(self._last, view)
        last = _running(view) if last is None else last
        others = np.setdiff1d(view.jobs.number[~view.jobs.running], last.jobs).tolist()
        return replace(last, head=None, reasons=dict.fromkeys(others, Unplaced.no_decision(self._health.summary)))

    def _planned(self, view: Snapshot, memo: Memo) -> Selection | None:
        """What the policy's plan has for this moment."""
        if not isinstance(self._policy, PlanningPolicy) or memo is None:
            return None
        try:
            return replace(self._policy.interim_selection(view, memo), valid_until=None, revisit=view.time)
        except Exception as problem:
            self._health.failed("plan", problem)
            return None


class _LockedEstimator:
    """An estimator for two threads."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator, self._lock = estimator, threading.RLock()

    def rates(self, view: Snapshot) -> Rates:
        with self._lock:
            return self._estimator.rates(view)


class _LockedLearningEstimator(_LockedEstimator):
    """A second class: a decision asks the type whether it learns."""

    def __init__(self, estimator: LearningEstimator) -> None:
        super().__init__(estimator)
        self._learning = estimator

    def observe(self, view: Snapshot) -> Observations:
        with self._lock:
            return self._learning.observe(view)


def with_timeout(stages: Stages, health: DecisionHealth) -> Stages:
    """Return the same scheduler, whose rounds do not wait for a policy or a solver."""
    wait_s = min(stages.round_s / 2, MAX_WAIT_S) if stages.round_s else WAIT_WITHOUT_ROUNDS_S
    policy, inner = stages.policy, stages.estimator
    estimator = _LockedLearningEstimator(inner) if isinstance(inner, LearningEstimator) else _LockedEstimator(inner)
    if isinstance(policy, Allocated):
        allocator = TimedAllocator(policy.allocator, wait_s, health)
        return replace(stages, policy=replace(policy, allocator=allocator), estimator=estimator)
    return replace(stages, policy=TimedPolicy(policy, wait_s, health), estimator=estimator)


def _of_present_jobs(selection: Selection, view: Snapshot) -> Selection:
    """The part about jobs that are still there, valid now only."""
    present = selection.only(np.isin(selection.jobs, view.jobs.number))
    head = selection.head if selection.head in view.jobs.number else None
    return replace(present, valid_until=None, revisit=view.time, head=head)


def _running(view: Snapshot) -> Selection:
    """Running jobs as they are, co-located ones included."""
    jobs = view.jobs.only(view.jobs.running)
    places = view.device_map.last[jobs.number]
    if view.routes:  # these jobs share by their routes
        places = np.where(np.isin(jobs.number, list(view.routes)), -1 - jobs.number, places)
    shared = len(np.unique(places)) < len(places)
    return Selection(jobs.number, jobs.type, jobs.held, places if shared else None, routes=view.routes, revisit=view.time)
