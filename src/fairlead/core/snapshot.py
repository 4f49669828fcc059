"""The state at one moment, read-only, as the stages see it. It is good for one decision: a column is gathered when first read,
and refuses once the state has moved on. `detached()` gives a value that lasts, for what-if and for other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import BackoffPeriod, Bools, Cluster, Drain, Floats, Ints
from fairlead.core.columns import ColumnStore, JobColumns
from fairlead.core.device_map import DeviceMap
from fairlead.core.errors import FairleadError
from fairlead.core.job import ELASTIC, NO_BLOCKED_JOBS, Adaptations, BlockedJobs, Job, Phase, Regime
from fairlead.core.plan import NO_OBSERVATIONS, ObservedValues, Rates
from fairlead.core.routes import NO_ROUTES, Routes

JobPairs: TypeAlias = frozenset[tuple[int, int]]
"""Pairs of jobs by number, the lower one first."""


def _no_jobs() -> JobColumns:
    return JobColumns(ColumnStore(0), np.empty(0, dtype=np.int64), 0.0)


@dataclass(frozen=True)
class NameTable:
    """What the codes in the columns stand for."""

    kinds: tuple[str, ...]
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """The input of a decision. `jobs` are admitted and live (waiting or running); `queued` are not admitted yet."""

    time: float
    cluster: Cluster
    jobs: JobColumns
    queued: JobColumns
    device_map: DeviceMap  # read it, do not write it
    present: Bools  # by accelerator: its node is there
    drained: Bools  # its node is drained
    up: Bools  # it may be used: there, not drained and not in back-off
    capacity: Ints  # accelerators that are up, by type
    names: NameTable
    job_of: Mapping[int, Job]  # by number
    next_number: int  # of the next job to be submitted
    history: Floats  # accelerator-seconds of the jobs that have finished, in order of their end
    run_to_completion: bool = False  # running jobs are never preempted
    first_step_s: float = 0.0  # a job is not preempted before its first step, for at most this long
    round_s: float = 0.0  # of the scheduler that decides; 0: at every event
    any_drained: bool = False
    backoffs: Mapping[int, BackoffPeriod] = field(default_factory=dict)  # nodes that get no jobs for now; they are not `up`
    drains: Mapping[int, Drain] = field(default_factory=dict)  # where a reason, user or time was given; also announced ones
    any_min_run: bool = False  # whether any job asked for a minimum uninterrupted run
    weighted: bool = True  # whether any job may have a weight other than 1
    estimate: Callable[[Snapshot], Rates] | None = field(default=None, compare=False)
    observations: ObservedValues = field(default_factory=lambda: NO_OBSERVATIONS)  # by the estimator
    observation_count: int = 0  # how often they changed
    predictions: Mapping[str, str] = field(default_factory=dict)  # by kind, what its most recent job with one carries
    group_sizes: Mapping[int, int] = field(default_factory=dict)  # by the group's code, how many came since it began
    completed_trials: JobColumns = field(default_factory=_no_jobs)  # jobs that did all their steps, of groups with live jobs
    adaptations: Adaptations = field(default_factory=Adaptations)  # how batch sizes have changed so far
    blocked: BlockedJobs = field(default_factory=lambda: NO_BLOCKED_JOBS)  # queued jobs that wait for others
    routes: Routes = field(default_factory=lambda: NO_ROUTES)  # of running jobs that serve requests
    held: Mapping[int, str] = field(default_factory=dict)  # jobs that a user holds; they are not in `queued`
    slow: frozenset[int] = frozenset()  # co-located jobs that the last decision found slower than they tolerate
    separated: JobPairs = frozenset()  # jobs that must not share a GPU
    kept_lost: tuple[Ints, Ints] | None = field(default=None, compare=False)  # `lost`, of a detached one

    @property
    def regimes(self) -> Mapping[int, tuple[Regime, ...]]:
        """By number, the regimes so far of jobs that report their batch size, the present one last."""
        return self.adaptations.regimes

    @property
    def elastic(self) -> Bools:
        """Which jobs may be given another number of workers than they asked for, and another batch size."""
        modes = (self.job_of[number].mode == ELASTIC for number in self.jobs.number.tolist())
        return np.fromiter(modes, np.bool_, len(self.jobs))

    @property
    def rates(self) -> Rates:
        """The estimator's throughputs, computed when a policy first reads them."""
        known = self.__dict__.get("_rates")
        if known is None:
            if self.estimate is None:
                raise FairleadError("this snapshot has no estimator; give the scheduler one")
            known = self.estimate(self)
            self.__dict__["_rates"] = known
        return known

    @property
    def protected(self) -> Bools | None:
        """Which running jobs must not be preempted for now; None: none."""
        if self.run_to_completion:
            return self.jobs.running
        if not self.any_min_run and not self.first_step_s:
            return None
        runners = self.jobs.runners
        young = self.time - runners.run_started_s < self._protected_s
        if not young.any():
            return None
        protected = np.zeros(len(self.jobs), dtype=np.bool_)
        protected[self.jobs.number.searchsorted(runners.number[young])] = True
        return protected

    @property
    def _protected_s(self) -> Floats:
        """How long after its start each running job is protected: until its first step is done. A simulated job has a rate
        already while it loads, from `since_s` on; a real job reports its rate after its first steps."""
        jobs = self.jobs.runners
        if not self.first_step_s:
            return jobs.min_run_s
        missing = np.clip(jobs.run_started_steps + 1.0 - jobs.base_steps, 0.0, 1.0)  # of that step, at the last report
        known = jobs.rate > 0
        first_s = jobs.since_s - jobs.run_started_s + missing / np.where(known, jobs.rate, 1.0)
        return np.maximum(jobs.min_run_s, np.minimum(np.where(known, first_s, np.inf), self.first_step_s))

    @property
    def protection_ends(self) -> float:
        """The first second at which a job that is protected now no longer is."""
        if self.run_to_completion or (not self.any_min_run and not self.first_step_s):
            return np.inf
        started, for_s = self.jobs.runners.run_started_s, self._protected_s
        return float((started + for_s)[self.time - started < for_s].min(initial=np.inf))

    @property
    def lost(self) -> tuple[Ints, Ints]:
        """All jobs that ended without finishing, and their phases; other jobs may depend on them."""
        if self.kept_lost is not None:
            return self.kept_lost
        phase = self.jobs.with_rows(np.arange(self.next_number)).phase
        lost = (phase > int(Phase.FINISHED)).nonzero()[0]
        return lost, phase[lost]

    def with_changes(self, **changes: object) -> Snapshot:
        """The same moment with some fields replaced: `dataclasses.replace` without its cost in every round."""
        other = object.__new__(Snapshot)
        other.__dict__.update(self.__dict__, _rates=None, **changes)
        return other

    def admitting(self, numbers: Ints, **changes: object) -> Snapshot:
        """The same moment with some of the queued jobs let in, and some fields replaced."""
        if not len(numbers):
            return self.with_changes(**changes) if changes else self
        rows = self.queued.rows
        left = rows[:0]
        if len(numbers) < len(rows):
            entering = np.isin(self.queued.number, numbers, assume_unique=True)
            rows, left = rows[entering], rows[~entering]
        mine = self.jobs.rows
        merged = np.concatenate((mine, rows))
        if len(mine) and len(rows) and mine[-1] > rows[0]:
            merged.sort()
        jobs = self.jobs.with_rows(merged, self.jobs.runners.rows)
        return self.with_changes(jobs=jobs, queued=self.queued.with_rows(left), **changes)

    def without(self, numbers: Ints) -> Snapshot:
        """The same moment without some of the jobs; a placement may give their accelerators away."""
        if not len(numbers):
            return self
        stay = ~np.isin(self.jobs.number, numbers)
        return self.with_changes(jobs=self.jobs.only(stay))

    def detached(self) -> Snapshot:
        """A copy that no later event touches and that can travel to another process (without its estimator)."""
        rows = np.sort(np.concatenate((self.jobs.rows, self.queued.rows, self.completed_trials.rows)))
        both = self.jobs.with_rows(rows).detached()  # in one store, so that a queued job can still be admitted
        parts = (self.jobs, self.queued, self.completed_trials)
        jobs, queued, through = (both.with_rows(rows.searchsorted(part.rows)) for part in parts)
        here = {*jobs.number.tolist(), *queued.number.tolist()}
        here |= {other for waits in self.blocked.values() for other in (*waits.unfinished, waits.lost)} & self.job_of.keys()
        return self.with_changes(
            jobs=jobs,
            queued=queued,
            device_map=self.device_map.copy(),
            present=self.present.copy(),
            drained=self.drained.copy(),
            up=self.up.copy(),
            capacity=self.capacity.copy(),
            history=self.history.copy(),
            job_of={number: self.job_of[number] for number in sorted(here)},
            group_sizes=dict(self.group_sizes),
            adaptations=self.adaptations.of(here),
            completed_trials=through,
            estimate=None,
            kept_lost=self.lost,
        )
