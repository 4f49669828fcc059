"""The loss of a job: a curve fitted to its reports (Optimus §3.1), and its means over windows of steps.

    loss(k) ≈ 1 / (β₀·k + β₁) + β₂,   β ≥ 0,   k steps.

A job has converged where a tenth more steps would lower its loss by less than a hundredth of β₂; as
l(k) − l(1.1·k) ≤ (0.1 / 1.1) / (β₀·k), that is so from k = (0.1 / 1.1) / (β₀ · 0.01 · β₂) on."""

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
"""Converged: this fraction of more steps lowers the loss by less than this fraction of its floor."""
LEAST_POINTS = 5
"""The least number of reports to which a curve is fitted."""
LOWEST, HIGHEST = 1e-20, 1e20
"""No curve is fitted to losses beyond these."""
_FLOORS = 40


def loss_observation(points: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The observation of a job's losses: (steps, loss) in their order, and the curve where there are enough."""
    curve = fit_losses(points) if len(points) >= LEAST_POINTS else None
    return {"points": [list(point) for point in points], "curve": None if curve is None else list(curve)}


def fit_losses(points: Sequence[Sequence[float]]) -> tuple[float, float, float] | None:
    """β₀, β₁, β₂ with the least squares of losses among floors below the lowest; None where the loss does not fall."""
    steps, losses = np.array(points, dtype=np.float64).T
    lowest, found = float(losses.min()), list[tuple[float, tuple[float, float, float]]]()
    for floor in (lowest * np.linspace(0.0, 1.0, _FLOORS, endpoint=False)).tolist():
        over = losses - floor
        weight = over**2  # errors of the loss count, not errors of its inverse
        x, y = steps - np.average(steps, weights=weight**2), 1 / over
        slope = float(np.sum(weight**2 * x * y) / np.sum(weight**2 * x * x)) if np.any(x) else 0.0
        start = float(np.average(y, weights=weight**2)) - slope * float(np.average(steps, weights=weight**2))
        if not (slope > 0 and start > 0):
            continue
        error = float(((1 / (slope * steps + start) + floor - losses) ** 2).sum())
        found.append((error, (slope, start, floor)))
    return min(found)[1] if found else None


def steps_to_converge(jobs: JobColumns, observations: ObservedValues) -> Floats:
    """The steps of each job until it has converged; infinity where nothing is known."""
    left = np.full(len(jobs), np.inf)
    for at, number in enumerate(jobs.number.tolist()) if observations else ():
        known = observations.get(observation_name("loss", number))
        if known is not None and known["curve"] is not None:
            left[at] = max(converged_at(*known["curve"]) - float(jobs.steps_done[at]), 0.0)
    return left


def converged_at(slope: float, start: float, floor: float) -> float:
    """The steps after which a job with this curve has converged; without a floor it never has."""
    return MORE / (1 + MORE) / (slope * LESS * floor) if floor > 0 else math.inf


# Metrics of a job's loss. Jobs report the first two; the state derives the others. Losses are noisy, so a job is compared with
# itself by means over windows. In a window a job does a quarter more steps than before, in `PARTS` parts of at least a report
# each; the variance between these parts gives the standard error of the mean.

LOSS = "loss"  # the last one; infinity if it was not a number
TARGET = "target_loss"  # the lowest that the job's owner expects
LOWEST_LOSS = "loss.lowest"
RECENT = "loss.recent"  # the mean of the last full window
EARLIER = "loss.earlier"  # the mean of the window before
ERROR = "loss.error"  # the standard error of the difference of these two
AT = "loss.at"  # the steps done at the end of the last full window
WINDOW = "loss.window"  # the steps done in it

PARTS = 8
_SUM, _COUNT, _SINCE = "loss.part_sum", "loss.part_count", "loss.part_since"  # the part that is being filled; since which step
_FULL, _MEAN, _SQUARES = "loss.parts", "loss.parts_mean", "loss.parts_squares"  # the full parts of this window
_RECENT_SQUARES = "loss.recent_squares"
_FURTHER = 1.25 ** (1 / PARTS)  # from part to part

DERIVED = frozenset(
    {LOWEST_LOSS, RECENT, EARLIER, ERROR, AT, WINDOW, _SUM, _COUNT, _SINCE, _FULL, _MEAN, _SQUARES, _RECENT_SQUARES}
)
"""Metrics that jobs do not report."""


def note_losses(store: ColumnStore, jobs: Ints, losses: Floats, steps: Floats) -> None:
    """Record the losses that jobs report, with their steps. Losses that are not finite are in no mean."""
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
