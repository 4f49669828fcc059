"""What simulated jobs report about their loss, and when: at the end of each round in which they made steps. Where no job has a
curve there is nothing to report, and nothing to wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fairlead.backends.world import World
from fairlead.core import events as ev
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.job import Job
from fairlead.core.losses import LOSS, TARGET
from fairlead.core.rounds import boundary_after
from fairlead.workloads.losses import LossCurve

EVERY_S = 300.0
"""Between reports where there are no rounds."""


class LossReports:
    """Curves by the names of jobs."""

    def __init__(self, curves: Mapping[str, LossCurve]) -> None:
        self._curves = curves
        self._of: dict[int, LossCurve] = {}
        self._told_s = -math.inf
        self._introduced: set[int] = set()  # who has said what loss it can reach

    def arrive(self, jobs: Iterable[tuple[int, Job]]) -> None:
        for number, job in jobs:
            if (curve := self._curves.get(job.name)) is not None:
                self._of[number] = curve

    def next_s(self, world: World, now: float, grain: float) -> float:
        """The end of the round, if anybody then has something to report."""
        if not self._curves or not any(number in self._of for number in world.running.tolist()):
            return math.inf
        return boundary_after(max(now, self._told_s), grain or EVERY_S)

    def tell(self, world: World, now: float) -> list[ev.Event]:
        self._told_s = now
        running = np.sort(world.running)
        reporting: Bools = np.array([number in self._of for number in running.tolist()], dtype=np.bool_)
        jobs: Ints = running[reporting & (world.columns["since"][running] < now)]
        if not len(jobs):
            return []
        curves = [self._of[number] for number in jobs.tolist()]
        new = [number not in self._introduced for number in jobs.tolist()]
        told: list[ev.Event] = []
        if any(new):
            self._introduced.update(jobs[new].tolist())
            floors = np.array([curve.floor for curve in curves])
            told.append(ev.MetricsReported(now, TARGET, jobs[new], floors[new]))
        shares: Floats = world.steps_at(jobs, now) / world.columns["steps"][jobs]
        losses = np.array([curve.at(share) for curve, share in zip(curves, shares.tolist())])
        told.append(ev.MetricsReported(now, LOSS, jobs, losses))
        return told
