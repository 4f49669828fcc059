"""The journal that the loop appends events to before anything acts on them. Files and databases are in `fairlead.journal`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from fairlead.core.events import Event


@runtime_checkable
class Journal(Protocol):
    """A sequence of events that can be appended to and read back in order."""

    def append(self, event: Event) -> None: ...

    def commit(self) -> None:
        """Make all appended events durable, as far as this journal can."""
        ...

    def __iter__(self) -> Iterator[Event]: ...

    def close(self) -> None: ...


class NoJournal:
    """Stores nothing; for simulations of which only the result matters."""

    def append(self, event: Event) -> None:
        pass

    def commit(self) -> None:
        pass

    def __iter__(self) -> Iterator[Event]:
        return iter(())

    def close(self) -> None:
        pass


class MemoryJournal(NoJournal):
    """A list of events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self.events))
