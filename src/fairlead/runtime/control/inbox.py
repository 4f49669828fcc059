"""Requests from users and agents that the loop has not handled yet. Any thread puts requests in. The loop's thread takes them,
turns them into events, and answers once these are in the journal. It knows no state and no journal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.core import events as ev

MAX_WAIT_S = 3600.0


@dataclass
class BackendRequest:
    """`handle` makes the events of a request; `answer` receives them once they are in the journal."""

    handle: Callable[[float], Sequence[ev.Event]]
    answer: Callable[[Sequence[ev.Event]], None] = lambda events: None


class Inbox:
    """A queue of requests, and of answers that wait for the journal."""

    def __init__(self) -> None:
        self.stopped = False
        self._requests: deque[BackendRequest] = deque()
        self._changed = threading.Condition()
        self._awake = False  # `take` returns without a request
        self._unanswered: list[tuple[BackendRequest, Sequence[ev.Event]]] = []

    def put(self, request: BackendRequest) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._awake = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    # For the loop's thread only.

    def take(self, until: float, clock: Callable[[], float]) -> list[BackendRequest]:
        """Return all requests as soon as there is one; an empty list if woken, stopped, or at `until`."""
        with self._changed:
            while not (self._requests or self._awake or self.stopped) and (left := until - clock()) > 0:
                self._changed.wait(min(left, MAX_WAIT_S))
            requests = list(self._requests)
            self._requests.clear()
            self._awake = False
        return requests

    def defer_answer(self, request: BackendRequest, events: Sequence[ev.Event]) -> None:
        """Answer a request when its events are in the journal."""
        self._unanswered.append((request, events))

    def send_answers(self) -> None:
        """Answer all deferred requests: their events are in the journal."""
        unanswered, self._unanswered = self._unanswered, []
        for request, events in unanswered:
            request.answer(events)
