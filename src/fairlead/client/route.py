"""The routing of requests to a serving worker: `route()` returns how many to run at once, the rate of the session, and this
worker's share. It is in the lease page and can change during a launch."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fairlead.client.launch_context import LaunchContext
from fairlead.client.lease_page import Field, Page

_ATTEMPTS, _PAUSE_S = 50, 0.0002  # to read a route that is being written


@dataclass(frozen=True, slots=True)
class WorkerRoute:
    """How requests reach this worker."""

    batch: int
    rate: float  # requests per second, to all replicas of the session together
    part: float  # this replica's share; 0: it is only a standby


class RouteReader:
    """Reads the route from a lease page."""

    def __init__(self, page: Page) -> None:
        self._numbers = page.numbers
        self._last: WorkerRoute | None = None

    def now(self) -> WorkerRoute | None:
        """The current route, or None without one; the previous one if the agent died while it was writing."""
        numbers = self._numbers
        for _ in range(_ATTEMPTS):
            count = numbers[Field.ROUTES]
            found = WorkerRoute(numbers[Field.ROUTE_BATCH], numbers[Field.ROUTE_RATE] / 1000, numbers[Field.ROUTE_PART] / 1e6)
            if count % 2 == 0 and numbers[Field.ROUTES] == count:
                self._last = found if count else None
                break
            time.sleep(_PAUSE_S)
        return self._last


_routed: RouteReader | None = None


def route() -> WorkerRoute | None:
    """The current route; None outside Fairlead, and for a job that is not a serving session."""
    global _routed
    if _routed is None:
        page = LaunchContext.read().page
        if page is None:
            return None
        _routed = RouteReader(Page(page))
    return _routed.now()
