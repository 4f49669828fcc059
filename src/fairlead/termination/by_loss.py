"""Jobs end at their last step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.device_map import NONE
from fairlead.core.errors import InputError
from fairlead.core.snapshot import Snapshot
from fairlead.models.convergence import AT, EARLIER, ERROR, LOSS, LOWEST_LOSS, RECENT, TARGET, WINDOW


@dataclass(frozen=True)
class BySteps:
    """A job runs for the steps it asked for; the backend tells when they are done."""

    def finished_early(self, view: Snapshot) -> Ints:
        return NONE


# Jobs end when their loss is as low as it gets, however many steps are left (Blox §5.3). It knows what jobs report and
# nothing
# of the curve that they are on.

SURE = 4.0
"""Standard errors by which a fall may be larger than it looks."""


@dataclass(frozen=True)
class ByLoss:
    """Done is who comes within `threshold` of the best loss: lowest ≤ best + threshold · |best|.

    The best is what the job says it can reach at all (it reports `target_loss`). Who does not say so, or nobody where
    `targets` is false, is measured against itself, by means over windows of a fifth of its steps (`core/losses.py`). Done is
    who would surely fall by less than `threshold` if it went on to its last step, or for another window, as it did since the
    window before: (earlier − recent + 4 · error) · max(1, left / window) ≤ threshold · |recent|. It is looked at from a share
    `after` of its steps on, as losses are flat at the beginning too. Who reports no loss runs for its steps.
    """

    threshold: float = 0.001
    targets: bool = True
    after: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError("termination by-loss", "a share from 0 to below 1", field="threshold", value=self.threshold)
        if not 0 <= self.after <= 1:
            raise InputError("termination by-loss", "a share from 0 to 1", field="after", value=self.after)

    def finished_early(self, view: Snapshot) -> Ints:
        jobs = view.jobs
        if LOSS not in jobs.metrics:
            return NONE
        done = self._flat(jobs)
        if self.targets:
            target = jobs.metric(TARGET)
            done = np.where(np.isnan(target), done, jobs.metric(LOWEST_LOSS) <= target + self.threshold * np.abs(target))
        return jobs.number[done]

    def _flat(self, jobs: JobColumns) -> Bools:
        """Of what is not known nothing is flat."""
        recent, at, window = jobs.metric(RECENT), jobs.metric(AT), jobs.metric(WINDOW)
        fall = jobs.metric(EARLIER) - recent + SURE * jobs.metric(ERROR)
        to_come = fall * np.maximum(1.0, (jobs.steps - at) / window)
        flat: Bools = (to_come <= self.threshold * np.abs(recent)) & (at >= self.after * jobs.steps)
        return flat
