"""Which configurations are measured in pairs, and in which order: a selection that covers the range of a metric evenly, from
many families. All must fit into memory at once and be fast enough to measure in a second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

DEFAULT_COUNT = 34
_TOLERANCE = 3.0  # percent around a target value, within which the rarest family is taken


class SelectionMetric(StrEnum):
    """The metric whose range is covered. Time slicing divides time, which utilization measures. MPS divides multiprocessors and
    bandwidth; a training with small kernels leaves most of them free although a kernel always runs."""

    UTILIZATION = "utilization"
    DEVICE_FILL = "share"


class SelectionLimits(NamedTuple):
    """Configurations that fit into memory with all others, and are fast and steady enough to measure."""

    max_memory_mb: float
    min_steps_per_s: float
    max_spread: float

    def met_by(self, one: Mapping[str, Any]) -> bool:
        fast = one["reserved_mb"] <= self.max_memory_mb and one["steps_per_s"] >= self.min_steps_per_s
        return bool(fast and one["spread"] <= self.max_spread)


LIMITS = {
    SelectionMetric.UTILIZATION: SelectionLimits(6_000.0, 15.0, 0.15),
    SelectionMetric.DEVICE_FILL: SelectionLimits(14_000.0, 12.0, 0.10),
}


def select_configurations(
    measured: Sequence[Mapping[str, Any]], count: int = DEFAULT_COUNT, metric: SelectionMetric = SelectionMetric.UTILIZATION
) -> tuple[str, ...]:
    """Names of configurations, by a fixed rule: for each of `count` evenly spaced values one that is near, of the family
    with the fewest configurations taken; ties go to the nearest, then to the first name."""
    value = {one["name"]: one.get("utilization", 0.0) for one in measured}
    if metric is SelectionMetric.DEVICE_FILL:
        value = device_fill(measured)
    fit = [one for one in measured if "problem" not in one and LIMITS[metric].met_by(one)]
    values = [value[one["name"]] for one in fit]
    taken: list[str] = []
    families: Counter[str] = Counter()
    for wanted in np.linspace(min(values), max(values), count):
        left = [one for one in fit if one["name"] not in taken]
        if not left:
            break
        distance = {one["name"]: abs(value[one["name"]] - wanted) for one in left}
        near = [one for one in left if distance[one["name"]] <= max(_TOLERANCE, min(distance.values()))]
        one = min(near, key=lambda one: (families[one["family"]], distance[one["name"]], one["name"]))
        taken.append(one["name"])
        families[one["family"]] += 1
    return tuple(taken)


def device_fill(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Percent of the device that each configuration fills: samples per second over the maximum of the same model with
    any batch size, times the utilization there. If a larger batch hardly takes longer, the device was far from full."""
    seen = [one for one in measured if "problem" not in one and "utilization" in one]
    best: dict[tuple[str, int], tuple[float, float]] = {}
    for one in seen:
        model = one["model"], one["input"]
        best[model] = max(best.get(model, (0.0, 0.0)), (_samples(one), one["utilization"]))
    found: dict[str, float] = {}
    for one in seen:
        most, busy = best[one["model"], one["input"]]
        found[one["name"]] = busy * _samples(one) / most if most else 0.0
    return found


def _samples(one: Mapping[str, Any]) -> float:
    return float(one["steps_per_s"] * one["batch_size"])


@dataclass(frozen=True)
class PlannedMeasurement:
    """A measurement of one configuration alone, or of two together, with a unique name."""

    name: str
    of: tuple[str, ...]


def measurement_plan(
    names: Sequence[str],
    solo_repeats: int = 1,
    repeated_pairs: int = 0,
    repeats: int = 2,
    noisy: Sequence[tuple[str, str]] = (),
    known: Container[str] = (),
) -> list[PlannedMeasurement]:
    """Each configuration alone, then all pairs; between the pairs each alone again, `solo_repeats` times in all.
    `repeated_pairs` evenly chosen pairs are measured `repeats` times, each time a quarter of the list later. The `noisy` pairs
    are repeated last. Omits measurements whose names are in `known`."""
    first = [PlannedMeasurement(name, (name,)) for name in names]
    later = [PlannedMeasurement(_numbered(name, turn), (name,)) for turn in range(2, solo_repeats + 1) for name in names]
    pairs = [PlannedMeasurement(" + ".join(pair), pair) for pair in round_robin(names)]
    even = np.linspace(0, len(pairs) - 1, min(repeated_pairs, len(pairs))).round().astype(int)
    repeated = [
        (place + (turn - 1) * len(pairs) // 4, PlannedMeasurement(_numbered(pairs[place].name, turn), pairs[place].of))
        for turn in range(2, repeats + 1)
        for place in even
    ]
    pair_runs = [one for _, one in sorted([*enumerate(pairs), *repeated], key=lambda placed: placed[0])]
    noisy_runs = [PlannedMeasurement(_numbered(" + ".join(pair), 2), pair) for pair in noisy]
    noisy_runs = [one for one in noisy_runs if one not in pair_runs]
    parts = (first, later, pair_runs, noisy_runs)
    first, later, pair_runs, noisy_runs = ([one for one in part if one.name not in known] for part in parts)
    pair_runs, noisy_runs = (pair_runs, noisy_runs) if pair_runs else (noisy_runs, [])
    return [*first, *_interleave(pair_runs, later), *noisy_runs]


def noisiest(rows: Iterable[Mapping[str, Any]], count: int) -> list[tuple[str, str]]:
    """The measured pairs with the largest spread in their first measurement; pairs without a spread come first."""
    pairs = {row["name"]: row for row in rows if "pair" in row and "problem" not in row}
    first = [row for name, row in pairs.items() if name == " + ".join(row["pair"])]
    ranked = sorted(first, key=lambda row: (-row.get("spread", math.inf), row["name"]))
    return [(row["pair"][0], row["pair"][1]) for row in ranked[:count]]


def _numbered(name: str, turn: int) -> str:
    return f"{name} ({turn})"


def _interleave(many: Sequence[PlannedMeasurement], few: Sequence[PlannedMeasurement]) -> Iterator[PlannedMeasurement]:
    """All measurements of both lists, with the shorter one spread evenly over the longer one."""
    done = 0
    if not many:
        yield from few
    for place, one in enumerate(many, 1):
        yield one
        due = place * len(few) // len(many)
        yield from few[done:due]
        done = due


def round_robin(names: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs: each configuration with itself first, then as in a round-robin tournament, so that an interrupted measurement
    is a fair sample."""
    found = [(name, name) for name in names]
    slots: list[str | None] = [*names] if len(names) % 2 == 0 else [*names, None]
    for _ in range(len(slots) - 1):
        halves = zip(slots[: len(slots) // 2], reversed(slots[len(slots) // 2 :]))
        found += [(one, other) for one, other in halves if one is not None and other is not None]
        slots = [slots[0], slots[-1], *slots[1:-1]]
    return found
