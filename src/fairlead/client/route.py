"""What a worker that serves requests is to know of them: `route()` says how many to run at once, how many come to the session
in a second, and which part of them is meant for this worker. It stands in the lease page, and changes without a new launch."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fairlead.client.launch_context import LaunchContext
from fairlead.client.lease_page import Field, Page

TRIES = 50
PAUSE_S = 0.0002
"""How often, and with which pauses, a route is looked at that is being written."""


@dataclass(frozen=True, slots=True)
class Route:
    batch: int
    rate: float  # requests per second, to all replicas of the session together
    part: float  # of them, for this replica; 0: it only stands in for others


class RouteReader:
    """A page that is looked at again and again."""

    def __init__(self, page: Page) -> None:
        self._numbers = page.numbers
        self._last: Route | None = None

    def now(self) -> Route | None:
        """None where nobody has routed anything here. Where an agent died while it wrote, the one before, until it is back."""
        numbers = self._numbers
        for _ in range(TRIES):
            count = numbers[Field.ROUTES]
            found = Route(numbers[Field.ROUTE_BATCH], numbers[Field.ROUTE_RATE] / 1000, numbers[Field.ROUTE_PART] / 1e6)
            if count % 2 == 0 and numbers[Field.ROUTES] == count:
                self._last = found if count else None
                break
            time.sleep(PAUSE_S)
        return self._last


_routed: RouteReader | None = None


def route() -> Route | None:
    """The present one; None outside Fairlead, and in a job that no policy takes for a session."""
    global _routed
    if _routed is None:
        page = LaunchContext.read().page
        if page is None:
            return None
        _routed = RouteReader(Page(page))
    return _routed.now()
