"""Who has arrived in a simulated world, as columns by job number: what is known of a job before it runs, and room for what
becomes of it. Nobody runs here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.device_map import NONE, DeviceMap, ragged
from fairlead.core.errors import FairleadError
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.core.plan import Launches
from fairlead.simulator.costs import Costs
from fairlead.workloads.dynamics import JobDynamics, Speed, Standing
from fairlead.workloads.throughput_tables import ThroughputTable

# Jobs of a simulated world whose speed follows from their nature instead of a table: who they are, how fast they run where
# they stand, and when to ask again. Where no job has a nature, nothing is asked and nothing is told.

_NOTHING: Mapping[str, float] = {}


class Natures:
    """Natures by the names of jobs, and by number what is known of those who have one."""

    def __init__(self, dynamics: Mapping[str, JobDynamics]) -> None:
        self._named = dynamics
        self._of: dict[int, JobDynamics] = {}
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
            if (job_dynamics := self._named.get(job.name)) is not None:
                self._of[number], self._declared[number] = job_dynamics, job.steps
                steps[number] = job_dynamics.work(job.steps)
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


# Who holds what in a simulated world. While everybody is launched where nobody else is, it is enough to note the launches:
# who asks for more makes holdings of them, which are kept from then on.

_MANY = 1000  # launches that are noted before those of which nobody runs any more are forgotten


class Whereabouts:
    """Of those who run; `running` is always who does before the call."""

    def __init__(self, accelerators: int, capacity: int) -> None:
        self._accelerators = accelerators
        self._with: Ints = np.zeros(capacity, dtype=np.int64)  # by job: with which launches it came
        self._noted: dict[int, Launches] = {}
        self._count = 0
        self._kept: DeviceMap | None = None
        self.shared = False  # whether any accelerator has more than one job on it

    def reserve(self, size: int) -> None:
        self._with = np.concatenate((self._with, np.zeros(size - len(self._with), dtype=np.int64)))
        if self._kept is not None:
            self._kept.reserve(size)

    def take(self, launches: Launches, running: Ints) -> None:
        if self._kept is None and launches.exclusive:
            self._count += 1
            self._with[launches.jobs], self._noted[self._count] = np.array(self._count), launches
            if len(self._noted) > _MANY:
                self._noted = {one: self._noted[one] for one in sorted(set(self._with[running].tolist())) if one}
                self._noted[self._count] = launches
        else:
            device_map = self.device_map(running)
            device_map.take(launches.jobs, launches.offsets, launches.accelerators, exclusive=launches.exclusive)
            self.shared = device_map.shared

    def release(self, jobs: Ints) -> None:
        if self._kept is not None:
            self._kept.release(jobs)
            self.shared = self._kept.shared

    def device_map(self, running: Ints) -> DeviceMap:
        if self._kept is None:
            self._kept = DeviceMap(self._accelerators, len(self._with))
            parts = [
                self._part(number, self._noted[one]) for number, one in zip(running.tolist(), self._with[running].tolist())
            ]
            self._kept.take(running, *ragged(parts))
            self._noted.clear()
        return self._kept

    def mates(self, jobs: Ints, running: Ints) -> tuple[Ints, Ints]:
        """Who runs beside whom: positions in `jobs`, ascending, and the number of a mate for each, ascending for one job."""
        device_map, span = self.device_map(running), len(self._with)
        holder, place = device_map.places(running)
        order = place.argsort(kind="stable")
        holder, count = holder[order], np.bincount(place, minlength=self._accelerators)
        number, theirs = device_map.places(jobs)
        position = np.empty(span, dtype=np.int64)
        position[jobs] = np.arange(len(jobs))
        owner = position[number]
        shared = count[theirs] > 1
        theirs, owner = theirs[shared], owner[shared]
        many = count[theirs]  # holders of each; in `holder`, those of an accelerator stand together
        starts, ends = (count.cumsum() - count)[theirs], many.cumsum()
        mate = holder[(starts - ends + many).repeat(many) + np.arange(int(many.sum()))]
        of = owner.repeat(many)
        other = mate != jobs[of]
        pairs = np.unique(of[other] * span + mate[other])  # gangs meet on several accelerators, and are mates once
        return pairs // span, pairs % span

    @staticmethod
    def _part(number: int, launches: Launches) -> Ints:
        at = int((launches.jobs == number).argmax())
        return launches.accelerators[launches.offsets[at] : launches.offsets[at + 1]]


_GIVEN = ("steps", "limit", "launch", "restart", "save", "save_every")  # known when a job arrives
_CHANGING = ("base", "rate", "since", "began", "run_started", "ran", "kept", "kept_at")
"""`began`: when a job that runs had loaded and went on. `kept`: its steps at the last save, and when that was."""


class Arrived:
    """Columns of the jobs that have arrived, or will. `ends` is the second at which a running job ends by itself, else
    infinity."""

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
        self.where = Whereabouts(cluster.size, capacity)
        self._block: Floats = np.zeros((capacity, len(_GIVEN) + len(_CHANGING)))  # a row for each job
        self.columns: dict[str, Floats] = dict(zip((*_GIVEN, *_CHANGING), self._block.T))
        self.ends: Floats = np.full(capacity, np.inf)
        self.row: Ints = np.zeros(capacity, dtype=np.int64)  # in the table, at the present size
        self.asked: Ints = np.ones(capacity, dtype=np.int64)  # the size that it runs at
        self.part: Floats = np.ones(capacity)  # of the row's rate, where the table has no row for that size
        self.type: Ints = np.full(capacity, -1, dtype=np.int64)
        self.spread: Bools = np.zeros(capacity, dtype=np.bool_)
        self.started: Bools = np.zeros(capacity, dtype=np.bool_)
        self.jobs: dict[int, Job] = {}
        self.dynamics = Natures(dynamics or {})
        # What no job has needs no arithmetic: whether any so far has costs, regular saves, a time limit, a nature.
        self.natural = False
        self.costly, self._saving, self._limited = False, False, False

    def arrive(self, number: int, job: Job) -> None:
        self._reserve(number + 1)
        self.jobs[number] = job
        self.row[number] = self.table.row(job.kind, job.workers)
        self.asked[number] = job.workers
        cost = self.costs.of(job.kind)
        given = (job.steps, job.time_limit_s, cost.launch_s, cost.restart_s, cost.checkpoint_s, cost.checkpoint_every_s)
        self._block[number, : len(given)] = given
        self.costly = self.costly or cost.launch_s > 0 or cost.restart_s > 0 or cost.checkpoint_s > 0
        self._saving = self._saving or cost.checkpoint_every_s < math.inf
        self._limited = self._limited or job.time_limit_s < math.inf
        self.natural = self.dynamics.arrive([(number, job)], self.columns["steps"])

    def foresee(self, jobs: Sequence[Job], first: int) -> None:
        """The same for many at once, with numbers from `first` on; they come into being when somebody launches them."""
        if not jobs:
            return
        self._reserve(first + len(jobs))
        mine = slice(first, first + len(jobs))
        self.jobs.update(zip(range(first, first + len(jobs)), jobs))
        looks = {(job.kind, job.workers): None for job in jobs}
        place = {look: at for at, look in enumerate(looks)}
        of = np.array([place[job.kind, job.workers] for job in jobs], dtype=np.int64)
        self.row[mine] = np.array([self.table.row(kind, workers) for kind, workers in looks], dtype=np.int64)[of]
        self.asked[mine] = np.array([workers for _, workers in looks], dtype=np.int64)[of]
        spent = [self.costs.of(kind) for kind, _ in looks]
        each = np.array([(c.launch_s, c.restart_s, c.checkpoint_s, c.checkpoint_every_s) for c in spent])
        self._block[mine, 0] = [job.steps for job in jobs]
        self._block[mine, 1] = [job.time_limit_s for job in jobs]
        self._block[mine, 2:6] = each[of]
        self.costly = self.costly or bool((each[:, :3] > 0).any())
        self._saving = self._saving or bool((each[:, 3] < math.inf).any())
        self._limited = self._limited or bool((self._block[mine, 1] < math.inf).any())
        self.natural = self.dynamics.arrive(enumerate(jobs, first), self.columns["steps"])

    def _reserve(self, size: int) -> None:
        old = len(self.row)
        if size <= old:
            return
        extra = max(size, 2 * old) - old
        self.where.reserve(old + extra)
        self._block = np.concatenate((self._block, np.zeros((extra, self._block.shape[1]))))
        self.columns = dict(zip((*_GIVEN, *_CHANGING), self._block.T))
        self.ends = np.concatenate((self.ends, np.full(extra, np.inf)))
        self.row = np.concatenate((self.row, np.zeros(extra, dtype=np.int64)))
        self.asked = np.concatenate((self.asked, np.ones(extra, dtype=np.int64)))
        self.part = np.concatenate((self.part, np.ones(extra)))
        self.type = np.concatenate((self.type, np.full(extra, -1, dtype=np.int64)))
        self.spread = np.concatenate((self.spread, np.zeros(extra, dtype=np.bool_)))
        self.started = np.concatenate((self.started, np.zeros(extra, dtype=np.bool_)))
