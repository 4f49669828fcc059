"""What the backend of a real cluster tracks of each job that has not ended.

The state is one commit behind: several reports of one job may become events of the same commit. So the tracker holds what the
next report is compared with (generation, failures, progress, batch sizes, time limit), and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.core.job import Job, Regime
from fairlead.core.snapshot import Snapshot

SETTLED = 10
"""Equal readings in a row after which a batch size counts as stable."""
MAX_CHANGES = 3
"""Changes of an unstable batch size after which the mean counts."""
MEAN_TOLERANCE = 0.1
"""A relative change of the mean batch size that is worth an event."""


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
    step_counter: StepCounter | None = None  # if it reports batch sizes
    batch_sizes: BatchSizeFilter = field(default_factory=BatchSizeFilter)

    @property
    def counter(self) -> StepCounter:
        """The conversion between its own steps and declared steps."""
        return self.step_counter or _UNCHANGED

    @property
    def own_steps(self) -> int:
        """Its progress in its own count."""
        return round(self.counter.own(self.steps))

    def expected(self, now: float) -> float:
        """Its progress by the last report."""
        return self.steps + self.rate * (now - self.since)

    def set_progress(self, steps: float, rate: float, now: float) -> None:
        """Set what the state gets with the next event."""
        self.steps, self.rate, self.since = steps, rate, now


class TimeLimits:
    """How long each job with a time limit may still run, over all its launches. Waiting does not count."""

    def __init__(self) -> None:
        self._left_s: dict[int, float] = {}  # of jobs that wait
        self._until: dict[int, float] = {}  # of jobs that run

    def add(self, job: int, limit_s: float, ran_s: float = 0.0) -> None:
        """Add a job that waits."""
        if limit_s < math.inf:
            self._left_s[job] = limit_s - ran_s

    def start(self, job: int, now: float) -> None:
        """Begin to count."""
        if job in self._left_s:
            self._until[job] = now + self._left_s.pop(job)

    def stop(self, job: int, now: float) -> None:
        """Stop counting."""
        if job in self._until:
            self._left_s[job] = self._until.pop(job) - now

    def remove(self, job: int) -> None:
        """Forget a job that has ended."""
        self._left_s.pop(job, None)
        self._until.pop(job, None)

    @property
    def next_s(self) -> float:
        """When the next limit is reached."""
        return min(self._until.values(), default=math.inf)

    def reached(self, now: float) -> list[int]:
        """Return the running jobs whose limit is reached."""
        return sorted(job for job, until in self._until.items() if until <= now)


class TrackedJobs(dict[int, TrackedJob]):
    """All jobs that have not ended, by number, with their time limits."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = TimeLimits()
        self._default_like: set[str] = set()  # names given by users that look like default names

    def add(self, number: int, job: Job, ran_s: float = 0.0) -> TrackedJob:
        """Track a job that waits."""
        tracked = self[number] = TrackedJob(job)
        self.limits.add(number, job.time_limit_s, ran_s)
        if job.name.startswith("job-"):
            self._default_like.add(job.name)
        return tracked

    def remove(self, number: int) -> None:
        """Forget a job that has ended."""
        self.pop(number, None)
        self.limits.remove(number)

    def default_name(self, number: int) -> str:
        """Return a free name for a job without one."""
        name = f"job-{number}"
        while name in self._default_like:
            name += "-again"
        return name

    def restore(self, view: Snapshot) -> None:
        """Track the jobs of a recovered state."""
        for jobs in (view.jobs, view.queued):
            columns = (jobs.number, jobs.starts, jobs.failures, jobs.run_s)
            for number, starts, failures, ran_s in zip(*(column.tolist() for column in columns)):
                tracked = self.add(number, view.job_of[number], ran_s)
                tracked.generation, tracked.failures = starts, failures
        progress = (view.jobs.number, view.jobs.base_steps, view.jobs.rate, view.jobs.since_s)
        for number, steps, rate, since in zip(*(column.tolist() for column in progress)):
            tracked = self[number]
            tracked.set_progress(steps, rate, since)
            if number in view.regimes:
                tracked.step_counter = StepCounter(view.regimes[number])
            tracked.saved = 0 if rate else tracked.own_steps
        for number in view.jobs.runners.number.tolist():
            self.limits.start(number, view.time)
