"""The true facts of a simulated world, as columns by job number: how fast each job really runs where it is, what starting and
saving cost it, when it will end. It knows no policy and no estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.backends.natures import Natures
from fairlead.backends.whereabouts import Whereabouts
from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.errors import InvalidPlan
from fairlead.core.holdings import NONE
from fairlead.core.inference import Routes
from fairlead.core.job import TIMED, Job, batch_size_of, kind_of, model_of
from fairlead.core.operands import FALSE, INFINITY, TRUE, ZERO, moment
from fairlead.core.plan import TUNED, Launches
from fairlead.workloads.nature import Nature, Standing
from fairlead.workloads.profiles import ThroughputTable


@dataclass(frozen=True)
class Costs:
    """Seconds lost by starting, saving and loading; `by_kind` gives some kinds values of their own.

    A job checkpoints when it is suspended, and every `checkpoint_every_s` while it runs; each save takes `checkpoint_s`, in
    which it makes no progress. `restart_s` is paid by every start after the first, `launch_s` by the first.
    """

    launch_s: float = 0.0
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float = math.inf
    by_kind: Mapping[str, Costs] = field(default_factory=dict)

    def of(self, kind: str) -> Costs:
        """The costs of a kind: its own, or those given for its model, or those for all."""
        if not self.by_kind:
            return self
        return self.by_kind.get(kind) or self.by_kind.get(model_of(kind), self)


_GIVEN = ("steps", "limit", "launch", "restart", "save", "save_every")  # known when a job arrives
_CHANGING = ("base", "rate", "since", "began", "run_started", "ran", "kept", "kept_at")
"""`began`: when a job that runs had loaded and went on. `kept`: its steps at the last save, and when that was."""


class World:
    """Columns of the jobs that have arrived. `ends` is the second at which a running job ends by itself, else infinity."""

    def __init__(
        self,
        cluster: Cluster,
        table: ThroughputTable,
        costs: Costs,
        capacity: int = 256,
        natures: Mapping[str, Nature] | None = None,
    ) -> None:
        self.cluster, self.costs = cluster, costs
        self.table = table.for_types(cluster.type_names)
        self._spread_tells = not np.array_equal(self.table.spread, self.table.alone)
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
        self.running: Ints = NONE
        self.natures = Natures(natures or {})
        self.serving: frozenset[int] = frozenset()  # who has a route
        self._routed = False  # whether anybody ever had one
        # What no job has needs no arithmetic: whether any so far has costs, regular saves, a time limit, a nature.
        self.natural = False
        self.costly, self._saving, self._limited, self._in_part = False, False, False, False
        self._next_end: float | None = math.inf  # None: somebody came or went since it was computed
        self._saves_noted = False  # until somebody asks, a run began and was saved where its line of progress begins

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
        self.natural = self.natures.arrive([(number, job)], self.columns["steps"])

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
        self.natural = self.natures.arrive(enumerate(jobs, first), self.columns["steps"])

    def out_of_memory(self, launches: Launches) -> Ints:
        """Who of these, started in this order, finds less memory left on an accelerator than it needs."""
        needs = self.table.memory_gb
        if needs is None:
            return NONE
        there = np.array([kind.memory_gb for kind in self.cluster.types])[self.cluster.type_of]
        holder, place = self.where.holdings(self.running).places(self.running)
        left: Floats = there - np.bincount(place, needs[self.row[holder]], minlength=self.cluster.size)
        short: list[int] = []
        for index, number in enumerate(launches.jobs.tolist()):
            mine = launches.accelerators[launches.offsets[index] : launches.offsets[index + 1]]
            need = float(needs[self._row_launched(launches, index)[0]])
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
            self.row[number], self.part[number] = self._row_given(number, int(self.asked[number]), 0)
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
        changes. Of who shares its accelerators, how much was saved before its company changed is not known: all of it."""
        jobs, c = launches.jobs, self.columns
        self._note_saves()
        self.launch(launches, now)
        c["run_started"][jobs], c["ran"][jobs] = told.run_started_s, told.settled_run_s
        loaded = told.run_started_s + np.where(told.starts > 1, c["restart"][jobs], c["launch"][jobs])
        c["since"][jobs] = np.where(told.rate > 0, told.since_s, loaded)
        c["began"][jobs] = np.minimum(loaded, c["since"][jobs])
        c["base"][jobs] = c["kept"][jobs] = np.minimum(told.base_steps, c["steps"][jobs])
        c["kept_at"][jobs] = c["began"][jobs]
        c["kept_at"][jobs] += self._up_to_last_save(jobs, c["since"][jobs] - c["began"][jobs])
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
            [n for n in np.sort(self.running).tolist() if there[self.where.holdings(self.running).of(n)].any()], dtype=np.int64
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
            self.natures.leave(jobs)
        self.where.release(jobs)
        self.running = self.running[self.ends[self.running] < INFINITY]
        return np.setdiff1d(neighbours, jobs) if len(neighbours) else NONE

    def _size_up(self, launches: Launches) -> None:
        """Gangs: at the size the plan gives them, and spread where they stand on more nodes than they need."""
        sizes = launches.workers
        as_asked = sizes.tobytes() == self.asked[launches.jobs].tobytes()  # a tenth of what it takes to count differences
        if self.natural or self._routed or launches.batch_sizes is not None or not as_asked:
            self._resize(launches)
        if not self._spread_tells:
            return
        self.spread[launches.jobs] = FALSE
        if len(launches.accelerators) == len(launches.jobs):
            return
        node = self.cluster.node_of[launches.accelerators]
        cuts = launches.offsets[:-1]
        # Most gangs stand on one node, whose number is then both the least and the greatest of theirs.
        several = (np.minimum.reduceat(node, cuts) < np.maximum.reduceat(node, cuts)).nonzero()[0]
        if len(several):
            ends = launches.offsets[several + 1].tolist()
            used = [len(set(node[start:end].tolist())) for start, end in zip(cuts[several].tolist(), ends)]
            least = -(-sizes[several] // self.cluster.largest_node_of_type[launches.types[several]])
            self.spread[launches.jobs[several]] = np.array(used) > least

    def _resize(self, launches: Launches) -> None:
        """Look up who runs at another size or batch size than it asked for, or with a route, or did so before."""
        for index, (number, workers) in enumerate(zip(launches.jobs.tolist(), launches.workers.tolist())):
            if number in self.natures:
                self.natures.give(number, _batch_size(launches, index))
                of_host = (launches.cpus, launches.host_memory_gb)
                cpus, memory = (0.0 if column is None else float(column[index]) for column in of_host)
                self.natures.give_of_host(number, cpus, memory)
            self.row[number], self.part[number] = self._row_launched(launches, index)
            self.asked[number] = workers
            self._in_part = self._in_part or self.part[number] != 1.0

    def _row_launched(self, launches: Launches, index: int) -> tuple[int, float]:
        """The row of one of these at the size and batch size it is given, and the part of its rate."""
        return self._row_given(int(launches.jobs[index]), int(launches.workers[index]), _batch_size(launches, index))

    def _row_given(self, number: int, workers: int, wanted: int) -> tuple[int, float]:
        kind, asked = self.jobs[number].kind, self.jobs[number].workers
        if number in self.serving and number not in self.natures:  # whose replicas do no more together than one
            workers = asked
        elif number not in self.natures and kind != TIMED and wanted not in (0, TUNED, batch_size_of(kind)):
            kind = kind_of(model_of(kind), wanted)
        return self._row_at(kind, asked, workers)

    def _row_at(self, kind: str, asked: int, workers: int) -> tuple[int, float]:
        """The row for a size, and the part of its rate: with fewer or more workers than any row is about, in proportion."""
        if workers == asked or (kind != TIMED and (kind, workers) in self.table.row_of):
            return self.table.row(kind, workers), 1.0
        return self.table.row(kind, asked), workers / asked

    def refresh(self, jobs: Ints, now: float) -> Ints:
        """Others came or went on their accelerators: progress goes on from here at the new speed. Nothing is saved by that."""
        c = self.columns
        self._note_saves()
        if self._saving:
            c["kept"][jobs] = self.saved_steps(jobs, now)
            c["kept_at"][jobs] += self._up_to_last_save(jobs, now - c["kept_at"][jobs])
        done = self.steps_at(jobs, now)
        c["base"][jobs] = self.natures.reached(jobs, done, now) if self.natural else done
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
            bad = int(jobs[int(alone.argmin())])
            where = self.cluster.type_names[int(self.type[bad])]
            raise InvalidPlan(f"job {self.jobs[bad].name!r} was put on {where}, where it has no throughput")
        rate = self._slowed_by_saving(jobs, alone) if self._saving else alone
        c["rate"][jobs] = rate
        ends = c["since"][jobs] + (c["steps"][jobs] - c["base"][jobs]) / rate
        if self._limited:
            ends = np.minimum(ends, c["run_started"][jobs] + (c["limit"][jobs] - c["ran"][jobs]))
        self.ends[jobs] = ends
        self._next_end = None
        if self.natural:
            self.natures.foresee(jobs, c["base"][jobs], c["since"][jobs], rate, c["steps"][jobs])
        return np.setdiff1d(neighbours, jobs) if len(neighbours) else NONE

    def _by_nature(self, jobs: Ints, rate: Floats) -> None:
        """In place of what the table says, for those who have a nature."""
        for index, number in enumerate(jobs.tolist()):
            if number in self.natures:
                rate[index] = self.natures.ask(number, self.jobs[number], self._standing(number, float(rate[index])))

    def _standing(self, number: int, rate: float) -> Standing:
        job, type_, spread = self.jobs[number], int(self.type[number]), bool(self.spread[number])
        places = self.where.holdings(self.running).of(number)
        nodes, per_node = np.unique(self.cluster.node_of[places], return_counts=True)
        cpus, memory = self.natures.given_of_host(number)

        def table(size: int) -> float:
            row = self.table.row_of.get((kind_of(model_of(job.kind), size), len(places)))
            rates = self.table.spread if spread else self.table.alone
            return 0.0 if row is None else float(rates[row, type_])

        steps, name = float(self.columns["base"][number]), self.cluster.type_names[type_]
        size = self.natures.given(number)
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
        of, mate = self._company(jobs)
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

    def _company(self, jobs: Ints) -> tuple[Ints, Ints]:
        """Who runs beside whom: positions in `jobs`, ascending, and the number of a mate for each, ascending for one job."""
        holder, place = self.where.holdings(self.running).places(self.running)
        order = place.argsort(kind="stable")
        holder, count = holder[order], np.bincount(place, minlength=self.cluster.size)
        number, theirs = self.where.holdings(self.running).places(jobs)
        position = np.empty(len(self.row), dtype=np.int64)
        position[jobs] = np.arange(len(jobs))
        owner = position[number]
        shared = count[theirs] > 1
        theirs, owner = theirs[shared], owner[shared]
        many = count[theirs]  # holders of each; in `holder`, those of an accelerator stand together
        starts, ends = (count.cumsum() - count)[theirs], many.cumsum()
        mate = holder[(starts - ends + many).repeat(many) + np.arange(int(many.sum()))]
        of = owner.repeat(many)
        other = mate != jobs[of]
        span = len(self.row)
        pairs = np.unique(of[other] * span + mate[other])  # gangs meet on several accelerators, and are mates once
        return pairs // span, pairs % span

    def _sharing(self, jobs: Ints) -> Ints:
        """Who runs on an accelerator that one of these jobs holds, they themselves included; nobody where none is shared."""
        if not self.where.shared:
            return NONE
        of, mate = self._company(jobs)
        both = np.unique(np.concatenate((jobs[of], mate)))
        return both[~np.isin(both, list(self.serving))] if self.serving else both

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


def _batch_size(launches: Launches, index: int) -> int:
    """That one of these is given; 0: none."""
    return 0 if launches.batch_sizes is None else int(launches.batch_sizes[index])
