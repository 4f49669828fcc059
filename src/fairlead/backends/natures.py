"""Jobs of a simulated world whose speed follows from their nature instead of a table: who they are, how fast they run where
they stand, and when to ask again. Where no job has a nature, nothing is asked and nothing is told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fairlead.core import events as ev
from fairlead.core.adaptation import BATCH_SIZE
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.holdings import NONE
from fairlead.core.job import Job
from fairlead.workloads.nature import Nature, Speed, Standing

_NOTHING: Mapping[str, float] = {}


class Natures:
    """Natures by the names of jobs, and by number what is known of those who have one."""

    def __init__(self, natures: Mapping[str, Nature]) -> None:
        self._named = natures
        self._of: dict[int, Nature] = {}
        self._declared: dict[int, float] = {}
        self._given: dict[int, int] = {}  # the batch size of a plan
        self._of_host: dict[int, tuple[float, float]] = {}  # CPUs and GB of a plan
        self._size: dict[int, int] = {}  # the batch size it runs with
        self._told: dict[int, int] = {}
        self._reports: dict[int, Mapping[str, float]] = {}
        self._reported: dict[tuple[int, str], float] = {}
        self._until: dict[int, float] = {}  # steps at which to ask again
        self._turn_s: dict[int, float] = {}  # the same as a second, of those who run

    def __contains__(self, number: int) -> bool:
        return number in self._of

    @property
    def next_turn(self) -> float:
        """The first second at which somebody's speed changes by its nature."""
        return min(self._turn_s.values()) if self._turn_s else math.inf

    def turning_by(self, when: float) -> Ints:
        return np.array(sorted(number for number, second in self._turn_s.items() if second <= when), dtype=np.int64)

    def arrive(self, jobs: Iterable[tuple[int, Job]], steps: Floats) -> bool:
        """Who of these jobs has a nature has the steps that it really does, in this column. Tells whether anybody so far has
        one."""
        for number, job in jobs if self._named else ():
            if (nature := self._named.get(job.name)) is not None:
                self._of[number], self._declared[number] = nature, job.steps
                steps[number] = nature.work(job.steps)
        return bool(self._of)

    def said_before(self, numbers: Ints, sizes: Floats) -> None:
        """The batch sizes that were told before this world began; NaN for none."""
        self._told.update((n, int(size)) for n, size in zip(numbers.tolist(), sizes.tolist()) if size == size)

    def reported_before(self, numbers: Ints, name: str, values: Floats) -> None:
        """The same of what else was told, by its name."""
        known = zip(numbers.tolist(), values.tolist())
        self._reported.update(((number, name), value) for number, value in known if value == value and number in self._of)

    def give(self, number: int, batch_size: int) -> None:
        """A plan launches it with this batch size; 0: with its own."""
        self._given[number] = batch_size

    def give_of_host(self, number: int, cpus: float, memory_gb: float) -> None:
        """The same with so much of its host for each worker; 0: as much as it may be."""
        self._of_host[number] = (cpus, memory_gb)

    def given_of_host(self, number: int) -> tuple[float, float]:
        return self._of_host.get(number, (0.0, 0.0))

    def given(self, number: int) -> int:
        return self._given.get(number, 0)

    def ask(self, number: int, job: Job, standing: Standing) -> float:
        """Steps per second where it stands."""
        steps, declared = standing.steps, self._declared[number]
        speed: Speed = self._of[number].speed(standing)
        if not speed.until > steps:
            raise FairleadError(
                f"the nature of job {job.name!r} wants to be asked again at step {speed.until:g}, and it is at {steps:g}"
            )
        self._size[number] = speed.batch_size
        if speed.reports:
            self._reports[number] = speed.reports
        # Whoever has done all that it declared and goes on says so: a turn that changes nothing else.
        self._until[number] = min(speed.until, declared) if steps < declared else speed.until
        return speed.rate

    def foresee(self, jobs: Ints, base: Floats, since: Floats, rate: Floats, work: Floats) -> None:
        """When those of them that have a nature turn, at their present rates."""
        for number, done, second, speed, end in zip(*(part.tolist() for part in (jobs, base, since, rate, work))):
            if number in self._of:
                until = self._until[number]
                self._turn_s[number] = second + (until - done) / speed if until < end else math.inf

    def reached(self, jobs: Ints, steps: Floats, now: float) -> Floats:
        """The steps of these jobs, and of those who turn now exactly the steps at which they turn."""
        for index, number in enumerate(jobs.tolist()):
            if self._turn_s.get(number, math.inf) <= now:
                steps[index] = self._until[number]
        return steps

    def leave(self, jobs: Ints) -> None:
        for number in jobs.tolist():
            self._turn_s.pop(number, None)

    def overrun(self, jobs: Ints) -> Ints:
        """Those who have more to do than they declared."""
        if not self._of:
            return NONE
        over = [n for n in jobs.tolist() if n in self._of and self._of[n].work(self._declared[n]) > self._declared[n]]
        return np.array(over, dtype=np.int64)

    def tell(self, jobs: Ints, now: float) -> list[ev.Event]:
        """What is new of their batch sizes, and of what else they report."""
        new = [n for n in jobs.tolist() if self._size.get(n, 0) and self._size[n] != self._told.get(n)] if self._of else []
        told: list[ev.Event] = []
        if new:
            self._told.update((number, self._size[number]) for number in new)
            sizes = np.array([float(self._size[number]) for number in new])
            told.append(ev.MetricsReported(now, BATCH_SIZE, np.array(new, dtype=np.int64), sizes))
        return told + self._news(jobs, now) if self._reports else told

    def _news(self, jobs: Ints, now: float) -> list[ev.Event]:
        said: dict[str, dict[int, float]] = {}
        for number in jobs.tolist():
            for name, value in self._reports.pop(number, _NOTHING).items():
                if self._reported.get((number, name)) != value:
                    self._reported[number, name] = said.setdefault(name, {})[number] = value
        return [
            ev.MetricsReported(now, name, np.array(list(by_job), dtype=np.int64), np.array(list(by_job.values())))
            for name, by_job in said.items()
        ]
