"""The estimator `online`: rates of running jobs (Gavel §3.3: throughputs are observed as jobs run on the different types).

Before its first run a job has the prior of the reference jobs, or of given guesses. Observed at rate m_s on types s, its rates
on other types follow from the relative speeds of types,

    rate_t = speed_t · exp(mean_s log(m_s / speed_s)),

until they are observed themselves. It knows the rates of reference jobs, except those of a job's own kind, and observations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fairlead.core.errors import InputError, require
from fairlead.core.plan import Observations, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import (
    ALONE,
    SPREAD,
    ObservedRates,
    Profiler,
    RateObserver,
    RateTable,
    TableRows,
    check_measuring,
    reference_rows,
)
from fairlead.estimators.prior import PriorEstimate, from_speeds, prior_of

WHERE = "estimator online"


@dataclass(frozen=True)
class Online:
    """Estimate throughputs from other job types, and observe them while jobs run.

    `speeds` are guesses of each type's relative speed and `colocated` of the fraction of a rate under co-location; without them
    both are means over the `references` (all kinds, those named, or a random fraction of them). A measurement has a relative
    error of standard deviation `noise`; the first `measurements` of each combination are averaged.
    """

    paper: ClassVar[str] = "Gavel §3.3, §6 (Narayanan et al., OSDI'20)"
    table: RateTable = field(repr=False)
    speeds: dict[str, float] | None = None  # relative speed of each GPU type, used until rates are measured
    colocated: float | None = None
    """Part of its rate that a co-located job is assumed to keep; default: the mean of the references."""
    references: tuple[str, ...] | float | None = None
    """Job types with known rates, by name or as a fraction of all; default: all."""
    noise: float = 0.0  # relative error of measurements, for robustness tests
    measurements: int = 1  # measurements that are averaged
    seed: int = 0  # seed of the random draws
    _kept: dict[str, _Cache] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_measuring(WHERE, self.noise, self.measurements, self.references)
        if self.colocated is not None and not 0 < self.colocated <= 1:
            raise InputError(WHERE, "a fraction above 0 and up to 1", field="colocated", value=self.colocated)
        for name, speed in (self.speeds or {}).items():
            require(0 < speed < math.inf, WHERE, f"a speed above 0 for {name}", "speeds", speed)

    def observe(self, view: Snapshot) -> Observations:
        cache = self._updated(view)
        return RateObserver(self.measurements, self.noise, self.seed).observe(view, cache.rows, cache.observed)

    def rates(self, view: Snapshot) -> Rates:
        cache = self._updated(view)
        if cache.version != cache.observed.version:
            cache.columns = cache.prior_estimate().with_observations(cache.observed, self.noise, cache.profiler)
            cache.version = cache.observed.version
        return Rates(cache.rows.of(view.jobs, view.names), **cache.columns)

    def _updated(self, view: Snapshot) -> _Cache:
        if "" not in self._kept:
            self._kept[""] = _Cache(self, view.cluster.type_names)
        self._kept[""].observed.update(view.observations)
        return self._kept[""]


class _Cache:
    """Values derived from the parameters and the last observations."""

    def __init__(self, online: Online, types: tuple[str, ...]) -> None:
        self.rows, self.profiler = TableRows(online.table), Profiler(online.table)
        self.observed = ObservedRates(self.rows, types)
        references = reference_rows(online.table.keys, online.references, online.seed, WHERE)
        prior = prior_of(self.profiler, references, leave_out=True)
        self.prior = prior.with_guesses(types, online.speeds, online.colocated)
        self.columns: dict[str, Any] = {}
        self.version = -1

    def prior_estimate(self) -> PriorEstimate:
        prior, mean = self.prior, self.observed.mean
        known = np.where(np.isnan(mean[ALONE]), mean[SPREAD] / prior.spread, mean[ALONE])
        alone, measured = from_speeds(known, prior.speed, prior.level)
        off = np.where(measured[:, None], prior.speed_off, prior.level_off[:, None])
        part, part_off = (np.repeat(one[:, None, :], len(alone), axis=1) for one in (prior.colocated, prior.colocated_off))
        return PriorEstimate(alone, off, prior.spread, off, part, part_off)
