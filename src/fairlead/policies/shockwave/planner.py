"""The planner: a window in, a schedule out, with a proof of how good it is. Which rounds are filled with whom is decided in two steps:
how many rounds each job should have (`relaxation.py`), and who runs when (`packing.py`). The first is a relaxation of the whole, so its bound holds
for every schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.shockwave.packing import pack
from fairlead.policies.shockwave.relaxation import relax
from fairlead.policies.shockwave.window import Window

TOLERANCE = 1e-3
"""The search ends when a plan is so near to its bound, in nats per weight."""


@dataclass(frozen=True)
class Plan:
    """Who runs in which round, what that is worth, and what no schedule exceeds. `price` is of an accelerator in a round, in the
    units of `value`: what a job buys is paid for by its weight."""

    schedule: Bools  # jobs × rounds
    value: float
    bound: float
    gap: float  # (bound − value) / Σ w
    price: float

    @property
    def rounds(self) -> Ints:
        return self.schedule.sum(axis=1)

    @property
    def starts(self) -> int:
        """How often a job begins to run in the window; those that run in its first round count."""
        return int(self.schedule[:, 0].sum() + (self.schedule[:, 1:] & ~self.schedule[:, :-1]).sum())


def plan(window: Window, urgency: Floats, tolerance: float = TOLERANCE) -> Plan:
    """The schedule of a window; the larger its urgency, the sooner a job runs."""
    if not len(window):
        return Plan(np.zeros((0, window.rounds), dtype=np.bool_), 0.0, 0.0, 0.0, 0.0)
    found = relax(window, tolerance)
    left_s = window.left_s[:, 0]
    schedule = pack(found.rounds, window.most, window.workers, window.accelerators, window.rounds, urgency, left_s)
    value = window.value(schedule.sum(axis=1))
    bound = max(found.bound, value)
    return Plan(schedule, value, bound, (bound - value) / float(window.weight.sum()), found.price)
