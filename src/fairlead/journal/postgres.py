"""A journal in a PostgreSQL database, in the schema `fairlead`: one journal to a database.

An advisory lock ensures a single writer; the server releases it when the connection ends. After a lost connection the work is
repeated once on a new one, which has to get the lock first. A writer that lost the lock to another can write no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fairlead.core.errors import JournalError, JournalInUse, JournalUnreachable
from fairlead.journal.sql_journal import Cursor, DatabaseJournal, DuplicateSequence

SCHEMA = (
    "CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL)",
    "CREATE TABLE events (seq bigint PRIMARY KEY, body text NOT NULL)",
    "CREATE TABLE snapshots (seq bigint PRIMARY KEY, body bytea NOT NULL)",
)
CONTROL_SCHEMA = (
    "CREATE TABLE files (name text PRIMARY KEY, body bytea NOT NULL, owner text NOT NULL, used float8 NOT NULL)",
    "ALTER TABLE files ALTER body SET STORAGE EXTERNAL",  # parts are read without the rest
    "CREATE TABLE control (one boolean PRIMARY KEY DEFAULT true CHECK (one), term bigint NOT NULL, confirmed float8 NOT NULL,"
    " settings text NOT NULL)",
)
"""What version 2 of the tables has besides: the files of control planes, and which of them has the journal."""

WRITER = 0x6661_6972_6C65_6164
"""The number of the writer's lock."""

LOCK_WAIT_MS = 5000
"""How long a server may take to notice that the writer before has died."""

# Both sides notice within half a minute that the other has disappeared.
_CONNECTION: dict[str, str | int] = {
    "application_name": "fairlead",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
SESSION = (
    "SET search_path = fairlead",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)

T = TypeVar("T")


class PostgresJournal(DatabaseJournal):
    """A journal in a database by its URL, `postgresql://user@host/database`. With `write=False` it is read, also while another
    process writes it."""

    def __init__(self, url: str, *, write: bool = True) -> None:
        super().__init__(_Postgres(url, write), write=write)


class _Lost(Exception):
    """The connection is gone; whether the work was done is not known."""


class _Postgres:
    schema: Sequence[str] = (*SCHEMA, *CONTROL_SCHEMA)
    upgrade: Sequence[str] = CONTROL_SCHEMA
    placeholder = "%s"

    def __init__(self, url: str, write: bool) -> None:
        self._conninfo, self.where = connection_settings(url)
        self._write = write
        self._session: tuple[Any, ...] | None = None  # the server's end of our last connection that wrote
        self._connection = self._connect(self._write)

    def tables(self) -> set[str]:
        def ask(cursor: Cursor) -> set[str]:
            cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'fairlead'")
            return {name for (name,) in cursor.fetchall()}

        return self.read(ask)

    def read(self, work: Callable[[Cursor], T]) -> T:
        return self.write(work)

    @contextmanager
    def frozen(self) -> Iterator[Cursor]:
        with self._connect(write=False) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            try:
                with self._as_journal_errors(connection), connection.transaction(), connection.cursor() as cursor:
                    yield cast(Cursor, cursor)
            except _Lost as error:
                raise JournalUnreachable(f"{self.where}: the connection was lost: {error}") from error

    def write(self, work: Callable[[Cursor], T]) -> T:
        try:
            return self._once(work)
        except _Lost:
            self._connection.close()
        self._connection = self._connect(self._write)
        try:
            return self._once(work)
        except _Lost as error:
            raise JournalUnreachable(f"{self.where}: the connection was lost: {error}") from error

    def vacuum(self) -> None:
        """The server does this by itself."""

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def _once(self, work: Callable[[Cursor], T]) -> T:
        with self._as_journal_errors(self._connection), self._connection.transaction(), self._connection.cursor() as cursor:
            return work(cast(Cursor, cursor))

    def _connect(self, write: bool) -> psycopg.Connection[Any]:
        with self._connecting():
            connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            with self._connecting():
                self._begin(connection, write)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, connection: psycopg.Connection[Any], write: bool) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise JournalError(f"{self.where}: its encoding is {encoding}; a journal needs a database with encoding UTF8")
        for statement in (*SESSION, f"SET lock_timeout = {LOCK_WAIT_MS}"):
            connection.execute(statement)
        if not write:
            connection.execute("SET default_transaction_read_only = on")
            return
        if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
            connection.execute("SET synchronous_commit = on")
        self._lock(connection)
        if connection.execute("SELECT FROM pg_namespace WHERE nspname = 'fairlead'").fetchone() is None:
            connection.execute("CREATE SCHEMA fairlead")  # "IF NOT EXISTS" takes the right to make one even where it is there

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        for again in (False, True):
            try:
                connection.execute("SELECT pg_advisory_lock(%s)", (WRITER,))
                break
            except psycopg.errors.LockNotAvailable as error:
                if again or not self._end_own(connection):
                    raise JournalInUse(f"{self.where}: another process writes this journal; end it first") from error
        mine = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        self._session = connection.execute(mine).fetchone()

    def _end_own(self, connection: psycopg.Connection[Any]) -> bool:
        """End our own last session, which has the lock until the server notices that its connection is dead. False if there is
        none: then another process has the lock."""
        if self._session is None:
            return False
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
        return connection.execute(ended, self._session).fetchone() is not None

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            kind = JournalUnreachable if isinstance(error, psycopg.OperationalError) else JournalError
            raise kind(f"{self.where}: cannot open the journal: {database_message(error)}") from error

    @contextmanager
    def _as_journal_errors(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.UniqueViolation as error:
            raise DuplicateSequence(f"{self.where}: {database_message(error)}") from error
        except psycopg.Error as error:
            if connection.broken or connection.closed:
                raise _Lost(database_message(error)) from error
            raise JournalError(f"{self.where}: cannot use the journal: {database_message(error)}") from error


def connection_settings(url: str, defaults: Mapping[str, str | int] | None = None) -> tuple[str, str]:
    """Return how to connect to a database, and its place for messages, without the password."""
    try:
        given = conninfo_to_dict(url)
        usual = {name: value for name, value in (_CONNECTION | dict(defaults or {})).items() if name not in given}
        return make_conninfo(url, **usual), f"postgresql://{given.get('host', '')}/{given.get('dbname', '')}"
    except psycopg.ProgrammingError as error:
        raise JournalError(f"not the URL of a database: {error}") from error


def database_message(error: psycopg.Error) -> str:
    """Return a message of the database in one line."""
    return " ".join(str(error).split()) or type(error).__name__
