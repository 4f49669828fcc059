"""Admission of all jobs, or of jobs up to a multiple of the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead.core.errors import require
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Reasons
from fairlead.core.snapshot import Snapshot


@dataclass(frozen=True)
class AcceptAll:
    """Admit every job as soon as it is submitted."""

    def admit(self, view: Snapshot) -> Admitted:
        """All queued jobs."""
        return Admitted(view.queued.number)


ROUNDING = 1e-6
"""1.4 × 45 is 63, in spite of floating-point errors."""


@dataclass(frozen=True)
class AcceptUpTo:
    """Admit jobs while Σ workers of admitted jobs ≤ factor × GPUs that are up; first come, first served (Blox §5.1).

    A job larger than the limit is admitted when no other job is, so that it does not wait forever.
    """

    factor: float = 1.5  # admitted jobs request at most this many times the GPUs that are up

    def __post_init__(self) -> None:
        require(0 < self.factor < math.inf, "admission accept-up-to", "a number above 0", "factor", self.factor)

    def admit(self, view: Snapshot) -> Admitted:
        """The first queued jobs within the limit."""
        queued = view.queued
        if not len(queued):
            return Admitted(queued.number)
        used = int(view.jobs.workers.sum())
        limit = self.factor * int(view.capacity.sum())
        demand = used + np.cumsum(queued.workers)
        entering = int(np.searchsorted(demand, limit + ROUNDING, side="right"))
        if entering == 0 and used == 0:
            entering = 1
        then = int(demand[entering - 1]) if entering else used
        others = Reasons.not_admitted("GPUs requested by admitted jobs", demand=then, limit=limit)
        return Admitted(queued.number[:entering], others=others)
