"""Jobs end when their loss is as low as it gets, however many steps are left (Blox §5.3). It knows what jobs report and nothing
of the curve that they are on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.holdings import NONE
from fairlead.core.losses import EARLIER, LOSS, LOWEST, TARGET
from fairlead.core.snapshot import Snapshot


@dataclass(frozen=True)
class ByLoss:
    """Done is who comes within `threshold` of the best loss: lowest ≤ best + threshold · |best|.

    The best is what the job says it can reach at all (it reports `target_loss`). Who does not say so, or nobody where
    `targets` is false, is measured against itself: done is who was within `threshold` of where it stands a fifth of its steps
    ago already, earlier ≤ lowest + threshold · |lowest|. Who reports no loss runs for its steps.
    """

    threshold: float = 0.001
    targets: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError("termination by-loss", "a share from 0 to below 1", field="threshold", value=self.threshold)

    def finished_early(self, view: Snapshot) -> Ints:
        jobs = view.jobs
        if LOSS not in jobs.metrics:
            return NONE
        lowest, earlier = jobs.metric(LOWEST), jobs.metric(EARLIER)
        done = self._near(earlier, lowest)
        if self.targets:
            target = jobs.metric(TARGET)
            done = np.where(np.isnan(target), done, self._near(lowest, target))
        return jobs.number[done]

    def _near(self, loss: Floats, best: Floats) -> Bools:
        """Of what is not known nothing is near."""
        near: Bools = loss <= best + self.threshold * np.abs(best)
        return near
