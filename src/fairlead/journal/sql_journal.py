"""A journal in a database: three small tables, the same in every database. `Database` is what a database must provide;
only its implementations know the database and its errors.

`events` has one row for each event, numbered from 1, encoded by the codec. `snapshots` has saved states, each with the number
of the last event that is in it. `meta` has the versions. There is one writer at a time, and any number of readers."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from fairlead.core.errors import JournalError
from fairlead.core.events import Event
from fairlead.engine.codec import READABLE_VERSIONS, VERSION, decode, encode
from fairlead.engine.state import State
from fairlead.engine.state_codec import freeze, load

LAYOUT = 1
"""The version of the tables; the next one, if the database has tables besides these (`Database.upgrade`)."""

_PAGE = 2000  # events that are read, or dropped, at a time
_DAY_S = 86_400.0

log = logging.getLogger(__name__)

T = TypeVar("T")


class Cursor(Protocol):
    """What both databases' cursors have in common."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> object: ...

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> object: ...

    def fetchall(self) -> list[Any]: ...


class Database(Protocol):
    """A database at one place. All its failures are `JournalError`s that name the place."""

    where: str  # for messages
    schema: Sequence[str]  # statements that make the tables
    upgrade: Sequence[str]  # those of them that make what version 1 of the tables lacks
    placeholder: str  # the placeholder of a value in SQL

    def tables(self) -> set[str]: ...

    def read(self, work: Callable[[Cursor], T]) -> T: ...

    def frozen(self) -> AbstractContextManager[Cursor]:
        """Give a cursor that finds what the database holds at its first query, whatever is written or dropped meanwhile."""
        ...

    def write(self, work: Callable[[Cursor], T]) -> T:
        """Do the work in one transaction, durable when this returns. `work` may be called again, so it must be repeatable."""
        ...

    def vacuum(self) -> None:
        """Give the space of deleted rows back, if that is cheap."""
        ...

    def close(self) -> None: ...


class DuplicateSequence(JournalError):
    """A row with this sequence number exists already."""


class DatabaseJournal:
    """A journal on a `Database`. `append` only remembers; `commit` writes all that was appended, in one transaction.

    Several threads may append and commit; events that wait for a running commit are written together by the next one. The
    next successful commit writes the events of a failed one; they are not durable before that.
    """

    last: int  # the number of the last event that is kept, or 0

    def __init__(self, database: Database, *, write: bool = True) -> None:
        self._database, self._writes = database, write
        self._waiting: list[bytes] = []
        self._lock = threading.RLock()
        self._closed = False
        try:
            self._prepare()
            self.last = self._last()
        except BaseException:
            database.close()
            raise

    @property
    def where(self) -> str:
        return self._database.where

    def append(self, event: Event) -> None:
        self._must_be_open(writing=True)
        self._waiting.append(encode(event))

    def commit(self) -> None:
        """Returns when all that was appended before is durable."""
        with self._lock:
            self._must_be_open(writing=True)
            batch = [body.decode() for body in self._waiting]
            while batch:
                try:
                    rows = list(enumerate(batch, self.last + 1))
                    self._write(("INSERT INTO events (seq, body) VALUES (?, ?)", rows))
                    written = len(batch)
                except DuplicateSequence:
                    written = self._written_before(batch)
                del self._waiting[:written], batch[:written]
                self.last += written

    def __iter__(self) -> Iterator[Event]:
        """All events there are; where some were dropped, those that are left."""
        return (event for _, event in self.numbered())

    def after(self, seq: int) -> Iterator[Event]:
        """The events behind one, in order and without a gap."""
        return (event for _, event in self.numbered(seq))

    def numbered(self, seq: int | None = None) -> Iterator[tuple[int, Event]]:
        """The events behind `seq` with their numbers, or (None) from the first one that is left: those that are there when the
        first is read, though others are written and dropped meanwhile."""
        self._flush()
        page = f"SELECT seq, body FROM events WHERE seq > {self._database.placeholder} ORDER BY seq LIMIT {_PAGE}"
        with self._database.frozen() as cursor:
            with self._lock:
                self._must_be_open()
                last = self.last  # others may commit while these rows are used
                cursor.execute(page, (seq or 0,))
            rows = cursor.fetchall()
            if seq is None:
                seq = rows[0][0] - 1 if rows else last
            while rows:
                for number, body in rows:
                    seq += 1
                    if number != seq:
                        raise JournalError(f"{self.where}: event {seq} is missing; the next one is {number}: restore a backup")
                    try:
                        yield number, _decoded(body)
                    except JournalError as error:
                        raise JournalError(f"{self.where}: event {number}: {error}") from error
                self._must_be_open()
                cursor.execute(page, (seq,))
                rows = cursor.fetchall()
        if seq < last:
            raise JournalError(f"{self.where}: event {seq + 1} and all later events are missing: restore a backup")

    def snapshot(self, state: State) -> None:
        """Keep a state that has seen all that was appended; what was appended is committed first."""
        self.begin_snapshot(state)()

    def begin_snapshot(self, state: State) -> Callable[[], None]:
        """Do the quick part of a snapshot. The returned function does the rest, in another thread if needed."""
        with self._lock:
            self.commit()
            seq, encode_state = self.last, freeze(state)

        def finish() -> None:
            body = encode_state()
            with self._lock:
                self._must_be_open(writing=True)
                self._write(
                    ("DELETE FROM snapshots WHERE seq = ?", [(seq,)]),
                    ("INSERT INTO snapshots (seq, body) VALUES (?, ?)", [(seq, body)]),
                )

        return finish

    def snapshots(self) -> Iterator[tuple[int, bytes]]:
        """Saved states with the number of the last event in each, the most recent first."""
        below = 1 << 62
        while True:  # each query finds what is there then: snapshots come and go meanwhile
            with self._lock:
                rows = self._ask("SELECT seq, body FROM snapshots WHERE seq < ? ORDER BY seq DESC LIMIT 1", below)
            if not rows:
                return
            below, body = rows[0]
            yield below, body or b""  # NULL in a damaged database: not a readable snapshot

    def latest_snapshot(self) -> int:
        """The number of the last event in it, or 0."""
        with self._lock:
            return int(self._ask("SELECT max(seq) FROM snapshots")[0][0] or 0)

    def retain(self, keep: int, since_s: float | None = None) -> None:
        """Keep the `keep` most recent snapshots; all events stay, or, with `since_s`, at least those from that second on; where
        that is infinity, those behind the oldest snapshot that is kept.

        Then of older snapshots one a day is kept, and when one of them is older than that second, the events in it and all
        snapshots before it go. It is done in small steps, so that commits do not wait for it."""
        if keep < 1:
            raise JournalError(f"{self.where}: cannot keep {keep} snapshots: keep 1 or more")
        with self._lock:
            self._must_be_open(writing=True)
            taken = [seq for (seq,) in self._ask("SELECT seq FROM snapshots ORDER BY seq DESC")]
            times = {} if since_s is None else {seq: self._second_behind(seq) for seq in taken[keep - 1 :]}
        base, stay = _thinned(times, since_s) if since_s is not None else (0, set[int]())
        if self._first() <= base and not self._readable(base):
            base, stay = 0, set(times)
        drop = [(seq,) for seq in taken[keep:] if seq not in stay]
        if drop:
            with self._lock:
                self._write(("DELETE FROM snapshots WHERE seq = ?", drop))
        self._drop_events(base)

    def _drop_events(self, upto: int) -> None:
        """Drop the events up to one, which a snapshot has in it."""
        for bound in range(self._first() + _PAGE - 1, upto + _PAGE, _PAGE):
            with self._lock:
                self._must_be_open(writing=True)
                self._write(("DELETE FROM events WHERE seq <= ?", [(min(bound, upto),)]))
                self._database.vacuum()

    def _first(self) -> int:
        """The number of the first event that is left."""
        with self._lock:
            return int(self._ask("SELECT min(seq) FROM events")[0][0] or self.last + 1)

    def _second_behind(self, seq: int) -> float:
        """When the first event behind one happened; where there is none yet, in the future."""
        rows = self._ask("SELECT body FROM events WHERE seq = ?", seq + 1)
        return _decoded(rows[0][0]).time if rows else math.inf

    def _readable(self, seq: int) -> bool:
        with self._lock:
            rows = self._ask("SELECT body FROM snapshots WHERE seq = ?", seq)
        try:
            load(rows[0][0] or b"")
        except JournalError as error:
            log.warning("%s: the snapshot at event %d: %s; nothing was dropped", self.where, seq, error)
            return False
        return True

    def close(self) -> None:
        """What was appended is committed; then the next writer may come. Where that fails, it is closed all the same."""
        with self._lock:
            if self._closed:
                return
            try:
                self._flush()
            finally:
                self._closed = True
                self._database.close()

    def _prepare(self) -> None:
        tables, layouts = self._database.tables(), (LAYOUT, LAYOUT + 1) if self._database.upgrade else (LAYOUT,)
        if not tables and self._writes:
            first = [("tables", str(layouts[-1])), ("events", str(VERSION))]
            made = ((statement, None) for statement in self._database.schema)
            self._write(*made, ("INSERT INTO meta (name, value) VALUES (?, ?)", first))
            return
        if not {"meta", "events", "snapshots"} <= tables:
            found = f"its tables are {', '.join(sorted(tables))}" if tables else "it has no tables"
            raise JournalError(f"{self.where}: a database, but not a journal: {found}")
        versions = dict(self._ask("SELECT name, value FROM meta"))
        for name, readable in (("tables", layouts), ("events", READABLE_VERSIONS)):
            if versions.get(name) not in [str(version) for version in readable]:
                raise JournalError(
                    f"{self.where}: the journal's {name} are of version {versions.get(name)}; this Fairlead reads version "
                    f"{' and '.join(map(str, readable))}: use the Fairlead that wrote it"
                )
        if self._writes and versions["tables"] != str(layouts[-1]):
            made = ((statement, None) for statement in self._database.upgrade)
            self._write(*made, ("UPDATE meta SET value = ? WHERE name = ?", [(str(layouts[-1]), "tables")]))
        if self._writes and versions["events"] != str(VERSION):  # rows stay as they are; each shows its own version
            self._write(("UPDATE meta SET value = ? WHERE name = ?", [(str(VERSION), "events")]))

    def _last(self) -> int:
        newest = (self._ask(f"SELECT max(seq) FROM {table}")[0][0] for table in ("events", "snapshots"))
        return max(seq or 0 for seq in newest)

    def _written_before(self, batch: Sequence[str]) -> int:
        """How many of these an earlier commit has written, though it could not say so: its connection was lost in between."""
        stored = [body for (body,) in self._ask("SELECT body FROM events WHERE seq > ? ORDER BY seq", self.last)]
        if not stored or stored != batch[: len(stored)]:
            raise JournalError(f"{self.where}: event {self.last + 1} was written by another process; open the journal again")
        return len(stored)

    def _ask(self, sql: str, *values: object) -> list[Any]:
        def ask(cursor: Cursor) -> list[Any]:
            cursor.execute(sql.replace("?", self._database.placeholder), values)
            return cursor.fetchall()

        return self._database.read(ask)

    def _write(self, *statements: tuple[str, Sequence[Sequence[Any]] | None]) -> None:
        """One transaction; each statement is carried out for each of its rows, or once where it has none."""

        def work(cursor: Cursor) -> None:
            for sql, rows in statements:
                if rows is None:
                    cursor.execute(sql)
                else:
                    cursor.executemany(sql.replace("?", self._database.placeholder), rows)

        self._database.write(work)

    def _flush(self) -> None:
        if self._waiting:
            self.commit()

    def _must_be_open(self, *, writing: bool = False) -> None:
        if self._closed:
            raise JournalError(f"{self.where}: the journal is closed")
        if writing and not self._writes:
            raise JournalError(f"{self.where}: the journal was opened for reading")


def _thinned(times: Mapping[int, float], since_s: float) -> tuple[int, set[int]]:
    """Of snapshots, by the second behind them: the youngest that has in it nothing from `since_s` on (0: none has), and those
    that stay: it, and of the younger ones the first of each day."""
    base = max((seq for seq, second in times.items() if second <= since_s), default=0)
    stay, days = {base}, set[int]()
    for seq in sorted(seq for seq in times if seq > base and times[seq] < math.inf):
        day = int(times[seq] // _DAY_S)
        if day not in days:
            days.add(day)
            stay.add(seq)
    return base, stay


def _decoded(body: object) -> Event:
    if not isinstance(body, (str, bytes)):
        raise JournalError(f"expected the JSON of an event, found {'NULL' if body is None else repr(body)}: restore a backup")
    return decode(body)
