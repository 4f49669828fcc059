"""Snapshots of the running control plane, and what is forgotten: in a thread of its own, so that rounds need not wait. The
state is copied while the loop waits; spelling it out, writing it and dropping what is old go on beside it."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.core.errors import InputError, JournalError, JournalUnreachable
from fairlead.core.events import Event, SchedulerSwitched
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import Journal
from fairlead.engine.state import State
from fairlead.journal.sql_journal import DatabaseJournal

log = logging.getLogger(__name__)

LOOK_S = 1.0
DAY_S = 86_400.0


@dataclass(frozen=True)
class Retention:
    """When a snapshot is taken, how many stay, and for how many days events do (None: for ever)."""

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
    """Give it the journal, the way to the state, the second it is now, and the lock under which the state is at rest."""

    def __init__(
        self,
        journal: DatabaseJournal,
        state: Callable[[], State],
        now: Callable[[], float],
        lock: Any,
        rules: Retention,
    ) -> None:
        self._journal, self._state, self._now, self._lock, self._rules = journal, state, now, lock, rules
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._taken, self._taken_at = journal.youngest_snapshot(), time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when it has ended; what it was writing is written."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def keep(self) -> None:
        """A snapshot now; then what is too old goes."""
        with self._lock:
            finish = self._journal.begin_snapshot(self._state())
            self._taken, self._taken_at = self._journal.last, time.monotonic()
        finish()
        days = self._rules.keep_days
        self._journal.retain(self._rules.snapshots, None if days is None else self._now() - days * DAY_S)
        log.info("snapshot taken", extra={"events": self._taken})

    @property
    def _due(self) -> bool:
        new = self._journal.last - self._taken
        return new >= self._rules.every_events or (new > 0 and time.monotonic() - self._taken_at >= self._rules.every_s)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            if not self._due:
                continue
            try:
                self.keep()
            except JournalError as problem:  # the loop will say it louder, where it concerns events too
                log.warning("no snapshot", extra={"why": str(problem)})
                self._taken, self._taken_at = self._journal.last, time.monotonic()


# A journal whose server may be away for a while. A commit waits until it is back: nobody is answered and nothing is decided
# meanwhile, but agents keep their leases and jobs go on, which a control plane that ends would take from them.

log = logging.getLogger("fairlead.cluster")

PAUSE_S = 0.5
REMIND_S = 60.0


class RetryingJournal:
    """Another journal. `hopeless` says that nobody wants to wait any longer: then it fails as that one does."""

    def __init__(self, journal: Journal, hopeless: Callable[[], bool]) -> None:
        self._journal, self._hopeless = journal, hopeless
        self._since: float | None = None  # when it was found to be away

    @property
    def away_s(self) -> float:
        """For how long it has been away, 0 where it is there. For any thread."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def append(self, event: Event) -> None:
        self._journal.append(event)

    def commit(self) -> None:
        told = 0.0
        while True:
            try:
                self._journal.commit()
                break
            except JournalUnreachable as problem:
                if self._hopeless():
                    raise
                now = time.monotonic()
                self._since = now if self._since is None else self._since
                if now >= told:
                    log.error("the journal is away, nothing is decided until it is back", extra={"why": str(problem)})
                    told = now + REMIND_S
            time.sleep(PAUSE_S)
        if self._since is not None:
            log.warning("the journal is back", extra={"seconds": round(self.away_s, 1)})
            self._since = None

    def __iter__(self) -> Iterator[Event]:
        return iter(self._journal)

    def close(self) -> None:
        self._journal.close()


# The description of a scheduler as a journal keeps it. Whether it can be kept must be known before anything is begun with
# one:
# what cannot be spelled would end the loop.

LARGEST_SCHEDULER = 1 << 16


def check_serializable(scheduler: Mapping[str, Any]) -> None:
    """Raises what is in the way, with the field that it stands in."""
    for field, value in scheduler.items():
        try:
            spelled = encode(SchedulerSwitched(0.0, {field: value}, ""))
            json.dumps(value, allow_nan=False)
        except (JournalError, TypeError, ValueError, RecursionError):
            wanted = "what a journal can keep: finite numbers of 64 bits, words, lists, and names with one of these each"
            raise InputError("scheduler", wanted, field=str(field), value=value) from None
        if len(spelled) > LARGEST_SCHEDULER:
            raise InputError("scheduler", f"at most {LARGEST_SCHEDULER:,} bytes", field=str(field))
    if len(encode(SchedulerSwitched(0.0, scheduler, ""))) > LARGEST_SCHEDULER:
        raise InputError("scheduler", f"at most {LARGEST_SCHEDULER:,} bytes")


def same_scheduler(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two would be kept alike."""
    return _kept(one) == _kept(other)


def _kept(scheduler: Mapping[str, Any]) -> Mapping[str, Any]:
    event = decode(encode(SchedulerSwitched(0.0, scheduler, "")))
    assert isinstance(event, SchedulerSwitched)
    return event.scheduler
