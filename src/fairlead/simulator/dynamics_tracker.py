"""The state of simulated jobs whose speed changes while they run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.workloads.dynamics import JobDynamics, RunConditions


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
        self._learned: dict[int, object] = {}  # by progress up to now
        self._learning: dict[
            int, tuple[float, object]
        ] = {}  # the step of the present speed, and what progress from it on teaches
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
        since, learned = self._learning.pop(number, (steps, None))
        if steps > since:
            self._learned[number] = learned
        speed = self._of[number].speed(replace(conditions, learned=self._learned.get(number)))
        if not speed.until > steps:
            raise FairleadError(
                f"the dynamics of job {job.name!r} must give a speed that lasts beyond step {steps:g}, not to {speed.until:g}"
            )
        if speed.learned is not None:
            self._learning[number] = steps, speed.learned
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
