"""A journal in an SQLite file, with a write-ahead log that is synced at every commit. Readers, such as reports and backups, do
not disturb the writer.

A lock file ensures a single writer; the operating system releases the lock when its holder dies. SQLite's own lock is held for
a transaction only, and its exclusive mode would shut readers out."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import quote

from fairlead.core.errors import JournalError, JournalInUse
from fairlead.files import sync_directory
from fairlead.journal.sql_journal import Cursor, DatabaseJournal, DuplicateSequence

SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
)

_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes, in SQLite's write-ahead log

_BUSY_MS = 5000  # how long a statement waits for a lock of another process

T = TypeVar("T")


class SqliteJournal(DatabaseJournal):
    """A journal in a file of its own. With `write=False` it is read, also while another process writes it."""

    def __init__(self, path: Path | str, *, write: bool = True) -> None:
        super().__init__(_Sqlite(Path(path), write), write=write)


class _Sqlite:
    schema: Sequence[str] = SCHEMA
    upgrade: Sequence[str] = ()
    placeholder = "?"

    def __init__(self, path: Path, write: bool) -> None:
        self.where, self._path = str(path), path
        self._lock = _lock_for_writing(path) if write else None
        try:
            with self._as_journal_errors():
                if write:
                    _make_private(path)
                    _check_log(path)
                self._connection = self._connect(write)
        except BaseException:
            if self._lock is not None:
                os.unlink(self._lock.name)  # opening failed
            self._unlock()
            raise

    def tables(self) -> set[str]:
        with self._as_journal_errors():
            return {name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def read(self, work: Callable[[Cursor], T]) -> T:
        with self._as_journal_errors():
            return work(self._connection.cursor())

    @contextmanager
    def frozen(self) -> Iterator[Cursor]:
        with self._as_journal_errors(), closing(self._connect(write=False)) as connection:
            connection.execute("BEGIN")
            yield connection.cursor()

    def write(self, work: Callable[[Cursor], T]) -> T:
        with self._as_journal_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(self._connection.cursor())
                self._connection.execute("COMMIT")
                return result
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled it back already
                    self._connection.execute("ROLLBACK")
                raise

    def vacuum(self) -> None:
        with self._as_journal_errors():
            self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page and stop
            # Commits wait meanwhile: where readers still need the log, it is truncated another time.
            try:
                self._connection.execute("PRAGMA busy_timeout = 0")
                self._connection.executescript("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")

    def close(self) -> None:
        with self._as_journal_errors():
            self._connection.close()
        self._unlock()

    def _connect(self, write: bool) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._path.absolute()))}?mode={'rwc' if write else 'ro'}"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            if write:
                fresh = not self._path.exists() or self._path.stat().st_size == 0
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # holds for a file that is still empty
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":
                    raise JournalError(f"{self.where}: its file system does not support WAL; use another")
                connection.execute("PRAGMA synchronous = FULL")
                if fresh:
                    sync_directory(self._path.absolute().parent)  # else a power failure may lose the file
            else:
                connection.execute("SELECT count(*) FROM sqlite_master")
        except BaseException:
            connection.close()
            raise
        return connection

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @contextmanager
    def _as_journal_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise DuplicateSequence(f"{self.where}: {error}") from error
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise JournalError(f"{self.where}: damaged, or not a journal: {error}: restore a backup") from error
            raise JournalError(f"{self.where}: cannot use the journal: {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"{self.where}: cannot use the journal: {error}") from error


def _lock_for_writing(path: Path) -> IO[bytes]:
    """Take the lock of the single writer; it is released when the file is closed, or its process ends."""
    lock_path = Path(f"{os.path.realpath(path)}.lock")
    while True:
        try:
            lock = open(lock_path, "ab", opener=_open_private)  # noqa: SIM115 - closed with the journal
        except OSError as error:
            raise JournalError(f"{path}: cannot write the journal: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise JournalInUse(f"{path}: another process writes this journal; end it first") from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(lock_path)):
                return lock
        lock.close()  # its holder has removed it meanwhile


def _check_log(path: Path) -> None:
    """Refuse a write-ahead log that is damaged before its last commit. SQLite would silently forget what is behind the damage.

    Each commit is synced before the next begins. So after a power failure only the last one can be unreadable, which was
    not yet reported as durable."""
    log = Path(f"{path}-wal")
    raw = log.read_bytes() if log.is_file() else b""
    if len(raw) < _LOG_HEADER:
        return
    magic, _, page_bytes, _, *salts, one, two = struct.unpack(">8I", raw[:_LOG_HEADER])
    order, frame_bytes = ">" if magic & 1 else "<", _FRAME_HEADER + page_bytes
    sums = _checksums(raw[:24], order, (0, 0))
    accept = f"restore a backup, or drop them with: sqlite3 {path} 'PRAGMA wal_checkpoint(TRUNCATE)'"
    if sums != (one, two):
        raise JournalError(f"{log}: damaged: its commits are unreadable: {accept}")
    valid, unreadable = True, 0
    for begin in range(_LOG_HEADER, len(raw) - frame_bytes + 1, frame_bytes):
        _, commits, *own, one, two = struct.unpack_from(">6I", raw, begin)
        if own != salts:  # of a former round through the file
            continue
        if valid:
            page = raw[begin + _FRAME_HEADER : begin + frame_bytes]
            sums = _checksums(page, order, _checksums(raw[begin : begin + 8], order, sums))
            valid = sums == (one, two)
        unreadable += not valid and commits > 0
    if unreadable > 1:
        raise JournalError(f"{log}: damaged: {unreadable} commits are unreadable: {accept}")


def _checksums(content: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """The sums of a write-ahead log go on from those of the former frame (sqlite.org/fileformat2.html, section 4.2)."""
    one, two = sums
    for first, second in struct.iter_unpack(f"{order}2I", content):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_private(path: Path) -> None:
    """The journal names users, commands and variables: only its owner reads it. Files of another owner stay as they are."""
    if not path.exists():
        path.touch(0o600)
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(FileNotFoundError, PermissionError):
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)
