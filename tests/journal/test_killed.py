"""A writer that is killed at any moment loses nothing it has acknowledged, and leaves a journal that goes on."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from writer import EVENTS, Acknowledges, Process, check_continued, check_kept, last_of, write_on

from fairlead.core.rng import stream
from fairlead.journal.postgres import PostgresJournal
from fairlead.journal.sqlite import SqliteJournal
from postgres_server import PostgresServer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.sqlite"


def check(path: Path, acknowledged: int) -> None:
    journal = SqliteJournal(path)
    check_kept(journal, acknowledged)
    check_continued(journal)
    journal.close()


def killed_after(writer: Process, commits: int) -> int:
    """Kill a writer that goes on writing while we do; the last number it acknowledged."""
    heard = writer.heard()
    first = last_of(islice(heard, commits))
    writer.kill()
    rest = last_of(heard)  # what it said before the signal arrived
    assert writer.ended() in (-signal.SIGKILL, 0)
    return max(first, rest)


@pytest.mark.parametrize("seed", range(4))
def test_sqlite_again_and_again_at_random_until_the_run_is_over(path: Path, seed: int) -> None:
    chance = stream(seed, "kills")
    acknowledged = 0
    while acknowledged < len(EVENTS):
        writer = Process(lambda acknowledge: write_on(SqliteJournal(path), acknowledge))
        acknowledged = max(acknowledged, killed_after(writer, int(chance.integers(0, 20))))
        if not path.exists():
            continue
        journal = SqliteJournal(path)
        check_kept(journal, acknowledged)
        acknowledged = journal.last  # its writer may have been killed before it could say so
        journal.close()
    check(path, acknowledged)


STATEMENTS = {
    "PRAGMA auto_vacuum": (1,),
    "PRAGMA journal_mode": (1,),
    "CREATE TABLE": (1, 2, 3),
    "INSERT INTO meta": (1, 2),
    "BEGIN": (1, 2, 8),
    "INSERT INTO events": (1, 2, 30),
    "COMMIT": (1, 2, 3, 11, 20),
    "INSERT INTO snapshots": (1, 3),
    "DELETE FROM snapshots": (2, 4),
    "DELETE FROM events": (1, 2),
    "PRAGMA incremental_vacuum": (1,),
    "PRAGMA wal_checkpoint": (1, 2),
}


@pytest.mark.parametrize(("statement", "nth"), [(s, n) for s, times in STATEMENTS.items() for n in times])
def test_sqlite_just_before_any_kind_of_statement(path: Path, statement: str, nth: int) -> None:
    def work(acknowledge: Acknowledges) -> None:
        left = [nth]

        def watch(sql: str) -> None:
            if sql.startswith(statement):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        connect = sqlite3.connect

        def watched(*how: Any, **more: Any) -> sqlite3.Connection:
            connection = connect(*how, **more)
            connection.set_trace_callback(watch)
            return connection

        sqlite3.connect = watched  # type: ignore[assignment]
        write_on(SqliteJournal(path), acknowledge)

    writer = Process(work)
    acknowledged = last_of(writer.heard())
    assert writer.ended() == -signal.SIGKILL
    check(path, acknowledged)


@pytest.mark.parametrize("size", [1, 4096, 5000, 12_321, 33_000, 50_001, 65_536, 80_000, 120_007, 160_000, 200_003])
def test_sqlite_inside_a_write_to_a_file(path: Path, size: int) -> None:
    """The system kills who writes beyond the limit, after the part that still fits: a torn write, at a byte of our choice."""

    def work(acknowledge: Acknowledges) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        write_on(SqliteJournal(path), acknowledge)

    writer = Process(work)
    acknowledged = last_of(writer.heard())
    assert writer.ended() == -signal.SIGXFSZ
    check(path, acknowledged)


@pytest.mark.parametrize("seed", range(3))
def test_postgres_at_random(postgres: PostgresServer, seed: int) -> None:
    url, chance = postgres.database(), stream(seed, "kills")
    acknowledged = 0
    for _ in range(3):
        writer = Process(lambda acknowledge: write_on(PostgresJournal(url), acknowledge))
        acknowledged = max(acknowledged, killed_after(writer, int(chance.integers(0, 30))))
        journal = PostgresJournal(url)
        check_kept(journal, acknowledged)
        journal.close()
    journal = PostgresJournal(url)
    check_continued(journal)
    journal.close()
