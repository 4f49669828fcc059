"""The planner: a window in, a schedule out, with a proof of how good it is. First how many rounds each job should have
(`relaxation.py`), which leaves out that gangs must fit beside each other, so that its bound holds for every schedule; then
who runs when (`packing.py`). Where gangs do not fit, on small clusters, a mixed-integer program decides both (`exact.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.shockwave.exact import exact
from fairlead.policies.shockwave.packing import fill, pack
from fairlead.policies.shockwave.relaxation import LEVELS, relax
from fairlead.policies.shockwave.window import Window

NODES = 200
"""Of the search of a mixed-integer program, at most."""

TOLERANCE = 1e-3
"""The search ends when a plan is so near to its bound, in nats per weight."""


@dataclass(frozen=True)
class Plan:
    """Who runs in which round, what that is worth, and what no schedule exceeds. `price` is of an accelerator in a round,
    in the units of `value`: what a job buys is paid for by its weight."""

    schedule: Bools  # jobs × rounds
    value: float
    bound: float
    gap: float  # (bound − value) / Σ w
    price: float

    @property
    def relative_gap(self) -> float:
        return relative_gap(self.value, self.bound)

    @property
    def rounds(self) -> Ints:
        count: Ints = self.schedule.sum(axis=1)
        return count

    @property
    def starts(self) -> int:
        """How often a job begins to run in the window; those that run in its first round count."""
        return int(self.schedule[:, 0].sum() + (self.schedule[:, 1:] & ~self.schedule[:, :-1]).sum())


def relative_gap(value: float, bound: float) -> float:
    """|bound − value| / |value|, as solvers tell it. It is the same for an objective times any factor, but not for one with
    another zero. Here that is where all jobs are done; near it, as when few are left, the smallest gap is large."""
    return (bound - value) / max(abs(value), np.finfo(float).tiny)


def plan(window: Window, urgency: Floats, tolerance: float = TOLERANCE, nodes: int = NODES, levels: int = LEVELS) -> Plan:
    """The schedule of a window; the larger its urgency, the sooner a job runs. `levels` limits the search for numbers of
    rounds, and `nodes` the mixed-integer program, which is tried where the tolerance is not kept without it; 0: none of it.
    Both count steps and not seconds, so that a search cut short gives the same plan everywhere."""
    if not len(window):
        return Plan(np.zeros((0, window.rounds), dtype=np.bool_), 0.0, 0.0, 0.0, 0.0)
    found = relax(window, tolerance, levels)
    weight = float(window.weight.sum())
    schedule = _packed(window, found.rounds, urgency)
    value, bound = window.value(schedule.sum(axis=1)), found.bound
    if nodes and bound - value > tolerance * weight:
        better = exact(window, urgency, gap=0.5 * tolerance * weight, nodes=nodes)
        if better is not None:
            bound = min(bound, better.bound)
            # Packed anew the most urgent are first, and where that loses rounds the program's own schedule stands.
            tried = (schedule, _packed(window, better.schedule.sum(axis=1), urgency), _filled(window, better.schedule))
            values = [window.value(one.sum(axis=1)) for one in tried]
            enough = max(values) - 0.5 * tolerance * weight
            schedule, value = next(pair for pair in zip(tried, values) if pair[1] >= enough)
    bound = max(bound, value)
    return Plan(schedule, value, bound, (bound - value) / weight, found.price)


def _packed(window: Window, rounds: Ints, urgency: Floats) -> Bools:
    left_s = window.left_s[:, 0]
    return pack(rounds, window.most, window.workers, window.accelerators, window.rounds, urgency, left_s)


def _filled(window: Window, schedule: Bools) -> Bools:
    nobody = np.zeros(len(window), dtype=np.int64)
    fill(schedule, window.most, window.workers, window.accelerators, window.left_s[:, 0], nobody)
    return schedule
