"""A journal that others watch: whoever counts or writes logs is told of events when they are kept, and not before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from fairlead.core.events import Event
from fairlead.engine.journal import Journal

Watcher = Callable[[Sequence[Event], float], None]
"""Is told the events of a commit, and the seconds that it took."""


class WatchedJournal:
    """Another journal, and those who watch it. They are called in the loop's thread; the state has seen the events."""

    def __init__(self, journal: Journal, watchers: Sequence[Watcher]) -> None:
        self._journal, self._watchers = journal, watchers
        self._events: list[Event] = []

    def append(self, event: Event) -> None:
        self._journal.append(event)
        self._events.append(event)

    def commit(self) -> None:
        began = time.perf_counter()
        self._journal.commit()
        seconds = time.perf_counter() - began
        events, self._events = self._events, []
        for watcher in self._watchers:
            watcher(events, seconds)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._journal)

    def close(self) -> None:
        self._journal.close()
