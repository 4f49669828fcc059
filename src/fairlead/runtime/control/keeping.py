"""Snapshots of the running control plane, and what is forgotten: in a thread of its own, so that rounds need not wait. The
state is copied while the loop waits; spelling it out, writing it and dropping what is old go on beside it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.core.errors import InputError, JournalError
from fairlead.engine.state import State
from fairlead.journals.database import DatabaseJournal

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


class Keeper:
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
