"""The jobs of a simulated cluster as columns by job number, and the state of jobs whose speed changes while they run.

This module stores jobs. It does not launch them and knows no plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.device_map import DeviceMap
from fairlead.core.errors import FairleadError
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.simulator.costs import Costs
from fairlead.workloads.dynamics import JobDynamics, RunConditions
from fairlead.workloads.throughput_tables import ThroughputTable


class DynamicsTracker:
    """The jobs that have `JobDynamics`, by number: when their speed changes next, and what they have not reported yet."""

    def __init__(self, dynamics: Mapping[str, JobDynamics]) -> None:
        self._by_name = dynamics
        self._of: dict[int, JobDynamics] = {}
        self._declared: dict[int, float] = {}
        self._assigned: dict[int, tuple[int, float, float]] = {}
        self._pending: dict[int, dict[str, float]] = {}  # reports to send
        self._reported: dict[tuple[int, str], float] = {}  # last reported value
        self._until: dict[int, float] = {}  # the step at which the speed changes next
        self._change_s: dict[int, float] = {}  # the same in seconds, of running jobs

    def __contains__(self, number: int) -> bool:
        return number in self._of

    @property
    def next_change_s(self) -> float:
        """The first second at which the speed of a job changes by itself."""
        return min(self._change_s.values()) if self._change_s else math.inf

    def changing_by(self, when: float) -> Ints:
        """The jobs whose speed changes up to that second."""
        return np.array(sorted(number for number, second in self._change_s.items() if second <= when), dtype=np.int64)

    def add(self, jobs: Mapping[int, Job], steps: Floats) -> bool:
        """Write the steps that jobs with dynamics really run into `steps`; return whether any job so far has dynamics."""
        for number, job in jobs.items() if self._by_name else ():
            if (job_dynamics := self._by_name.get(job.name)) is not None:
                self._of[number], self._declared[number] = job_dynamics, job.steps
                steps[number] = job_dynamics.work(job.steps)
        return bool(self._of)

    def restore_reports(self, numbers: Ints, name: str, values: Floats) -> None:
        """Mark values as already reported before the simulation began; NaN means that nothing was reported."""
        before = zip(numbers.tolist(), values.tolist())
        self._reported.update(((number, name), value) for number, value in before if value == value and number in self._of)

    def assign(self, number: int, batch_size: int, cpus: float, memory_gb: float) -> None:
        """Note what a plan gives a job: a batch size (0: its own), CPUs and GB for each worker (0: its node's share)."""
        self._assigned[number] = (batch_size, cpus, memory_gb)

    def assigned(self, number: int) -> tuple[int, float, float]:
        """What the last plan gave the job."""
        return self._assigned.get(number, (0, 0.0, 0.0))

    def rate(self, number: int, job: Job, conditions: RunConditions) -> float:
        """Steps per second under these conditions."""
        steps, declared = conditions.steps, self._declared[number]
        speed = self._of[number].speed(conditions)
        if not speed.until > steps:
            raise FairleadError(
                f"the dynamics of job {job.name!r} must give a speed that lasts beyond step {steps:g}, not to {speed.until:g}"
            )
        pending = self._pending.setdefault(number, {})
        if speed.batch_size:
            pending[BATCH_SIZE] = float(speed.batch_size)
        pending.update(speed.reports)
        # A job that overruns its declared steps reports this: a change of speed that changes nothing else.
        self._until[number] = min(speed.until, declared) if steps < declared else speed.until
        return speed.rate

    def schedule_changes(self, jobs: Ints, base: Floats, since: Floats, rate: Floats, work: Floats) -> None:
        """Compute when the speeds of these jobs change at their present rates."""
        for number, done, second, speed, end in zip(*(part.tolist() for part in (jobs, base, since, rate, work))):
            if number in self._of:
                until = self._until[number]
                self._change_s[number] = second + (until - done) / speed if until < end else math.inf

    def exact_steps(self, jobs: Ints, steps: Floats, now: float) -> Floats:
        """The steps of these jobs; where a speed changes now, exactly the step of that change."""
        for index, number in enumerate(jobs.tolist()):
            if self._change_s.get(number, math.inf) <= now:
                steps[index] = self._until[number]
        return steps

    def stop(self, jobs: Ints) -> None:
        """Forget the next change of jobs that no longer run."""
        for number in jobs.tolist():
            self._change_s.pop(number, None)

    def overrunning(self, jobs: Ints) -> Ints:
        """Those of the jobs that run more steps than they declared."""
        over = [n for n in jobs.tolist() if n in self._of and self._of[n].work(self._declared[n]) > self._declared[n]]
        return np.array(over, dtype=np.int64)

    def new_reports(self, jobs: Ints, now: float) -> list[ev.Event]:
        """Batch sizes and other metrics of these jobs that changed since they were last reported."""
        changed: dict[str, dict[int, float]] = {BATCH_SIZE: {}}
        for number in jobs.tolist():
            for name, value in self._pending.pop(number, {}).items():
                if self._reported.get((number, name)) != value:
                    self._reported[number, name] = changed.setdefault(name, {})[number] = value
        return [
            ev.MetricsReported(now, name, np.array(list(by_job), dtype=np.int64), np.array(list(by_job.values())))
            for name, by_job in changed.items()
            if by_job
        ]


_FIXED = ("steps", "limit", "launch", "restart", "save", "save_every")  # set when a job is added
_CHANGING = ("base", "rate", "since", "began", "run_started", "ran", "saved", "saved_at")
"""`began`: when a running job had loaded and made progress. `saved`: its steps at the last save, at second `saved_at`."""


class JobTable:
    """Columns of the jobs that have been submitted or will be. `ends` is the second at which a running job ends by itself;
    for other jobs it is infinity."""

    def __init__(
        self,
        cluster: Cluster,
        table: ThroughputTable,
        costs: Costs,
        capacity: int = 256,
        dynamics: Mapping[str, JobDynamics] | None = None,
    ) -> None:
        self.cluster, self.costs = cluster, costs
        self.table = table.for_types(cluster.type_names)
        self.devices = DeviceMap(cluster.size, capacity)
        self._block: Floats = np.zeros((capacity, len(_FIXED) + len(_CHANGING)))  # a row for each job
        self.columns: dict[str, Floats] = dict(zip((*_FIXED, *_CHANGING), self._block.T))
        self.ends: Floats = np.full(capacity, np.inf)
        self.row: Ints = np.zeros(capacity, dtype=np.int64)  # in the table, at the present size
        self.workers: Ints = np.ones(capacity, dtype=np.int64)  # the present size
        self.part: Floats = np.ones(capacity)  # of the row's rate, where the table has no row for that size
        self.type: Ints = np.full(capacity, -1, dtype=np.int64)
        self.spread: Bools = np.zeros(capacity, dtype=np.bool_)
        self.started: Bools = np.zeros(capacity, dtype=np.bool_)
        self.jobs: dict[int, Job] = {}
        self.dynamics = DynamicsTracker(dynamics or {})
        # Whether any job so far has dynamics, costs, regular saves or a time limit. Otherwise their arithmetic is skipped.
        self.has_dynamics, self.has_costs = False, False
        self._saving, self._limited = False, False

    def add(self, jobs: Mapping[int, Job]) -> None:
        """Add jobs by number. They do not run before a launch."""
        if not jobs:
            return
        self._reserve(max(jobs) + 1)
        self.jobs.update(jobs)
        numbers: Ints = np.fromiter(jobs, dtype=np.int64, count=len(jobs))
        types = {(job.kind, job.workers): None for job in jobs.values()}
        position = {one: at for at, one in enumerate(types)}
        of = np.array([position[job.kind, job.workers] for job in jobs.values()], dtype=np.int64)
        self.row[numbers] = np.array([self.table.row(kind, workers) for kind, workers in types], dtype=np.int64)[of]
        self.workers[numbers] = np.array([workers for _, workers in types], dtype=np.int64)[of]
        costs = [self.costs.of(kind) for kind, _ in types]
        each = np.array([(c.launch_s, c.restart_s, c.checkpoint_s, c.checkpoint_every_s) for c in costs])
        self._block[numbers, 0] = [job.steps for job in jobs.values()]
        self._block[numbers, 1] = limits = [job.time_limit_s for job in jobs.values()]
        self._block[numbers, 2:6] = each[of]
        self.has_costs = self.has_costs or bool((each[:, :3] > 0).any())
        self._saving = self._saving or bool((each[:, 3] < math.inf).any())
        self._limited = self._limited or min(limits) < math.inf
        self.has_dynamics = self.dynamics.add(jobs, self.columns["steps"])

    def _reserve(self, size: int) -> None:
        if size <= len(self.row):
            return
        size = max(size, 2 * len(self.row))
        self.devices.reserve(size)
        self._block = np.concatenate((self._block, np.zeros((size - len(self._block), self._block.shape[1]))))
        self.columns = dict(zip((*_FIXED, *_CHANGING), self._block.T))
        self.ends, self.part = _grown(self.ends, size, math.inf), _grown(self.part, size, 1.0)
        self.row, self.workers, self.type = (
            _grown(column, size, fill) for column, fill in ((self.row, 0), (self.workers, 1), (self.type, -1))
        )
        self.spread, self.started = (_grown(column, size, False) for column in (self.spread, self.started))


def _grown(column: np.ndarray[Any, Any], size: int, fill: float) -> np.ndarray[Any, Any]:
    return np.concatenate((column, np.full(size - len(column), fill, dtype=column.dtype)))


def colocated(devices: DeviceMap, jobs: Ints, running: Ints) -> tuple[Ints, Ints]:
    """Pairs of jobs on one accelerator: positions in `jobs`, ascending, and for each the number of another running job,
    ascending for one job."""
    span = len(devices.last)
    holder, place = devices.places(running)
    order = place.argsort(kind="stable")
    holder, count = holder[order], np.bincount(place, minlength=devices.accelerators)
    number, theirs = devices.places(jobs)
    position = np.empty(span, dtype=np.int64)
    position[jobs] = np.arange(len(jobs))
    owner = position[number]
    shared = count[theirs] > 1
    theirs, owner = theirs[shared], owner[shared]
    many = count[theirs]  # jobs on each accelerator, which are adjacent in `holder`
    starts, ends = (count.cumsum() - count)[theirs], many.cumsum()
    other = holder[(starts - ends + many).repeat(many) + np.arange(int(many.sum()))]
    of = owner.repeat(many)
    distinct = other != jobs[of]
    pairs = np.unique(of[distinct] * span + other[distinct])  # gangs that share several accelerators are one pair
    return pairs // span, pairs % span
