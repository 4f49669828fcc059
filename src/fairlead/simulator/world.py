"""The true facts of a simulated world: how fast each job really runs where it is, what starting and saving cost it, when it
will end. It knows no policy and no estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.columns import INFINITY, TRUE, ZERO, JobColumns, moment
from fairlead.core.device_map import NONE
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import TIMED, Job, batch_size_of, kind_of, model_of
from fairlead.core.plan import TUNED, Launches
from fairlead.core.routes import Routes
from fairlead.simulator.costs import Costs
from fairlead.simulator.job_table import Arrived
from fairlead.workloads.dynamics import JobDynamics, Standing
from fairlead.workloads.throughput_tables import ThroughputTable

# Which row of a throughput table a job runs by, at the size and batch size that a plan gives it.


def batch_size_given(launches: Launches, index: int) -> int:
    """That one of these is given; 0: none."""
    return 0 if launches.batch_sizes is None else int(launches.batch_sizes[index])


def row_given(table: ThroughputTable, job: Job, workers: int, batch_size: int) -> tuple[int, float]:
    """The row, and the part of its rate: with fewer or more workers than any row is about, in proportion. A batch size of 0,
    or one that is left to the job, is the kind's own."""
    kind = job.kind
    if kind != TIMED and batch_size not in (0, TUNED, batch_size_of(kind)):
        kind = kind_of(model_of(kind), batch_size)
    if workers == job.workers or (kind != TIMED and (kind, workers) in table.row_of):
        return table.row(kind, workers), 1.0
    return table.row(kind, job.workers), workers / job.workers


class World(Arrived):
    """Who has arrived, and who of them runs."""

    def __init__(
        self,
        cluster: Cluster,
        table: ThroughputTable,
        costs: Costs,
        capacity: int = 256,
        dynamics: Mapping[str, JobDynamics] | None = None,
    ) -> None:
        super().__init__(cluster, table, costs, capacity, dynamics)
        self.running: Ints = NONE
        self.serving: frozenset[int] = frozenset()  # who has a route
        # What nobody has needs no arithmetic: whether anybody ever had a route, or runs at a part of a row's rate.
        self._routed, self._in_part = False, False
        self._spread_tells = not np.array_equal(self.table.spread, self.table.alone)
        self._next_end: float | None = math.inf  # None: somebody came or went since it was computed
        self._saves_noted = False  # until somebody asks, a run began and was saved where its line of progress begins

    def out_of_memory(self, launches: Launches) -> Ints:
        """Who of these, started in this order, finds less memory left on an accelerator than it needs."""
        needs = self.table.memory_gb
        if needs is None:
            return NONE
        there = np.array([kind.memory_gb for kind in self.cluster.types])[self.cluster.type_of]
        holder, place = self.where.device_map(self.running).places(self.running)
        left: Floats = there - np.bincount(place, needs[self.row[holder]], minlength=self.cluster.size)
        short: list[int] = []
        for index, number in enumerate(launches.jobs.tolist()):
            mine = launches.accelerators[launches.offsets[index] : launches.offsets[index + 1]]
            need = float(needs[self._row(number, len(mine), batch_size_given(launches, index))[0]])
            if (left[mine] < need * (1 - 1e-9)).any():
                short.append(number)
            else:
                left[mine] -= need
        return np.array(short, dtype=np.int64)

    def route(self, launches: Launches, routes: Routes) -> Ints:
        """Who is launched with a route serves requests, and who goes on with one; returned are those who are new in that and
        go on. Requests are not this world's: a session goes on as it would with the replicas it asked for, in any company."""
        if not routes and not self.serving:
            return NONE
        self._routed = True
        launched = set(launches.jobs.tolist())
        before, self.serving = self.serving, self.serving - launched | set(routes)
        new = sorted(set(routes) - before - launched)
        for number in new:
            self.row[number], self.part[number] = self._row(number, int(self.asked[number]), 0)
        return np.array(new, dtype=np.int64)

    def launch(self, launches: Launches, now: float) -> Ints:
        """Start jobs; return those whose progress changed thereby: them, and whoever they joined on an accelerator."""
        jobs, c = launches.jobs, self.columns
        self.where.take(launches, self.running)
        self.type[jobs] = launches.types
        since = moment(now)
        if self._limited:
            c["run_started"][jobs] = since
        if self.costly:
            since = since + np.where(self.started[jobs], c["restart"][jobs], c["launch"][jobs])
            self.started[jobs] = TRUE
        c["since"][jobs] = since
        if self._saves_noted:
            self._note(jobs)
        self._size_up(launches)
        self.running = np.concatenate((self.running, jobs))
        return self._set_rates(jobs, now)

    def resume(self, launches: Launches, told: JobColumns, now: float) -> Ints:
        """Jobs that were started before this world began, with what is known of them, in the same order. Who ran as fast as it
        does here goes on by the very same line, so that it ends at the same second; returned are the others, whose progress
        changes. What was saved before a line began, as that of a real job does with each report, is not known: as much as if it
        had run so fast since its start."""
        jobs, c = launches.jobs, self.columns
        self._note_saves()
        self.launch(launches, now)
        c["run_started"][jobs], c["ran"][jobs] = told.run_started_s, told.settled_run_s
        loaded = told.run_started_s + np.where(told.starts > 1, c["restart"][jobs], c["launch"][jobs])
        c["since"][jobs] = np.where(told.rate > 0, told.since_s, loaded)
        c["began"][jobs] = np.minimum(loaded, c["since"][jobs])
        c["base"][jobs] = np.minimum(told.base_steps, c["steps"][jobs])
        c["kept_at"][jobs] = c["began"][jobs]
        c["kept_at"][jobs] += self._up_to_last_save(jobs, c["since"][jobs] - c["began"][jobs])
        c["kept"][jobs] = np.maximum(c["base"][jobs] - told.rate * (c["since"][jobs] - c["kept_at"][jobs]), ZERO)
        self._set_rates(jobs, now)
        changing: Ints = jobs[c["rate"][jobs] != told.rate]
        if len(changing):
            c["rate"][jobs] = told.rate  # up to now
            self.refresh(changing, now)
        self.ends[jobs] = np.maximum(self.ends[jobs], now)  # of a real cluster's jobs one may be through that has not said so
        return changing

    def stop(self, jobs: Ints, now: float, *, saved: bool) -> Ints:
        """Suspend jobs; progress stays as of the last save. Returns the neighbours whose speed changes thereby."""
        c = self.columns
        if not saved:
            c["base"][jobs] = self.saved_steps(jobs, now)
        elif not self.costly:
            c["base"][jobs] = self.steps_at(jobs, now)
        else:  # the last seconds went into saving, at the speed of now, whenever that last changed
            self._note_saves()
            until = np.maximum(now - c["save"][jobs], c["began"][jobs])
            done = c["base"][jobs] + c["rate"][jobs] * (until - c["since"][jobs])
            c["base"][jobs] = np.clip(done, c["kept"][jobs], c["steps"][jobs])
        if self._limited:
            c["ran"][jobs] += now - c["run_started"][jobs]
        return self._leave(jobs)

    def end(self, jobs: Ints) -> Ints:
        return self._leave(jobs)

    def steps_at(self, jobs: Ints, when: float | Floats) -> Floats:
        c = self.columns
        done = c["base"][jobs] + c["rate"][jobs] * np.maximum(np.asarray(when) - c["since"][jobs], ZERO)
        return np.minimum(done, c["steps"][jobs])

    def saved_steps(self, jobs: Ints, now: float) -> Floats:
        """Where the last checkpoint stands: that of the start, or the latest of the regular ones since."""
        self._note_saves()
        c = self.columns
        whole = self._up_to_last_save(jobs, now - c["kept_at"][jobs])
        return np.where(whole > 0, self.steps_at(jobs, c["kept_at"][jobs] + whole), c["kept"][jobs])

    def _up_to_last_save(self, jobs: Ints, passed: Floats) -> Floats:
        """Of so many seconds of progress, those up to the last regular save."""
        every = self.columns["save_every"][jobs] + self.columns["save"][jobs]
        regular = every < np.inf
        whole = np.zeros(len(jobs))
        whole[regular] = np.floor(np.maximum(passed, 0.0)[regular] / every[regular]) * every[regular]
        return whole

    def next_end(self) -> float:
        if self._next_end is None:
            ends = self.ends[self.running]
            self._next_end = ends.item(ends.argmin()) if len(ends) else math.inf  # a third of what `min` takes
        return self._next_end

    def ending_by(self, when: float) -> Ints:
        """Who ends up to that second, in order of the end, then of the number."""
        if self.next_end() > when:
            return NONE
        ending = self.running[self.ends[self.running] <= moment(when)]
        ending.sort()
        return ending[self.ends[ending].argsort(kind="stable")]

    def on_node(self, node: int) -> Ints:
        there = self.cluster.node_of == node
        return np.array(
            [n for n in np.sort(self.running).tolist() if there[self.where.device_map(self.running).of(n)].any()],
            dtype=np.int64,
        )

    # What the above are made of.

    def _note_saves(self) -> None:
        if not self._saves_noted:
            self._saves_noted = True
            self._note(self.running)

    def _note(self, jobs: Ints) -> None:
        c = self.columns
        c["began"][jobs] = c["kept_at"][jobs] = c["since"][jobs]
        c["kept"][jobs] = c["base"][jobs]

    def _leave(self, jobs: Ints) -> Ints:
        neighbours = self._sharing(jobs)
        self.columns["rate"][jobs] = ZERO
        self.ends[jobs] = INFINITY
        self._next_end = None
        if self.natural:
            self.dynamics.leave(jobs)
        self.where.release(jobs)
        self.running = self.running[self.ends[self.running] < INFINITY]
        return np.setdiff1d(neighbours, jobs) if len(neighbours) else NONE

    def _size_up(self, launches: Launches) -> None:
        """Gangs: at the size the plan gives them, and spread where they stand on more nodes than they need."""
        as_asked = launches.workers.tobytes() == self.asked[launches.jobs].tobytes()  # a tenth of counting differences
        if self.natural or self._routed or launches.batch_sizes is not None or not as_asked:
            self._resize(launches)
        if self._spread_tells:
            self.spread[launches.jobs] = self.cluster.spread(launches.accelerators, launches.offsets, launches.types)

    def _resize(self, launches: Launches) -> None:
        """Look up who runs at another size or batch size than it asked for, or with a route, or did so before."""
        for index, (number, workers) in enumerate(zip(launches.jobs.tolist(), launches.workers.tolist())):
            if number in self.dynamics:
                self.dynamics.give(number, batch_size_given(launches, index))
                of_host = (launches.cpus, launches.host_memory_gb)
                cpus, memory = (0.0 if column is None else float(column[index]) for column in of_host)
                self.dynamics.give_of_host(number, cpus, memory)
            self.row[number], self.part[number] = self._row(number, workers, batch_size_given(launches, index))
            self.asked[number] = workers
            self._in_part = self._in_part or self.part[number] != 1.0

    def _row(self, number: int, workers: int, batch_size: int) -> tuple[int, float]:
        """The row of a job at the size and batch size it is given, and the part of its rate. Whoever has a nature tells its
        speed at a batch size itself, and replicas do no more together than one."""
        job, natural = self.jobs[number], number in self.dynamics
        serves = number in self.serving and not natural
        return row_given(self.table, job, job.workers if serves else workers, 0 if natural or serves else batch_size)

    def refresh(self, jobs: Ints, now: float) -> Ints:
        """Others came or went on their accelerators: progress goes on from here at the new speed. Nothing is saved by that."""
        c = self.columns
        self._note_saves()
        if self._saving:
            c["kept"][jobs] = self.saved_steps(jobs, now)
            c["kept_at"][jobs] += self._up_to_last_save(jobs, now - c["kept_at"][jobs])
        done = self.steps_at(jobs, now)
        c["base"][jobs] = self.dynamics.reached(jobs, done, now) if self.natural else done
        c["since"][jobs] = np.maximum(c["since"][jobs], now)
        return self._set_rates(jobs, now)

    def _set_rates(self, jobs: Ints, now: float) -> Ints:
        c, row, type_ = self.columns, self.row[jobs], self.type[jobs]
        alone = self.table.alone[row, type_]
        if self._spread_tells and np.count_nonzero(spread := self.spread[jobs]):
            alone[spread] = self.table.spread[row[spread], type_[spread]]
        if self._in_part:
            alone *= self.part[jobs]
        if self.natural:
            self._by_nature(jobs, alone)
        neighbours = NONE
        if self.where.shared:
            neighbours = self._slow_each_other(jobs, alone)
        if len(alone) and alone.item(alone.argmin()) <= 0:
            raise InvalidPlan(self._why_at_rest(int(jobs[int(alone.argmin())])))
        rate = self._slowed_by_saving(jobs, alone) if self._saving else alone
        c["rate"][jobs] = rate
        ends = c["since"][jobs] + (c["steps"][jobs] - c["base"][jobs]) / rate
        if self._limited:
            ends = np.minimum(ends, c["run_started"][jobs] + (c["limit"][jobs] - c["ran"][jobs]))
        self.ends[jobs] = ends
        self._next_end = None
        if self.natural:
            self.dynamics.foresee(jobs, c["base"][jobs], c["since"][jobs], rate, c["steps"][jobs])
        return np.setdiff1d(neighbours, jobs) if len(neighbours) else NONE

    def _why_at_rest(self, number: int) -> str:
        job, row, type_ = self.jobs[number], self.row[number], self.type[number]
        put = f"job {job.name!r} was put on {self.cluster.type_names[int(type_)]}"
        _, mates = self.where.mates(np.array([number]), self.running)
        for mate in mates.tolist() if self.table.alone[row, type_] > 0 else ():
            if self.table.paired[row, self.row[mate], type_] <= 0:
                other = self.jobs[mate]
                size = f" with {job.workers} workers" if job.workers > 1 else ""
                lacks = f"the throughput table has no {job.kind!r} beside {other.kind!r} there{size}"
                mend = "it needs every two that may meet, as `fairlead profile table --together` writes them"
                return f"{put} beside {other.name!r}, and {lacks}; {mend}"
        return f"{put}, where it has no throughput"

    def _by_nature(self, jobs: Ints, rate: Floats) -> None:
        """In place of what the table says, for those who have a nature."""
        for index, number in enumerate(jobs.tolist()):
            if number in self.dynamics:
                rate[index] = self.dynamics.ask(number, self.jobs[number], self._standing(number, float(rate[index])))

    def _standing(self, number: int, rate: float) -> Standing:
        job, type_, spread = self.jobs[number], int(self.type[number]), bool(self.spread[number])
        places = self.where.device_map(self.running).of(number)
        nodes, per_node = np.unique(self.cluster.node_of[places], return_counts=True)
        cpus, memory = self.dynamics.given_of_host(number)

        def table(size: int) -> float:
            row = self.table.row_of.get((kind_of(model_of(job.kind), size), len(places)))
            rates = self.table.spread if spread else self.table.alone
            return 0.0 if row is None else float(rates[row, type_])

        steps, name = float(self.columns["base"][number]), self.cluster.type_names[type_]
        size = self.dynamics.given(number)
        workers = tuple(sorted(per_node.tolist(), reverse=True))
        cpus = cpus or float((self.cluster.node_cpus / self.cluster.node_size)[nodes].min())
        memory = memory or float((self.cluster.node_memory_gb / self.cluster.node_size)[nodes].min())
        return Standing(steps, name, len(places), workers, size, table, rate, cpus, memory)

    def _slowed_by_saving(self, jobs: Ints, rate: Floats) -> Floats:
        every = self.columns["save_every"][jobs]
        regular = every < np.inf
        if regular.any():
            rate[regular] *= every[regular] / (every + self.columns["save"][jobs])[regular]
        return rate

    def over_limit(self, jobs: Ints) -> Bools | None:
        """Of jobs that end now: whose time limit ended them, with steps left to do. None where nobody has a limit."""
        if not self._limited:
            return None
        c = self.columns
        natural = c["since"][jobs] + (c["steps"][jobs] - c["base"][jobs]) / c["rate"][jobs]
        late: Bools = natural > self.ends[jobs]
        return late

    def _slow_each_other(self, jobs: Ints, rate: Floats) -> Ints:
        """Take from the rates of these jobs what their company costs them; return that company."""
        of, mate = self.where.mates(jobs, self.running)
        if not len(of):
            return NONE
        row, type_ = self.row[jobs[of]], self.type[jobs[of]]
        factor = self.table.paired[row, self.row[mate], type_] / np.maximum(self.table.alone[row, type_], 1e-300)
        if self.serving:
            factor[np.isin(jobs[of], list(self.serving))] = 1.0
            mate = mate[~np.isin(mate, list(self.serving))]
        turn = np.arange(len(of)) - of.searchsorted(of)  # a job's first mate, its second, ...: each slows it in turn
        for one in range(int(turn.max()) + 1):
            now = (turn == one).nonzero()[0]
            rate[of[now]] *= factor[now]
        return np.unique(mate)

    def _sharing(self, jobs: Ints) -> Ints:
        """Who runs on an accelerator that one of these jobs holds, they themselves included; nobody where none is shared."""
        if not self.where.shared:
            return NONE
        of, mate = self.where.mates(jobs, self.running)
        both = np.unique(np.concatenate((jobs[of], mate)))
        return both[~np.isin(both, list(self.serving))] if self.serving else both
