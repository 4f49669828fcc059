"""What full disks, damage, strangers and second writers do to journals: an error that says it, and nothing is lost."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from writer import EVENTS, Acknowledges, Process, check_continued, check_kept, last_of, write_on

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, JournalError
from fairlead.core.job import Job
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import encode
from fairlead.journal.jsonl import JsonlJournal
from fairlead.journal.postgres import PostgresJournal
from fairlead.journal.recovery import open_journal, read_journal, recover
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.journal.sqlite import SqliteJournal
from postgres_server import PostgresServer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.sqlite"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with little room."""
    if os.getuid() != 0:
        pytest.skip("a small file system is made with mount, which takes root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mount is not allowed here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def filled(journal: DatabaseJournal, events: int = len(EVENTS)) -> DatabaseJournal:
    for event in EVENTS[:events]:
        journal.append(event)
    journal.commit()
    return journal


# A full disk.


def until_it_is_full(journal: DatabaseJournal) -> int:
    """Write on until it fails; the number of events acknowledged before."""
    acknowledged: list[int] = []
    with pytest.raises(JournalError, match=r"events\.sqlite: cannot use the journal: .*(full|I/O)"):
        write_on(journal, acknowledged.append, snapshots=False)
    assert journal.last == acknowledged[-1] < len(EVENTS)
    return acknowledged[-1]


def test_a_full_disk_is_an_error_and_the_journal_goes_on_when_there_is_room(small_disk: Path) -> None:
    journal = SqliteJournal(small_disk / "events.sqlite")
    ballast = small_disk / "ballast"
    room = shutil.disk_usage(small_disk).free - 60_000
    ballast.write_bytes(bytes(room))
    acknowledged = until_it_is_full(journal)
    with pytest.raises(JournalError):
        journal.commit()
    other = SqliteJournal(small_disk / "events.sqlite", write=False)
    assert [encode(event) for event in other] == [encode(event) for event in EVENTS[:acknowledged]]
    other.close()
    ballast.unlink()
    journal.commit()  # what could not be written then is written now
    assert journal.last > acknowledged
    check_kept(journal, acknowledged)
    check_continued(journal)
    journal.close()


def test_a_writer_that_ends_on_a_full_disk_has_lost_nothing_it_acknowledged(small_disk: Path) -> None:
    ballast = small_disk / "ballast"

    def work(acknowledge: Acknowledges) -> None:
        journal = SqliteJournal(small_disk / "events.sqlite")
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 60_000))
        write_on(journal, acknowledge)

    writer = Process(work)
    acknowledged = last_of(writer.heard())
    assert writer.ended() == 1
    assert 0 < acknowledged < len(EVENTS)
    ballast.unlink()
    journal = SqliteJournal(small_disk / "events.sqlite")
    check_kept(journal, acknowledged)
    check_continued(journal)
    journal.close()


def test_a_file_that_may_not_grow_is_an_error_until_it_may(path: Path) -> None:
    def work(acknowledge: Acknowledges) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = SqliteJournal(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        acknowledged = until_it_is_full(journal)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.commit()
        check_kept(journal, acknowledged)
        check_continued(journal)
        acknowledge(journal.last)

    writer = Process(work)
    assert last_of(writer.heard()) == len(EVENTS)
    assert writer.ended() == 0


def test_a_full_disk_does_the_same_to_files_of_lines(small_disk: Path) -> None:
    path, ballast, acknowledged = small_disk / "events.jsonl", small_disk / "ballast", []
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 20_000))
    journal = JsonlJournal(path, durable=True)

    def write() -> None:
        for event in EVENTS:
            journal.append(event)
            journal.commit()
            acknowledged.append(encode(event))

    with pytest.raises(JournalError, match=os.strerror(errno.ENOSPC)):
        write()
    kept = [encode(event) for event in read_journal(str(path))]
    assert kept[: len(acknowledged)] == acknowledged
    ballast.unlink()
    journal.commit()
    for event in EVENTS[len(acknowledged) + 1 :]:
        journal.append(event)
    journal.close()
    assert [encode(event) for event in read_journal(str(path))] == [encode(event) for event in EVENTS]


# Two writers, and readers.


def test_a_second_writer_is_refused_and_readers_are_not(path: Path) -> None:
    journal = filled(SqliteJournal(path), 100)
    with pytest.raises(JournalError, match=r"events\.sqlite: another process writes this journal; end it first"):
        SqliteJournal(path)
    assert [encode(e) for e in read_journal(str(path))] == [encode(e) for e in EVENTS[:100]]
    writer = Process(lambda acknowledge: SqliteJournal(path).close())
    assert writer.ended() == 1
    check_continued(journal)
    journal.close()
    SqliteJournal(path).close()


def test_a_second_writer_in_postgres_is_refused_and_readers_are_not(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database()
    journal = filled(PostgresJournal(url), 100)
    monkeypatch.setattr("fairlead.journal.postgres.LOCK_WAIT_MS", 10)
    with pytest.raises(JournalError, match="another process writes this journal; end it first"):
        PostgresJournal(url)
    monkeypatch.undo()  # a server may take a moment to notice that the writer before has left
    assert [encode(e) for e in read_journal(url)] == [encode(e) for e in EVENTS[:100]]
    check_continued(journal)
    journal.close()
    PostgresJournal(url).close()


def test_a_reader_cannot_write(path: Path, postgres: PostgresServer) -> None:
    url = postgres.database()
    for journal, reader in (
        (filled(SqliteJournal(path)), SqliteJournal(path, write=False)),
        (filled(PostgresJournal(url)), PostgresJournal(url, write=False)),
    ):
        for attempt in (
            lambda reader=reader: reader.append(EVENTS[0]),
            reader.commit,
            lambda reader=reader: reader.snapshot(replay_events(EVENTS)),
            lambda reader=reader: reader.retain(1),
        ):
            with pytest.raises(JournalError, match="opened for reading"):
                attempt()
        reader.close()
        journal.close()


def test_several_threads_may_append_and_commit(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.append(EVENTS[0])

    def submit(_: int) -> int:
        journal.append(EVENTS[1])
        journal.commit()
        return journal.last

    with ThreadPoolExecutor(8) as threads:
        lasts = list(threads.map(submit, range(200)))
    assert journal.last == 201 == max(lasts)
    assert len(list(journal)) == 201
    journal.close()


def test_rows_that_another_has_written_are_an_error_and_stay(path: Path) -> None:
    journal = filled(SqliteJournal(path), 50)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO events VALUES (51, ?)", (encode(EVENTS[60]).decode(),))
    database.close()
    journal.append(EVENTS[50])
    for _ in range(2):
        with pytest.raises(JournalError, match="event 51 was written by another process; open the journal again"):
            journal.commit()
    assert journal.last == 50
    with pytest.raises(JournalError):
        journal.close()
    assert encode(list(read_journal(str(path)))[-1]) == encode(EVENTS[60])


def test_rows_that_are_there_already_are_not_written_twice(path: Path) -> None:
    journal = filled(SqliteJournal(path), 50)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO events VALUES (51, ?)", (encode(EVENTS[50]).decode(),))
    database.close()
    for event in EVENTS[50:55]:
        journal.append(event)
    journal.commit()
    assert journal.last == 55
    check_continued(journal)
    journal.close()


# Damage and strangers.


def test_damage_is_an_error_that_names_the_file(path: Path) -> None:
    filled(SqliteJournal(path)).close()
    whole = path.read_bytes()
    for at in (0, 20, 100, 8192, len(whole) // 2):
        path.write_bytes(whole[:at] + bytes(range(256)) * 16 + whole[at + 4096 :])
        with pytest.raises(JournalError, match=r"events\.sqlite: "):
            recover(SqliteJournal(path))


@pytest.mark.parametrize(("part", "kept"), [(0.0004, -1), (0.3, -1), (0.9, -1), (0.999999, 59), (2.0, 60)])
def test_damage_of_the_log_is_an_error_unless_only_the_last_commit_is_unreadable(path: Path, part: float, kept: int) -> None:
    """A power failure can leave the last commit half written. An operator decides about more than that."""
    journal = SqliteJournal(path)
    journal.append(ev.JournalOpened(0.0, Cluster.parse("1xv100:1"), {}, "t", None))
    for number in range(59):
        journal.commit()
        journal.append(ev.JobSubmitted(float(number), number, Job(f"job-{number}")))
    journal.commit()
    copy = path.with_name("copy.sqlite")
    for ending in ("", "-wal"):
        shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    journal.close()
    log = Path(f"{copy}-wal")
    content = bytearray(log.read_bytes())
    if part < 1:
        content[int(len(content) * part)] ^= 1
    log.write_bytes(content)
    if kept >= 0:
        assert SqliteJournal(copy).last == kept
        return
    with pytest.raises(JournalError, match=r"copy\.sqlite-wal: damaged: .*commits are unreadable: restore a backup, or drop"):
        SqliteJournal(copy)
    assert log.read_bytes() == content
    assert not Path(f"{copy}.lock").exists()


def test_a_missing_or_damaged_event_is_named_by_its_number(path: Path) -> None:
    filled(SqliteJournal(path)).close()
    with sqlite3.connect(path) as database:
        database.execute('UPDATE events SET body = \'{"event":"nonsense"}\' WHERE seq = 17')
    database.close()
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match=r"events\.sqlite: event 17: not an event"):
        list(journal)
    journal.close()
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM events WHERE seq = 17")
    database.close()
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match=r"events\.sqlite: event 17 is missing; the next one is 18: restore a backup"):
        list(journal)
    journal.close()


@pytest.mark.parametrize("content", [b"{}\n" * 100, b"\x00" * 5000, b"SQLite format 3\x00" + b"\xff" * 600])
def test_a_file_of_another_kind_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"events\.sqlite: "):
        SqliteJournal(path)
    assert path.read_bytes() == content


def test_a_database_of_somebody_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE songs (name)")
    database.close()
    with pytest.raises(JournalError, match=r"events\.sqlite: a database, but not a journal: its tables are songs"):
        SqliteJournal(path)


@pytest.mark.parametrize("name", ["tables", "events"])
@pytest.mark.parametrize("version", ["0", "3", None])
def test_another_version_is_refused_with_the_way_out(path: Path, name: str, version: str | None) -> None:
    filled(SqliteJournal(path)).close()
    with sqlite3.connect(path) as database:
        if version is None:
            database.execute("DELETE FROM meta WHERE name = ?", (name,))
        else:
            database.execute("UPDATE meta SET value = ? WHERE name = ?", (version, name))
    database.close()
    readable = "1" if name == "tables" else "1 and 2"
    expected = f"{name} are of version {version}; this Fairlead reads version {readable}: use the Fairlead that wrote it"
    with pytest.raises(JournalError, match=expected):
        SqliteJournal(path)


def test_another_version_in_postgres_is_refused(postgres: PostgresServer) -> None:
    url = postgres.database()
    filled(PostgresJournal(url)).close()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE fairlead.meta SET value = '3' WHERE name = 'tables'")
    with pytest.raises(JournalError, match="tables are of version 3"):
        PostgresJournal(url)


def test_a_folder_without_permission_is_an_error_that_names_the_file() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)

        def work(acknowledge: Acknowledges) -> None:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with pytest.raises(JournalError, match=r"events\.sqlite: cannot write the journal: Permission denied"):
                SqliteJournal(folder / "events.sqlite")
            with pytest.raises(JournalError, match=r"events\.jsonl: cannot write the journal: Permission denied"):
                open_journal(str(folder / "events.jsonl"))

        assert Process(work).ended() == 0
    finally:
        folder.rmdir()


def test_a_read_only_file_system_is_an_error_too(small_disk: Path) -> None:
    filled(SqliteJournal(small_disk / "events.sqlite"), 50).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(JournalError, match=r"events\.sqlite: cannot write the journal: Read-only file system"):
        SqliteJournal(small_disk / "events.sqlite")
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    check_continued(journal := SqliteJournal(small_disk / "events.sqlite"))
    journal.close()


# Where a journal is.


def test_a_journal_is_picked_by_how_its_place_is_spelled(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for where, kind in (
        ("a.jsonl", JsonlJournal),
        ("b.sqlite", SqliteJournal),
        ("sqlite:///c", SqliteJournal),
        (f"sqlite:///{tmp_path}/d.db", SqliteJournal),
        (postgres.database(), PostgresJournal),
    ):
        journal = open_journal(where)
        assert isinstance(journal, kind)
        for event in EVENTS:
            journal.append(event)
        journal.commit()
        assert recover(journal)[0].digest() == replay_events(EVENTS).digest()
        assert recover(journal)[1] == len(EVENTS)
        assert replay_events(read_journal(where)).digest() == replay_events(EVENTS).digest()
        journal.close()
    assert {"a.jsonl", "b.sqlite", "c", "d.db"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize("where", ["", "events", "mysql://host/x", "events.csv"])
def test_a_place_of_no_known_kind_is_refused_with_those_there_are(where: str) -> None:
    with pytest.raises(InputError, match=r"expected a journal: a file x\.jsonl or x.sqlite"):
        open_journal(where)


@pytest.mark.parametrize("where", ["nowhere/events.sqlite", "sqlite:///nowhere/x", "nowhere/events.jsonl"])
def test_a_folder_that_is_not_there_is_an_error(where: str) -> None:
    with pytest.raises(JournalError, match="nowhere"):
        open_journal(where)
    with pytest.raises(JournalError, match="nowhere"):
        next(read_journal(where))


def test_a_database_that_does_not_answer_is_an_error_without_the_password() -> None:
    with pytest.raises(JournalError, match=r"postgresql://127\.0\.0\.1/x: cannot open the journal") as caught:
        open_journal("postgresql://ann:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)


def test_a_database_in_another_encoding_is_refused(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE old ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    with pytest.raises(JournalError, match="its encoding is LATIN1; a journal needs a database with encoding UTF8"):
        PostgresJournal(postgres.url("old"))


@pytest.mark.parametrize(("value", "found"), [("NULL", "NULL"), ("7", "7")])
def test_an_event_that_is_not_text_is_named(path, value, found):
    filled(open_journal(str(path))).close()
    with sqlite3.connect(path) as damaged:  # as another program may have left it
        damaged.execute("CREATE TABLE others AS SELECT seq, body FROM events")
        damaged.execute("DROP TABLE events")
        damaged.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body)")
        damaged.execute("INSERT INTO events SELECT seq, body FROM others")
        damaged.execute("DROP TABLE others")
        damaged.execute(f"UPDATE events SET body = {value} WHERE seq = 2")
    damaged.close()
    with pytest.raises(JournalError, match=f"event 2: expected the JSON of an event, found {found}: restore a backup"):
        list(read_journal(str(path)))
