"""The estimator `profiled`: Gavel's throughput estimator (§3.3, §6). A new kind of job is measured a little, matched with the
most similar reference job, and assumed to be like it under co-location:

    rate of i co-located with k on t  ≈  rate of i alone on t · p_r(i)(r(k), t),

where r(i) is the closest reference of i and p_r(q, t) the fraction of its rate that reference r keeps with q (`matching.py`).
Measurements, in the profile or while jobs run, replace estimates. It knows the rates of references and measurements, through
the `Profiler`, and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import require
from fairlead.core.job import TIMED
from fairlead.core.plan import Observations, ObservedValues, Rates
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import (
    ALONE,
    SPREAD,
    ObservationCache,
    ObservedRates,
    Profiler,
    RateObserver,
    RateTable,
    TableRows,
    check_measuring,
    reference_rows,
)
from fairlead.estimators.matching import closest_reference, colocated_fractions, draw_columns
from fairlead.estimators.prior import PriorEstimate, from_speeds, prior_of

WHERE = "estimator profiled"
PROFILE = "profile "


@dataclass(frozen=True)
class Profiled:
    """Measure a new job type in some combinations, and take the other rates from the closest reference job.

    A random `share` of its combinations with reference jobs is timed, `profile_s` each, on `accelerators` of each type that are
    no part of the cluster. Kinds are profiled one after the other; until then a kind has the mean of the references.
    `references` are all kinds, those named, or a random fraction; with `leave_out` a job's own kind is no reference for it, nor
    for jobs co-located with it. Completion has rank `rank` and regularisation `penalty`. Exclusive rates are `known`, or
    `profiled` too: timed on the types of the profile, and observed from running jobs as in `online`.
    """

    paper: ClassVar[str] = "Gavel §6, Figures 8 and 16 (Narayanan et al., OSDI'20)"
    table: RateTable = field(repr=False)
    share: float = 0.2  # fraction of a new job type's combinations that is measured
    references: tuple[str, ...] | float | None = None
    """Job types with known rates, by name or as a fraction of all; default: all."""
    leave_out: bool = False  # leave a job type's own row out of the references
    alone: Literal["known", "profiled"] = "known"  # rates without co-location are known, or profiled too
    accelerators: int = 1  # GPUs of each type for profiling, which are not part of the cluster
    profile_s: float = 60.0  # seconds that one measurement takes
    rank: int = 10  # rank of the completed matrix
    penalty: float = 1e-2  # regularization of the matrix completion
    noise: float = 0.0  # relative error of measurements, for robustness tests
    measurements: int = 1  # measurements that are averaged
    seed: int = 0  # seed of the random draws
    _kept: dict[str, _Cache] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_measuring(WHERE, self.noise, self.measurements, self.references)
        require(0 < self.share <= 1, WHERE, "a fraction above 0 and up to 1", "share", self.share)
        require(0 <= self.profile_s < math.inf, WHERE, "seconds, at least 0", "profile_s", self.profile_s)
        require(self.accelerators >= 1, WHERE, "at least 1", "accelerators", self.accelerators)
        require(self.rank >= 1, WHERE, "at least 1", "rank", self.rank)
        require(0 < self.penalty < math.inf, WHERE, "a number above 0", "penalty", self.penalty)

    def observe(self, view: Snapshot) -> Observations:
        cache = self._updated(view)
        observer = RateObserver(self.measurements, self.noise, self.seed, alone=self.alone == "profiled")
        found = observer.observe(view, cache.rows, cache.observed)
        profiles, ready_s = self._profile(view, cache)
        return Observations({**profiles, **found.values} if profiles else found.values, min(ready_s, found.valid_until))

    def rates(self, view: Snapshot) -> Rates:
        cache = self._updated(view)
        version = (cache.observed.version, cache.version)
        if cache.made_of != version:
            cache.columns, cache.made_of = cache.estimated(), version
        return Rates(cache.rows.of(view.jobs, view.names), **cache.columns)

    def _updated(self, view: Snapshot) -> _Cache:
        if "" not in self._kept:
            self._kept[""] = _Cache(self, view.cluster.type_names)
        self._kept[""].update(view.observations)
        return self._kept[""]

    def _profile(self, view: Snapshot, cache: _Cache) -> tuple[dict[str, Any], float]:
        """Profiles that begin and profiles that are complete, and when the next one will be complete."""
        values: dict[str, Any] = {}
        pending = dict(cache.pending)
        here = [cache.rows.of(jobs, view.names) for jobs in (view.jobs, view.queued)]
        new = [rows[~cache.begun[rows]] for rows in here]
        if len(new[0]) or len(new[1]):
            free_s = max(view.time, cache.busy_until_s)
            for row in dict.fromkeys(np.concatenate(new).tolist()):
                plan = cache.plan(row)
                runs = np.bincount(plan.types, minlength=cache.profiler.types) + plan.timed_alone
                free_s = free_s + float(np.ceil(runs / self.accelerators).max()) * self.profile_s
                pending[row] = free_s
                kind, workers = cache.profiler.keys[row]
                values[_name(kind, workers)] = {"of": [kind, workers], "ready_s": free_s}
        for row, ready_s in list(pending.items()):
            if ready_s <= view.time:
                del pending[row]
                kind, workers = cache.profiler.keys[row]
                values[_name(kind, workers)] = {"of": [kind, workers], "ready_s": ready_s, **self._measured(cache, row)}
        return values, min(pending.values(), default=math.inf)

    def _measured(self, cache: _Cache, row: int) -> dict[str, Any]:
        """The profile of a kind as an observation: measurements and the closest reference."""
        profiler, plan = cache.profiler, cache.plan(row)
        fits, (known_alone, _) = profiler.fits()[row], profiler.exclusive_rates()
        types = (plan.timed_alone & fits).nonzero()[0].tolist()
        timed = {t: profiler.measure_alone(row, t) for t in types} if self.alone == "profiled" else {}
        value: dict[str, Any] = {"alone": [[cache.types[t], rate] for t, rate in timed.items()]}
        colocated: list[list[Any]] = []
        columns = np.full(len(plan.references) * profiler.types, np.nan)
        for other, type_, column in zip(plan.others.tolist(), plan.types.tolist(), plan.columns.tolist()):
            mine, its = profiler.measure_colocated(row, other, type_) if fits[type_] else (0.0, 0.0)
            alone = timed.get(type_, 0.0) if self.alone == "profiled" else float(known_alone[row, type_])
            columns[column] = min(mine / alone, 1.0) if alone > 0 else 0.0
            colocated.append([*profiler.keys[other], cache.types[type_], mine, its])
        value["beside"] = colocated
        if len(plan.columns):
            known = colocated_fractions(cache.alone[plan.references], cache.paired[np.ix_(plan.references, plan.references)])
            rng = stream(self.seed, "completion", *profiler.keys[row])
            flat = known.transpose(0, 2, 1).reshape(len(known), -1)
            match = closest_reference(flat, columns, self.rank, self.penalty, rng)
            value["like"] = list(profiler.keys[int(cache.reference_rows[plan.references[match.like]])])
            value["distance"], value["deviation"] = match.distance, match.deviation
        return value


@dataclass(frozen=True)
class _ProfilePlan:
    """The measurements of a kind's profile."""

    references: Ints  # positions among the references: same gang size, without its own kind where that is left out
    columns: Ints  # type × reference, flat
    others: Ints  # row of the reference of each column
    types: Ints  # type of each column
    timed_alone: Bools  # by type


class _Cache(ObservationCache):
    """Values derived from the parameters and the last observations."""

    prefix = PROFILE

    def __init__(self, profiled: Profiled, types: tuple[str, ...]) -> None:
        self.profiled, self.types = profiled, types
        self.rows = TableRows(profiled.table)
        self.profiler = Profiler(profiled.table, profiled.noise, profiled.seed)
        self.observed = ObservedRates(self.rows, types)
        self.reference_rows = reference_rows(profiled.table.keys, profiled.references, profiled.seed, WHERE)
        self.alone, self.spread, self.paired = self.profiler.reference_rates(self.reference_rows)
        self.prior = prior_of(self.profiler, self.reference_rows, leave_out=profiled.leave_out)
        self.kind_of_row: Ints = np.unique([kind for kind, _ in profiled.table.keys], return_inverse=True)[1]
        self.position = {int(row): position for position, row in enumerate(self.reference_rows.tolist())}
        self.columns: dict[str, Any] = {}
        self.made_of: tuple[int, int] = (-1, -1)
        self.version = 0
        self._plans: dict[int, _ProfilePlan] = {}
        super().__init__()

    def _reset(self) -> None:
        rows, types = len(self.profiler.keys), len(self.types)
        self.version += 1
        self.begun: Bools = np.array([kind == TIMED for kind, _ in self.profiler.keys])
        self.busy_until_s = -math.inf
        self.pending: dict[int, float] = {}
        self.like: Ints = np.full(rows, -1, dtype=np.int64)  # position among the references
        self.deviation: Floats = np.full(rows, 1.0)
        self.timed: Floats = np.full((rows, types), np.nan)  # alone
        self.timed_colocated: Floats = np.full((rows, rows, types), np.nan)

    def update(self, values: ObservedValues) -> None:
        self.observed.update(values)
        super().update(values)

    def _add(self, value: ObservedValues) -> None:
        row = self.rows.table.row(*value["of"])
        self.begun[row] = True
        self.busy_until_s = max(self.busy_until_s, value["ready_s"])
        if "beside" not in value:
            self.pending[row] = value["ready_s"]
            return
        self.pending.pop(row, None)
        self.version += 1
        code = {name: type_ for type_, name in enumerate(self.types)}
        for name, rate in value["alone"]:
            self.timed[row, code[name]] = rate
        for kind, workers, name, mine, its in value["beside"]:
            other = self.rows.table.row(kind, workers)
            self.timed_colocated[row, other, code[name]] = mine
            self.timed_colocated[other, row, code[name]] = its
        if "like" in value:
            self.like[row] = self.position[self.rows.table.row(*value["like"])]
            self.deviation[row] = value["deviation"]

    def plan(self, row: int) -> _ProfilePlan:
        if row not in self._plans:
            self._plans[row] = self._planned(row)
        return self._plans[row]

    def _planned(self, row: int) -> _ProfilePlan:
        profiled, keys, types = self.profiled, self.profiler.keys, len(self.types)
        kind, workers = keys[row]
        reference_keys = [keys[r] for r in self.reference_rows.tolist()]
        suits = [w == workers and not (profiled.leave_out and k == kind) for k, w in reference_keys]
        references = np.array(suits, dtype=np.bool_).nonzero()[0]
        rng = stream(profiled.seed, "profile", kind, workers)
        shared = bool((self.paired[np.ix_(references, references)] > 0).any())  # else no gang of this size is co-located
        columns = draw_columns(len(references) * types if shared else 0, profiled.share, rng)
        at_type, at_reference = columns // max(len(references), 1), columns % max(len(references), 1)
        alone = np.zeros(types, dtype=np.bool_)
        if profiled.alone == "profiled":
            alone[at_type] = True
            fits = self.profiler.fits()[row].nonzero()[0]
            alone[fits[draw_columns(len(fits), profiled.share, rng)]] = True
        others = self.reference_rows[references[at_reference]]
        return _ProfilePlan(references, columns, others, at_type, alone)

    def estimated(self) -> dict[str, Any]:
        alone, off, spread, spread_off = self._exclusive_estimate()
        colocated, colocated_off = self._colocated_estimate()
        timed, rate = ~np.isnan(self.timed_colocated), alone[:, None, :]
        part = np.divide(self.timed_colocated, rate, out=np.zeros_like(self.timed_colocated), where=timed & (rate > 0))
        noise = self.profiled.noise
        part, part_off = np.where(timed, part, colocated), np.where(timed, noise, colocated_off)
        estimate = PriorEstimate(alone, off, spread, spread_off, part, part_off)
        return estimate.with_observations(self.observed, noise, self.profiler)

    def _colocated_estimate(self) -> tuple[Floats, Floats]:
        """The fractions of rates under co-location and their uncertainty: of the closest references, or the mean of all."""
        prior, like = self.prior, self.like
        matched, count = like >= 0, len(like)
        colocated = np.repeat(prior.colocated[:, None, :], count, axis=1)
        colocated_off = np.repeat(prior.colocated_off[:, None, :], count, axis=1)
        if matched.any():
            one, two, both = np.maximum(like, 0)[:, None], np.maximum(like, 0)[None, :], matched[:, None] & matched[None, :]
            if self.profiled.leave_out:  # a reference must not be of the other job's kind: then the other's reference is used
                own = self.kind_of_row[self.reference_rows[one]] == self.kind_of_row[None, :]
                one, two, both = np.where(own, two, one), np.where(own.T, one, two), both & ~(own & own.T)
            theirs = colocated_fractions(self.alone, self.paired)[one, two]
            usable = both[:, :, None] & (theirs > 0)  # references that do not fit together say nothing about jobs that do
            colocated = np.where(usable, theirs, colocated)
            colocated_off = np.where(usable, self.deviation[:, None, None], colocated_off)
        return colocated, colocated_off

    def _exclusive_estimate(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Exclusive rates and their uncertainty, and the fractions of them for spread gangs and their uncertainty."""
        prior, mean, like = self.prior, self.observed.mean, self.like
        if self.profiled.alone == "known":
            alone, wide = self.profiler.exclusive_rates()
            part = np.divide(wide, alone, out=np.ones_like(alone), where=alone > 0)
            return alone, np.zeros(alone.shape), part, np.zeros(alone.shape)
        matched = like >= 0
        measured = np.where(np.isnan(mean[SPREAD]), self.timed, mean[SPREAD] / prior.spread)
        measured = np.where(np.isnan(mean[ALONE]), measured, mean[ALONE])
        speed, spread = prior.speed.copy(), prior.spread.copy()
        theirs_alone, theirs_spread = self.alone[like[matched]], self.spread[like[matched]]
        runs = theirs_alone > 0
        logs = np.log(np.where(runs, theirs_alone, 1.0))
        level = np.exp(logs.sum(axis=1, keepdims=True) / np.maximum(runs.sum(axis=1, keepdims=True), 1))
        speed[matched] = np.where(runs, theirs_alone / level, speed[matched])
        spread[matched] = np.where(runs, theirs_spread / np.where(runs, theirs_alone, 1.0), spread[matched])
        rates, known = from_speeds(measured, speed, prior.level)
        off = np.where(known[:, None], prior.speed_off, prior.level_off[:, None])
        return rates, np.where(np.isnan(measured), off, self.profiled.noise), spread, off


def _name(kind: str, workers: int) -> str:
    return f"{PROFILE}{kind}|{workers}"
