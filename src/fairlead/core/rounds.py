"""When rounds begin: at the multiples of their length, counted from second 0. Exact, so that skipping rounds and stepping
through them meet at the same numbers. A length of 0 means no rounds: every moment is a boundary."""

from __future__ import annotations

import math


def boundary_at(time: float, length: float) -> float:
    """The first boundary that is not before `time`."""
    if length == 0 or time == math.inf:
        return time
    count = math.ceil(time / length)
    if (count - 1) * length >= time:
        count -= 1
    elif count * length < time:
        count += 1
    return count * length


def boundary_after(time: float, length: float) -> float:
    """The first boundary behind `time`."""
    at = boundary_at(time, length)
    return at if at > time else (round(at / length) + 1) * length
