"""How a job's loss goes on, by the curve that Optimus fits to what the job reports (§3.1):

    loss(k) ≈ 1 / (β₀·k + β₁) + β₂,   β ≥ 0,   k steps.

A job has converged where a tenth more steps would lower its loss by less than a hundredth of β₂; as
l(k) − l(1.1·k) ≤ (0.1 / 1.1) / (β₀·k), that is so from k = (0.1 / 1.1) / (β₀ · 0.01 · β₂) on. Values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.columns import JobColumns
from fairlead.core.facts import fact_about
from fairlead.core.plan import Facts

MORE, LESS = 0.1, 0.01
"""So many more steps lower the loss by so little: converged."""
LEAST_POINTS = 5
"""Before so many reports a curve is a guess."""
LOWEST, HIGHEST = 1e-20, 1e20
"""Losses beyond these are nobody's; no curve is fitted to them."""
_FLOORS = 40


def fact_of(number: int) -> str:
    """The name of the fact that holds what a job reported of its loss, and the curve."""
    return fact_about("loss", number)


def learned(points: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What a fact holds: (steps, loss) in their order, and the curve where there are enough."""
    curve = fitted(points) if len(points) >= LEAST_POINTS else None
    return {"points": [list(point) for point in points], "curve": None if curve is None else list(curve)}


def fitted(points: Sequence[Sequence[float]]) -> tuple[float, float, float] | None:
    """β₀, β₁, β₂ with the least squares of losses among floors below the lowest; None where the loss does not fall."""
    steps, losses = np.array(points, dtype=np.float64).T
    lowest, found = float(losses.min()), list[tuple[float, tuple[float, float, float]]]()
    for floor in (lowest * np.linspace(0.0, 1.0, _FLOORS, endpoint=False)).tolist():
        over = losses - floor
        weight = over**2  # so that errors count as errors of the loss, not of its inverse
        x, y = steps - np.average(steps, weights=weight**2), 1 / over
        slope = float(np.sum(weight**2 * x * y) / np.sum(weight**2 * x * x)) if np.any(x) else 0.0
        start = float(np.average(y, weights=weight**2)) - slope * float(np.average(steps, weights=weight**2))
        if not (slope > 0 and start > 0):
            continue
        error = float(((1 / (slope * steps + start) + floor - losses) ** 2).sum())
        found.append((error, (slope, start, floor)))
    return min(found)[1] if found else None


def steps_to_converge(jobs: JobColumns, facts: Facts) -> Floats:
    """From now on; infinity where nothing is known."""
    left = np.full(len(jobs), np.inf)
    for at, number in enumerate(jobs.number.tolist()) if facts else ():
        known = facts.get(fact_of(number))
        if known is not None and known["curve"] is not None:
            left[at] = max(converged_at(*known["curve"]) - float(jobs.steps_done[at]), 0.0)
    return left


def converged_at(slope: float, start: float, floor: float) -> float:
    """The steps after which a job with this curve has converged; without a floor it never has."""
    return MORE / (1 + MORE) / (slope * LESS * floor) if floor > 0 else math.inf
