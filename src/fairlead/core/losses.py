"""What a decision may know of a job's loss, and under which names of `view.jobs.metric`. Jobs report the first two; the others
the state makes of these reports, and has only where somebody reports.

Losses are noisy, so a job is compared with itself by means. In a window a job does a quarter more steps than it had done
before, in `PARTS` parts of at least a report each. How far the means of the parts are from each other says how far the mean of
them all can be trusted, also where a report resembles the one before."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import ColumnStore

LOSS = "loss"
"""The last one that a job reported; infinity where it was no number."""
TARGET = "target_loss"
"""The lowest that a job's owner expects, where the job says so."""
LOWEST = "loss.lowest"
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

DERIVED = frozenset({LOWEST, RECENT, EARLIER, ERROR, AT, WINDOW, _SUM, _COUNT, _SINCE, _FULL, _MEAN, _SQUARES, _RECENT_SQUARES})
"""What nobody reports."""


def note_losses(store: ColumnStore, jobs: Ints, losses: Floats, steps: Floats) -> None:
    """Jobs that have done so many steps report losses. What is not finite is in no mean."""
    lowest = store.metric(LOWEST)
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
