"""Gavel's throughput estimator (§3.3, §6): a new kind of job is measured a little, matched with the most similar reference job,
and taken to be like it in company:

    rate of i beside k on t  ≈  rate of i alone on t · p_r(i)(r(k), t),

where r(i) is the closest reference of i and p_r(q, t) the part of its rate that reference r keeps beside q (`fingerprint.py`).
What was measured, in the profile or while jobs run, takes the estimate's place. It knows the references' rates and what was
measured, through the `Profiler`, and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.core.plan import Observations, ObservedValues, Rates
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import (
    ALONE,
    SPREAD,
    Followed,
    Observed,
    Observer,
    Profiler,
    RateTable,
    Rows,
    check_references,
    reference_rows,
)
from fairlead.estimators.matching import closest, drawn, parts
from fairlead.estimators.prior import Estimates, Guess, check_measuring, from_speeds, prior_of

WHERE = "estimator profiled"
PROFILE = "profile "
"""How the names of these facts begin."""


@dataclass(frozen=True)
class Profiled:
    """A new kind of job is measured in a part of its combinations and taken to be like the closest reference job.

    A random `share` of its combinations with reference jobs is timed, `profile_s` each, on `accelerators` of each type that are
    set aside for it (they are no part of the cluster); kinds are profiled one after the other, and until then company is
    thought to leave the mean over the references. `references` are all kinds, those named, or a part drawn at random;
    `leave_out`: a job's own kind is no reference for it, nor for who runs beside it. Completion has rank `rank` and
    regularisation `penalty`. Rates alone are `known`, or `profiled` too: timed on the types that the profile visits. Then
    measurements of running jobs come in as in `online`.
    """

    paper: ClassVar[str] = "Gavel §6, Figures 8 and 16 (Narayanan et al., OSDI'20)"
    table: RateTable = field(repr=False)
    share: float = 0.2
    references: tuple[str, ...] | float | None = None
    leave_out: bool = False
    alone: Literal["known", "profiled"] = "known"
    accelerators: int = 1
    profile_s: float = 60.0
    rank: int = 10
    penalty: float = 1e-2
    noise: float = 0.0
    measurements: int = 1
    seed: int = 0
    _kept: dict[str, _Kept] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_measuring(WHERE, self.noise, self.measurements)
        if not 0 < self.share <= 1:
            raise InputError(WHERE, "a part above 0 and up to 1", field="share", value=self.share)
        if not 0 <= self.profile_s < math.inf:
            raise InputError(WHERE, "seconds from 0 on", field="profile_s", value=self.profile_s)
        if self.accelerators < 1:
            raise InputError(WHERE, "at least 1", field="accelerators", value=self.accelerators)
        if self.rank < 1:
            raise InputError(WHERE, "at least 1", field="rank", value=self.rank)
        if not 0 < self.penalty < math.inf:
            raise InputError(WHERE, "a number above 0", field="penalty", value=self.penalty)
        check_references(WHERE, self.references)

    def observe(self, view: Snapshot) -> Observations:
        kept = self._cache(view)
        kept.follow(view.observations)
        observer = Observer(self.measurements, self.noise, self.seed, alone=self.alone == "profiled")
        seen = observer.look(view, kept.rows, kept.observed)
        facts, ready_s = self._profile(view, kept)
        return Observations({**facts, **seen.values} if facts else seen.values, min(ready_s, seen.valid_until))

    def rates(self, view: Snapshot) -> Rates:
        kept = self._cache(view)
        kept.follow(view.observations)
        version = (kept.observed.version, kept.version)
        if kept.estimates is None or kept.made_of != version:
            kept.estimates, kept.made_of = kept.estimated(), version
        return kept.estimates.rates(kept.rows.of(view.jobs, view.names))

    def _cache(self, view: Snapshot) -> _Kept:
        if "" not in self._kept:
            self._kept[""] = _Kept(self, view.cluster.type_names)
        return self._kept[""]

    # Profiling.

    def _profile(self, view: Snapshot, kept: _Kept) -> tuple[dict[str, Any], float]:
        """Profiles that begin and profiles that are done, and when the next one will be done."""
        facts: dict[str, Any] = {}
        pending = dict(kept.pending)
        here = [kept.rows.of(jobs, view.names) for jobs in (view.jobs, view.queued)]
        new = [rows[~kept.begun[rows]] for rows in here]
        if len(new[0]) or len(new[1]):
            free_s = max(view.time, kept.busy_until_s)
            for row in dict.fromkeys(np.concatenate(new).tolist()):
                free_s = free_s + self._takes_s(kept, row)
                pending[row] = free_s
                kind, workers = kept.profiler.keys[row]
                facts[_name(kind, workers)] = {"of": [kind, workers], "ready_s": free_s}
        for row, ready_s in list(pending.items()):
            if ready_s <= view.time:
                del pending[row]
                kind, workers = kept.profiler.keys[row]
                facts[_name(kind, workers)] = {"of": [kind, workers], "ready_s": ready_s, **self._measured(kept, row)}
        return facts, min(pending.values(), default=math.inf)

    def _takes_s(self, kept: _Kept, row: int) -> float:
        plan = kept.plan(row)
        runs = np.bincount(plan.types, minlength=kept.profiler.types) + plan.timed_alone
        return float(np.ceil(runs / self.accelerators).max()) * self.profile_s

    def _measured(self, kept: _Kept, row: int) -> dict[str, Any]:
        """The profile of a kind as a fact: what was timed, and the reference that it is most like."""
        profiler, plan = kept.profiler, kept.plan(row)
        fits, (known_alone, _) = profiler.fits()[row], profiler.known_alone()
        types = (plan.timed_alone & fits).nonzero()[0].tolist()
        timed = {t: profiler.alone(row, t) for t in types} if self.alone == "profiled" else {}
        fact: dict[str, Any] = {"alone": [[kept.types[t], rate] for t, rate in timed.items()]}
        beside: list[list[Any]] = []
        columns = np.full(len(plan.references) * profiler.types, np.nan)
        for mate, type_, column in zip(plan.mates.tolist(), plan.types.tolist(), plan.columns.tolist()):
            mine, its = profiler.beside(row, mate, type_) if fits[type_] else (0.0, 0.0)
            alone = timed.get(type_, 0.0) if self.alone == "profiled" else float(known_alone[row, type_])
            columns[column] = min(mine / alone, 1.0) if alone > 0 else 0.0
            beside.append([*profiler.keys[mate], kept.types[type_], mine, its])
        fact["beside"] = beside
        if len(plan.columns):
            known = parts(kept.alone[plan.references], kept.paired[np.ix_(plan.references, plan.references)])
            rng = stream(self.seed, "completion", *profiler.keys[row])
            flat = known.transpose(0, 2, 1).reshape(len(known), -1)
            match = closest(flat, columns, self.rank, self.penalty, rng)
            fact["like"] = list(profiler.keys[int(kept.reference_rows[plan.references[match.like]])])
            fact["distance"], fact["deviation"] = match.distance, match.deviation
        return fact


@dataclass(frozen=True)
class _Plan:
    """What of a kind is to be timed. It says nothing about the outcome."""

    references: Ints  # positions among the references: same gang size, own kind left out where that is wanted
    columns: Ints  # type × reference, flat
    mates: Ints  # the rows of the references, and
    types: Ints  # the types, of these columns
    timed_alone: Bools  # by type


class _Kept(Followed):
    """What follows from the parameters, and from the facts that were seen last."""

    begins = PROFILE

    def __init__(self, profiled: Profiled, types: tuple[str, ...]) -> None:
        self.profiled, self.types = profiled, types
        self.rows = Rows(profiled.table)
        self.profiler = Profiler(profiled.table, profiled.noise, profiled.seed)
        self.observed = Observed(self.rows, types)
        self.reference_rows = reference_rows(profiled.table.keys, profiled.references, profiled.seed, WHERE)
        self.alone, self.spread, self.paired = self.profiler.in_full(self.reference_rows)
        self.prior = prior_of(self.profiler, self.reference_rows, leave_out=profiled.leave_out)
        self.kind_of_row: Ints = np.unique([kind for kind, _ in profiled.table.keys], return_inverse=True)[1]
        self.position = {int(row): position for position, row in enumerate(self.reference_rows.tolist())}
        self.estimates: Estimates | None = None
        self.made_of: tuple[int, int] = (-1, -1)
        self.version = 0
        self._plans: dict[int, _Plan] = {}
        super().__init__()

    # The facts.

    def _forget(self) -> None:
        rows, types = len(self.profiler.keys), len(self.types)
        self.version += 1
        self.begun: Bools = np.array([kind == TIMED for kind, _ in self.profiler.keys])
        self.busy_until_s = -math.inf
        self.pending: dict[int, float] = {}
        self.like: Ints = np.full(rows, -1, dtype=np.int64)  # position among the references
        self.deviation: Floats = np.full(rows, 1.0)
        self.timed: Floats = np.full((rows, types), np.nan)  # alone
        self.timed_beside: Floats = np.full((rows, rows, types), np.nan)

    def follow(self, facts: ObservedValues) -> None:
        self.observed.follow(facts)
        super().follow(facts)

    def _take(self, fact: ObservedValues) -> None:
        row = self.rows.table.row(*fact["of"])
        self.begun[row] = True
        self.busy_until_s = max(self.busy_until_s, fact["ready_s"])
        if "beside" not in fact:
            self.pending[row] = fact["ready_s"]
            return
        self.pending.pop(row, None)
        self.version += 1
        code = {name: type_ for type_, name in enumerate(self.types)}
        for name, rate in fact["alone"]:
            self.timed[row, code[name]] = rate
        for kind, workers, name, mine, its in fact["beside"]:
            mate = self.rows.table.row(kind, workers)
            self.timed_beside[row, mate, code[name]] = mine
            self.timed_beside[mate, row, code[name]] = its
        if "like" in fact:
            self.like[row] = self.position[self.rows.table.row(*fact["like"])]
            self.deviation[row] = fact["deviation"]

    # What is to be measured.

    def plan(self, row: int) -> _Plan:
        if row not in self._plans:
            self._plans[row] = self._planned(row)
        return self._plans[row]

    def _planned(self, row: int) -> _Plan:
        profiled, keys, types = self.profiled, self.profiler.keys, len(self.types)
        kind, workers = keys[row]
        told = [keys[r] for r in self.reference_rows.tolist()]
        suits = [w == workers and not (profiled.leave_out and k == kind) for k, w in told]
        references = np.array(suits, dtype=np.bool_).nonzero()[0]
        rng = stream(profiled.seed, "profile", kind, workers)
        shared = bool((self.paired[np.ix_(references, references)] > 0).any())  # else nobody of this size has company
        columns = drawn(len(references) * types if shared else 0, profiled.share, rng)
        at_type, at_reference = columns // max(len(references), 1), columns % max(len(references), 1)
        alone = np.zeros(types, dtype=np.bool_)
        if profiled.alone == "profiled":
            alone[at_type] = True
            fits = self.profiler.fits()[row].nonzero()[0]
            alone[fits[drawn(len(fits), profiled.share, rng)]] = True
        mates = self.reference_rows[references[at_reference]]
        return _Plan(references, columns, mates, at_type, alone)

    # What is thought.

    def estimated(self) -> Estimates:
        alone, off, spread, spread_off = self._thought_alone()
        company, company_off = self._thought_company()
        timed, rate = ~np.isnan(self.timed_beside), alone[:, None, :]
        part = np.divide(self.timed_beside, rate, out=np.zeros_like(self.timed_beside), where=timed & (rate > 0))
        noise = self.profiled.noise
        guess = Guess(alone, off, spread, spread_off, np.where(timed, part, company), np.where(timed, noise, company_off))
        return guess.sharpened(self.observed, noise, self.profiler.fits(), self.profiler.fit_together())

    def _thought_company(self) -> tuple[Floats, Floats]:
        """What company leaves of rates, and its uncertainty: as of the closest references, or of all in the mean."""
        prior, like = self.prior, self.like
        matched, count = like >= 0, len(like)
        company = np.repeat(prior.company[:, None, :], count, axis=1)
        company_off = np.repeat(prior.company_off[:, None, :], count, axis=1)
        if matched.any():
            one, two, both = np.maximum(like, 0)[:, None], np.maximum(like, 0)[None, :], matched[:, None] & matched[None, :]
            if self.profiled.leave_out:  # who stands for a job must not be the other's own kind: then the other's own does
                own = self.kind_of_row[self.reference_rows[one]] == self.kind_of_row[None, :]
                one, two, both = np.where(own, two, one), np.where(own.T, one, two), both & ~(own & own.T)
            theirs = parts(self.alone, self.paired)[one, two]
            tells = both[:, :, None] & (theirs > 0)  # references that do not fit together tell nothing about who does
            company = np.where(tells, theirs, company)
            company_off = np.where(tells, self.deviation[:, None, None], company_off)
        return company, company_off

    def _thought_alone(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Rates alone, their uncertainty, what is left of them where a gang is spread, and the uncertainty of that."""
        prior, seen, like = self.prior, self.observed.mean, self.like
        if self.profiled.alone == "known":
            alone, wide = self.profiler.known_alone()
            part = np.divide(wide, alone, out=np.ones_like(alone), where=alone > 0)
            return alone, np.zeros(alone.shape), part, np.zeros(alone.shape)
        matched = like >= 0
        measured = np.where(np.isnan(seen[SPREAD]), self.timed, seen[SPREAD] / prior.spread)
        measured = np.where(np.isnan(seen[ALONE]), measured, seen[ALONE])
        speed, spread = prior.speed.copy(), prior.spread.copy()
        theirs_alone, theirs_spread = self.alone[like[matched]], self.spread[like[matched]]
        runs = theirs_alone > 0
        logs = np.log(np.where(runs, theirs_alone, 1.0))
        level = np.exp(logs.sum(axis=1, keepdims=True) / np.maximum(runs.sum(axis=1, keepdims=True), 1))
        speed[matched] = np.where(runs, theirs_alone / level, speed[matched])
        spread[matched] = np.where(runs, theirs_spread / np.where(runs, theirs_alone, 1.0), spread[matched])
        rates, told = from_speeds(measured, speed, prior.level)
        thought = np.where(told[:, None], prior.speed_off, prior.level_off[:, None])
        return rates, np.where(np.isnan(measured), thought, self.profiled.noise), spread, thought


def _name(kind: str, workers: int) -> str:
    return f"{PROFILE}{kind}|{workers}"
