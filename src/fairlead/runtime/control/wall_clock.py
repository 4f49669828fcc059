"""Wall time that only goes forward: seconds since a moment that the journal knows, counted by a clock that nobody sets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.files import atomic_write

_BOOT = Path("/proc/sys/kernel/random/boot_id")


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


def origin_of(path: Path, calendar: Callable[[], float] = time.time) -> float:
    """Unix time of second 0, kept in a file: as the calendar says it today. As long as the machine has not been started anew,
    a calendar that was set between two runs of a control plane takes second 0 along."""
    boot, steady = _BOOT.read_text().strip() if _BOOT.exists() else "", time.clock_gettime(time.CLOCK_BOOTTIME)
    if not path.exists():
        atomic_write(path, f"{calendar()!r} {boot} {steady!r}\n".encode(), private=True)
    said = path.read_text(errors="replace")
    try:
        origin, *rest = said.split()
        found = calendar() - (steady - float(rest[1])) if boot and rest[:1] == [boot] else float(origin)
    except (ValueError, IndexError):
        found = math.nan
    if not math.isfinite(found):
        mend = "second 0 in Unix time, as Fairlead wrote it; without the file, seconds go on from the journal's last"
        raise InputError(path, mend, field="origin", value=said[:80])
    return found
