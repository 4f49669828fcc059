"""Make decisions in a thread, so that the loop keeps answering users and agents; keep rounds going while a policy or a solver
takes longer than its round, or fails; and track whether decisions succeed. Within a decision the policy, or the allocator of an
allocation policy, works in a thread of its own. A decision waits for the answer for part of its round. Without an answer the
last allocation or selection stands: jobs end, restart and rotate by it. The first later decision that finds the answer uses it.
Answers reach the plan and the memo of a decision, and so the journal: a replay does not call the policy. Only the runtime has
such stages, which read a clock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from fairlead.core.allocation import Allocation, AllocationPending
from fairlead.core.events import Memo
from fairlead.core.plan import Observations, Rates, Selection
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import (
    Allocated,
    Allocator,
    Estimator,
    LearningEstimator,
    PlanningPolicy,
    Policy,
    Stages,
    known_changes_s,
)
from fairlead.engine.loop import Decision
from fairlead.runtime.host import Host

log = logging.getLogger("fairlead.cluster")

MAX_MESSAGE = 500  # characters of a stage's own error message

MIN_LEAD_S = 0.05  # shorter decisions begin with their round

LEAD_MARGIN = 1.25

MAX_WAIT_S, WAIT_WITHOUT_ROUNDS_S = 10.0, 1.0  # for a policy: at most, and for a scheduler without rounds

T = TypeVar("T")

NO_NEW_PLAN = "running jobs keep their GPUs, and no new job starts"


class DecisionHealth:
    """What keeps a scheduler from deciding: a stage that fails, or takes longer than its round. Each change is logged once;
    `count` receives every occurrence ("failed" or "late"). The deciding thread calls all methods except `decision_late`; any
    thread may read."""

    def __init__(self, count: Callable[[str], None] = lambda how: None) -> None:
        self._count = count
        self.message = ""  # for admins; empty: decisions succeed
        self.summary = ""  # for users: without the stage's own text, which may name other users' jobs
        self.decisions = 0  # that could be carried out
        self._reported = False  # by the decision that is being made
        self._in_progress = 0  # more than one after a scheduler switch has abandoned one
        self._lock = threading.Lock()

    def failed(self, stage: str, problem: BaseException) -> None:
        summary = f"the {stage} failed: {type(problem).__name__}"
        message = f"{summary}: {problem}"[:MAX_MESSAGE]
        if message != self.message:
            log.error(f"%s failed; {NO_NEW_PLAN}", stage, exc_info=problem, extra={"why": message})
        self._report("failed", summary, message)

    def late(self, stage: str) -> None:
        """Record that a stage takes longer than it may."""
        message = f"the {stage} takes longer than a round"
        if message != self.message:
            log.warning(f"%s takes longer than a round; {NO_NEW_PLAN}", stage)
        self._report("late", message, message)

    def decision_late(self) -> None:
        """Record, from the loop's thread, that a round begins before an earlier decision is made."""
        with self._lock:
            if not self._in_progress or self._reported:
                return
            if not self.message:
                log.warning(f"a decision takes longer than a round; {NO_NEW_PLAN}")
                self.message = self.summary = "a decision takes longer than a round"
        self._count("late")

    @contextmanager
    def track(self) -> Iterator[None]:
        """Enclose a decision; one without a problem ends the problem before it."""
        self._reported = False
        with self._lock:
            self._in_progress += 1
        try:
            yield
        except BaseException:
            with self._lock:
                self._in_progress -= 1
            raise
        with self._lock:
            self._in_progress -= 1
            self.decisions += 1
            if self.message and not self._reported:
                log.info("decisions resumed", extra={"why": self.message})
                self.message = self.summary = ""

    def _report(self, how: str, summary: str, message: str) -> None:
        self.message, self.summary, self._reported = message, summary, True
        self._count(how)


class _InThread(Generic[T]):
    """`work` in a thread of the host, and its result."""

    def __init__(self, host: Host, name: str, work: Callable[[], T], on_end: Callable[[], None] = lambda: None) -> None:
        self._work, self._on_end = work, on_end
        self._host, self._changed = host, host.condition()
        self.done = False
        host.spawn(name, self._run)

    def wait(self, within_s: float) -> bool:
        """Whether it is done, at most this long from now."""
        until = self._host.monotonic() + within_s
        with self._changed:
            while not self.done and (left := until - self._host.monotonic()) > 0:
                self._changed.wait(left)
        return self.done

    def result(self) -> T:
        """What it returned; raises what it raised."""
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    def _run(self) -> None:
        try:
            self._result: T | BaseException = self._work()
        except BaseException as problem:  # raised where the result is read
            self._result = problem
        with self._changed:
            self.done = True
            self._changed.notify_all()
        self._on_end()


class AsyncDecider:
    """Makes one decision at a time. `wake` makes the backend's `wait` return; `timers` receive the seconds of each decision."""

    def __init__(
        self, wake: Callable[[], None], timers: Sequence[Callable[[float], None]], health: DecisionHealth, host: Host
    ) -> None:
        self._wake, self._timers, self._health, self._host = wake, timers, health, host
        self._recent_s: deque[float] = deque(maxlen=5)

    @property
    def lead_s(self) -> float:
        """How long before a round its decision should begin."""
        longest = max(self._recent_s, default=0.0)
        return LEAD_MARGIN * longest if longest > MIN_LEAD_S else 0.0

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        """Start a decision; the result returns it, or None while it is being made."""

        def timed() -> Decision:
            began = self._host.monotonic()
            with self._health.track():
                made = decision()
            seconds = self._host.monotonic() - began
            self._recent_s.append(seconds)
            for timer in self._timers:
                timer(seconds)
            return made

        thread = _InThread(self._host, "decision", timed, self._wake)
        return lambda: thread.result() if thread.done else None

    def late(self) -> None:
        """A round begins while an earlier decision is being made."""
        self._health.decision_late()

    def failed(self, problem: Exception) -> Reason:
        """A decision failed; return the reason for jobs that wait."""
        if isinstance(problem, AllocationPending):  # of a mechanism that cannot do without the next allocation
            self._health.late("allocation")
        else:
            self._health.failed("scheduler", problem)
        return Reasons.no_decision(self._health.summary)


class _Background(Generic[T]):
    """At most one call at a time, in a thread."""

    def __init__(self, name: str, wait_s: float, host: Host) -> None:
        self._name, self._wait_s, self._host = name, wait_s, host
        self._answer: _InThread[T] | None = None
        self._view: Snapshot | None = None  # that the answer is for

    def call(self, view: Snapshot, work: Callable[[Snapshot], T]) -> tuple[T, Snapshot | None]:
        """Return the answer, and the earlier view that it is for if it comes from an earlier call. Raises `AllocationPending`:
        the answer takes longer than a decision may wait. Later calls do not wait."""
        late = self._answer is not None
        if self._answer is None:
            self._view = view
            self._answer = _InThread(self._host, self._name, lambda: work(view))
        if not self._answer.wait(0.0 if late else self._wait_s):
            raise AllocationPending(f"the {self._name} is being computed")
        answer, self._answer = self._answer, None
        return answer.result(), self._view if late else None


class TimedAllocator:
    """An allocator that raises `AllocationPending` if the inner one fails or is late: the last allocation stands."""

    def __init__(self, allocator: Allocator, wait_s: float, health: DecisionHealth, host: Host) -> None:
        self._allocator, self._health = allocator, health
        self.changes_s = partial(known_changes_s, allocator)
        self._background: _Background[tuple[Allocation, Memo]] = _Background("allocation", wait_s, host)

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

    def __init__(self, policy: Policy, wait_s: float, health: DecisionHealth, host: Host) -> None:
        self._policy, self._health = policy, health
        self._background: _Background[tuple[Selection, Memo]] = _Background("policy", wait_s, host)
        self._last: Selection | None = None
        self._decisions = -1  # before `_last` was used

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
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
        last = None if self._last is None else self._planned(view, memo)
        if last is None:  # an empty plan holds too
            last = _running(view) if self._last is None else _of_present_jobs(self._last, view)
        others = np.setdiff1d(view.jobs.number[~view.jobs.running], last.jobs).tolist()
        return replace(last, head=None, reasons=dict.fromkeys(others, Reasons.no_decision(self._health.summary)))

    def _planned(self, view: Snapshot, memo: Memo) -> Selection | None:
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


def with_timeout(stages: Stages, health: DecisionHealth, host: Host) -> Stages:
    """Return the same scheduler for a real cluster: its rounds do not wait for a policy or a solver, and nodes may join."""
    stages = replace(stages, await_nodes=True)
    wait_s = min(stages.round_s / 2, MAX_WAIT_S) if stages.round_s else WAIT_WITHOUT_ROUNDS_S
    policy, inner = stages.policy, stages.estimator
    estimator = _LockedLearningEstimator(inner) if isinstance(inner, LearningEstimator) else _LockedEstimator(inner)
    if isinstance(policy, Allocated):
        allocator = TimedAllocator(policy.allocator, wait_s, health, host)
        return replace(stages, policy=replace(policy, allocator=allocator), estimator=estimator)
    return replace(stages, policy=TimedPolicy(policy, wait_s, health, host), estimator=estimator)


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
