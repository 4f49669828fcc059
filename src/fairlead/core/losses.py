"""What a decision may know of a job's loss, and under which names of `view.jobs.metric`. Jobs report the first two; the others
the state makes of these reports, and has only where somebody reports."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import ColumnStore

LOSS = "loss"
"""The last one that a job reported."""
TARGET = "target_loss"
"""The lowest that a job's owner expects, where the job says so."""
LOWEST = "loss.lowest"
"""The lowest that it reported so far."""
EARLIER = "loss.earlier"
"""The lowest that it had reported when it had done at most four fifths of its present steps."""

_MARK, _MARK_STEPS = "loss.mark", "loss.mark_steps"
MADE = frozenset({LOWEST, EARLIER, _MARK, _MARK_STEPS})
"""Of reports, by the state."""

_FURTHER = 1.25  # from mark to mark


def note_losses(store: ColumnStore, jobs: Ints, losses: Floats, steps: Floats) -> None:
    """Jobs that have done so many steps report losses. A mark is set whenever a job has done a quarter more than at its last
    mark; what it had reached at the mark before is always a fifth of its steps ago or more."""
    lowest, mark, at, earlier = (store.metric(name) for name in (LOWEST, _MARK, _MARK_STEPS, EARLIER))
    lowest[jobs] = np.fmin(lowest[jobs], losses)
    further = (steps > 0) & ~(steps < _FURTHER * at[jobs])
    moving = jobs[further]
    earlier[moving] = mark[moving]
    mark[moving], at[moving] = lowest[moving], steps[further]
