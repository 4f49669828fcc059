"""Durations as people write them: `90m`, `2h`, `1d`, `1h30m`, `1-02:00:00`, or seconds."""

from __future__ import annotations

import math
import re

_NAMED = (("d", 86_400), ("h", 3600), ("min", 60))

EXPECTED = "a duration such as 90m, 2h, 1d, 1-02:00:00 or 3600 (seconds)"

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PARTS = re.compile(r"(?:\d+(?:\.\d+)?\s*[wdhms]\s*)+\Z", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([wdhms])", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?\Z", re.ASCII)


def parse_duration(text: str | float, *, plain_s: float = 1.0) -> float:
    """Return a duration in seconds.

    Args:
        text: `90m`, `1h30m` (weeks, days, hours, minutes, seconds); `1-02:00:00`, `02:00:00` or `30:00` (Slurm's days-hours,
            hours:minutes:seconds and minutes:seconds); or a number.
        plain_s: Seconds that a plain number counts in; Slurm counts minutes.

    Raises:
        ValueError: The text is none of these.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(EXPECTED)
    if not isinstance(text, str):
        return float(text) * plain_s
    text = text.strip().lower()
    if _PARTS.match(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    clock = _CLOCK.match(text)
    if clock and (clock[1] or clock[3]):
        days, first, second, third = (int(part) if part else 0 for part in clock.groups())
        if max(second, third) > 59 or (clock[1] and first > 23):
            raise ValueError(EXPECTED)
        if clock[1]:  # days-hours[:minutes[:seconds]]
            return days * 86_400.0 + first * 3600.0 + second * 60.0 + third
        return first * 3600.0 + second * 60.0 + third if clock[4] else first * 60.0 + second
    try:
        seconds = float(text) * plain_s
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(EXPECTED)
    return seconds


def exact_duration(seconds: float) -> str:
    """Return a duration in its largest whole unit: `2 h`, `90 min`, `45 s`."""
    whole = ((unit, seconds / size) for unit, size in _NAMED if seconds >= size and seconds % size == 0)
    unit, amount = next(whole, ("s", seconds))
    return f"{amount:g} {unit}"
