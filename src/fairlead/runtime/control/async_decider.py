"""Make decisions in a thread, so that the loop keeps answering users and agents, and track whether decisions succeed.

It knows no stage and no policy: a decision is a callable. Its recent durations tell how long before a round the next decision
must begin."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from fairlead.core.allocation import AllocationPending
from fairlead.core.reasons import Reason, Unplaced
from fairlead.engine.loop import Decision

log = logging.getLogger("fairlead.cluster")

MAX_MESSAGE = 500
"""Characters of a stage's own error message."""

MIN_LEAD_S = 0.05
"""Shorter decisions begin with their round."""

LEAD_MARGIN = 1.25

T = TypeVar("T")


class DecisionHealth:
    """What keeps a scheduler from deciding: a stage that fails, or takes longer than its round.

    Each change is logged once; `count` receives every occurrence ("failed" or "late"). The deciding thread calls all methods
    except `decision_late`; any thread may read."""

    def __init__(self, count: Callable[[str], None] = lambda how: None) -> None:
        self._count = count
        self.message = ""  # for admins; empty: decisions succeed
        self.summary = ""  # for users: without the stage's own text, which may name other users' jobs
        self.decisions = 0  # that could be carried out
        self._reported = False  # by the decision that is being made
        self._in_progress = 0  # more than one after a scheduler switch has abandoned one
        self._lock = threading.Lock()

    def failed(self, stage: str, problem: BaseException) -> None:
        """Record that a stage raised an error."""
        summary = f"the {stage} failed: {type(problem).__name__}"
        message = f"{summary}: {problem}"[:MAX_MESSAGE]
        if message != self.message:
            log.error("%s failed, the last decision stands", stage, exc_info=problem, extra={"why": message})
        self._report("failed", summary, message)

    def late(self, stage: str) -> None:
        """Record that a stage takes longer than it may."""
        message = f"the {stage} takes longer than a round"
        if message != self.message:
            log.warning("%s is late, the last decision stands", stage)
        self._report("late", message, message)

    def decision_late(self) -> None:
        """Record, from the loop's thread, that a round begins before an earlier decision is made."""
        with self._lock:
            if not self._in_progress or self._reported:
                return
            if not self.message:
                log.warning("decision is late, the last one stands")
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
                log.info("decisions are made again", extra={"why": self.message})
                self.message = self.summary = ""

    def _report(self, how: str, summary: str, message: str) -> None:
        self.message, self.summary, self._reported = message, summary, True
        self._count(how)


def in_thread(name: str, work: Callable[[], T], on_end: Callable[[], None] = lambda: None) -> Future[T]:
    """Start `work` in a daemon thread, which does not keep the process alive, and return its future result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as problem:  # raised where the result is read
            result.set_exception(problem)
        on_end()

    threading.Thread(target=run, name=name, daemon=True).start()
    return result


class AsyncDecider:
    """Makes one decision at a time. `wake` makes the backend's `wait` return; `timers` receive the seconds of each decision."""

    def __init__(self, wake: Callable[[], None], timers: Sequence[Callable[[float], None]], health: DecisionHealth) -> None:
        self._wake, self._timers, self._health = wake, timers, health
        self._recent_s: deque[float] = deque(maxlen=5)

    @property
    def lead_s(self) -> float:
        """How long before a round its decision should begin."""
        longest = max(self._recent_s, default=0.0)
        return LEAD_MARGIN * longest if longest > MIN_LEAD_S else 0.0

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        """Start a decision; the result returns it, or None while it is being made."""

        def timed() -> Decision:
            began = time.perf_counter()
            with self._health.track():
                made = decision()
            seconds = time.perf_counter() - began
            self._recent_s.append(seconds)
            for timer in self._timers:
                timer(seconds)
            return made

        result = in_thread("decision", timed, self._wake)
        return lambda: result.result() if result.done() else None

    def late(self) -> None:
        """A round begins while an earlier decision is being made."""
        self._health.decision_late()

    def failed(self, problem: Exception) -> Reason:
        """A decision failed; return the reason for jobs that wait."""
        if isinstance(problem, AllocationPending):  # of a mechanism that cannot do without the next allocation
            self._health.late("allocation")
        else:
            self._health.failed("scheduler", problem)
        return Unplaced.no_decision(self._health.summary)
