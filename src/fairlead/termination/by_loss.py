"""Termination at the last step, or where the loss no longer falls (Blox §5.3). It sees what jobs report, and not the curve of
their loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.device_map import NONE
from fairlead.core.errors import require
from fairlead.core.snapshot import Snapshot
from fairlead.models.convergence import AT, EARLIER, ERROR, LOSS, LOWEST_LOSS, RECENT, TARGET, WINDOW


@dataclass(frozen=True)
class BySteps:
    """Let each job run for its declared steps; the backend reports when they are done."""

    def finished_early(self, view: Snapshot) -> Ints:
        """No job ends early."""
        return NONE


STANDARD_ERRORS = 4.0
"""By so many standard errors the fall of a loss may be larger than measured."""


@dataclass(frozen=True)
class ByLoss:
    """End a job whose loss is within `threshold` of the best: lowest ≤ best + threshold · |best|.

    The best loss is the `target_loss` that the job reports. A job without one, or any job where `targets` is false, is compared
    with itself, by means over windows of a fifth of its steps (`models/convergence.py`). It ends if its loss would fall by less
    than `threshold` up to its last step, or for another window, at the rate since the window before: (earlier − recent + 4 ·
    error) · max(1, left / window) ≤ threshold · |recent|. This is checked from a share `after` of its steps on, because losses
    are flat at the beginning, too. A job that reports no loss runs for its declared steps.
    """

    threshold: float = 0.001  # relative distance to the target loss at which a job ends
    targets: bool = True  # jobs may report a `target_loss`
    after: float = 0.2  # share of the steps before which a job without a target does not end

    def __post_init__(self) -> None:
        require(0 <= self.threshold < 1, "termination by-loss", "a share from 0 to below 1", "threshold", self.threshold)
        require(0 <= self.after <= 1, "termination by-loss", "a share from 0 to 1", "after", self.after)

    def finished_early(self, view: Snapshot) -> Ints:
        """The jobs to end now."""
        jobs = view.jobs
        if LOSS not in jobs.metrics:
            return NONE
        done = self._flat(jobs)
        if self.targets:
            target = jobs.metric(TARGET)
            done = np.where(np.isnan(target), done, jobs.metric(LOWEST_LOSS) <= target + self.threshold * np.abs(target))
        return jobs.number[done]

    def _flat(self, jobs: JobColumns) -> Bools:
        """Whether the loss of each job is flat; not where too little is known."""
        recent, at, window = jobs.metric(RECENT), jobs.metric(AT), jobs.metric(WINDOW)
        fall = jobs.metric(EARLIER) - recent + STANDARD_ERRORS * jobs.metric(ERROR)
        to_come = fall * np.maximum(1.0, (jobs.steps - at) / window)
        flat: Bools = (to_come <= self.threshold * np.abs(recent)) & (at >= self.after * jobs.steps)
        return flat
