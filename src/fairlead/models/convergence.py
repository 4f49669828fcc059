"""How a job's loss goes on, by the curve that Optimus fits to what the job reports (§3.1):

    loss(k) ≈ 1 / (β₀·k + β₁) + β₂,   β ≥ 0,   k steps.

A job has converged where a tenth more steps would lower its loss by less than a hundredth of β₂; as
l(k) − l(1.1·k) ≤ (0.1 / 1.1) / (β₀·k), that is so from k = (0.1 / 1.1) / (β₀ · 0.01 · β₂) on. Values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import ColumnStore, JobColumns
from fairlead.core.observations import observation_name
from fairlead.core.plan import ObservedValues

MORE, LESS = 0.1, 0.01
"""So many more steps lower the loss by so little: converged."""
LEAST_POINTS = 5
"""Before so many reports a curve is a guess."""
LOWEST, HIGHEST = 1e-20, 1e20
"""Losses beyond these are nobody's; no curve is fitted to them."""
_FLOORS = 40


def fact_of(number: int) -> str:
    """The name of the fact that holds what a job reported of its loss, and the curve."""
    return observation_name("loss", number)


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


def steps_to_converge(jobs: JobColumns, facts: ObservedValues) -> Floats:
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


# What a decision may know of a job's loss, and under which names of `view.jobs.metric`. Jobs report the first two; the others
# the state makes of these reports, and has only where somebody reports.
#
# Losses are noisy, so a job is compared with itself by means. In a window a job does a quarter more steps than it had done
# before, in `PARTS` parts of at least a report each. How far the means of the parts are from each other says how far the mean
# of
# them all can be trusted, also where a report resembles the one before.

LOSS = "loss"
"""The last one that a job reported; infinity where it was no number."""
TARGET = "target_loss"
"""The lowest that a job's owner expects, where the job says so."""
LOWEST_LOSS = "loss.lowest"
"""The lowest that it reported so far."""
RECENT = "loss.recent"
"""The mean of the last window that is full."""
EARLIER = "loss.earlier"
"""The mean of the window before that one."""
ERROR = "loss.error"
"""The standard error of the difference of these two."""
AT = "loss.at"
"""How many steps it had done when the last window was full."""
WINDOW = "loss.window"
"""How many of them it did in that window."""

PARTS = 8
"""Of a window."""

_SUM, _COUNT, _SINCE = "loss.part_sum", "loss.part_count", "loss.part_since"  # the part that is being filled; since which step
_FULL, _MEAN, _SQUARES = "loss.parts", "loss.parts_mean", "loss.parts_squares"  # those of this window that are full
_RECENT_SQUARES = "loss.recent_squares"
_FURTHER = 1.25 ** (1 / PARTS)  # from part to part

DERIVED = frozenset(
    {LOWEST_LOSS, RECENT, EARLIER, ERROR, AT, WINDOW, _SUM, _COUNT, _SINCE, _FULL, _MEAN, _SQUARES, _RECENT_SQUARES}
)
"""What nobody reports."""


def note_losses(store: ColumnStore, jobs: Ints, losses: Floats, steps: Floats) -> None:
    """Jobs that have done so many steps report losses. What is not finite is in no mean."""
    lowest = store.metric(LOWEST_LOSS)
    lowest[jobs] = np.fmin(lowest[jobs], losses)
    counted = np.isfinite(losses) & (steps > 0)
    jobs, losses, steps = jobs[counted], losses[counted], steps[counted]
    total, count, since = (store.metric(name) for name in (_SUM, _COUNT, _SINCE))
    first = np.isnan(since[jobs])
    total[jobs[first]] = count[jobs[first]] = 0.0
    since[jobs[first]] = steps[first]
    total[jobs] += losses
    count[jobs] += 1.0
    further = steps >= _FURTHER * since[jobs]
    if further.any():
        full = jobs[further]
        _fill(store, full, total[full] / count[full], steps[further])
        total[full] = count[full] = 0.0
        since[full] = steps[further]


def _fill(store: ColumnStore, jobs: Ints, means: Floats, steps: Floats) -> None:
    """A part is full: Welford's mean and sum of squares go on."""
    number, mean, squares = (store.metric(name) for name in (_FULL, _MEAN, _SQUARES))
    for column in (number, mean, squares):
        column[jobs] = np.nan_to_num(column[jobs])
    number[jobs] += 1.0
    away = means - mean[jobs]
    mean[jobs] += away / number[jobs]
    squares[jobs] += away * (means - mean[jobs])
    last = number[jobs] >= PARTS
    if last.any():
        full = jobs[last]
        _close(store, full, mean[full], squares[full], steps[last])
        number[full] = mean[full] = squares[full] = 0.0


def _close(store: ColumnStore, jobs: Ints, means: Floats, squares: Floats, steps: Floats) -> None:
    """A window is full, and is the recent one."""
    recent, before, earlier, error = (store.metric(name) for name in (RECENT, _RECENT_SQUARES, EARLIER, ERROR))
    at, window = store.metric(AT), store.metric(WINDOW)
    earlier[jobs], recent[jobs] = recent[jobs], means
    error[jobs] = np.sqrt((before[jobs] + squares) / (PARTS * (PARTS - 1)))
    before[jobs] = squares
    window[jobs], at[jobs] = steps - at[jobs], steps
