"""What a worker that serves requests is to know of them: `route()` says how many to run at once, how many come to the session
in a second, and which part of them is meant for this worker. It stands in the lease page, and changes without a new launch."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.client.page import Field, Page
from fairlead.client.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Route:
    batch: int
    rate: float  # requests per second, to all replicas of the session together
    part: float  # of them, for this replica; 0: it only stands in for others


class Routed:
    """A page that is looked at again and again."""

    def __init__(self, page: Page) -> None:
        self._numbers = page.numbers

    def now(self) -> Route | None:
        """None where nobody has routed anything here."""
        numbers = self._numbers
        while True:  # the agent writes the numbers, then counts up
            count = numbers[Field.ROUTES]
            found = Route(numbers[Field.ROUTE_BATCH], numbers[Field.ROUTE_RATE] / 1000, numbers[Field.ROUTE_PART] / 1e6)
            if numbers[Field.ROUTES] == count:
                return found if count else None


_routed: Routed | None = None


def route() -> Route | None:
    """The present one; None outside Fairlead, and in a job that no policy takes for a session."""
    global _routed
    if _routed is None:
        page = Surroundings.read().page
        if page is None:
            return None
        _routed = Routed(Page(page))
    return _routed.now()
