"""Which journal is meant, by how its place is spelled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairlead.core.errors import InputError, JournalError
from fairlead.core.events import Event
from fairlead.core.extras import install
from fairlead.engine.journal import Journal, JsonlJournal, read_events
from fairlead.journals.database import DatabaseJournal
from fairlead.journals.sqlite import SqliteJournal

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


def _database(where: str, *, write: bool) -> DatabaseJournal:
    if where.startswith(("postgresql://", "postgres://")):
        try:
            from fairlead.journals.postgres import PostgresJournal
        except ImportError as error:
            raise JournalError(f"a journal in PostgreSQL needs psycopg: {install('postgres')}") from error
        return PostgresJournal(where, write=write)
    if where.startswith("sqlite:///"):
        return SqliteJournal(Path(where.removeprefix("sqlite:///")), write=write)
    if where.endswith(".sqlite"):
        return SqliteJournal(Path(where), write=write)
    raise InputError("journal", _EXPECTED, field="where", value=where)
