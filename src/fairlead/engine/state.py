"""The state of a cluster and its jobs. It changes by `apply(event)` only, and knows no clock, no I/O and no decisions.
Replaying the same events gives the same state; recovery and what-if build on this."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.core import events as ev
from fairlead.core.cluster import BackoffPeriod, Bools, Cluster, Drain, Floats, Ints
from fairlead.core.columns import ALL_COLUMNS, ColumnStore, JobColumns
from fairlead.core.device_map import NONE, DeviceMap
from fairlead.core.job import NO_BLOCKED_JOBS, Adaptations, BlockedJobs, EndedRun, Failure, Job, Phase, blocked_by, flags_of
from fairlead.core.plan import NO_OBSERVATIONS, ObservedValues
from fairlead.core.reasons import Reason
from fairlead.core.routes import NO_ROUTES, Routes
from fairlead.core.snapshot import NameTable, Snapshot
from fairlead.engine.codec import encode_memo
from fairlead.engine.fairness_ledger import FairnessLedger
from fairlead.engine.interference_monitor import InterferenceRecord

MAX_OUTAGES, MAX_FORECASTS = 1000, 2000
CODED_COLUMNS = ("kind", "user", "account", "group")  # columns of codes for names


@dataclass
class Groups:
    """Groups of jobs, by their codes. A group exists while one of its jobs is queued or live; a later job of its name
    starts a new group."""

    sizes: dict[int, int] = field(default_factory=dict)  # jobs submitted
    since: dict[int, int] = field(default_factory=dict)  # the number of the first of them
    alive: dict[int, int] = field(default_factory=dict)  # how many have not ended
    completed_trials: dict[int, set[int]] = field(default_factory=dict)  # did all their steps; of groups with live jobs

    def enter(self, group: int, number: int) -> None:
        if not self.alive.get(group):
            self.sizes[group], self.since[group], self.alive[group] = 0, number, 0
        self.sizes[group] += 1
        self.alive[group] += 1

    def leave(self, group: int, number: int, *, whole: bool) -> None:
        """A job ends, with all its steps or without."""
        if group not in self.alive:
            return  # it is in no group
        self.alive[group] -= 1
        if not self.alive[group]:
            self.completed_trials.pop(group, None)
        elif whole:
            self.completed_trials.setdefault(group, set()).add(number)

    def enter_again(self, group: int, completed: set[int]) -> None:
        """A job of a group that had ended is queued again; `completed` are the others of the group that did all their steps."""
        if group in self.alive:
            self.alive[group] += 1
            self.completed_trials[group] = completed
            if not completed:
                del self.completed_trials[group]

    @property
    def all_completed(self) -> list[int]:
        return sorted(number for numbers in self.completed_trials.values() for number in numbers)


class State:
    """The state: columns by job number, the device map, and what else events determine.

    Build one with `State(cluster)`, from a journal's events with `replay_events`, or from a snapshot."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.time = 0.0
        self.store = ColumnStore()
        self.device_map = DeviceMap(cluster.size)
        self.job_of: dict[int, Job] = {}
        self.next_number = 0
        self._template: Snapshot | None = None  # what snapshots have in common, until it changes
        self.drains: dict[int, Drain] = {}  # where a reason, a user or a time was given; also announced ones
        self.node_changes = 0  # nodes added and removed since the journal began
        self.lost_since: dict[int, float] = {}  # nodes that were lost and are not repaired; forecasts use these two
        self.forecasts: list[tuple[float, ...]] = []  # time, job, columns, factors; the most recent `MAX_FORECASTS`
        self.outages: list[tuple[float, float]] = []  # when nodes were lost and repaired, the most recent `MAX_OUTAGES`
        present = np.repeat(np.array([not node.removed for node in cluster.nodes], dtype=np.bool_), cluster.node_size)
        self.set_availability(present, np.zeros(cluster.size, dtype=np.bool_), {})
        self.live: Ints = NONE  # waiting or running, by number
        self.running: Ints = NONE  # running ones, by number
        self._queue: Ints = NONE  # not admitted yet, by number
        # Accelerator-seconds of past launches; time on a shared accelerator counts once.
        self.service_by_type: Floats = np.zeros(len(cluster.types))
        self._arrived: list[int] = []  # the most recent of them, not yet in the array
        self.memo: ev.Memo = None
        self.observations: ObservedValues = NO_OBSERVATIONS  # by estimators; a new mapping at every change
        self.observation_count = 0  # how often they changed
        self.predictions: Mapping[str, str] = {}  # by kind, of its most recent job that has one; a new mapping at every change
        self.routes: Routes = NO_ROUTES  # of jobs that serve requests; a new mapping at every change
        self.scheduler: Mapping[str, object] = {}
        self.interference = InterferenceRecord()
        self.held: dict[int, str] = {}  # by number, queued jobs that are not admitted, and the users who hold them
        self.reported_steps: dict[int, float] = {}  # of finished jobs that reported fewer steps than they declared
        self.lost_work: dict[int, tuple[float, int]] = {}  # seconds that a job ran for nothing, and in how many preemptions
        self.refusals: dict[int, Reason] = {}
        self.last_failure: dict[int, Failure] = {}  # of failed jobs, and of jobs that are retried
        self.ended_runs: dict[int, tuple[EndedRun, ...]] = {}  # of requeued jobs, oldest first
        self.rerun_started_s: dict[int, float] = {}  # when a requeued job first started again
        self.journal, self.origin = "", 0.0  # its name, and the Unix time of second 0, where it has them
        self.any_min_run, self.weighted = False, False
        self.has_launch_overrides = False  # whether a plan has set a job's batch size, CPUs or memory
        self.groups = Groups()
        self.adaptations = Adaptations()
        self.dependents: list[int] = []  # queued jobs that depend on other jobs
        self._codes: dict[str, dict[str, int]] = {name: {} for name in CODED_COLUMNS}
        self._names = NameTable((), (), (), ())
        self._signature_columns: dict[tuple[Any, ...], tuple[int, ...]] = {}  # codes and types
        self._history: Floats = np.zeros(256)
        self._finished_count = 0
        self.ledger: FairnessLedger | None = None  # of a cluster's journal; simulations have none

    @classmethod
    def from_snapshot(cls, view: Snapshot, memo: ev.Memo = None) -> State:
        """Return a state that continues from a snapshot of another: its live jobs, under the same numbers."""
        state = cls(view.cluster)
        state.memo = memo
        state.time, state.any_min_run, state.weighted = view.time, view.any_min_run, view.weighted
        state.has_launch_overrides = True
        state.drains = dict(view.drains)
        state.set_availability(view.present.copy(), view.drained.copy(), view.backoffs)
        state.observations, state.observation_count, state.routes = view.observations, view.observation_count, view.routes
        state.predictions = view.predictions
        numbers = np.concatenate((view.jobs.number, view.queued.number))
        state.next_number = view.next_number
        state.store.reserve(state.next_number)
        state.store.arrays["phase"][: state.next_number] = int(Phase.FINISHED)  # jobs that are not in the view
        state.store.arrays["phase"][view.lost[0]] = view.lost[1]
        state.store.arrays["phase"][list(view.held)] = int(Phase.QUEUED)  # jobs that depend on them wait
        state.held = dict(view.held)
        state.interference = InterferenceRecord(dict.fromkeys(view.slow, (view.time, 0.0)), view.separated)
        for columns in (view.jobs, view.queued, view.completed_trials):
            for name in ALL_COLUMNS:
                state.store.arrays[name][columns.number] = getattr(columns, name)
            for name in columns.metrics:
                state.store.metric(name)[columns.number] = columns.metric(name)
        state.groups.sizes = dict(view.group_sizes)
        state.groups.since = dict.fromkeys(view.group_sizes, 0)
        alive = Counter((*view.jobs.group.tolist(), *view.queued.group.tolist()))
        state.groups.alive = {group: alive[group] for group in view.group_sizes}
        for group, number in zip(view.completed_trials.group.tolist(), view.completed_trials.number.tolist()):
            state.groups.completed_trials.setdefault(group, set()).add(number)
        state.dependents = [number for number in view.queued.number.tolist() if view.job_of[number].after]
        state.live, state._queue = view.jobs.number.copy(), view.queued.number.copy()
        state.running = view.jobs.runners.number.copy()
        state.job_of = {number: view.job_of[number] for number in sorted(numbers.tolist())}
        state.adaptations = view.adaptations.of(state.job_of)
        state.device_map = view.device_map.copy()
        state.device_map.reserve(state.next_number)
        state.add_history(view.history)
        state._names = view.names
        codes = (view.names.kinds, view.names.users, view.names.accounts, view.names.groups)
        state._codes = {column: {name: code for code, name in enumerate(known)} for column, known in zip(state._codes, codes)}
        return state

    def snapshot(
        self, time: float | None = None, *, run_to_completion: bool = False, first_step_s: float = 0.0, round_s: float = 0.0
    ) -> Snapshot:
        """The state as the stages see it, at a moment not before the last event."""
        now = self.time if time is None else time
        if self._template is None:
            self._template = self._make_template()
        view = self._template.with_changes(
            time=now,
            jobs=JobColumns(self.store, self.live, now, self.running),
            queued=JobColumns(self.store, self.eligible, now),
            next_number=self.next_number,
            history=self._history[: self._finished_count],
            run_to_completion=run_to_completion,
            first_step_s=first_step_s,
            round_s=round_s,
        )
        if self.groups.completed_trials or self.dependents:
            through = self._through(now) if self.groups.completed_trials else view.completed_trials
            return view.with_changes(completed_trials=through, blocked=self._blocked() if self.dependents else NO_BLOCKED_JOBS)
        return view

    def _make_template(self) -> Snapshot:
        """A snapshot without jobs: what they have in common."""
        none = JobColumns(self.store, NONE, 0.0)
        return Snapshot(
            0.0,
            self.cluster,
            none,
            none,
            self.device_map,
            self.present,
            self.drained,
            self.up,
            self.capacity,
            self._names,
            self.job_of,
            self.next_number,
            self._history,
            any_drained=self.any_drained,
            backoffs=self.backoffs,
            drains=dict(self.drains),
            any_min_run=self.any_min_run,
            weighted=self.weighted,
            observations=self.observations,
            observation_count=self.observation_count,
            predictions=self.predictions,
            group_sizes=self.groups.sizes,
            adaptations=self.adaptations,
            routes=self.routes,
            held=dict(self.held),
            slow=frozenset(self.interference.slow),
            separated=self.interference.separated,
        )

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns by name, read-only, a row for each job number; an event may replace them."""
        return self.store.columns

    def assume(self, number: int, *, steps: float, min_run_s: float) -> None:
        """Give a job other values than it declared, for a simulation from this state; no journal has that."""
        self.job_of[number] = replace(self.job_of[number], steps=steps, min_run_s=min_run_s)
        self.store.arrays["steps"][number], self.store.arrays["min_run_s"][number] = steps, min_run_s

    def uncounted_s(self, number: int) -> float:
        """Return the run time of a job before its last requeue, which does not count towards its time limit."""
        if runs := self.ended_runs.get(number):
            return runs[-1].run_s
        limit_s = self.job_of[number].time_limit_s  # snapshots of earlier versions have no ended runs, only a later limit
        return float(self.store.arrays["time_limit_s"][number]) - limit_s if limit_s < math.inf else 0.0

    def all_jobs(self) -> JobColumns:
        """All jobs, in order of submission."""
        return JobColumns(self.store, np.array(sorted(self.job_of), dtype=np.int64), self.time)

    @property
    def queue(self) -> Ints:
        """Jobs that are not admitted yet, by number."""
        if self._arrived:
            arrived = np.array(self._arrived, dtype=np.int64)
            self._queue = np.concatenate((self._queue, arrived)) if len(self._queue) else arrived
            self._arrived.clear()
        return self._queue

    @property
    def eligible(self) -> Ints:
        """Queued jobs that are not held."""
        return self.queue[~np.isin(self.queue, list(self.held))] if self.held else self.queue

    @property
    def busy(self) -> bool:
        """Whether a job runs or may run; a held job may not."""
        return bool(len(self.live) or len(self.eligible))

    def digest(self) -> str:
        """Return a fingerprint of all that events determine, without the ledger; equal states have equal ones."""
        digest = hashlib.blake2b(digest_size=16)
        for name in ALL_COLUMNS:
            digest.update(np.ascontiguousarray(self.store.arrays[name][: self.next_number]).tobytes())
        for metric in sorted(self.store.metrics):
            digest.update(metric.encode() + self.store.metrics[metric][: self.next_number].tobytes())
        last = self.device_map.last[: self.next_number]
        history, services = self._history[: self._finished_count], self.service_by_type
        parts = (self.up, self.capacity, self.device_map.occupancy, last, self.live, self.queue, history, services)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        large = (self.store.arrays["held"][: self.next_number] > 1).nonzero()[0].tolist()
        gangs = [(number, self.device_map.of(number).tolist()) for number in large]
        digest.update(repr((float(self.time), gangs, sorted(self.job_of.items()), sorted(self.refusals), self._codes)).encode())
        digest.update(encode_memo(self.memo) + encode_memo(self.scheduler))
        if self.any_drained:
            digest.update(self.present.tobytes() + self.drained.tobytes())
        if self.node_changes:
            values = [value for node in self.cluster.nodes for value in astuple(node)]
            values += [value for type_ in self.cluster.types for value in astuple(type_)]
            same = [float(value) if isinstance(value, int | float) else value for value in values]  # 16 is 16.0 in a journal
            digest.update(repr((self.node_changes, same)).encode())
        if self.drains:
            digest.update(repr(sorted(self.drains.items())).encode())
        if self.forecasts:  # but not the outages: saved states of earlier versions lack them
            digest.update(repr(self.forecasts).encode())
        if self.interference:
            digest.update(repr(self.interference.to_data()).encode())
        if self.backoffs:
            digest.update(repr(sorted(self.backoffs.items())).encode())
        if self.held:
            digest.update(repr(sorted(self.held.items())).encode())
        if self.journal:
            digest.update(self.journal.encode())
        if self.adaptations:
            digest.update(encode_memo(self.adaptations.to_data()))
        if self.groups.since:
            digest.update(repr(sorted(self.groups.since.items())).encode())
        if self.observations:
            digest.update(encode_memo({"observation_count": self.observation_count, "values": self.observations}))
        if self.routes:
            digest.update(repr(sorted((number, route) for number, route in self.routes.items())).encode())
        return digest.hexdigest()

    def flags(self) -> dict[int, tuple[str, ...]]:
        """By number, how jobs departed from their declarations."""
        every = self.all_jobs()
        planned = {number for number, job in self.job_of.items() if job.schedule}
        suspects = {*every.number[every.overran].tolist(), *self.adaptations.regimes, *planned}
        columns = (every.overran, every.steps_done, every.phase > Phase.RUNNING)
        over, done, ended = (dict(zip(every.number.tolist(), column.tolist())) for column in columns)
        regimes = self.adaptations.regimes
        found = {n: flags_of(self.job_of[n], regimes.get(n, ()), over[n], done[n], ended=ended[n]) for n in sorted(suspects)}
        return {number: flags for number, flags in found.items() if flags}

    def set_availability(self, present: Bools, drained: Bools, backoffs: Mapping[int, BackoffPeriod]) -> None:
        """Set which accelerators are there, which are drained, and which nodes are in back-off; the others may be used."""
        self.present, self.drained, self.backoffs, self.up = present, drained, dict(backoffs), present & ~drained
        if backoffs:
            self.up &= ~np.isin(self.cluster.node_of, list(backoffs))
        self.any_drained = bool(drained.any())
        self._template = None
        self.capacity: Ints = np.bincount(self.cluster.type_of[self.up], minlength=len(self.cluster.types)).astype(np.int64)
        for column in (self.present, self.drained, self.up, self.capacity):  # snapshots hand them out as they are
            column.setflags(write=False)

    def _blocked(self) -> BlockedJobs:
        phase = self.store.arrays["phase"]
        waiting = [number for number in self.dependents if number not in self.held]
        found = {n: blocked_by(self.job_of[n].after, lambda other: Phase(int(phase[other]))) for n in waiting}
        return {number: waits for number, waits in found.items() if waits is not None}

    def _through(self, now: float) -> JobColumns:
        return JobColumns(self.store, np.array(self.groups.all_completed, dtype=np.int64), now)

    def add_history(self, services: Floats) -> None:
        end = self._finished_count + len(services)
        if end > len(self._history):
            self._history = np.concatenate((self._history, np.zeros(max(end, len(self._history)))))
        self._history[self._finished_count : end] = services
        self._finished_count = end
