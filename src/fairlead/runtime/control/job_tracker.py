"""Turn the reports of agents, and the ends of launches, into events; and what the backend tracks for that of each job that has
not ended. It decides nothing: whether a failed job is retried follows from its retry limit. The state is one commit behind:
several reports of one job may become events of the same commit. So the tracker holds what the next report is compared with
(generation, failures, progress, batch sizes, time limit), and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fairlead.core import events as ev
from fairlead.core.job import ELASTIC, TIME_LIMIT, Job, Phase, Regime
from fairlead.core.snapshot import Snapshot
from fairlead.engine.state import State
from fairlead.runtime.control.job_metrics import MetricBuffer, UtilizationTracker
from fairlead.runtime.control.launches import Addressed, LaunchTracker
from fairlead.runtime.control.tracked_launch import LaunchEnd, LaunchOutcome
from fairlead.runtime.protocol.orders import Ended, Metric, Progress, RenewalRequest, Report
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS

SETTLED = 10  # equal readings in a row after which a batch size counts as stable
MAX_CHANGES = 3  # changes of an unstable batch size after which the mean counts
MEAN_TOLERANCE = 0.1  # a relative change of the mean batch size that is worth an event

RATE_TOLERANCE = 0.05  # a relative change of the rate that is worth an event

PROGRESS_TOLERANCE_S = 1.0  # seconds of work that a job may be ahead or behind without an event: fast steps come in bursts

MAX_STEPS, MAX_RATE = 2.0**53, 1e12  # a worker may report anything; a journal with an impossible event could not be read again


class _Stretch(NamedTuple):
    size: int
    own: float  # the job's own step count at which it began
    declared: float


class BatchSizeFilter:
    """Which batch size counts for a job: the one that it has, or the mean of its readings while it changes too fast."""

    def __init__(self) -> None:
        self._last = self._equal = self._changes = 0
        self._unstable: list[int] = [0, 0]  # readings since it changes too fast, and the sum of their sizes
        self._mean = 0

    def observe(self, size: int) -> int:
        """Add a reading and return the size that counts."""
        self._changes += self._last not in (0, size)
        self._equal = self._equal + 1 if size == self._last else 1
        self._last = size
        if self._equal >= SETTLED:
            self._changes, self._unstable, self._mean = 0, [0, 0], 0
        if self._changes <= MAX_CHANGES:
            return size
        self._unstable = [self._unstable[0] + 1, self._unstable[1] + size]
        mean = self._unstable[1] / self._unstable[0]
        if abs(mean - self._mean) > MEAN_TOLERANCE * self._mean:
            self._mean = round(mean)
        return self._mean


class StepCounter:
    """Converts a job's own step count into declared steps, which have the batch size that the job began with:

    declared = Σ over batch sizes of (own steps at that size) · size / first size.

    The state counts declared steps, as simulations do, so that the remaining work does not depend on the batch size."""

    def __init__(self, regimes: Iterable[Regime] = ()) -> None:
        """Start from the regimes in the state, after a restart."""
        self._stretches: list[_Stretch] = []
        for regime in regimes:
            self._stretches.append(_Stretch(regime.batch_size, self.own(regime.from_steps), regime.from_steps))

    def record(self, own: float, size: int) -> bool:
        """Set the batch size from `own` steps on; return whether it is new. Later stretches were lost and are repeated."""
        kept = [stretch for stretch in self._stretches if stretch.own < own]
        new = not kept or kept[-1].size != size
        if new:
            kept.append(_Stretch(size, own if kept else 0.0, self.declared(own) if kept else 0.0))
        self._stretches = kept
        return new

    @property
    def weight(self) -> float:
        """Declared steps per own step at present."""
        return self._weight(self._stretches[-1]) if self._stretches else 1.0

    def declared(self, own: float) -> float:
        """Convert own steps to declared steps."""
        since = next((stretch for stretch in reversed(self._stretches) if stretch.own <= own), None)
        return own if since is None else since.declared + (own - since.own) * self._weight(since)

    def own(self, declared: float) -> float:
        """Convert declared steps to own steps."""
        since = next((stretch for stretch in reversed(self._stretches) if stretch.declared <= declared), None)
        return declared if since is None else since.own + (declared - since.declared) / self._weight(since)

    def _weight(self, stretch: _Stretch) -> float:
        return stretch.size / self._stretches[0].size


_UNCHANGED = StepCounter()  # of jobs that report no batch size


@dataclass
class TrackedJob:
    """One job. Its progress is as in the state: `steps` + `rate` · (t − `since`) at second t."""

    job: Job
    generation: int = 0  # of its last launch
    failures: int = 0  # of its own
    steps: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    saved: int = 0  # steps in its last checkpoint, while it does not run
    limit_reached: bool = False  # it runs, and was asked to stop at its time limit
    step_counter: StepCounter | None = None  # if it reports batch sizes
    batch_sizes: BatchSizeFilter = field(default_factory=BatchSizeFilter)

    @property
    def counter(self) -> StepCounter:
        """The conversion between its own steps and declared steps."""
        return self.step_counter or _UNCHANGED

    @property
    def own_steps(self) -> int:
        return round(self.counter.own(self.steps))

    def expected(self, now: float) -> float:
        return self.steps + self.rate * (now - self.since)

    def set_progress(self, steps: float, rate: float, now: float) -> None:
        """Set what the state gets with the next event."""
        self.steps, self.rate, self.since = steps, rate, now


class TimeLimits:
    """How long each job with a time limit may still run, over all its launches. Waiting does not count."""

    def __init__(self) -> None:
        self._left_s: dict[int, float] = {}  # of jobs that wait
        self._until: dict[int, float] = {}  # of jobs that run
        self.postponed: dict[int, float] = {}  # when to check again jobs at their limit

    def add(self, job: int, limit_s: float, ran_s: float = 0.0) -> None:
        if limit_s < math.inf:
            self._left_s[job] = limit_s - ran_s

    def change(self, job: int, limit_s: float, ran_s: float, started_s: float | None) -> None:
        """Give a job another limit; it ran `ran_s` before the present launch, which began at `started_s` if there is one."""
        self.remove(job)
        self.add(job, limit_s, ran_s)
        if started_s is not None:
            self.start(job, started_s)

    def start(self, job: int, now: float) -> None:
        if job in self._left_s:
            self._until[job] = now + self._left_s.pop(job)

    def stop(self, job: int, now: float) -> None:
        if job in self._until:
            self._left_s[job] = self._until.pop(job) - now

    def remove(self, job: int) -> None:
        self._left_s.pop(job, None)
        self._until.pop(job, None)
        self.postponed.pop(job, None)

    def is_used_up(self, job: int) -> bool:
        """Whether a job that does not run has no time left."""
        return self._left_s.get(job, math.inf) <= 0

    @property
    def next_s(self) -> float:
        return min((max(until, self.postponed.get(job, until)) for job, until in self._until.items()), default=math.inf)

    def reached(self, now: float) -> list[int]:
        return sorted(job for job, until in self._until.items() if max(until, self.postponed.get(job, until)) <= now)


class TrackedJobs(dict[int, TrackedJob]):
    """All jobs that have not ended, by number, with their time limits."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = TimeLimits()
        self._default_like: set[str] = set()  # names given by users that look like default names

    def add(self, number: int, job: Job) -> TrackedJob:
        tracked = self[number] = TrackedJob(job)
        self.limits.add(number, job.time_limit_s)
        if job.name.startswith("job-"):
            self._default_like.add(job.name)
        return tracked

    def revive(self, number: int, state: State, now: float) -> TrackedJob:
        """Track an ended job again: a finished one from its first step."""
        tracked, a = self.add(number, state.job_of[number]), state.columns
        finished = a["phase"][number] == int(Phase.FINISHED)
        if number in state.adaptations.regimes and not finished:
            tracked.step_counter = StepCounter(state.adaptations.regimes[number])
        tracked.generation = int(a["starts"][number])
        tracked.set_progress(0.0 if finished else float(a["base_steps"][number]), 0.0, now)
        tracked.saved = tracked.own_steps
        return tracked

    def suspend(self, number: int, now: float) -> None:
        """Stop the time of a job that does not run any more in the state, even if it has not left yet."""
        self.limits.stop(number, now)
        if number in self:
            self[number].limit_reached = False

    def remove(self, number: int) -> None:
        self.pop(number, None)
        self.limits.remove(number)

    def default_name(self, number: int) -> str:
        """Return a free name for a job without one."""
        name = f"job-{number}"
        while name in self._default_like:
            name += "-again"
        return name

    def restore(self, view: Snapshot) -> None:
        for jobs in (view.jobs, view.queued, view.queued.with_rows(np.array(sorted(view.held), dtype=np.int64))):
            columns = (jobs.number, jobs.starts, jobs.failures, jobs.run_s, jobs.time_limit_s)
            for number, starts, failures, ran_s, limit_s in zip(*(column.tolist() for column in columns)):
                tracked = self.add(number, view.job_of[number])
                self.limits.change(number, limit_s, ran_s, None)
                tracked.generation, tracked.failures = starts, failures
        known = view.jobs.with_rows(np.array(sorted(self), dtype=np.int64))  # a queued job may have run before it was requeued
        progress = (known.number, known.base_steps, known.rate, known.since_s)
        for number, steps, rate, since in zip(*(column.tolist() for column in progress)):
            tracked = self[number]
            tracked.set_progress(steps, rate, since)
            if number in view.regimes:
                tracked.step_counter = StepCounter(view.regimes[number])
            tracked.saved = 0 if rate else tracked.own_steps
        for number in view.jobs.runners.number.tolist():
            self.limits.start(number, view.time)


@dataclass(frozen=True)
class ReportHandler:
    """Handles the reports of one cluster. `send` delivers orders to agents."""

    jobs: TrackedJobs
    launches: LaunchTracker
    metrics: MetricBuffer
    utilization: UtilizationTracker
    send: Callable[[Sequence[Addressed]], None]

    def handle(self, node: int, report: Report, now: float) -> Sequence[ev.Event]:
        if isinstance(report, Ended):
            before = self.metrics.flush(now)  # no metric of a job comes after its end
            orders, outcomes = self.launches.ended(node, report, now - max(0.0, report.ago_s))
            self.send(orders)
            return [*before, *self.record_outcomes(outcomes, now)]
        if isinstance(report, RenewalRequest):
            self.send(self.launches.renew(node, report))
            return ()
        run, job = self.launches.get(report.job, report.generation), self.jobs.get(report.job)
        if run is None or job is None:
            return ()
        if isinstance(report, Metric):
            self.metrics.add(report, job.job.user)
            return ()
        run.saved = max(run.saved, report.saved)
        if run.leaving:  # in the state it waits, or runs elsewhere
            return ()
        return self._progress(report, job, now)

    def record_outcomes(self, outcomes: Sequence[LaunchOutcome], now: float) -> list[ev.Event]:
        events: list[ev.Event] = []
        for outcome in outcomes:
            job = self.jobs.get(outcome.job)
            if job is None:  # it had ended before
                continue
            job.saved = outcome.saved
            stopped_s = min(max(outcome.stopped_s, job.since), now)  # not before what is known of it
            at_limit = job.limit_reached
            if outcome.end is not LaunchEnd.YIELDED or at_limit:  # another revoked job stopped counting with the plan
                self.jobs.suspend(outcome.job, stopped_s)
            one, at = np.array([outcome.job], dtype=np.int64), np.array([stopped_s])
            early = stopped_s if stopped_s < now else None
            done = _bounded(job.counter.declared(outcome.saved), MAX_STEPS)
            saved = np.array([float(done)])
            if outcome.end is LaunchEnd.FINISHED:
                self.send(self.launches.drop(outcome.job))  # it may have been about to resume elsewhere
                if job.job.steps == UNKNOWN_STEPS and outcome.steps > 0:  # now they are known
                    done = _bounded(job.counter.declared(outcome.steps), MAX_STEPS)
                    events.append(self._progress_event(outcome.job, done, 0.0, now))
                self.remove(outcome.job)
                events.append(ev.JobsFinished(now, one, at))
            elif outcome.end is not LaunchEnd.DROPPED and self.jobs.limits.is_used_up(outcome.job):
                events.append(self._progress_event(outcome.job, done, 0.0, now))
                events.append(self.end_at_limit(outcome.job, stopped_s, now))
            elif outcome.end is LaunchEnd.YIELDED:
                events.append(self._progress_event(outcome.job, done, 0.0, now))
                if at_limit:  # it has a longer limit since, and waits for GPUs
                    events.append(ev.JobsInterrupted(now, one, saved, False, stopped_s=early))
            elif outcome.end is LaunchEnd.LOST:
                job.set_progress(done, 0.0, now)
                why = _failure(outcome) if outcome.code else ("", 0, -1, 0)
                events.append(ev.JobsInterrupted(now, one, saved, False, *why, stopped_s=early))
            elif outcome.end is LaunchEnd.FAILED:
                job.set_progress(done, 0.0, now)
                job.failures += 1
                if job.failures > job.job.retry_limit or outcome.permanent:
                    self.send(self.launches.drop(outcome.job))
                    self.remove(outcome.job)
                    events.append(ev.JobsFailed(now, one, at, *_failure(outcome)))
                else:
                    if outcome.revoked:  # in the state it waits, or is about to resume elsewhere
                        self.send(self.launches.drop(outcome.job))
                        events.append(self._progress_event(outcome.job, done, 0.0, now))
                    events.append(ev.JobsInterrupted(now, one, saved, True, *_failure(outcome), stopped_s=early))
        return events

    def end_at_limit(self, job: int, at: float, now: float) -> ev.JobsFailed:
        """End a job that left at its time limit, whatever its exit code; there is no other attempt."""
        self.send(self.launches.drop(job))
        self.remove(job)
        return ev.JobsFailed(now, np.array([job], dtype=np.int64), np.array([at]), TIME_LIMIT)

    def remove(self, job: int) -> None:
        self.jobs.remove(job)
        self.metrics.remove(job)
        self.utilization.remove(job)

    def _progress(self, report: Progress, job: TrackedJob, now: float) -> Sequence[ev.Event]:
        new_size = False
        if report.batch_size and (report.rate or job.step_counter is None):  # a new size counts once its rate is known
            elastic = job.job.mode == ELASTIC
            size = report.batch_size if elastic else job.batch_sizes.observe(report.batch_size)
            self.metrics.add_batch_size(report.job, size, job.job.user)
            if not elastic:
                job.step_counter = job.step_counter or StepCounter()
                new_size = job.step_counter.record(report.steps, size)
        done = _bounded(job.counter.declared(report.steps), MAX_STEPS)
        rate = _bounded(report.rate * job.counter.weight, MAX_RATE) or job.rate
        tolerance = max(1.0, RATE_TOLERANCE * (done - job.steps), PROGRESS_TOLERANCE_S * rate)
        changed = abs(done - job.expected(now)) > tolerance or abs(rate - job.rate) > RATE_TOLERANCE * job.rate
        if new_size:  # the size is journaled with the steps at which it begins, and its rate
            return self._progress_event(report.job, done, rate, now), *self.metrics.flush(now)
        if changed or job.steps <= job.job.steps < done:
            return (self._progress_event(report.job, done, rate, now),)
        return ()

    def _progress_event(self, job: int, steps: float, rate: float, now: float) -> ev.ProgressReported:
        self.jobs[job].set_progress(steps, rate, now)
        return ev.ProgressReported(now, np.array([job]), np.array([float(steps)]), np.array([float(rate)]), np.array([now]))


def _bounded(value: float, largest: float) -> float:
    return min(value, largest) if value > 0 else 0.0


def _failure(outcome: LaunchOutcome) -> tuple[str, int, int, int]:
    final = " (not retried: every attempt would fail)" if outcome.permanent else ""
    return (outcome.why or f"exit code {outcome.code}") + final, outcome.code, outcome.node, outcome.rank
