"""A database server that is killed, restarted, or taken over by another writer while a journal is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from writer import EVENTS, Process, check_continued, check_kept, last_of, write_on

from fairlead.core.errors import JournalError
from fairlead.engine.apply import replay_events
from fairlead.journal.postgres import PostgresJournal
from fairlead.journal.recovery import recover
from postgres_server import PostgresServer


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One that only this test kills."""
    if (missing := PostgresServer.missing()) is not None:
        pytest.skip(missing)
    with PostgresServer() as server:
        yield server


def end_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def appended(journal: PostgresJournal, start: int, end: int) -> None:
    for event in EVENTS[start:end]:
        journal.append(event)


def begun(url: str) -> PostgresJournal:
    """One with fifty events in it."""
    journal = PostgresJournal(url)
    appended(journal, 0, 50)
    journal.commit()
    return journal


def check_and_close(journal: PostgresJournal) -> None:
    check_continued(journal)
    journal.close()


def test_a_server_killed_in_the_middle_loses_nothing_it_acknowledged(server: PostgresServer) -> None:
    url = server.database()
    writer = Process(lambda acknowledge: write_on(PostgresJournal(url), acknowledge))
    heard = writer.heard()
    acknowledged = [next(heard) for _ in range(12)]
    server.kill()
    acknowledged += heard
    assert writer.ended() in (0, 1)  # 1: the error that it did not catch
    server.start()
    journal = PostgresJournal(url)
    check_kept(journal, last_of(acknowledged))
    check_and_close(journal)


def test_while_the_server_is_away_commits_fail_and_later_they_succeed(server: PostgresServer) -> None:
    journal = begun(server.database())
    server.kill()
    appended(journal, 50, 60)
    for _ in range(2):
        with pytest.raises(JournalError, match="cannot open the journal"):
            journal.commit()
    assert journal.last == 50
    server.start()
    journal.commit()
    assert journal.last == 60
    check_and_close(journal)


def test_a_lost_connection_is_made_anew(postgres: PostgresServer) -> None:
    url = postgres.database()
    journal = begun(url)
    end_connections(url)
    appended(journal, 50, 60)
    journal.commit()
    end_connections(url)
    assert recover(journal)[0].digest() == replay_events(EVENTS[:60]).digest()
    end_connections(url)
    journal.snapshot(replay_events(EVENTS[:60]))
    check_and_close(journal)


def test_a_commit_whose_answer_was_lost_is_not_written_twice(postgres: PostgresServer) -> None:
    url = postgres.database()
    journal = begun(url)
    appended(journal, 50, 60)
    kept = list(journal._waiting)
    journal.commit()
    journal._waiting[:0], journal.last = kept, 50  # as it stands when the connection ended between the commit and its answer
    appended(journal, 60, 65)
    journal.commit()
    assert journal.last == 65
    check_and_close(journal)


def test_who_lost_the_journal_to_another_writer_can_write_no_more(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database()
    first = begun(url)
    end_connections(url)
    second = PostgresJournal(url)
    monkeypatch.setattr("fairlead.journal.postgres.LOCK_WAIT_MS", 10)
    appended(first, 50, 60)
    with pytest.raises(JournalError, match="another process writes this journal"):
        first.commit()
    monkeypatch.undo()  # a server may take a moment to notice that the writer before has left
    appended(second, 50, 55)
    second.append(EVENTS[54])
    second.close()
    with pytest.raises(JournalError, match="event 51 was written by another process; open the journal again"):
        first.commit()
    assert first.last == 50
    with pytest.raises(JournalError):
        first.close()


def test_who_lost_the_journal_to_its_own_dead_line_gets_it_back(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.journal.postgres.LOCK_WAIT_MS", 10)
    url = postgres.database()
    journal = begun(url)
    database = journal._database
    ours = database._connection  # the server does not notice that nobody is at the other end any more
    database._connection = psycopg.connect(url)
    database._connection.close()
    with pytest.raises(JournalError, match="another process writes this journal"):
        PostgresJournal(url)
    end_own = database._end_own

    def patiently(connection: psycopg.Connection[Any]) -> bool:
        connection.execute("SET lock_timeout = 60000")  # until the session has ended
        return end_own(connection)

    monkeypatch.setattr(database, "_end_own", patiently)
    appended(journal, 50, 60)
    journal.commit()
    check_and_close(journal)
    ours.close()
