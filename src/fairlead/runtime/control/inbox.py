"""Requests to the loop of a control plane, from any thread. It knows neither what a request does nor how events are stored."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from fairlead.core import events as ev
from fairlead.runtime.host import Host

MAX_WAIT_S = 3600.0

Handle: TypeAlias = Callable[[float], Sequence[ev.Event]]  # makes the events of a request
Answer: TypeAlias = Callable[[Sequence[ev.Event]], None]  # receives them once they are in the journal


def ignore(events: Sequence[ev.Event]) -> None:
    """The answer to a request that needs none."""


class Refusal(tuple[ev.Event, ...]):
    """The answer to a request that makes no events, with the reason in words."""

    why: str

    def __new__(cls, why: str) -> Refusal:
        self = super().__new__(cls)
        self.why = why
        return self


class Inbox:
    """Requests from users and agents that the loop has not handled yet, and answers that wait for the journal. Any thread puts
    requests in; the loop's thread takes them and turns them into events."""

    def __init__(self, host: Host) -> None:
        self.stopped = False
        self._requests: deque[tuple[Handle, Answer]] = deque()
        self._host, self._due = host, math.inf  # by the monotonic clock: when the first of them has to be taken
        self._changed = host.condition()
        self._awake = False  # `take` returns without a request
        self._unanswered: list[tuple[Answer, Sequence[ev.Event]]] = []

    def put(self, handle: Handle, answer: Answer = ignore, within_s: float = 0.0) -> None:
        """Add a request. One that can wait for `within_s` is taken together with those that follow, in the same order."""
        with self._changed:
            self._requests.append((handle, answer))
            due = self._host.monotonic() + within_s if within_s else -math.inf
            if due < self._due:
                self._due = due
                self._changed.notify_all()

    @contextmanager
    def together(self) -> Iterator[None]:
        """The requests that this thread adds meanwhile are taken at the same time, so their events are journalled together."""
        with self._changed:
            yield

    def wake(self) -> None:
        with self._changed:
            self._awake = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    # For the loop's thread only.

    def take(self, until: float, clock: Callable[[], float]) -> list[tuple[Handle, Answer]]:
        """Return all requests as soon as one is due; also if woken, stopped, or at `until`, and then there may be none."""
        with self._changed:
            while not (self._awake or self.stopped):
                left = min(until - clock(), self._due - self._host.monotonic())
                if left <= 0 or not self._changed.wait(min(left, MAX_WAIT_S)):
                    break
            requests = list(self._requests)
            self._requests.clear()
            self._awake, self._due = False, math.inf
        return requests

    def defer_answer(self, answer: Answer, events: Sequence[ev.Event]) -> None:
        """Answer a request when its events are in the journal."""
        self._unanswered.append((answer, events))

    def send_answers(self) -> None:
        """Answer all deferred requests: their events are in the journal."""
        unanswered, self._unanswered = self._unanswered, []
        for answer, events in unanswered:
            answer(events)
