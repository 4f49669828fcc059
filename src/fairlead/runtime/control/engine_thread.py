"""The thread that speaks to an engine. It carries out starts and stops in their order, and passes on what the driver observes.
While the engine is away they wait, and nothing else does."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fairlead.core.errors import FairleadError
from fairlead.runtime.drivers.base import (
    EngineDriver,
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
)
from fairlead.runtime.host import Host

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 5.0  # before an engine that does not answer is asked again
MAX_OUTPUT = 64 << 20  # bytes of a part's output that are read to find its end
MIN_POLL_S = 0.2  # between two observations, however often the engine changes


@dataclass(eq=False)
class EngineThread:
    """Calls one driver. The callbacks are called in its thread."""

    driver: EngineDriver
    journal: str
    observed: Callable[[Sequence[Machine], Sequence[EngineTask]], None]
    started: Callable[[Sequence[LaunchPart]], None]
    refused: Callable[[Sequence[LaunchPart], str], None]
    host: Host = field(default_factory=Host)

    def __post_init__(self) -> None:
        self._changed = self.host.condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._queued: dict[LaunchKey, bool] = {}  # starts that wait: whether one was tried, and may have had an effect
        self._asked, self._closed = True, False
        self._next_s, self._earliest_s, self._next_start_s = -math.inf, -math.inf, -math.inf
        self.problem = ""  # why the engine is unavailable; empty: it is not

    def run(self) -> None:
        """Work until `close`."""
        try:
            pause_s, watched = FIRST_PAUSE_S, False
            while self._wait():
                try:
                    if not watched:
                        self.driver.watch(self.observe_soon)
                        watched = True
                    self._work()
                except Exception as problem:
                    if not isinstance(problem, FairleadError):
                        log.exception("the driver of %s failed", self.driver.name)
                    self._note(str(problem) or repr(problem))
                    self._pause(pause_s)
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                else:
                    self._note("")
                    pause_s = FIRST_PAUSE_S
        finally:
            self.driver.close()

    # For any thread.

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        """Start the parts of a launch."""
        with self._changed:
            self._queued.update((part.key, False) for part in parts)
        self._put(partial(self._start, tuple(parts), needs))

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        """End a part. One whose start waits for the engine is not started any more."""
        with self._changed:
            if self._queued.pop(key, True) is False:
                return
        self._put(partial(self.driver.stop, key, grace_s))

    def forget(self, key: LaunchKey) -> None:
        """Remove what is left of a part that is over."""
        self._put(partial(self.driver.forget, key))

    def read(self, key: LaunchKey, offset: int, limit: int, answer: Callable[[bytes | None], object]) -> None:
        """Read from the output of a part; a negative offset counts from the end. None: there is none, or not now."""

        def read() -> None:
            try:
                data = self.driver.log(key, max(0, offset), limit if offset >= 0 else MAX_OUTPUT)
            except FairleadError:
                data = None
            answer(data if offset >= 0 or data is None else data[offset:][:limit])

        self._put(read)

    def observe_soon(self) -> None:
        """Observe the engine soon."""
        with self._changed:
            self._asked = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread after its present call."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put(self, call: Callable[[], None]) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait for work; False: the thread is to end."""
        with self._changed:
            while not self._closed and not self._calls:
                due_s = self._earliest_s if self._asked else self._next_s
                if (left_s := due_s - self.host.monotonic()) <= 0:
                    break
                self._changed.wait(min(left_s, 3600.0))
            return not self._closed

    def _pause(self, seconds: float) -> None:
        until = self.host.monotonic() + seconds
        with self._changed:
            while not self._closed and (left_s := until - self.host.monotonic()) > 0:
                self._changed.wait(left_s)

    def _work(self) -> None:
        while self._calls and not self._closed:
            call = self._calls[0]
            try:
                call()
            except EngineUnavailable:
                raise  # it stays the first
            except Exception as problem:  # of a plug-in: the next call may work
                log.error("%s: %s", self.driver.name, problem, exc_info=not isinstance(problem, FairleadError))
            self._calls.popleft()
            if self.host.monotonic() >= self._next_s:
                break  # a long queue does not keep it from looking
        now = self.host.monotonic()
        if now >= (self._earliest_s if self._asked else self._next_s):
            self._asked = False
            self._next_s = self._earliest_s = now + MIN_POLL_S  # a failed observation is repeated soon
            machines, tasks = self.driver.observe(self.journal)
            self._next_s = self.host.monotonic() + self.driver.capabilities.poll_s
            self.observed(machines, tasks)

    def _start(self, parts: tuple[LaunchPart, ...], needs: LaunchNeeds) -> None:
        if (left_s := self._next_start_s - self.host.monotonic()) > 0:
            self._pause(left_s)
        with self._changed:
            parts = tuple(part for part in parts if part.key in self._queued)
            self._queued.update((part.key, True) for part in parts)
        if not parts:
            return
        try:
            self.driver.start(parts, needs)
        except EngineUnavailable:
            raise
        except Exception as why:
            self._done(parts)
            self.refused(parts, str(why) if isinstance(why, EngineRefused) else f"{self.driver.name} failed: {why!r}")
            return
        self._done(parts)
        self._next_start_s = self.host.monotonic() + len(parts) / self.driver.capabilities.starts_per_s
        self.started(parts)

    def _done(self, parts: Sequence[LaunchPart]) -> None:
        with self._changed:
            for part in parts:
                self._queued.pop(part.key, None)

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.error("%s is unavailable: %s", self.driver.name, problem)
        elif self.problem and not problem:
            log.info("%s is available again", self.driver.name)
        self.problem = problem
