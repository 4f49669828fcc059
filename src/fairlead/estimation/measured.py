"""Throughputs as real jobs report them, with no table to begin with: of a kind that nobody has seen, every type is thought
to be as fast as its relative speed says. Once it was seen at rate m_s on types s,

    rate_t = m_t, or where it was not seen   speed_t · mean_s (m_s / speed_s).

A rate is remembered by kind, workers, type and whether a gang stood on more nodes than it needs (*spread*), and replaced when a
later one differs by more than a tenth. Of spread and not, the one that was not seen is taken to be like the other. A batch size
that a plan gave, or left to the job, is another one than the kind's, and its rate is not remembered for the kind.

Of elastic jobs it learns what `fitted` does: how fast each would be with other workers, and how its loss goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.core.plan import Facts, Lesson, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.fitted import ModelSizes, by_job, elastic_rows, lessons
from fairlead.estimation.observed import spread_gangs

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
        """Of all that run alike on one type, the mean counts: one number, which is known or is not."""
        jobs, seen = view.jobs.runners, dict[tuple[int, int, int, bool], list[float]]()
        columns = (jobs.kind, jobs.held, jobs.type, spread_gangs(jobs, view), jobs.rate, jobs.batch_size)
        for kind, workers, type_, spread, rate, size in zip(*(column.tolist() for column in columns)):
            if rate > 0 and view.names.kinds[kind] != TIMED and not size:
                seen.setdefault((kind, workers, type_, spread), []).append(rate)
        facts = dict[str, object]()
        for (kind, workers, type_, spread), rates in seen.items():
            name = _fact(view.names.kinds[kind], workers, view.cluster.type_names[type_], spread)
            mean, known = sum(rates) / len(rates), view.learned.get(name, 0.0)
            if abs(mean - known) > TELLS * known:
                facts[name] = mean
        if len(elastic := elastic_rows(view)):
            facts |= lessons(view.but(jobs=view.jobs.only(elastic)))
        return Lesson(facts)

    def rates(self, view: Snapshot) -> Rates:
        jobs, types = view.jobs, view.cluster.type_names
        looks: dict[tuple[int, int], int] = {}
        row = [looks.setdefault(look, len(looks)) for look in zip(jobs.kind.tolist(), jobs.workers.tolist())]
        speed = np.array([self.speeds.get(name, 1.0) for name in types])
        alone, spread = np.ones((2, len(looks), len(types)))
        for (kind, workers), at in looks.items():
            name = view.names.kinds[kind]
            if name != TIMED:
                near, far = (
                    np.array([view.learned.get(_fact(name, workers, t, wide), 0.0) for t in types]) for wide in (False, True)
                )
                alone[at] = _filled(np.where(near > 0, near, far), speed)
                spread[at] = np.where(far > 0, far, alone[at])
        base = Rates(np.array(row, dtype=np.int64), alone, spread, np.zeros((len(looks), len(looks), len(types))))
        elastic = elastic_rows(view)
        return by_job(base, ModelSizes(view, base, elastic, None)) if len(elastic) else base


def _filled(measured: Floats, speed: Floats) -> Floats:
    there = measured > 0
    level = float((measured[there] / speed[there]).mean()) if there.any() else 1.0
    return np.where(there, measured, speed * level)


def measured_rates(facts: Facts) -> Iterator[tuple[str, int, str, bool, float]]:
    """What was learned: kind, workers, type, whether spread, and steps per second."""
    for name, rate in facts.items():
        if (match := _FACT.fullmatch(name)) is not None:
            yield match["kind"], int(match["workers"]), match["type"], bool(match["spread"]), float(rate)


_FACT = re.compile(r"measured (?P<workers>\d+) × (?P<kind>.*) on (?P<type>\S+?)(?P<spread> spread)?", re.DOTALL)


def _fact(kind: str, workers: int, type_name: str, spread: bool) -> str:
    return f"measured {workers} × {kind} on {type_name}{' spread' if spread else ''}"
