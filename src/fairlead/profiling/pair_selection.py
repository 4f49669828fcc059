"""Which configurations meet in pairs: some that span the range evenly of what a sharing mode divides, of as many families as
can be, small and quick enough to be held all at once and seen in a second. And in which order they meet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

MANY = 34
WITHIN = 3.0  # percent around a wanted value, inside which the rarest family is taken


class SelectionMetric(StrEnum):
    """What is spanned. Turns divide time, and who uses that is told by utilization. MPS divides multiprocessors and bandwidth,
    and a training whose kernels are small leaves most of them to others though some kernel always runs."""

    UTILIZATION = "utilization"
    SHARE = "share"


@dataclass(frozen=True)
class SelectionLimits:
    """What can be held beside all the others, and seen in a second."""

    memory_mb: float
    steps_per_s: float
    spread: float


LIMITS = {
    SelectionMetric.UTILIZATION: SelectionLimits(6_000.0, 15.0, 0.15),
    SelectionMetric.SHARE: SelectionLimits(14_000.0, 12.0, 0.10),
}


def select_configurations(
    measured: Sequence[Mapping[str, Any]], many: int = MANY, span: SelectionMetric = SelectionMetric.UTILIZATION
) -> tuple[str, ...]:
    """Names, by a fixed rule: for each of `many` values in even steps from the least to the greatest, one of those near it, of
    the family taken least so far; of equals the nearest, then the first by name."""
    value = (
        shares(measured) if span is SelectionMetric.SHARE else {one["name"]: one.get("utilization", 0.0) for one in measured}
    )
    fit = [one for one in measured if _fit(one, LIMITS[span])]
    spanned = [value[one["name"]] for one in fit]
    taken: list[str] = []
    families: Counter[str] = Counter()
    for wanted in np.linspace(min(spanned), max(spanned), many):
        left = [one for one in fit if one["name"] not in taken]
        if not left:
            break
        away = {one["name"]: abs(value[one["name"]] - wanted) for one in left}
        near = [one for one in left if away[one["name"]] <= max(WITHIN, min(away.values()))]
        one = min(near, key=lambda one: (families[one["family"]], away[one["name"]], one["name"]))
        taken.append(one["name"])
        families[one["family"]] += 1
    return tuple(taken)


def shares(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How much of the device each configuration fills, in percent, as far as its likes tell: samples per second over the most
    that the same model gets with any batch size, times the utilization there. Where a larger batch hardly takes longer, the
    device was far from full."""
    seen = [one for one in measured if "problem" not in one and "utilization" in one]
    best: dict[tuple[str, int], tuple[float, float]] = {}
    for one in seen:
        kind = one["model"], one["input"]
        best[kind] = max(best.get(kind, (0.0, 0.0)), (_samples(one), one["utilization"]))
    found: dict[str, float] = {}
    for one in seen:
        most, busy = best[one["model"], one["input"]]
        found[one["name"]] = busy * _samples(one) / most if most else 0.0
    return found


def _samples(one: Mapping[str, Any]) -> float:
    return float(one["steps_per_s"] * one["batch_size"])


def _fit(one: Mapping[str, Any], limits: SelectionLimits) -> bool:
    return (
        "problem" not in one
        and one["reserved_mb"] <= limits.memory_mb
        and one["steps_per_s"] >= limits.steps_per_s
        and one["spread"] <= limits.spread
    )


@dataclass(frozen=True)
class PlannedMeasurement:
    """One measurement: a configuration by itself, or two at once. Its name tells it from others, of the same ones too."""

    name: str
    of: tuple[str, ...]


def measurement_plan(
    names: Sequence[str],
    solos: int = 1,
    again: int = 0,
    times: int = 2,
    noisy: Sequence[tuple[str, str]] = (),
    known: Container[str] = (),
) -> list[PlannedMeasurement]:
    """Each by itself, then all pairs; among those each by itself again, `solos` times in all, evenly. Some of the pairs, evenly
    chosen, come once more a quarter of the list later, or `times` in all, and those that are `noisy` last: what differs then is
    noise. Without what is `known` by name."""
    first = [PlannedMeasurement(name, (name,)) for name in names]
    later = [PlannedMeasurement(_numbered(name, turn), (name,)) for turn in range(2, solos + 1) for name in names]
    pairs = [PlannedMeasurement(" + ".join(pair), pair) for pair in meetings(names)]
    even = np.linspace(0, len(pairs) - 1, min(again, len(pairs))).round().astype(int)
    repeats = [
        (place + (turn - 1) * len(pairs) // 4, PlannedMeasurement(_numbered(pairs[place].name, turn), pairs[place].of))
        for turn in range(2, times + 1)
        for place in even
    ]
    meet = [one for _, one in sorted([*enumerate(pairs), *repeats], key=lambda placed: placed[0])]
    vary = [PlannedMeasurement(_numbered(" + ".join(pair), 2), pair) for pair in noisy]
    vary = [one for one in vary if one not in meet]
    first, later, meet, vary = ([one for one in part if one.name not in known] for part in (first, later, meet, vary))
    among, last = (meet, vary) if meet else (vary, meet)
    return [*first, *_among(among, later), *last]


def noisiest(rows: Iterable[Mapping[str, Any]], many: int) -> list[tuple[str, str]]:
    """Of pairs that were measured, those whose first measurement varied most; before them those that were seen but once."""
    pairs = {row["name"]: row for row in rows if "pair" in row and "problem" not in row}
    first = [row for name, row in pairs.items() if name == " + ".join(row["pair"])]
    ranked = sorted(first, key=lambda row: (-row.get("spread", math.inf), row["name"]))
    return [(row["pair"][0], row["pair"][1]) for row in ranked[:many]]


def _numbered(name: str, turn: int) -> str:
    return f"{name} ({turn})"


def _among(many: Sequence[PlannedMeasurement], few: Sequence[PlannedMeasurement]) -> Iterator[PlannedMeasurement]:
    """All of both, the few spread evenly among the many."""
    done = 0
    if not many:
        yield from few
    for place, one in enumerate(many, 1):
        yield one
        due = place * len(few) // len(many)
        yield from few[done:due]
        done = due


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
