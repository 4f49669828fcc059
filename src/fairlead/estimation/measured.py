"""Throughputs as real jobs report them, with no table to begin with: of a kind that nobody has seen, every type is thought
to be as fast as its relative speed says. Once it was seen at rate m_s on types s,

    rate_t = m_t, or where it was not seen   speed_t · mean_s (m_s / speed_s).

A rate is remembered by kind, workers and type, and replaced when a later one differs by more than a tenth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.core.plan import Lesson, Rates
from fairlead.core.snapshot import Snapshot

TELLS = 0.1
"""A difference of rates that is worth remembering."""


@dataclass(frozen=True)
class Measured:
    """Throughputs are what running jobs report; `speeds` are guesses of types' relative speeds until then."""

    speeds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, speed in self.speeds.items():
            if not 0 < speed < math.inf:
                raise InputError("estimation measured", f"a speed above 0 for {name}", field="speeds", value=speed)

    def learn(self, view: Snapshot) -> Lesson:
        jobs, facts = view.jobs.runners, dict[str, list[float]]()
        for kind, workers, type_, rate in zip(*(c.tolist() for c in (jobs.kind, jobs.workers, jobs.type, jobs.rate))):
            name = view.names.kinds[kind]
            if name == TIMED or not rate > 0:
                continue
            key = _fact(name, workers)
            seen = facts.get(key) or list(view.learned.get(key, [0.0] * len(view.capacity)))
            if abs(rate - seen[type_]) > TELLS * seen[type_]:
                seen[type_] = rate
                facts[key] = seen
        return Lesson(facts)

    def rates(self, view: Snapshot) -> Rates:
        jobs = view.jobs
        looks: dict[tuple[int, int], int] = {}
        row = [looks.setdefault(look, len(looks)) for look in zip(jobs.kind.tolist(), jobs.workers.tolist())]
        speed = np.array([self.speeds.get(name, 1.0) for name in view.cluster.type_names])
        alone = np.ones((len(looks), len(speed)))
        for (kind, workers), at in looks.items():
            if view.names.kinds[kind] != TIMED:
                alone[at] = _filled(view.learned.get(_fact(view.names.kinds[kind], workers)), speed)
        return Rates(np.array(row, dtype=np.int64), alone, alone, np.zeros((len(looks), len(looks), len(speed))))


def _filled(seen: list[float] | None, speed: Floats) -> Floats:
    if seen is None:
        return speed
    measured = np.array(seen)
    there = measured > 0
    level = float((measured[there] / speed[there]).mean()) if there.any() else 1.0
    return np.where(there, measured, speed * level)


def _fact(kind: str, workers: int) -> str:
    return f"measured {workers} × {kind}"
