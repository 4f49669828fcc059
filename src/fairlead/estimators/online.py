"""Estimates from what jobs really did (Gavel §3.3: throughputs are found out as jobs run on the different types).

Before a job has run anywhere it is thought to be like the reference jobs in the mean, or as a table of guesses says. Once it
was seen at rate m_s on type s, the others follow from the relative speeds of types,

    rate_t = speed_t · exp(mean_s log(m_s / speed_s)),

until they are seen themselves. It knows rates of reference jobs and what was observed, and nothing else; of a job's own kind no
reference is looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.core.errors import InputError
from fairlead.core.plan import Observations, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import (
    ALONE,
    SPREAD,
    Observed,
    Observer,
    Profiler,
    RateTable,
    Rows,
    check_references,
    reference_rows,
)
from fairlead.estimators.prior import Estimates, Guess, Prior, check_measuring, from_speeds, prior_of

WHERE = "estimator online"


@dataclass(frozen=True)
class Online:
    """Throughputs are guessed from other kinds of jobs, and learned as jobs run.

    `speeds` are guesses of each type's relative speed and `company` of what company leaves of a rate; without them both are
    means over the `references` (all kinds, those named, or a part of them drawn at random). A measurement is off by a relative
    error of standard deviation `noise`; the first `measurements` of each combination are remembered and averaged.
    """

    paper: ClassVar[str] = "Gavel §3.3, §6 (Narayanan et al., OSDI'20)"
    table: RateTable = field(repr=False)
    speeds: dict[str, float] | None = None
    company: float | None = None
    references: tuple[str, ...] | float | None = None
    noise: float = 0.0
    measurements: int = 1
    seed: int = 0
    _kept: dict[str, _Kept] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_measuring(WHERE, self.noise, self.measurements)
        if self.company is not None and not 0 < self.company <= 1:
            raise InputError(WHERE, "a part above 0 and up to 1", field="company", value=self.company)
        for name, speed in (self.speeds or {}).items():
            if not 0 < speed < math.inf:
                raise InputError(WHERE, f"a speed above 0 for {name}", field="speeds", value=speed)
        check_references(WHERE, self.references)

    def observe(self, view: Snapshot) -> Observations:
        kept = self._cache(view)
        kept.observed.follow(view.observations)
        return Observer(self.measurements, self.noise, self.seed).look(view, kept.rows, kept.observed)

    def rates(self, view: Snapshot) -> Rates:
        kept = self._cache(view)
        kept.observed.follow(view.observations)
        if kept.estimates is None or kept.version != kept.observed.version:
            guess = kept.guess()
            profiler = kept.profiler
            kept.estimates = guess.sharpened(kept.observed, self.noise, profiler.fits(), profiler.fit_together())
            kept.version = kept.observed.version
        return kept.estimates.rates(kept.rows.of(view.jobs, view.names))

    def _cache(self, view: Snapshot) -> _Kept:
        if "" not in self._kept:
            self._kept[""] = _Kept(self, view.cluster.type_names)
        return self._kept[""]


class _Kept:
    """What follows from the parameters, and from the facts that were seen last."""

    def __init__(self, online: Online, types: tuple[str, ...]) -> None:
        self.rows, self.profiler = Rows(online.table), Profiler(online.table)
        self.observed = Observed(self.rows, types)
        references = reference_rows(online.table.keys, online.references, online.seed, WHERE)
        prior = prior_of(self.profiler, references, leave_out=True)
        self.prior: Prior = prior.guessed(types, online.speeds, online.company)
        self.estimates: Estimates | None = None
        self.version = -1

    def guess(self) -> Guess:
        prior, seen = self.prior, self.observed.mean
        known = np.where(np.isnan(seen[ALONE]), seen[SPREAD] / prior.spread, seen[ALONE])
        alone, told = from_speeds(known, prior.speed, prior.level)
        off = np.where(told[:, None], prior.speed_off, prior.level_off[:, None])
        count = len(alone)
        company, company_off = (np.repeat(part[:, None, :], count, axis=1) for part in (prior.company, prior.company_off))
        return Guess(alone, off, prior.spread, off, company, company_off)
