"""Throughputs as real jobs report them, with no table to begin with: of a kind that nobody has seen, every type is thought
to be as fast as its relative speed says. Once it was seen at rate m_s on types s,

    rate_t = m_t, or where it was not seen   speed_t · mean_s (m_s / speed_s).

A rate is remembered by kind, workers, type and whether a gang stood on more nodes than it needs (*spread*), and replaced when a
later one differs by more than a tenth. Of spread and not, the one that was not seen is taken to be like the other, and is a
guess. A batch size
that a plan gave, or left to the job, is another one than the kind's, and its rate is not remembered for the kind. A job that
announced another one than it began with is measured as of the kind at that size, in steps of it, by what it reports from then
on. Until it was, the rate that it began with stands. What was measured of a model at its sizes is known of other
batches.

Of elastic jobs it learns what `fitted` does: how fast each would be with other workers, and how its loss goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED, batch_size_of, kind_of, model_of
from fairlead.core.plan import Observations, ObservedValues, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import spread_gangs
from fairlead.estimators.fitted import ModelSizes, by_job, elastic_rows, lessons
from fairlead.estimators.prior import UNKNOWN_LEVEL

TELLS = 0.1
"""A difference of rates that is worth remembering."""
FASTEST = 1e9
"""Of a type, compared with others: no two are so far apart."""
ELSEWHERE = 1.0
"""The relative uncertainty of a rate that is guessed from another type's, from another batch size's, or from that of gangs on
fewer or more nodes."""


@dataclass(frozen=True)
class Measured:
    """Throughputs are what running jobs report; `speeds` are guesses of types' relative speeds until then."""

    speeds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, speed in self.speeds.items():
            if not 1 / FASTEST <= speed <= FASTEST:
                expected = f"a speed compared with others' from {1 / FASTEST:g} to {FASTEST:g} for {name}"
                raise InputError(f"estimator {type(self).__name__.lower()}", expected, field="speeds", value=speed)

    def observe(self, view: Snapshot) -> Observations:
        """Of all that run alike on one type, the mean counts: one number, which is known or is not."""
        jobs, seen = view.jobs.runners, dict[tuple[str, int, int, bool], list[float]]()
        where = (jobs.number, jobs.kind, jobs.held, jobs.type, spread_gangs(jobs, view))
        columns = (*where, jobs.rate, jobs.base_steps, jobs.batch_size)
        for number, code, workers, type_, spread, rate, since, size in zip(*(column.tolist() for column in columns)):
            if rate > 0 and view.names.kinds[code] != TIMED and not size and since >= _began(view, number):
                kind, worth = _present(view, number, view.names.kinds[code])
                seen.setdefault((kind, workers, type_, spread), []).append(rate / worth)
        facts = dict[str, object]()
        for (kind, workers, type_, spread), rates in seen.items():
            name = _fact(kind, workers, view.cluster.type_names[type_], spread)
            mean, known = sum(rates) / len(rates), view.observations.get(name, 0.0)
            if abs(mean - known) > TELLS * known:
                facts[name] = mean
        if len(elastic := elastic_rows(view)):
            facts |= lessons(view.with_changes(jobs=view.jobs.only(elastic)))
        return Observations(facts)

    def rates(self, view: Snapshot) -> Rates:
        jobs, types = view.jobs, view.cluster.type_names
        looks: dict[tuple[str, int, str, float], int] = {}
        row = []
        for number, code, workers in zip(jobs.number.tolist(), jobs.kind.tolist(), jobs.workers.tolist()):
            kind = view.names.kinds[code]
            row.append(looks.setdefault((kind, workers, *_present(view, number, kind)), len(looks)))
        speed = np.array([self.speeds.get(name, 1.0) for name in types])
        alone, spread = np.ones((2, len(looks), len(types)))
        off, wide = np.zeros((2, *alone.shape))
        for (kind, workers, present, worth), at in looks.items():
            if kind != TIMED:
                near, far = worth * _seen(view.observations, present, workers, types)
                of_its_own = present == kind or (near + far).any()
                if not (near + far).any():  # at its batch size nobody has seen it
                    near, far = _seen(view.observations, kind, workers, types)
                alone[at] = _filled(np.where(near > 0, near, far), speed)
                spread[at] = np.where(far > 0, far, alone[at])
                guess = ELSEWHERE if (near + far).any() else UNKNOWN_LEVEL
                off[at] = np.where((near > 0) & of_its_own, 0.0, guess)
                wide[at] = np.where((far > 0) & of_its_own, 0.0, guess)
        paired = np.zeros((len(looks), len(looks), len(types)))
        batches = MeasuredBatches(view.observations, types, speed) if view.adaptations else None
        rows = np.array(row, dtype=np.int64)
        base = Rates(rows, alone, spread, paired, off, other_batches=batches, spread_uncertainty=wide)
        elastic = elastic_rows(view)
        return by_job(base, ModelSizes(view, base, elastic, None)) if len(elastic) else base


class MeasuredBatches:
    """Rates of a model at the batch sizes at which it was measured, in steps of the kind's own; of kinds that say their own."""

    def __init__(self, learned: ObservedValues, types: tuple[str, ...], speed: Floats) -> None:
        self._learned, self._types, self._speed = learned, types, speed

    def of(self, kind: str, workers: int) -> Mapping[int, Floats]:
        own, found = batch_size_of(kind), dict[int, Floats]()
        alike = {
            other for other, held, *_ in measured_rates(self._learned) if model_of(other) == model_of(kind) and held == workers
        }
        for other in alike if own is not None else ():
            near, far = _seen(self._learned, other, workers, self._types)
            if (size := batch_size_of(other)) is not None and own is not None:
                found[size] = _filled(np.where(near > 0, near, far), self._speed) * (size / own)
        return dict(sorted(found.items()))


def _present(view: Snapshot, number: int, kind: str) -> tuple[str, float]:
    """Which kind a job is at the batch size that it has announced, and how many declared steps one of its steps is."""
    past = view.regimes.get(number, ())
    if not past or past[-1].batch_size == past[0].batch_size:
        return kind, 1.0
    return kind_of(model_of(kind), past[-1].batch_size), past[-1].batch_size / past[0].batch_size


def _began(view: Snapshot, number: int) -> float:
    """The steps from which on a rate is of the batch size that a job has announced."""
    past = view.regimes.get(number, ())
    return past[-1].from_steps if len(past) > 1 else 0.0


def _seen(learned: ObservedValues, kind: str, workers: int, types: tuple[str, ...]) -> Floats:
    """By type, near to each other and spread; 0 where nobody has seen it."""
    return np.array([[learned.get(_fact(kind, workers, t, wide), 0.0) for t in types] for wide in (False, True)])


def _filled(measured: Floats, speed: Floats) -> Floats:
    there = measured > 0
    level = float((measured[there] / speed[there]).mean()) if there.any() else 1.0
    return np.where(there, measured, speed * level)


def measured_rates(facts: ObservedValues) -> Iterator[tuple[str, int, str, bool, float]]:
    """What was learned: kind, workers, type, whether spread, and steps per second."""
    for name, rate in facts.items():
        if (match := _FACT.fullmatch(name)) is not None:
            yield match["kind"], int(match["workers"]), match["type"], bool(match["spread"]), float(rate)


_FACT = re.compile(r"measured (?P<workers>\d+) × (?P<kind>.*) on (?P<type>\S+?)(?P<spread> spread)?", re.DOTALL)


def _fact(kind: str, workers: int, type_name: str, spread: bool) -> str:
    return f"measured {workers} × {kind} on {type_name}{' spread' if spread else ''}"
