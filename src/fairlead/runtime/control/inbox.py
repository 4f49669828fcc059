"""What was said to a control plane and has not happened yet by its state. Anybody may ring, from any thread; the loop's thread
takes what came and makes events of it, and when these are kept whoever asked is answered. It knows no state and no journal."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.core import events as ev

LONGEST_WAIT_S = 3600.0


@dataclass
class Request:
    """Something that happened outside, and what is done once it is in the journal."""

    happen: Callable[[float], Sequence[ev.Event]]
    answered: Callable[[Sequence[ev.Event]], None] = lambda events: None


class Inbox:
    def __init__(self) -> None:
        self.stopped = False
        self._requests: deque[Request] = deque()
        self._rung = threading.Condition()
        self._awake = False  # `taken` returns, though nothing has come
        self._unanswered: list[tuple[Request, Sequence[ev.Event]]] = []  # told, not yet known to be in the journal

    def ring(self, request: Request) -> None:
        with self._rung:
            self._requests.append(request)
            self._rung.notify_all()

    def wake(self) -> None:
        with self._rung:
            self._awake = True
            self._rung.notify_all()

    def stop(self) -> None:
        with self._rung:
            self.stopped = True
            self._rung.notify_all()

    # For the loop's thread alone.

    def taken(self, until: float, clock: Callable[[], float]) -> list[Request]:
        """All that came, as soon as anything has; nothing where it is woken, stopped, or that second is reached."""
        with self._rung:
            while not (self._requests or self._awake or self.stopped) and (left := until - clock()) > 0:
                self._rung.wait(min(left, LONGEST_WAIT_S))
            requests = list(self._requests)
            self._requests.clear()
            self._awake = False
        return requests

    def told(self, request: Request, events: Sequence[ev.Event]) -> None:
        """These events came of it; they are about to be kept."""
        self._unanswered.append((request, events))

    def answer(self) -> None:
        """All that was told is in the journal."""
        unanswered, self._unanswered = self._unanswered, []
        for request, events in unanswered:
            request.answered(events)
