"""Snapshots and tails: recovery from the youngest that can be read, and what is left when events are dropped."""

from __future__ import annotations

import logging
import math
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from writer import EVENTS, check_continued

from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.events import NodeLost
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import encode
from fairlead.engine.state_codec import save
from fairlead.journal.postgres import PostgresJournal
from fairlead.journal.recovery import is_new, open_journal, recover
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.journal.sqlite import SqliteJournal
from postgres_server import PostgresServer

DIGEST = replay_events(EVENTS).digest()
MOMENTS = (20, 70, 110, 180, 200)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "events.sqlite")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


def opened(where: str) -> DatabaseJournal:
    journal = open_journal(where)
    assert isinstance(journal, DatabaseJournal)
    return journal


def written(where: str) -> DatabaseJournal:
    """All events, with snapshots at some moments."""
    journal, before = opened(where), 0
    for moment in (*MOMENTS, len(EVENTS)):
        for event in EVENTS[before:moment]:
            journal.append(event)
        if moment in MOMENTS:
            journal.snapshot(replay_events(EVENTS[:moment]))
        before = moment
    journal.commit()
    return journal


def damage(where: str, *moments: int) -> None:
    """One bit of the snapshots at these moments."""
    if where.startswith("postgresql"):
        with psycopg.connect(where) as server:
            for moment in moments:
                (body,) = server.execute("SELECT body FROM fairlead.snapshots WHERE seq = %s", (moment,)).fetchone() or (b"",)
                server.execute("UPDATE fairlead.snapshots SET body = %s WHERE seq = %s", (flipped(body), moment))
        return
    with sqlite3.connect(where) as database:
        for moment in moments:
            (body,) = database.execute("SELECT body FROM snapshots WHERE seq = ?", (moment,)).fetchone()
            database.execute("UPDATE snapshots SET body = ? WHERE seq = ?", (flipped(body), moment))
    database.close()


def flipped(body: bytes) -> bytes:
    return body[:-100] + bytes([body[-100] ^ 1]) + body[-99:]


def test_recovery_is_the_youngest_snapshot_and_the_tail(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(where)
    asked: list[int] = []
    tail = journal.after
    monkeypatch.setattr(journal, "after", lambda seq: asked.append(seq) or tail(seq))
    state, last = recover(journal)
    assert (state.digest(), last, asked) == (DIGEST, len(EVENTS), [MOMENTS[-1]])
    journal.close()
    journal = opened(where)
    assert recover(journal)[0].digest() == DIGEST
    journal.close()


def test_damaged_snapshots_are_passed_over_for_older_ones_or_the_beginning(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    written(where).close()
    for count in range(1, len(MOMENTS) + 1):
        damage(where, MOMENTS[-count])
        journal = opened(where)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            state, last = recover(journal)
        assert (state.digest(), last) == (DIGEST, len(EVENTS))
        assert f"the snapshot at event {MOMENTS[-1]} is skipped: a damaged state" in caplog.text
        assert sum(one.name.startswith("fairlead.journal") for one in caplog.records) == count
        journal.close()


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_events_that_a_kept_snapshot_has_in_it_can_go(where: str, keep: int) -> None:
    journal = written(where)
    journal.retain(keep, math.inf)
    oldest = MOMENTS[-keep]
    assert [seq for seq, _ in journal.snapshots()] == sorted(MOMENTS[-keep:], reverse=True)
    assert [encode(e) for e in journal] == [encode(e) for e in EVENTS[oldest:]]
    assert recover(journal)[0].digest() == DIGEST
    journal.close()
    journal = opened(where)
    assert journal.last == len(EVENTS)
    assert [encode(e) for e in journal] == [encode(e) for e in EVENTS[oldest:]]
    assert recover(journal)[0].digest() == DIGEST
    journal.close()


def test_without_a_second_all_events_stay_and_a_few_snapshots(where: str) -> None:
    journal = written(where)
    journal.retain(3)
    assert [seq for seq, _ in journal.snapshots()] == sorted(MOMENTS[-3:], reverse=True)
    assert [encode(e) for e in journal] == [encode(e) for e in EVENTS]
    journal.close()


def test_too_few_snapshots_drop_nothing(where: str) -> None:
    journal = written(where)
    journal.retain(6, math.inf)
    assert len(list(journal)) == len(EVENTS)
    assert len(list(journal.snapshots())) == len(MOMENTS)
    with pytest.raises(JournalError, match="keep 1 or more"):
        journal.retain(0, math.inf)
    journal.close()


def test_nothing_is_dropped_for_a_snapshot_that_cannot_be_read(where: str, caplog: pytest.LogCaptureFixture) -> None:
    written(where).close()
    damage(where, MOMENTS[-2])
    journal = opened(where)
    journal.retain(2, math.inf)
    assert re.search(f"snapshot at event {MOMENTS[-2]}: a damaged state: .*; nothing was dropped", caplog.text)
    assert len(list(journal)) == len(EVENTS)
    journal.close()


def test_when_nothing_is_left_to_begin_with_it_says_so(where: str) -> None:
    journal = written(where)
    journal.retain(1, math.inf)
    journal.close()
    damage(where, MOMENTS[-1])
    journal = opened(where)
    with pytest.raises(JournalError, match=f"event 1 is missing; the next one is {MOMENTS[-1] + 1}: restore a backup"):
        recover(journal)
    journal.close()


@pytest.mark.parametrize("name", ["events.jsonl", "events.sqlite"])
@pytest.mark.parametrize("saved", [False, True])
def test_an_event_that_cannot_have_happened_is_told_with_its_number(name: str, saved: bool, tmp_path: Path) -> None:
    journal = open_journal(str(tmp_path / name))
    for event in EVENTS[:20]:
        journal.append(event)
    if saved and isinstance(journal, DatabaseJournal):
        journal.snapshot(replay_events(EVENTS[:20]))
    journal.append(NodeLost(EVENTS[19].time, 99))
    journal.commit()
    wanted = rf"{name}(:|: event )21: an event that cannot have happened: there is no node number 99"
    with pytest.raises(JournalError, match=wanted):
        recover(journal)
    journal.close()


def test_a_journal_of_which_only_a_snapshot_is_left_goes_on(where: str) -> None:
    journal = opened(where)
    for event in EVENTS[:100]:
        journal.append(event)
    journal.snapshot(replay_events(EVENTS[:100]))
    journal.retain(1, math.inf)
    assert list(journal) == []
    journal.close()
    journal = opened(where)
    assert journal.last == 100
    check_continued(journal)
    journal.close()
    journal = opened(where)
    damage(where, *(seq for seq, _ in journal.snapshots()))
    with pytest.raises(JournalError, match="event 1 is missing"):
        recover(journal)
    journal.close()


def test_a_snapshot_twice_at_one_moment_is_one(where: str) -> None:
    journal = opened(where)
    for event in EVENTS[:50]:
        journal.append(event)
    state = replay_events(EVENTS[:50])
    journal.snapshot(state)
    journal.snapshot(state)
    assert list(journal.snapshots()) == [(50, save(state))]
    journal.close()


def test_a_snapshot_can_be_finished_in_another_thread_while_events_go_on(where: str) -> None:
    journal, state = opened(where), replay_events(EVENTS[:1])
    journal.append(EVENTS[0])
    with ThreadPoolExecutor(1) as thread:
        snapshots = []
        for number, event in enumerate(EVENTS[1:], 2):
            journal.append(event)
            apply_event(state, event)
            journal.commit()
            if number % 40 == 0:
                snapshots.append(thread.submit(journal.begin_snapshot(state)))
        for snapshot in snapshots:
            snapshot.result()
    assert list(journal.snapshots()) == [(seq, save(replay_events(EVENTS[:seq]))) for seq in (200, 160, 120, 80, 40)]
    assert recover(journal)[0].digest() == DIGEST
    journal.close()


def test_a_journal_with_nothing_in_it_is_new_and_has_no_state(where: str) -> None:
    journal = opened(where)
    assert is_new(journal)
    with pytest.raises(FairleadError, match="the journal does not begin with an 'opened' event"):
        recover(journal)
    for event in EVENTS[:2]:
        journal.append(event)
    journal.snapshot(replay_events(EVENTS[:2]))
    journal.retain(1, math.inf)
    assert list(journal) == []
    assert not is_new(journal)
    journal.close()


def test_a_file_of_lines_is_new_until_something_is_in_it(tmp_path: Path) -> None:
    journal = open_journal(str(tmp_path / "events.jsonl"))
    assert is_new(journal)
    journal.append(EVENTS[0])
    assert not is_new(journal)
    journal.close()


def test_dropping_events_gives_room_back(tmp_path: Path) -> None:
    path = tmp_path / "events.sqlite"
    journal = written(str(path))
    for _ in range(5000):
        journal.append(EVENTS[-1])
    journal.commit()
    before = path.stat().st_size + Path(f"{path}-wal").stat().st_size
    journal._database.write(lambda cursor: cursor.execute("DELETE FROM events WHERE seq > ?", (len(EVENTS),)))
    journal.last = len(EVENTS)
    journal.retain(1, math.inf)
    assert path.stat().st_size + Path(f"{path}-wal").stat().st_size < before / 4
    journal.close()


def test_a_copy_made_by_sqlite_while_it_is_written_is_a_journal(tmp_path: Path) -> None:
    journal = written(str(tmp_path / "events.sqlite"))
    source, copy = sqlite3.connect(tmp_path / "events.sqlite"), sqlite3.connect(tmp_path / "copy.sqlite")
    source.backup(copy)
    source.close()
    copy.close()
    journal.close()
    restored = SqliteJournal(tmp_path / "copy.sqlite")
    assert recover(restored)[0].digest() == DIGEST
    restored.close()


def test_a_dump_made_by_postgres_while_it_is_written_is_a_journal(postgres: PostgresServer) -> None:
    url = postgres.database()
    journal = written(url)
    restored = PostgresJournal(postgres.copied(url, "--schema=fairlead"))
    journal.close()
    assert recover(restored)[0].digest() == DIGEST
    check_continued(restored)
    restored.close()


def test_events_that_are_committed_while_others_are_read_are_not_missing(where: str) -> None:
    journal = opened(where)
    for event in EVENTS[:50]:
        journal.append(event)
    reading = journal.numbered()
    assert next(reading)[0] == 1
    journal.append(EVENTS[50])
    journal.commit()
    assert [number for number, _ in reading] == [*range(2, 51)]
    assert [number for number, _ in journal.numbered(50)] == [51]
    journal.close()
