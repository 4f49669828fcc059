"""Which of two control planes renews leases. The one that has the journal confirms this every second, by a write with the
database's clock, and renews leases only while its last confirmation is recent. One that takes over knows that confirmation, so
it knows until when the former one can have renewed a lease. It knows no database."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fairlead.core.errors import JournalError
from fairlead.runtime.host import Host

log = logging.getLogger("fairlead.cluster")

CONFIRM_EVERY_S = 1.0
JOURNAL_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class FormerControlPlane:
    """The control plane that had the journal before: how long ago it confirmed this last (infinity: it has ended, or there was
    none), and its settings."""

    confirmed_ago_s: float = math.inf
    journal_timeout_s: float = JOURNAL_TIMEOUT_S
    lease_s: float = 0.0
    grace_s: float = 0.0

    @property
    def renews_s(self) -> float:
        """Return for how long it may renew leases yet, at the takeover."""
        return max(0.0, self.journal_timeout_s - self.confirmed_ago_s)

    def silence_s(self, known_s: float, lease_s: float, grace_s: float) -> float:
        """Return for how long a node has certainly got no lease, at the takeover; below 0: it may get one for that long yet.

        The former one may have renewed the lease of any node for `journal_timeout_s` after its last confirmation, also of one
        that was silent for `known_s` by its last mark. Where its leases lasted longer than the present ones (`lease_s` and
        `grace_s`), the node is waited for as much longer."""
        longer_s = max(0.0, self.lease_s + self.grace_s - lease_s - grace_s)
        return min(known_s, self.confirmed_ago_s - self.journal_timeout_s) - longer_s


class Terms(Protocol):
    """The record of which control plane has the journal. A call may raise `JournalError`."""

    def confirm(self) -> bool:
        """Write that this one has it still; False if another has taken over."""
        ...

    def end(self) -> None:
        """Write that this one renews nothing any more."""
        ...


@dataclass(eq=False)
class JournalTerm:
    """The time for which this control plane has the journal. It begins confirmed: create it before the write. A thread
    confirms it; `marked` is called after each confirmation, and `on_lost` once, when another control plane has taken over."""

    terms: Terms
    timeout_s: float = JOURNAL_TIMEOUT_S
    host: Host = field(default_factory=Host)
    marked: Callable[[], None] = lambda: None
    on_lost: Callable[[], None] = lambda: None
    former_renews_s: float = 0.0  # for how long the one before may renew leases yet

    def __post_init__(self) -> None:
        self._began = self._confirmed = self.host.monotonic()
        self._started = self._ended = self._failing = False
        self.lost = False  # whether another control plane has taken over

    def may_renew(self) -> bool:
        """Return whether leases may be renewed now. For any thread."""
        return not self.lost and self.host.monotonic() - self._confirmed <= self.timeout_s

    def start(self) -> None:
        """Confirm every second from now on, in a thread."""
        if not self._started:
            self._started = True
            self.host.spawn("journal-term", self._run)

    def end(self) -> None:
        """Stop to confirm, after the last lease was renewed. The next one has to wait as after a crash, as long as the one
        before may renew leases: it knows of no other than this one."""
        self._ended = True
        if not self.lost and self.host.monotonic() >= self._began + self.former_renews_s:
            self.terms.end()

    def confirm(self) -> None:
        """Confirm once. The time counts from before the write: the database's clock shows the same or a later time."""
        began = self.host.monotonic()
        try:
            held = self.terms.confirm()
        except JournalError as problem:
            if not self._failing:
                extra = {"why": str(problem), "leases_stop_in_s": round(self.timeout_s - began + self._confirmed)}
                log.error("journal unreachable; no decisions until it answers, and leases end after a time", extra=extra)
            self._failing = True
            return
        if self._failing and held:
            log.warning("journal answers again; leases are renewed", extra={"seconds": round(began - self._confirmed, 1)})
        self._failing = False
        if held:
            self._confirmed = began
        elif not self._ended:
            self.lost = True

    def _run(self) -> None:
        while not self._ended:
            self.confirm()
            if self.lost:
                self.on_lost()
                return
            if not self._failing:
                self.marked()
            self.host.sleep(CONFIRM_EVERY_S)
