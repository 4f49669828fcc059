"""Wall time that only goes forward: seconds since a moment that the journal knows, counted by a clock that nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable


class WallClock:
    """Second 0 is `origin` in Unix time. Set once from the calendar, then it follows the monotonic clock: a jump of the
    calendar changes nothing. After a restart it begins no earlier than `not_before`, whatever the calendar says."""

    def __init__(
        self,
        origin: float,
        not_before: float = 0.0,
        calendar: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steady = steady
        self._offset = max(calendar() - origin, not_before) - steady()

    def now(self) -> float:
        return self._offset + self._steady()
