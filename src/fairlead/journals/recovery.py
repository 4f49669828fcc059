"""From a journal to the state it leads to: the youngest saved state that can be read, and what happened since."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.events import Event
from fairlead.engine.journal import Journal, JsonlJournal
from fairlead.engine.saved import load
from fairlead.engine.state import State
from fairlead.journals.database import DatabaseJournal

log = logging.getLogger(__name__)


def is_new(journal: Journal) -> bool:
    """Whether nothing was ever written: it has to begin with an `Opened` event before there is anything to recover."""
    return journal.last == 0 if isinstance(journal, DatabaseJournal) else next(iter(journal), None) is None


def recover(journal: Journal) -> tuple[State, int]:
    """The state after all events of a journal, and the number of the last of them, counted from 1.

    A saved state that is damaged, or of another version, is passed over: an older one with a longer tail gives the same. An
    event that cannot have happened is told with its number."""
    if not isinstance(journal, DatabaseJournal):
        path = journal.path if isinstance(journal, JsonlJournal) else "journal"
        return _followed(None, journal, 0, lambda number: f"{path}:{number}")
    for seq, body in journal.snapshots():
        try:
            state = load(body)
        except JournalError as error:
            log.warning("%s: the snapshot at event %d is passed over: %s", journal.where, seq, error)
            continue
        return _followed(state, journal.after(seq), seq, lambda number: f"{journal.where}: event {number}")
    return _followed(None, journal.after(0), 0, lambda number: f"{journal.where}: event {number}")


def _followed(state: State | None, events: Iterable[Event], seen: int, place: Callable[[int], str]) -> tuple[State, int]:
    """Where these events lead to from a state, or, without one, from the first of them."""
    for event in events:
        seen += 1
        try:
            if state is None:
                state = State.replay([event])
            else:
                state.apply(event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{place(seen)}: an event that cannot have happened: {error}") from error
    return State.replay(()) if state is None else state, seen
