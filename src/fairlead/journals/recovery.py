"""From a journal to the state it leads to: the youngest saved state that can be read, and what happened since."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from fairlead.core.errors import JournalError
from fairlead.core.events import Event
from fairlead.engine.journal import Journal
from fairlead.engine.saved import load
from fairlead.engine.state import State
from fairlead.journals.database import DatabaseJournal

log = logging.getLogger(__name__)


def is_new(journal: Journal) -> bool:
    """Whether nothing was ever written: it has to begin with an `Opened` event before there is anything to recover."""
    return journal.last == 0 if isinstance(journal, DatabaseJournal) else next(iter(journal), None) is None


def recover(journal: Journal) -> tuple[State, int]:
    """The state after all events of a journal, and the number of the last of them, counted from 1.

    A saved state that is damaged, or of another version, is passed over: an older one with a longer tail gives the same."""
    if not isinstance(journal, DatabaseJournal):
        numbered = _Counted(journal)
        return State.replay(numbered), numbered.count
    for seq, body in journal.snapshots():
        try:
            state = load(body)
        except JournalError as error:
            log.warning("%s: the snapshot at event %d is passed over: %s", journal.where, seq, error)
            continue
        for event in journal.after(seq):
            state.apply(event)
        return state, journal.last
    return State.replay(journal.after(0)), journal.last


class _Counted:
    """Events, and how many have gone by."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events, self.count = events, 0

    def __iter__(self) -> Iterator[Event]:
        for event in self.events:
            self.count += 1
            yield event
