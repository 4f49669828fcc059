"""Journal keeping for a running control plane: snapshots and retention, retries, and checks that a scheduler can be stored.
Snapshots are taken in a thread. The state is copied while the loop waits; encoding, writing and dropping old events do not
block rounds."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.core.errors import InputError, JournalError, JournalUnreachable, require
from fairlead.core.events import Event, SchedulerSwitched
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import Journal
from fairlead.engine.state import State
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.runtime.host import Host

log = logging.getLogger("fairlead.cluster")

CHECK_EVERY_S = 1.0
DAY_S = 86_400.0
RETRY_EVERY_S = 0.5
REMIND_EVERY_S = 60.0
MAX_SCHEDULER_BYTES = 1 << 16

JournalObserver = Callable[[Sequence[Event], float], None]  # receives the events of a commit, and the seconds that it took


@dataclass(frozen=True)
class Retention:
    """When a snapshot is taken, how many are kept, and for how many days events are (None: for ever)."""

    every_events: int = 50_000
    every_s: float = 1800.0
    snapshots: int = 3
    keep_days: float | None = None

    def __post_init__(self) -> None:
        for name in ("every_events", "snapshots"):
            if getattr(self, name) < 1:
                raise InputError("retention", "1 or more", field=name, value=getattr(self, name))
        for name in ("every_s", "keep_days"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError("retention", "more than 0", field=name, value=value)


class Snapshotter:
    """Takes snapshots in a thread; under `lock` the state does not change."""

    def __init__(
        self,
        journal: DatabaseJournal,
        state: Callable[[], State],
        now: Callable[[], float],
        lock: Any,
        rules: Retention,
        host: Host,
    ) -> None:
        self._journal, self._state, self._now, self._lock, self._rules, self._host = journal, state, now, lock, rules, host
        self._changed, self._ending, self._running = host.condition(), False, False
        self._taken, self._taken_at = journal.latest_snapshot(), host.monotonic()

    def start(self) -> None:
        self._running = True
        self._host.spawn("snapshotter", self._run)

    def stop(self) -> None:
        """End the thread after the snapshot that it is writing."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            while self._running:
                self._changed.wait(1.0)

    def take(self) -> None:
        """Take a snapshot, then drop what is too old."""
        with self._lock:
            finish = self._journal.begin_snapshot(self._state())
            self._taken, self._taken_at = self._journal.last, self._host.monotonic()
        finish()
        days = self._rules.keep_days
        self._journal.retain(self._rules.snapshots, None if days is None else self._now() - days * DAY_S)
        log.info("snapshot taken", extra={"events": self._taken})

    @property
    def _due(self) -> bool:
        new = self._journal.last - self._taken
        return new >= self._rules.every_events or (new > 0 and self._host.monotonic() - self._taken_at >= self._rules.every_s)

    def _run(self) -> None:
        try:
            while not self._end_within(CHECK_EVERY_S):
                if self._due:
                    self._try_to_take()
        finally:
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _try_to_take(self) -> None:
        try:
            self.take()
        except Exception as problem:  # the loop reports what concerns events; the next snapshot may succeed
            defect = None if isinstance(problem, JournalError) else problem
            log.warning("snapshot failed", exc_info=defect, extra={"why": str(problem)})
            self._taken, self._taken_at = self._journal.last, self._host.monotonic()

    def _end_within(self, seconds: float) -> bool:
        with self._changed:
            if not self._ending:
                self._changed.wait(seconds)
            return self._ending


class ObservedJournal:
    """The journal of a control plane: a commit waits while the server is unreachable, and observers then see its events.
    Nothing is answered or decided meanwhile, but agents keep their leases and jobs keep running. `give_up` ends the wait.
    Observers are called in the loop's thread, after the state has seen the events."""

    def __init__(
        self,
        journal: Journal,
        observers: Sequence[JournalObserver],
        give_up: Callable[[], bool],
        host: Host,
        *,
        quiet: bool = False,  # a `JournalTerm` logs that the journal is unreachable, and that it answers
    ) -> None:
        self._journal, self._observers, self._give_up, self._host, self._quiet = journal, observers, give_up, host, quiet
        self._events: list[Event] = []
        self._since: float | None = None  # since when it is unreachable

    @property
    def unreachable_s(self) -> float:
        """For how long it has been unreachable; 0 if it is not. For any thread."""
        since = self._since
        return 0.0 if since is None else self._host.monotonic() - since

    def append(self, event: Event) -> None:
        self._journal.append(event)
        self._events.append(event)

    def commit(self) -> None:
        began = self._host.monotonic()
        self._commit()
        seconds = self._host.monotonic() - began
        events, self._events = self._events, []
        for observer in self._observers:
            observer(events, seconds)

    def _commit(self) -> None:
        remind = self._host.monotonic() + REMIND_EVERY_S if self._quiet else 0.0
        while True:
            try:
                self._journal.commit()
                break
            except JournalUnreachable as problem:
                if self._give_up():
                    raise
                now = self._host.monotonic()
                self._since = now if self._since is None else self._since
                if now >= remind:
                    log.error("journal unreachable; no decisions until it answers", extra={"why": str(problem)})
                    remind = now + REMIND_EVERY_S
            self._host.sleep(RETRY_EVERY_S)
        if self._since is not None:
            if not self._quiet:
                log.warning("journal answers again", extra={"seconds": round(self.unreachable_s, 1)})
            self._since = None

    def __iter__(self) -> Iterator[Event]:
        return iter(self._journal)

    def close(self) -> None:
        self._journal.close()


def check_serializable(scheduler: Mapping[str, Any]) -> None:
    """Raise `InputError` if the journal could not store a scheduler's description; that would end the loop."""
    for field, value in scheduler.items():
        try:
            encoded = encode(SchedulerSwitched(0.0, {field: value}, ""))
            json.dumps(value, allow_nan=False)
        except (JournalError, TypeError, ValueError, RecursionError):
            wanted = "values that a journal can store: finite 64-bit numbers, strings, lists and mappings"
            raise InputError("scheduler", wanted, field=str(field), value=value) from None
        require(len(encoded) <= MAX_SCHEDULER_BYTES, "scheduler", f"at most {MAX_SCHEDULER_BYTES:,} bytes", str(field))
    if len(encode(SchedulerSwitched(0.0, scheduler, ""))) > MAX_SCHEDULER_BYTES:
        raise InputError("scheduler", f"at most {MAX_SCHEDULER_BYTES:,} bytes")


def same_scheduler(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two schedulers have the same description in the journal."""
    return _stored(one) == _stored(other)


def _stored(scheduler: Mapping[str, Any]) -> Mapping[str, Any]:
    event = decode(encode(SchedulerSwitched(0.0, scheduler, "")))
    assert isinstance(event, SchedulerSwitched)
    return event.scheduler
