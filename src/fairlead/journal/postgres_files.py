"""The files of a control plane in the PostgreSQL database of its journal, and the record of which control plane has it.

Calls use connections of their own, as many as there are calls at a time: a slow archive delays neither a commit nor another
call. After a lost connection a call is repeated once on a new one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import psycopg

from fairlead.core.errors import JournalError, JournalUnreachable
from fairlead.journal.control_files import StoredFile
from fairlead.journal.postgres import LOCK_WAIT_MS, SESSION, WRITER, connection_settings, database_message

_NOW = "extract(epoch FROM clock_timestamp())::float8"
_CLOCK = "database"
IDLE_MS = 10_000  # for a client within a transaction: one that is paused there must not keep a standby from taking over
# A call that takes longer fails; on a dead network, after a few seconds.
_CONNECTION = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "tcp_user_timeout": 10_000}

T = TypeVar("T")


class PostgresFiles:
    """Files in the database of a journal that a control plane has opened before. Raises `JournalError` if it has none."""

    remote = True

    def __init__(self, url: str) -> None:
        self._conninfo, self.where = connection_settings(url, _CONNECTION)
        self._idle: list[psycopg.Connection[Any]] = []
        if self.rows("SELECT FROM pg_tables WHERE schemaname = 'fairlead' AND tablename = 'files'") == []:
            raise JournalError(f"{self.where}: no control plane has used this journal yet: start it first")

    def read(self, name: str) -> bytes | None:
        rows = self.rows("SELECT body FROM files WHERE name = %s", name)
        return rows[0][0] if rows else None

    def part(self, name: str, offset: int, size: int) -> tuple[bytes, int] | None:
        asked = "SELECT substring(body FROM %s FOR %s), octet_length(body) FROM files WHERE name = %s"
        rows = self.rows(asked, min(offset, 1 << 30) + 1, size, name)
        return rows[0] if rows else None

    def version(self, name: str) -> object:
        rows = self.rows("SELECT xmin::text FROM files WHERE name = %s", name)
        return rows[0][0] if rows else None

    def write(self, name: str, content: bytes, owner: str = "") -> None:
        self.transaction(lambda connection: _write(connection, name, content, owner))

    def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        def work(connection: psycopg.Connection[Any]) -> None:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (WRITER + 1,))
            row = connection.execute("SELECT body FROM files WHERE name = %s", (name,)).fetchone()
            _write(connection, name, change(row[0] if row else None), "")

        self.transaction(work)

    def touch(self, name: str) -> float | None:
        asked = "WITH old AS (SELECT name, used FROM files WHERE name = %s FOR UPDATE)"
        rows = self.rows(
            f"{asked} UPDATE files SET used = {_NOW} FROM old WHERE files.name = old.name RETURNING old.used", name
        )
        return rows[0][0] if rows else None

    def remove(self, name: str) -> None:
        self.rows("DELETE FROM files WHERE name = %s RETURNING name", name)

    def listed(self, folder: str = "") -> dict[str, StoredFile]:
        within = "starts_with(name, %s)" if folder else "position('/' in name) = 0 AND %s <> ''"
        rows = self.rows(f"SELECT name, octet_length(body), owner, used FROM files WHERE {within}", f"{folder}/")
        return {name: StoredFile(*rest) for name, *rest in rows}

    def room(self) -> tuple[float, float]:
        """The disk of the database is not known here."""
        return math.inf, math.inf

    def clock(self) -> tuple[str, float]:
        return _CLOCK, self.rows(f"SELECT {_NOW}")[0][0]

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Carry out one statement in a transaction, and return its rows."""
        return self.transaction(lambda connection: connection.execute(sql, values).fetchall())

    def transaction(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Do the work in a transaction; it may be called again, so it must be repeatable."""
        while True:
            used_before = bool(self._idle)
            connection = None
            try:
                connection = self._idle.pop() if used_before else self._connect()
                with connection.transaction():
                    result = work(connection)
            except IndexError:  # another thread took it
                continue
            except psycopg.Error as error:
                lost = connection is None or connection.broken or connection.closed
                if connection is not None:
                    connection.close()
                if lost and used_before:
                    continue
                kind = JournalUnreachable if lost or isinstance(error, psycopg.OperationalError) else JournalError
                raise kind(f"{self.where}: cannot use the files of the control plane: {database_message(error)}") from error
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            self._idle.append(connection)
            return result

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            idle = f"SET idle_in_transaction_session_timeout = {IDLE_MS}"
            for statement in (*SESSION, f"SET lock_timeout = {LOCK_WAIT_MS}", "SET statement_timeout = 60000", idle):
                connection.execute(statement)
            if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit = on")
        except BaseException:
            connection.close()
            raise
        return connection


def _write(connection: psycopg.Connection[Any], name: str, content: bytes, owner: str) -> None:
    connection.execute(
        f"INSERT INTO files (name, body, owner, used) VALUES (%s, %s, %s, {_NOW}) ON CONFLICT (name) DO UPDATE"
        " SET body = excluded.body, owner = excluded.owner, used = excluded.used",
        (name, content, owner),
    )


@dataclass(frozen=True)
class FormerTerm:
    """The control plane that had the journal before, as far as the database knows."""

    confirmed_ago_s: float  # since its last confirmation, by the database's clock; infinite if it has given the journal back
    settings: dict[str, Any]


class PostgresTerms:
    """Which control plane has the journal: a term begins with a takeover. Only the present term can be confirmed, so a control
    plane whose confirmation fails has lost the journal, and one that takes over knows the last confirmation before it."""

    def __init__(self, files: PostgresFiles) -> None:
        self._files, self._term = files, 0

    def begin(self, settings: dict[str, Any]) -> FormerTerm | None:
        """Begin a term. The caller has the lock of the journal. Returns the term before; None if this is the first."""

        def work(connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
            before = connection.execute(f"SELECT {_NOW} - confirmed, settings FROM control FOR UPDATE").fetchone()
            row = connection.execute(
                f"INSERT INTO control (term, confirmed, settings) VALUES (1, {_NOW}, %s) ON CONFLICT (one) DO UPDATE SET"
                " term = control.term + 1, confirmed = excluded.confirmed, settings = excluded.settings RETURNING term",
                (orjson.dumps(settings).decode(),),
            ).fetchone()
            self._term = row[0] if row else 0
            return before

        before = self._files.transaction(work)
        return FormerTerm(before[0], orjson.loads(before[1])) if before else None

    def current(self) -> FormerTerm | None:
        """Return the term that was begun last."""
        rows = self._files.rows(f"SELECT {_NOW} - confirmed, settings FROM control")
        return FormerTerm(rows[0][0], orjson.loads(rows[0][1])) if rows else None

    def confirm(self) -> bool:
        """Write that this term lasts; False if another one has begun."""
        return bool(self._files.rows(f"UPDATE control SET confirmed = {_NOW} WHERE term = %s RETURNING term", self._term))

    def end_writer(self) -> None:
        """End the database session that has the journal, as the server does when its client has disappeared."""
        lock = (
            f"locktype = 'advisory' AND granted AND classid::bigint = {WRITER >> 32} AND objid::bigint = {WRITER & 0xFFFF_FFFF}"
        )
        here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        self._files.rows(f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {lock} AND {here}")

    def end(self) -> None:
        """Write that this control plane renews nothing any more."""
        self._files.rows("UPDATE control SET confirmed = '-infinity' WHERE term = %s RETURNING term", self._term)
