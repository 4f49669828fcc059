"""A journal whose server may be away for a while. A commit waits until it is back: nobody is answered and nothing is decided
meanwhile, but agents keep their leases and jobs go on, which a control plane that ends would take from them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from fairlead.core.errors import JournalAway
from fairlead.core.events import Event
from fairlead.engine.journal import Journal

log = logging.getLogger("fairlead.cluster")

PAUSE_S = 0.5
REMIND_S = 60.0


class PatientJournal:
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
            except JournalAway as problem:
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
