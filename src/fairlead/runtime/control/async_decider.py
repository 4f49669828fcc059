"""Decisions made in a thread beside the loop, which goes on listening. How long they take says how long before a round's start
the next one is begun."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from fairlead.core.reasons import Reason, Unplaced
from fairlead.engine.loop import Decision

# What keeps a scheduler from deciding: a stage that fails, or one that takes longer than its round. It is told when it
# begins, when it is another, and when it is over; how often it happened is counted. It decides nothing.

log = logging.getLogger("fairlead.cluster")

LONGEST = 500
"""Characters of what a stage says about its own failure."""


class Trouble:
    """`told` hear of each time ("failed" or "late"). Used by the thread that decides, but for `slow`; others may read."""

    def __init__(self, told: Callable[[str], None] = lambda how: None) -> None:
        self._told = told
        self.now = ""  # for people who may see everything; empty: there is none
        self.kind = ""  # the same without what the stage said itself, which may name others' jobs
        self._new = False  # in the decision that is being made
        self.made = 0  # decisions that could be carried out
        self._making = 0  # decisions that are being made: more than one where a switch has left one behind
        self._lock = threading.Lock()

    def failed(self, who: str, problem: BaseException) -> None:
        kind = f"the {who} failed: {type(problem).__name__}"
        text = f"{kind}: {problem}"[:LONGEST]
        if text != self.now:
            log.error("%s failed, what was decided last stands", who, exc_info=problem, extra={"why": text})
        self._begin("failed", kind, text)

    def late(self, who: str) -> None:
        text = f"the {who} takes longer than a round"
        if text != self.now:
            log.warning("%s is late, what was decided last stands", who)
        self._begin("late", text, text)

    def slow(self) -> None:
        """From the loop's thread: a round begins, and the decision of an earlier one is still being made, whichever stage it is
        that takes so long. It is over when that decision is made."""
        text = "a decision takes longer than a round"
        with self._lock:
            if not self._making or self._new:  # it is there, or has said itself what is wrong
                return
            if not self.now:
                log.warning("a decision is late, what was decided last stands")
                self.now = self.kind = text
        self._told("late")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around a decision: one that is made without trouble says that it is over."""
        self._new = False
        with self._lock:
            self._making += 1
        try:
            yield
        except BaseException:
            with self._lock:
                self._making -= 1
            raise
        with self._lock:
            self._making -= 1
            self.made += 1
            if self.now and not self._new:
                log.info("decisions are made again", extra={"why": self.now})
                self.now = self.kind = ""

    def _begin(self, how: str, kind: str, text: str) -> None:
        self.now, self.kind, self._new = text, kind, True
        self._told(how)


WORTH_S = 0.05
"""Decisions that take less are not begun ahead of their round."""

MARGIN = 1.25

T = TypeVar("T")


def in_a_thread(name: str, work: Callable[[], T], done: Callable[[], None] = lambda: None) -> Future[T]:
    """What comes out of it, some day. Nobody waits for the thread when the process ends."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as problem:  # whoever asks for the result gets it
            result.set_exception(problem)
        done()

    threading.Thread(target=run, name=name, daemon=True).start()
    return result


class DecidedAside:
    """One decision at a time. `wake` makes the backend's `wait` return; `told` hear the seconds of each decision, and `trouble`
    of those that failed."""

    def __init__(self, wake: Callable[[], None], told: Sequence[Callable[[float], None]], trouble: Trouble) -> None:
        self._wake, self._told, self._trouble = wake, told, trouble
        self._last: deque[float] = deque(maxlen=5)

    @property
    def lead_s(self) -> float:
        longest = max(self._last, default=0.0)
        return MARGIN * longest if longest > WORTH_S else 0.0

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        def timed() -> Decision:
            began = time.perf_counter()
            with self._trouble.watched():
                made = decision()
            seconds = time.perf_counter() - began
            self._last.append(seconds)
            for tell in self._told:
                tell(seconds)
            return made

        result = in_a_thread("decision", timed, self._wake)
        return lambda: result.result() if result.done() else None

    def late(self) -> None:
        self._trouble.slow()

    def failed(self, problem: Exception) -> Reason:
        self._trouble.failed("scheduler", problem)
        return Unplaced.no_decision(self._trouble.kind)
