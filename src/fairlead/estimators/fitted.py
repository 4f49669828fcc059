"""The estimator `fitted`: models of elastic jobs from their reports: the time of a step at any number of workers
(`models.goodput`), or else the rate (`models.speed_curves`), and the loss (`models.convergence`). Each is one observation per
job, replaced when a job reports a new configuration, a rate that differs by more than a tenth, or a loss after a tenth more
steps. `measured` observes the same on a real cluster.

Throughputs at the requested size are the table's; at other sizes they are the model's, at the job's own batch size. A job with
predicted speeds (`StepPrediction.speeds`) scales with its workers as predicted until it was measured at two sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.job import ELASTIC, TIMED, batch_size_of
from fairlead.core.observations import observation_name
from fairlead.core.plan import Observations, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import RateTable
from fairlead.estimators.oracle import Oracle
from fairlead.models import convergence, goodput
from fairlead.models import speed_curves as speeds
from fairlead.models.convergence import LOSS
from fairlead.models.goodput import COMPUTE, LARGEST, LEAST_LOCAL, LOCAL, MOST_LOCAL, NODES, SMALLEST, STEP, WORKERS, Goodputs
from fairlead.prediction.step_prediction import StepPrediction, job_prediction

_MIN_STEP_RATIO = 1.1  # between recorded losses
_MAX_CONFIGURATIONS = 64
"""The most recent configurations of a job that are kept."""


@dataclass(frozen=True)
class Fitted:
    """Fit models of step time and loss to what jobs report; the table has throughputs for the requested sizes."""

    table: RateTable

    @cached_property
    def _oracle(self) -> Oracle:
        return Oracle(self.table)

    def observe(self, view: Snapshot) -> Observations:
        return Observations(elastic_observations(view))

    def rates(self, view: Snapshot) -> Rates:
        base = self._oracle.rates(view)
        elastic = elastic_rows(view)
        if not len(elastic):
            return replace(base, other_sizes=None)
        return class_per_job(base, ModelSizes(view, base, elastic, set(self.table.keys)))


def elastic_rows(view: Snapshot) -> Ints:
    """The elastic jobs of a view. A job whose work is given in seconds has one size."""
    rows, kinds = view.elastic.nonzero()[0], view.names.kinds
    return rows[[kinds[kind] != TIMED for kind in view.jobs.kind[rows].tolist()]]


def elastic_observations(view: Snapshot) -> dict[str, object]:
    """New observations of the jobs of a view."""
    steps = _steps(view)
    return {**steps, **_speeds(view, steps), **_losses(view)}


def class_per_job(base: Rates, sizes: ModelSizes) -> Rates:
    """The same rates, with a separate class for each elastic job."""
    used, row = np.unique(base.row, return_inverse=True)
    row[sizes.elastic] = len(used) + np.arange(len(sizes.elastic))
    classes = np.concatenate((used, base.row[sizes.elastic]))
    paired = base.paired[np.ix_(classes, classes)]
    off, wide = (None if one is None else one[classes] for one in (base.uncertainty, base.spread_uncertainty))
    return Rates(row, base.alone[classes], base.spread[classes], paired, off, other_sizes=sizes, spread_uncertainty=wide)


class ModelSizes:
    """Rates of elastic jobs at other sizes by their models. A job without reports scales as predicted, or else is assumed to
    scale linearly to one worker. `possible` are the sizes at which a kind fits into memory; None: all."""

    def __init__(self, view: Snapshot, base: Rates, elastic: Ints, possible: Collection[tuple[str, int]] | None) -> None:
        jobs = view.jobs.only(elastic)
        self.elastic = elastic
        self._modelled, self._models = Goodputs.of(jobs, view.observations)
        self._curves: Floats = np.full((len(elastic), 3), np.nan)
        alone = base.alone[base.row[elastic]]
        self._predicted = dict[int, tuple[StepPrediction, Floats]]()  # and by type, the rate of one predicted step per second
        for at, (number, asked) in enumerate(zip(jobs.number.tolist(), jobs.workers.tolist())):
            known = view.observations.get(observation_name("speed", number))
            if known is not None:
                self._curves[at] = known["curve"]
            text, seen = view.job_of[number].prediction, known["seen"] if known else ()
            if text and len(seen) < 2 and not self._modelled[at]:
                size, rate = (int(seen[0][0]), seen[0][1] * (alone[at] > 0)) if seen else (asked, alone[at])
                if (speed := job_prediction(text).speeds_at([size]).item()) > 0:
                    self._predicted[at] = job_prediction(text), rate / speed
        self._kinds = [view.names.kinds[kind] for kind in jobs.kind.tolist()]
        self._possible = possible
        limits = np.stack([jobs.metric(name) for name in (SMALLEST, LARGEST, LEAST_LOCAL, MOST_LOCAL)], axis=1)
        credible = goodput.believable_limits(limits)
        self._largest: Floats = np.full(len(jobs), np.inf)  # the workers that share the largest batch
        self._largest[credible] = np.maximum(limits[credible, 1] // limits[credible, 2], 1.0)
        self._per_worker: Floats = alone / jobs.workers[:, None]
        self._others = len(np.unique(base.row))  # classes of other jobs, which come first
        self._on_a_node = int(view.cluster.largest_node_of_type.max(initial=1))
        self._max_size = int(view.capacity.max(initial=1))
        own: Floats = np.array([float(batch_size_of(kind) or 0) for kind in self._kinds])
        self._batch: Floats = np.maximum(own[self._modelled], self._models.limits[:, 0])

    @property
    def sizes(self) -> range:
        return range(1, self._max_size + 1)

    def at(self, workers: Sequence[int]) -> Floats:
        seen = np.isfinite(self._curves[:, 0]) & ~self._modelled
        single = np.array(workers)[:, None] == 1
        rates = (single & ~self._modelled & ~seen)[:, :, None] * self._per_worker
        runs = self._per_worker > 0
        modelled = self._models.at_batch(self._batch, workers, self._on_a_node)
        rates[:, self._modelled] = modelled.T[:, :, None] * runs[self._modelled]
        for at in sorted({*seen.nonzero()[0].tolist(), *self._predicted}):
            kind, largest, curve = self._kinds[at], self._largest[at], self._curves[at]
            fits = [size <= largest and (self._possible is None or (kind, size) in self._possible) for size in workers]
            if at in self._predicted:
                prediction, scale = self._predicted[at]
                rates[:, at] = (prediction.speeds_at(workers) * fits)[:, None] * scale
                continue
            known = np.array([speeds.rate_at(curve, size) if fit else 0.0 for size, fit in zip(workers, fits)])
            rates[:, at] = known[:, None] * runs[at]
        return np.concatenate((np.zeros((len(workers), self._others, rates.shape[2])), rates), axis=1)


def _steps(view: Snapshot) -> dict[str, object]:
    jobs, values = view.jobs, dict[str, object]()
    reports = np.stack([jobs.metric(name) for name in (NODES, WORKERS, LOCAL, COMPUTE, STEP)], axis=1)
    for at in goodput.believable_steps(reports).nonzero()[0].tolist():
        name, one = observation_name("steps", int(jobs.number[at])), reports[at].tolist()
        known = view.observations.get(name)
        seen = known["seen"] if known else ()
        before = next((other for other in seen if list(other[:3]) == one[:3]), None)
        if before is None or any(abs(now - then) > speeds.MIN_CHANGE * then for now, then in zip(one[3:], before[3:])):
            others = [other for other in seen if other is not before]
            values[name] = goodput.steps_observation([*others, one][-_MAX_CONFIGURATIONS:])
    return values


def _speeds(view: Snapshot, reports: Mapping[str, object]) -> dict[str, object]:
    jobs, values = view.jobs.runners, dict[str, object]()
    for number, kind, workers, rate in zip(*(c.tolist() for c in (jobs.number, jobs.kind, jobs.held, jobs.rate))):
        if view.job_of[number].mode != ELASTIC or view.names.kinds[kind] == TIMED or not rate > 0:
            continue
        name, steps = observation_name("speed", number), observation_name("steps", number)
        if steps not in view.observations and steps not in reports:
            known = view.observations.get(name)
            if (observed := speeds.speed_observation(known["seen"] if known else (), workers, rate)) is not None:
                values[name] = observed
    return values


def _losses(view: Snapshot) -> dict[str, object]:
    jobs, values = view.jobs, dict[str, object]()
    losses = jobs.metric(LOSS)
    for at in ((losses >= convergence.LOWEST) & (losses <= convergence.HIGHEST)).nonzero()[0].tolist():
        name, done = observation_name("loss", int(jobs.number[at])), float(jobs.steps_done[at])
        known = view.observations.get(name)
        points = known["points"] if known else []
        if done > 0 and (not points or (done >= _MIN_STEP_RATIO * points[-1][0] and losses[at] != points[-1][1])):
            values[name] = convergence.loss_observation([*points, [done, float(losses[at])]])
    return values
