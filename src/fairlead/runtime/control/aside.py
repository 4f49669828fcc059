"""Decisions made in a thread beside the loop, which goes on listening. How long they take says how long before a round's start
the next one is begun."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from fairlead.core.reasons import Reason, Unplaced
from fairlead.engine.loop import Decision
from fairlead.runtime.control.trouble import Trouble

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
        return Unplaced.undecided(self._trouble.kind)
