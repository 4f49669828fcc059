"""What the backend of a real cluster remembers of each job that has not ended: the state has it too, and is not its to read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.core.job import Job, Regime
from fairlead.core.snapshot import Snapshot

# Steps as jobs count them, and as they were declared. A job whose batch size grows makes fewer steps of more work each; the
# state counts steps of the size it began with, as simulations do, so that what is left of a job does not change with its
# size:
#
# declared = Σ over batch sizes of (steps made at it) · size / first size.
#
# Sizes are seen when a worker's page is read, so a change is known to within what was done between two looks. Where the size
# is
# another at most looks, steps are counted by the mean of those seen.


class _Stretch(NamedTuple):
    size: int
    made: float  # steps of the job's own count at which it began
    declared: float


SETTLED = 10
"""Looks in a row at which a job has the same size, after which it is that."""
CHANGES = 3
"""So often a size may become another before any has settled."""
TELLS = 0.1
"""A difference of mean sizes that is worth telling."""


class BatchSizeFilter:
    """Which batch size counts for one job, out of those seen from look to look."""

    def __init__(self) -> None:
        self._last = self._alike = self._changes = 0
        self._swings: list[int] = [0, 0]  # looks since it changes faster than can be followed, and the sum of their sizes
        self._mean = 0

    def see(self, size: int) -> int:
        """The one that it has; or the mean of those seen, where it changes faster than can be followed."""
        self._changes += self._last not in (0, size)
        self._alike = self._alike + 1 if size == self._last else 1
        self._last = size
        if self._alike >= SETTLED:
            self._changes, self._swings, self._mean = 0, [0, 0], 0
        if self._changes <= CHANGES:
            return size
        self._swings = [self._swings[0] + 1, self._swings[1] + size]
        mean = self._swings[1] / self._swings[0]
        if abs(mean - self._mean) > TELLS * self._mean:
            self._mean = round(mean)
        return self._mean


class StepCounter:
    """One job's batch sizes so far."""

    def __init__(self, regimes: Iterable[Regime] = ()) -> None:
        """With what the state knows of them, after a restart."""
        self._stretches: list[_Stretch] = []
        for regime in regimes:
            self._stretches.append(_Stretch(regime.batch_size, self.made(regime.from_steps), regime.from_steps))

    def hear(self, made: float, size: int) -> bool:
        """The size of the steps behind so many; whether it is another than before. What was done at later ones was lost, and is
        done again."""
        kept = [stretch for stretch in self._stretches if stretch.made < made]
        another = not kept or kept[-1].size != size
        if another:
            kept.append(_Stretch(size, made if kept else 0.0, self.declared(made) if kept else 0.0))
        self._stretches = kept
        return another

    @property
    def worth(self) -> float:
        """How many declared steps one is at present."""
        return self._worth(self._stretches[-1]) if self._stretches else 1.0

    def declared(self, made: float) -> float:
        since = next((stretch for stretch in reversed(self._stretches) if stretch.made <= made), None)
        return made if since is None else since.declared + (made - since.made) * self._worth(since)

    def made(self, declared: float) -> float:
        since = next((stretch for stretch in reversed(self._stretches) if stretch.declared <= declared), None)
        return declared if since is None else since.made + (declared - since.declared) / self._worth(since)

    def _worth(self, stretch: _Stretch) -> float:
        return stretch.size / self._stretches[0].size


_AS_MADE = StepCounter()  # of jobs that have told no batch size


@dataclass
class TrackedJob:
    """One job. Its progress is as the state knows it: at second t it has done `steps` + `rate` · (t − `since`)."""

    job: Job
    generation: int = 0  # of its last launch
    failures: int = 0  # of its own
    steps: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    saved: int = 0  # steps in its last checkpoint, of who does not run
    regimes: StepCounter | None = None  # where it has told its batch sizes
    sizes: BatchSizeFilter = field(default_factory=BatchSizeFilter)

    @property
    def counted(self) -> StepCounter:
        return self.regimes or _AS_MADE

    @property
    def made(self) -> int:
        """The steps of its own count that the state knows of."""
        return round(self.counted.made(self.steps))

    def expected(self, now: float) -> float:
        return self.steps + self.rate * (now - self.since)

    def at(self, steps: float, rate: float, now: float) -> None:
        self.steps, self.rate, self.since = steps, rate, now


class TrackedJobs(dict[int, TrackedJob]):
    """By number."""

    def __init__(self) -> None:
        super().__init__()
        self._called: set[str] = set()  # names that look like those of jobs without one

    def enter(self, number: int, job: Job) -> TrackedJob:
        known = self[number] = TrackedJob(job)
        if job.name.startswith("job-"):
            self._called.add(job.name)
        return known

    def name_for(self, number: int) -> str:
        """Of a job that has none; somebody may have called another one so."""
        name = f"job-{number}"
        while name in self._called:
            name += "-again"
        return name

    def recall(self, view: Snapshot) -> None:
        """After a restart: those who had not ended."""
        for jobs in (view.jobs, view.queued):
            for number, starts, failures in zip(jobs.number.tolist(), jobs.starts.tolist(), jobs.failures.tolist()):
                known = self.enter(number, view.job_of[number])
                known.generation, known.failures = starts, failures
        columns = (view.jobs.number, view.jobs.base_steps, view.jobs.rate, view.jobs.since_s)
        for number, steps, rate, since in zip(*(column.tolist() for column in columns)):
            known = self[number]
            known.at(steps, rate, since)
            if number in view.regimes:
                known.regimes = StepCounter(view.regimes[number])
            known.saved = 0 if rate else known.made


# Time limits of jobs: how long each may still run, over all its launches. Waiting does not count; the time from the plan that
# starts a job does, as it does in the state. Whoever asks brings the time.


class TimeLimits:
    """Only jobs that have a limit are remembered."""

    def __init__(self) -> None:
        self._left_s: dict[int, float] = {}  # of jobs that do not run
        self._until: dict[int, float] = {}  # of jobs that run

    def add(self, job: int, limit_s: float, ran_s: float = 0.0) -> None:
        if limit_s < math.inf:
            self._left_s[job] = limit_s - ran_s

    def started(self, job: int, now: float) -> None:
        if job in self._left_s:
            self._until[job] = now + self._left_s.pop(job)

    def stopped(self, job: int, now: float) -> None:
        if job in self._until:
            self._left_s[job] = self._until.pop(job) - now

    def forget(self, job: int) -> None:
        self._left_s.pop(job, None)
        self._until.pop(job, None)

    @property
    def soonest(self) -> float:
        return min(self._until.values(), default=math.inf)

    def over(self, now: float) -> list[int]:
        return sorted(job for job, until in self._until.items() if until <= now)
