"""What a journal that goes on for months keeps: the youngest snapshots, of older ones one a day, and events since a second."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core import events as ev
from fairlead.core.errors import JournalError
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.state import State
from fairlead.journal.recovery import open_journal, read_journal, recover
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.testing.builders import cluster
from postgres_server import PostgresServer

DAY_S = 86_400.0
DAYS = 10
A_DAY = 12  # events, two hours apart, with a snapshot behind every third
NODES = cluster("v100:2")
EVENTS = [
    ev.JournalOpened(0.0, NODES, {"policy": "fifo"}),
    *(ev.JobSubmitted(n * DAY_S / A_DAY, n, Job(f"j{n}", submitted_s=n * DAY_S / A_DAY)) for n in range(DAYS * A_DAY)),
]
NOW = DAYS * DAY_S


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "events.sqlite")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def written(where: str) -> DatabaseJournal:
    journal, state = open_journal(where), State(NODES)
    assert isinstance(journal, DatabaseJournal)
    for number, event in enumerate(EVENTS, 1):
        journal.append(event)
        apply_event(state, event)
        if number % 3 == 0:
            journal.snapshot(state)
    journal.commit()
    return journal


def check(journal: DatabaseJournal) -> None:
    state, last = recover(journal)
    assert (state.digest(), last) == (replay_events(EVENTS).digest(), len(EVENTS))
    assert len(state.job_of) == DAYS * A_DAY, "whoever has ever been submitted can be asked for"


def taken(journal: DatabaseJournal) -> list[int]:
    return [seq for seq, _ in journal.snapshots()]


def test_without_a_second_all_events_stay_and_the_youngest_snapshots(where):
    journal = written(where)
    youngest = taken(journal)[:2]
    journal.retain(2)
    assert taken(journal) == youngest
    assert len(list(journal)) == len(EVENTS)
    check(journal)
    journal.close()


def test_events_since_a_second_stay_and_of_older_snapshots_one_a_day(where):
    journal = written(where)
    youngest = taken(journal)[:2]
    since_s = NOW - 4 * DAY_S
    journal.retain(2, since_s)
    times = [event.time for event in journal]
    assert since_s - DAY_S / 2 < times[0] <= since_s, "what is dropped ends at the last snapshot before that second"
    assert times == [event.time for event in EVENTS[-len(times) :]]
    left = taken(journal)
    assert left[:2] == youngest
    assert len(left) <= 2 + 1 + 5, "the one that events begin with, and one for each day that is left"
    check(journal)
    journal.retain(2, since_s)
    assert taken(journal) == left, "there is nothing more to drop"
    journal.close()
    journal = open_journal(where)
    assert isinstance(journal, DatabaseJournal)
    check(journal)
    journal.retain(2, NOW - 2 * DAY_S)  # as days go by, the snapshots of days become what events begin with
    assert next(iter(journal)).time > times[0]
    check(journal)
    journal.close()


def test_nothing_is_dropped_behind_a_snapshot_that_cannot_be_read(where, monkeypatch, caplog):
    journal = written(where)

    def damaged(body: bytes) -> State:
        raise JournalError("a damaged state")

    monkeypatch.setattr("fairlead.journal.sql_journal.load", damaged)
    journal.retain(2, NOW - 4 * DAY_S)
    monkeypatch.undo()
    assert "nothing was dropped" in caplog.text
    assert len(list(journal)) == len(EVENTS)
    check(journal)
    with pytest.raises(JournalError, match="keep 1 or more"):
        journal.retain(0)
    journal.close()


def test_events_are_dropped_bit_by_bit(where, monkeypatch):
    monkeypatch.setattr("fairlead.journal.sql_journal._PAGE", 7)
    journal = written(where)
    journal.retain(1, NOW + 1.0)
    assert len(taken(journal)) == 1
    assert len(list(journal)) < 4
    check(journal)
    journal.close()


@pytest.mark.parametrize("another", [False, True])
def test_events_that_are_dropped_while_a_reader_is_between_pages_still_come(where, monkeypatch, another):
    monkeypatch.setattr("fairlead.journal.sql_journal._PAGE", 7)
    journal = written(where)
    reading = read_journal(where) if another else iter(journal)
    read = [next(reading).time for _ in range(3)]
    journal.retain(1, NOW + 1.0)
    assert len(list(journal)) < 4
    journal.append(ev.JobCancelled(NOW, 0))
    journal.commit()
    assert read + [event.time for event in reading] == [event.time for event in EVENTS]
    journal.close()


def test_commits_wait_for_locks_also_after_a_failed_truncation(tmp_path):
    with closing(open_journal(str(tmp_path / "journal.sqlite"))) as journal:
        database = journal._database
        reading = database._connection.execute("SELECT name FROM sqlite_master")
        assert reading.fetchone()
        with pytest.raises(JournalError, match="locked"):
            database.vacuum()
        reading.close()
        assert database._connection.execute("PRAGMA busy_timeout").fetchone() == (5000,)
