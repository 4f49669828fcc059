"""The estimator `measured`: throughputs as real jobs report them, without a table. Before a kind has run, each type is as fast
as its given relative speed. Observed at rates m_s on types s,

    rate_t = m_t, or where it was not observed   speed_t · mean_s (m_s / speed_s).

A rate is kept by kind, workers, type and whether a gang was on more nodes than it needs (*spread*), and replaced when a later
one differs by more than a tenth. Of spread and not, the one without an observation is assumed to be like the other. A rate at a
batch size that a plan gave is not kept for the kind. A job that reported a new batch size is measured as of the kind at that
size, from then on; until then its first rate is used. A rate that was predicted for a job (`StepPrediction`) is used for this
job until its kind was observed. For elastic jobs it observes what `fitted` does."""

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
from fairlead.estimators.fitted import ModelSizes, class_per_job, elastic_observations, elastic_rows
from fairlead.estimators.prior import UNKNOWN_LEVEL
from fairlead.models.speed_curves import MIN_CHANGE
from fairlead.prediction.step_prediction import job_prediction

MAX_SPEED = 1e9
"""Limit of the relative speed of a type."""
EXTRAPOLATED = 1.0
"""The relative uncertainty of a rate from another type, another batch size, or gangs on fewer or more nodes."""


@dataclass(frozen=True)
class Measured:
    """Use throughputs that running jobs report; until then, `speeds` are assumed relative speeds of GPU types."""

    speeds: dict[str, float] = field(default_factory=dict)  # relative speed of each GPU type, used until rates are measured

    def __post_init__(self) -> None:
        for name, speed in self.speeds.items():
            if not 1 / MAX_SPEED <= speed <= MAX_SPEED:
                expected = f"a relative speed from {1 / MAX_SPEED:g} to {MAX_SPEED:g} for {name}"
                raise InputError(f"estimator {type(self).__name__.lower()}", expected, field="speeds", value=speed)

    def observe(self, view: Snapshot) -> Observations:
        """The mean rate of all jobs of the same kind, workers and type, where it is new."""
        jobs, seen = view.jobs.runners, dict[tuple[str, int, int, bool], list[float]]()
        where = (jobs.number, jobs.kind, jobs.held, jobs.type, spread_gangs(jobs, view))
        columns = (*where, jobs.rate, jobs.base_steps, jobs.batch_size)
        for number, code, workers, type_, spread, rate, since, size in zip(*(column.tolist() for column in columns)):
            if rate > 0 and view.names.kinds[code] != TIMED and not size and since >= _since_steps(view, number):
                kind, worth = _present_kind(view, number, view.names.kinds[code])
                seen.setdefault((kind, workers, type_, spread), []).append(rate / worth)
        values = dict[str, object]()
        for (kind, workers, type_, spread), rates in seen.items():
            name = _name(kind, workers, view.cluster.type_names[type_], spread)
            mean, known = sum(rates) / len(rates), view.observations.get(name, 0.0)
            if abs(mean - known) > MIN_CHANGE * known:
                values[name] = mean
        if len(elastic := elastic_rows(view)):
            values |= elastic_observations(view.with_changes(jobs=view.jobs.only(elastic)))
        return Observations(values)

    def rates(self, view: Snapshot) -> Rates:
        jobs, types = view.jobs, view.cluster.type_names
        signatures: dict[tuple[str, int, str, float, str], int] = {}
        row = []
        for number, code, workers in zip(jobs.number.tolist(), jobs.kind.tolist(), jobs.workers.tolist()):
            kind = view.names.kinds[code]
            prediction = view.job_of[number].prediction if view.predictions else ""
            signature = (kind, workers, *_present_kind(view, number, kind), prediction)
            row.append(signatures.setdefault(signature, len(signatures)))
        speed = np.array([self.speeds.get(name, 1.0) for name in types])
        alone, spread = np.ones((2, len(signatures), len(types)))
        off, wide = np.zeros((2, *alone.shape))
        for (kind, workers, present, worth, prediction), at in signatures.items():
            if kind != TIMED:
                near, far = worth * _observed(view.observations, present, workers, types)
                of_its_own = present == kind or (near + far).any()
                if not (near + far).any():  # never observed at its batch size
                    near, far = _observed(view.observations, kind, workers, types)
                guess = EXTRAPOLATED if (near + far).any() else UNKNOWN_LEVEL
                off[at] = np.where((near > 0) & of_its_own, 0.0, guess)
                if prediction:
                    near, off[at] = _with_prediction(prediction, workers, types, near, off[at])
                alone[at] = _filled(np.where(near > 0, near, far), speed)
                spread[at] = np.where(far > 0, far, alone[at])
                wide[at] = np.where((far > 0) & of_its_own, 0.0, guess)
        paired = np.zeros((len(signatures), len(signatures), len(types)))
        batches = MeasuredBatches(view.observations, types, speed) if view.adaptations else None
        rows = np.array(row, dtype=np.int64)
        base = Rates(rows, alone, spread, paired, off, other_batches=batches, spread_uncertainty=wide)
        elastic = elastic_rows(view)
        return class_per_job(base, ModelSizes(view, base, elastic, None)) if len(elastic) else base


class MeasuredBatches:
    """Rates of a model at the batch sizes at which it was measured, in steps of the kind's own batch size."""

    def __init__(self, observations: ObservedValues, types: tuple[str, ...], speed: Floats) -> None:
        self._observations, self._types, self._speed = observations, types, speed

    def of(self, kind: str, workers: int) -> Mapping[int, Floats]:
        own, found = batch_size_of(kind), dict[int, Floats]()
        if own is None:
            return found
        for other in {other for other, held, *_ in measured_rates(self._observations) if held == workers}:
            if model_of(other) == model_of(kind) and (size := batch_size_of(other)) is not None:
                near, far = _observed(self._observations, other, workers, self._types)
                found[size] = _filled(np.where(near > 0, near, far), self._speed) * (size / own)
        return dict(sorted(found.items()))


def _present_kind(view: Snapshot, number: int, kind: str) -> tuple[str, float]:
    """The kind of a job at its reported batch size, and the declared steps per step."""
    past = view.regimes.get(number, ())
    if not past or past[-1].batch_size == past[0].batch_size:
        return kind, 1.0
    return kind_of(model_of(kind), past[-1].batch_size), past[-1].batch_size / past[0].batch_size


def _since_steps(view: Snapshot, number: int) -> float:
    """The steps from which on a rate is of the reported batch size."""
    past = view.regimes.get(number, ())
    return past[-1].from_steps if len(past) > 1 else 0.0


def _observed(observations: ObservedValues, kind: str, workers: int, types: tuple[str, ...]) -> Floats:
    """Rates by type, not spread and spread; 0 where not observed."""
    return np.array([[observations.get(_name(kind, workers, t, wide), 0.0) for t in types] for wide in (False, True)])


def _with_prediction(text: str, workers: int, types: tuple[str, ...], near: Floats, off: Floats) -> tuple[Floats, Floats]:
    """Rates and their uncertainty, with what was predicted for a job in place of what was not observed."""
    mine = job_prediction(text)
    rate = mine.steps_per_s if mine.workers == workers else mine.speeds_at([workers]).item() / workers
    there = np.array([name == mine.device for name in types]) & (near <= 0) & (rate > 0)
    return np.where(there, rate, near), np.where(there, mine.rate_uncertainty, off)


def _filled(measured: Floats, speed: Floats) -> Floats:
    there = measured > 0
    level = float((measured[there] / speed[there]).mean()) if there.any() else 1.0
    return np.where(there, measured, speed * level)


def measured_rates(observations: ObservedValues) -> Iterator[tuple[str, int, str, bool, float]]:
    """Observed rates: kind, workers, type, whether spread, and steps per second."""
    for name, rate in observations.items():
        if (match := _NAME.fullmatch(name)) is not None:
            yield match["kind"], int(match["workers"]), match["type"], bool(match["spread"]), float(rate)


_NAME = re.compile(r"measured (?P<workers>\d+) × (?P<kind>.*) on (?P<type>\S+?)(?P<spread> spread)?", re.DOTALL)


def _name(kind: str, workers: int, type_name: str, spread: bool) -> str:
    return f"measured {workers} × {kind} on {type_name}{' spread' if spread else ''}"
