"""Everybody enters at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead.core.errors import InputError
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Unplaced
from fairlead.core.snapshot import Snapshot


@dataclass(frozen=True)
class AcceptAll:
    """Every job enters as soon as it is submitted."""

    def admit(self, view: Snapshot) -> Admitted:
        return Admitted(view.queued.number)


# Admission by demand: jobs enter until what they ask for exceeds a multiple of the cluster; the rest wait in line.

ROUNDING = 1e-6
"""1.4 × 45 is 63, whatever a computer makes of it."""


@dataclass(frozen=True)
class AcceptUpTo:
    """Enter while Σ workers of the admitted ≤ factor × accelerators that are up; first come, first served (Blox §5.1).

    A job larger than the limit itself enters when nobody else is inside, so that it cannot wait for ever.
    """

    factor: float = 1.5

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise InputError("admission accept-up-to", "a number above 0", field="factor", value=self.factor)

    def admit(self, view: Snapshot) -> Admitted:
        queued = view.queued
        if not len(queued):
            return Admitted(queued.number)
        inside = int(view.jobs.workers.sum())
        limit = self.factor * int(view.capacity.sum())
        demand = inside + np.cumsum(queued.workers)
        entering = int(np.searchsorted(demand, limit + ROUNDING, side="right"))
        if entering == 0 and inside == 0:
            entering = 1
        then = int(demand[entering - 1]) if entering else inside
        others = Unplaced.not_admitted("the admitted jobs' demand for accelerators", demand=then, limit=limit)
        return Admitted(queued.number[:entering], others=others)
