"""From a journal to the state it leads to: the youngest saved state that can be read, and what happened since."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fairlead.core.errors import FairleadError, InputError, JournalError, install
from fairlead.core.events import Event
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.journal import Journal
from fairlead.engine.state import State
from fairlead.engine.state_codec import load
from fairlead.journal.control_files import ALIVE, CODE, ORIGIN, TOKENS, ControlFiles, FolderFiles
from fairlead.journal.jsonl import JsonlJournal, read_events
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.journal.sqlite import SqliteJournal

log = logging.getLogger(__name__)


def is_new(journal: Journal) -> bool:
    """Whether nothing was ever written: it has to begin with an `JournalOpened` event before there is anything to recover."""
    return journal.last == 0 if isinstance(journal, DatabaseJournal) else next(iter(journal), None) is None


def recover(journal: Journal) -> tuple[State, int]:
    """The state after all events of a journal, and the number of the last of them, counted from 1.

    A saved state that is damaged, or of another version, is skipped: an older one with more events gives the same. The error
    about an impossible event has its number."""
    if not isinstance(journal, DatabaseJournal):
        path = journal.path if isinstance(journal, JsonlJournal) else "journal"
        return _apply_events(None, journal, 0, lambda number: f"{path}:{number}")
    for seq, body in journal.snapshots():
        try:
            state = load(body)
        except JournalError as error:
            log.warning("%s: the snapshot at event %d is skipped: %s", journal.where, seq, error)
            continue
        return _apply_events(state, journal.after(seq), seq, lambda number: f"{journal.where}: event {number}")
    return _apply_events(None, journal.after(0), 0, lambda number: f"{journal.where}: event {number}")


def _apply_events(state: State | None, events: Iterable[Event], seen: int, place: Callable[[int], str]) -> tuple[State, int]:
    """Apply events to a state, or, without one, to the state of the first event."""
    for event in events:
        seen += 1
        try:
            if state is None:
                state = replay_events([event])
            else:
                apply_event(state, event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{place(seen)}: an event that cannot have happened: {error}") from error
    return replay_events(()) if state is None else state, seen


# The type of a journal, from its path or URL.

_EXPECTED = "a journal: a file x.jsonl or x.sqlite, sqlite:///x, or postgresql://host/database"


def open_journal(where: str) -> Journal:
    """The journal at a place, to be written; it is made where there is none yet."""
    return JsonlJournal(where, durable=True) if where.endswith(".jsonl") else _database(where, write=True)


def read_journal(where: str) -> Iterator[Event]:
    """The events of a journal, also while another process writes it."""
    if where.endswith(".jsonl"):
        yield from read_events(where)
        return
    journal = _database(where, write=False)
    try:
        yield from journal
    finally:
        journal.close()


def is_postgres(where: str) -> bool:
    """Return whether a journal's place is a URL of PostgreSQL."""
    return where.startswith(("postgresql://", "postgres://"))


def control_files(root: Path, journal: str) -> ControlFiles:
    """The files of the control plane of a journal: in its database if that is PostgreSQL, else in the root. A database without
    any gets those of the root."""
    folder = FolderFiles(root)
    if not is_postgres(journal):
        return folder
    from fairlead.journal.postgres_files import PostgresFiles

    files = PostgresFiles(journal)
    found = {**folder.listed(), **folder.listed(CODE)}
    names = [name for name in found if name in (TOKENS, ORIGIN, ALIVE) or name.startswith(f"{CODE}/")]
    if names and TOKENS not in files.listed():
        for name in sorted(names, key=TOKENS.__eq__):  # the tokens last: a copy that is cut off begins again
            files.write(name, folder.read(name) or b"", found[name].owner)
        log.info("files of the control plane are now in the database", extra={"from": str(root), "files": len(names)})
    return files


def _database(where: str, *, write: bool) -> DatabaseJournal:
    if is_postgres(where):
        try:
            from fairlead.journal.postgres import PostgresJournal
        except ImportError as error:
            raise JournalError(f"a journal in PostgreSQL needs psycopg: {install('postgres')}") from error
        return PostgresJournal(where, write=write)
    if where.startswith("sqlite:///"):
        return SqliteJournal(Path(where.removeprefix("sqlite:///")), write=write)
    if where.endswith(".sqlite"):
        return SqliteJournal(Path(where), write=write)
    raise InputError("journal", _EXPECTED, field="where", value=where)
