"""A simulated PostgreSQL server: the events that it has stored, the lock of their writer, and the terms of control planes. It
does not answer, answers late, or fails over: then all sessions and locks are gone, and of a commit under way it is not known
whether it was done. What it has acknowledged, it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fairlead.core.errors import JournalInUse, JournalUnreachable
from fairlead.core.events import Event
from fairlead.engine.codec import VERSION, decode
from fairlead.journal.sql_journal import LAYOUT, Cursor, DatabaseJournal, DuplicateSequence
from fairlead.runtime.control.journal_term import FormerControlPlane
from fairlead.runtime.host import Host
from fairlead.testing.runtime_simulation.virtual_world import FaultWindow, SimulatedProgram, VirtualWorld

T = TypeVar("T")

LOCK_WAIT_S = 5.0  # for the lock of the writer, as in PostgreSQL
NOTICED_AFTER_S = 10.0  # the server ends the session of a client that it cannot reach


class DatabaseServer:
    """The server. `away`: it does not answer; `slow`: a commit takes up to two seconds; `failover` begins with a commit; `cut`
    has the machines that cannot reach it."""

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.random = world.random("database")
        self.bodies: list[str] = []  # of events
        self.away = self.slow = self.failover = FaultWindow(world)
        self.cut: dict[str, FaultWindow] = {}
        self.on_event: Callable[[Event], None] = lambda event: None
        self.writer: _Session | None = None
        self.term, self.confirmed_s, self.settings = 0, -math.inf, (0.0, 0.0, 0.0)

    def events(self) -> list[Event]:
        return [decode(body) for body in self.bodies]

    def reachable(self, machine: str) -> bool:
        window = self.cut.get(machine)
        return not (window is not None and window.active()) and not self.away.active()

    def holder(self) -> _Session | None:
        """The session that has the writer's lock, as far as the server knows."""
        session = self.writer
        if session is None or session.ended or not session.program.alive:
            return None
        window = self.cut.get(session.machine)
        if window is not None and window.lasts_s >= NOTICED_AFTER_S:
            session.ended = True
            return None
        return session

    def fail_over(self, seconds: float) -> None:
        """All sessions end, and for some time it does not answer."""
        self.world.note("database", "fails over")
        if self.writer is not None:
            self.writer.ended = True
        self.failover, self.away = FaultWindow(self.world), FaultWindow(self.world, seconds)


class _Session:
    """A connection that has, or had, the lock."""

    def __init__(self, machine: str, program: SimulatedProgram) -> None:
        self.machine, self.program, self.ended = machine, program, False


class _Lost(Exception):
    """The connection is gone."""


class SimulatedDatabase:
    """A program's connection to the server, with the rules of `journal/postgres.py`: after a lost connection the work is
    repeated once on a new one, which has to get the lock first."""

    where, placeholder = "postgresql://simulated", "%s"
    schema: Sequence[str] = ()
    upgrade: Sequence[str] = ()

    def __init__(self, server: DatabaseServer, machine: str, program: SimulatedProgram, host: Host) -> None:
        self._server, self._machine, self._program, self._host = server, machine, program, host
        self._session = self._connect()

    def tables(self) -> set[str]:
        return {"meta", "events", "snapshots"}

    def read(self, work: Callable[[Cursor], T]) -> T:
        return self.write(work)

    @contextmanager
    def frozen(self) -> Iterator[Cursor]:
        yield _Cursor(self._server)

    def write(self, work: Callable[[Cursor], T]) -> T:
        try:
            return self._once(work)
        except _Lost:
            self._session = self._connect()
        try:
            return self._once(work)
        except _Lost:
            raise JournalUnreachable("the connection was lost") from None

    def vacuum(self) -> None:
        pass

    def close(self) -> None:
        self._session.ended = True

    def _once(self, work: Callable[[Cursor], T]) -> T:
        server = self._server
        if server.slow.active():
            self._host.sleep(server.random.uniform(0.0, 2.0))
        if self._session.ended or not server.reachable(self._machine):
            raise _Lost
        cursor = _Cursor(server)
        result = work(cursor)
        if cursor.new and server.failover.active():
            seconds = server.random.uniform(0.0, 6.0)
            if server.random.random() < 0.5:
                cursor.commit()
            server.fail_over(seconds)
            raise _Lost
        cursor.commit()
        return result

    def _connect(self) -> _Session:
        server, until = self._server, self._host.monotonic() + LOCK_WAIT_S
        if not server.reachable(self._machine):
            raise JournalUnreachable("the database does not answer")
        while (holder := server.holder()) is not None and holder.program is not self._program:
            if self._host.monotonic() >= until:
                raise JournalInUse("another process writes this journal")
            self._host.sleep(0.5)
        if not server.reachable(self._machine):
            raise JournalUnreachable("the database does not answer")
        if holder is not None:
            holder.ended = True
        server.writer = _Session(self._machine, self._program)
        return server.writer


class _Cursor:
    """The few statements of a journal."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server, self._rows = server, list[Any]()
        self.new: list[str] = []

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> None:
        bodies = self._server.bodies
        if sql == "SELECT name, value FROM meta":
            self._rows = [("tables", str(LAYOUT)), ("events", str(VERSION))]
        elif sql.startswith("SELECT max(seq) FROM"):
            self._rows = [(len(bodies) if sql.endswith("events") else None,)]
        elif sql.startswith("SELECT seq, body FROM events"):
            self._rows = list(enumerate(bodies[values[0] :], values[0] + 1))
        elif sql.startswith("SELECT body FROM events WHERE seq >"):
            self._rows = [(body,) for body in bodies[values[0] :]]
        else:
            assert sql.startswith("SELECT seq, body FROM snapshots"), sql
            self._rows = []

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]], /) -> None:
        assert sql.startswith("INSERT INTO events"), sql
        if rows[0][0] <= len(self._server.bodies):
            raise DuplicateSequence(f"event {rows[0][0]} exists")
        self.new += [body for _, body in rows]

    def fetchall(self) -> list[Any]:
        return self._rows

    def commit(self) -> None:
        """Store what was inserted."""
        for body in self.new:
            self._server.bodies.append(body)
            self._server.on_event(decode(body))


class SimulatedJournal:
    """A journal in the server, without the thread that takes snapshots: threads of a simulation do not lock each other out."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self.stored = DatabaseJournal(database)

    def append(self, event: Event) -> None:
        self.stored.append(event)

    def commit(self) -> None:
        self.stored.commit()

    def uncommitted(self) -> list[Event]:
        return [decode(body) for body in self.stored._waiting]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.stored)

    def close(self) -> None:
        self.stored.close()


class SimulatedTerms:
    """Which control plane has the journal, as the server knows it."""

    def __init__(self, server: DatabaseServer, machine: str, host: Host) -> None:
        self._server, self._machine, self._host, self._term = server, machine, host, 0
        self.confirmed_s = -math.inf  # when it last confirmed its own term

    def begin(self, journal_timeout_s: float, lease_s: float, grace_s: float) -> FormerControlPlane:
        """Begin a term; return what is known of the one before."""
        self._check()
        server = self._server
        before = FormerControlPlane(server.world.now - server.confirmed_s, *server.settings)
        server.term += 1
        self._term, server.settings = server.term, (journal_timeout_s, lease_s, grace_s)
        self.confirmed_s = server.confirmed_s = server.world.now
        return before

    def confirm(self) -> bool:
        if self._server.slow.active():
            self._host.sleep(self._server.random.uniform(0.0, 2.0))
        self._check()
        if self._term == self._server.term:
            self.confirmed_s = self._server.confirmed_s = self._server.world.now
            return True
        return False

    def end(self) -> None:
        self._check()
        if self._term == self._server.term:
            self._server.confirmed_s = -math.inf

    def end_stuck_writer(self) -> None:
        """End the session of a control plane that has not confirmed for its timeout: it renews nothing any more."""
        self._check()
        server = self._server
        if server.writer is not None and math.inf > server.world.now - server.confirmed_s > server.settings[0]:
            server.writer.ended = True

    def _check(self) -> None:
        if not self._server.reachable(self._machine):
            raise JournalUnreachable("the database does not answer")
