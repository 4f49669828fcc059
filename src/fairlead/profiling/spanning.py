"""Which configurations meet in pairs: some that span the range of utilization evenly, of as many families as can be, small and
quick enough to be held all at once and seen in a second. And in which order they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

MANY = 34
MOST_MEMORY_MB = 6_000.0
FEWEST_STEPS_PER_S = 15.0
MOST_SPREAD = 0.15
WITHIN = 3.0  # percent of utilization around a wanted value, inside which the rarest family is taken


def spanning(measured: Sequence[dict[str, Any]], many: int = MANY) -> tuple[str, ...]:
    """Names, by a fixed rule: for each of `many` utilizations in even steps from the least to the greatest, one of those near
    it, of the family taken least so far; of equals the nearest, then the first by name."""
    fit = [one for one in measured if _fit(one)]
    busy = [one["utilization"] for one in fit]
    taken: list[str] = []
    families: Counter[str] = Counter()
    for wanted in np.linspace(min(busy), max(busy), many):
        left = [one for one in fit if one["name"] not in taken]
        if not left:
            break
        away = {one["name"]: abs(one["utilization"] - wanted) for one in left}
        near = [one for one in left if away[one["name"]] <= max(WITHIN, min(away.values()))]
        one = min(near, key=lambda one: (families[one["family"]], away[one["name"]], one["name"]))
        taken.append(one["name"])
        families[one["family"]] += 1
    return tuple(taken)


def _fit(one: dict[str, Any]) -> bool:
    return (
        "problem" not in one
        and one["reserved_mb"] <= MOST_MEMORY_MB
        and one["steps_per_s"] >= FEWEST_STEPS_PER_S
        and one["spread"] <= MOST_SPREAD
    )


def meetings(names: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs, those of equals first, then as in a tournament: in every round each meets one other, so that whatever has been
    measured when time is up is a fair part."""
    found = [(name, name) for name in names]
    seats: list[str | None] = [*names] if len(names) % 2 == 0 else [*names, None]
    for _ in range(len(seats) - 1):
        halves = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]))
        found += [(one, other) for one, other in halves if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found
