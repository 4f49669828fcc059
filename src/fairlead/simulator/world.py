"""The truth of a simulated cluster: how fast each job really runs where it is, what starting and saving cost it, and when it
ends. This module knows no policy and no estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.columns import INFINITY, TRUE, ZERO, JobColumns, as_scalar_array
from fairlead.core.device_map import NONE, DeviceMap
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import TIMED, Job, batch_size_of, kind_of, model_of
from fairlead.core.plan import TUNED, Launches
from fairlead.core.rng import stream
from fairlead.core.routes import Routes
from fairlead.simulator.costs import Costs
from fairlead.simulator.dynamics_tracker import DynamicsTracker
from fairlead.workloads.dynamics import JobDynamics, RunConditions
from fairlead.workloads.throughput_tables import ThroughputTable

_FIXED = ("steps", "limit", "launch", "restart", "save", "save_every", "rack_speed")  # set when a job is added
_CHANGING = ("base", "rate", "since", "began", "run_started", "ran", "saved", "saved_at")
"""`began`: when a running job had loaded and made progress. `saved`: its steps at the last save, at second `saved_at`."""


class World:
    """The jobs of a simulated cluster by number, and those of them that run; `ends` is when a running job ends by itself.

    Methods that start or stop jobs return the other jobs whose speed changes thereby; the caller then calls `refresh`."""

    def __init__(
        self,
        cluster: Cluster,
        table: ThroughputTable,
        costs: Costs,
        capacity: int = 256,
        dynamics: Mapping[str, JobDynamics] | None = None,
    ) -> None:
        self.cluster, self.costs = cluster, costs
        varies = costs.seed is not None and costs.starts_vary_s
        self._start_draw = stream(costs.seed or 0, "starts") if varies else None
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
        self.across_racks: Bools = np.zeros(capacity, dtype=np.bool_)
        self.started: Bools = np.zeros(capacity, dtype=np.bool_)
        self.jobs: dict[int, Job] = {}
        self.dynamics = DynamicsTracker(dynamics or {})
        # Whether any job has dynamics, costs, regular saves or a time limit. Otherwise their arithmetic is skipped.
        self.has_dynamics, self.has_costs = False, False
        self._saving, self._limited = False, False
        self.running: Ints = NONE
        self.serving: frozenset[int] = frozenset()  # jobs with a route
        # Whether any job has had a route, or ran at a part of a row's rate. Otherwise their arithmetic is skipped.
        self._routed, self._in_part = False, False
        self._spread_matters = not np.array_equal(self.table.spread, self.table.alone)
        self._racks_matter = False  # whether any job is slower on several racks
        self._next_end: float | None = math.inf  # None: to be computed again

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
        each = np.array([(c.launch_s, c.restart_s, c.checkpoint_s, c.checkpoint_every_s, c.rack_speed) for c in costs])
        self._block[numbers, 0] = [job.steps for job in jobs.values()]
        self._block[numbers, 1] = limits = [job.time_limit_s for job in jobs.values()]
        self._block[numbers, 2:7] = each[of]
        self.has_costs = self.has_costs or bool((each[:, :3] > 0).any())
        self._saving = self._saving or bool((each[:, 3] < math.inf).any())
        self._racks_matter = self._racks_matter or bool(self.cluster.nodes_of_rack and (each[:, 4] < 1).any())
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
        flags = (self.spread, self.across_racks, self.started)
        self.spread, self.across_racks, self.started = (_grown(column, size, False) for column in flags)

    def out_of_memory(self, launches: Launches) -> Ints:
        """The jobs that, started in this order, find less memory left on an accelerator than they need."""
        needs = self.table.memory_gb
        if needs is None:
            return NONE
        total = np.array([type_.memory_gb for type_ in self.cluster.types])[self.cluster.type_of]
        holder, place = self.devices.places(self.running)
        left: Floats = total - np.bincount(place, needs[self.row[holder]], minlength=self.cluster.size)
        short: list[int] = []
        for index, number in enumerate(launches.jobs.tolist()):
            mine = launches.accelerators[launches.offsets[index] : launches.offsets[index + 1]]
            need = float(needs[self._row(number, len(mine), _batch_size(launches, index))[0]])
            if (left[mine] < need * (1 - 1e-9)).any():
                short.append(number)
            else:
                left[mine] -= need
        return np.array(short, dtype=np.int64)

    def route(self, launches: Launches, routes: Routes) -> Ints:
        """Note which jobs serve requests by a route; return those that run already and are new in that. Requests themselves are
        not simulated here: a session progresses as with the replicas that it requested, whatever it is co-located with."""
        if not routes and not self.serving:
            return NONE
        self._routed = True
        launched = set(launches.jobs.tolist())
        before, self.serving = self.serving, self.serving - launched | set(routes)
        new = sorted(set(routes) - before - launched)
        for number in new:
            self.row[number], self.part[number] = self._row(number, int(self.workers[number]), 0)
        return np.array(new, dtype=np.int64)

    def launch(self, launches: Launches, now: float) -> Ints:
        """Start jobs; return the jobs that they share accelerators with."""
        jobs, c = launches.jobs, self.columns
        self.devices.take(jobs, launches.offsets, launches.accelerators, exclusive=launches.exclusive)
        self.type[jobs] = launches.types
        since = as_scalar_array(now)
        if self._limited:
            c["run_started"][jobs] = since
        if self.has_costs:
            start_s = np.where(self.started[jobs], c["restart"][jobs], c["launch"][jobs])
            if self._start_draw is not None:
                start_s = np.maximum(start_s + self._start_draw.choice(self.costs.starts_vary_s, len(jobs)), ZERO)
            since = since + start_s
            self.started[jobs] = TRUE
        c["since"][jobs] = c["began"][jobs] = c["saved_at"][jobs] = since
        c["saved"][jobs] = c["base"][jobs]
        self._set_sizes(launches)
        self.running = np.concatenate((self.running, jobs))
        return self._set_rates(jobs)

    def resume(self, launches: Launches, columns: JobColumns, now: float) -> Ints:
        """Take over jobs that were started before this simulation began, with their columns in the same order.

        A job that runs as fast here as it did keeps its line of progress, so that it ends at the same second. Returned are the
        others. What a job saved before its line of progress began is not known: it is computed as if its speed had not changed
        since its start."""
        jobs, c = launches.jobs, self.columns
        self.launch(launches, now)
        c["run_started"][jobs], c["ran"][jobs] = columns.run_started_s, columns.settled_run_s
        loaded = columns.run_started_s + np.where(columns.starts > 1, c["restart"][jobs], c["launch"][jobs])
        c["since"][jobs] = np.where(columns.rate > 0, columns.since_s, loaded)
        c["began"][jobs] = np.minimum(loaded, c["since"][jobs])
        c["base"][jobs] = np.minimum(columns.base_steps, c["steps"][jobs])
        c["saved_at"][jobs] = c["began"][jobs]
        c["saved_at"][jobs] += self._up_to_last_save(jobs, c["since"][jobs] - c["began"][jobs])
        c["saved"][jobs] = np.maximum(c["base"][jobs] - columns.rate * (c["since"][jobs] - c["saved_at"][jobs]), ZERO)
        self._set_rates(jobs)
        changing: Ints = jobs[c["rate"][jobs] != columns.rate]
        if len(changing):
            c["rate"][jobs] = columns.rate  # up to now
            self.refresh(changing, now)
        self.ends[jobs] = np.maximum(self.ends[jobs], now)  # a real job may be done without having reported it
        return changing

    def stop(self, jobs: Ints, now: float, *, saved: bool) -> Ints:
        """Suspend jobs; their progress is that of the last save. Returns the neighbours whose speed changes."""
        c = self.columns
        if not saved:
            c["base"][jobs] = self.saved_steps(jobs, now)
        elif not self.has_costs:
            c["base"][jobs] = self.steps_at(jobs, now)
        else:  # the last seconds were spent on saving, at the present speed
            until = np.maximum(now - c["save"][jobs], c["began"][jobs])
            done = c["base"][jobs] + c["rate"][jobs] * (until - c["since"][jobs])
            c["base"][jobs] = np.clip(done, c["saved"][jobs], c["steps"][jobs])
        if self._limited:
            c["ran"][jobs] += now - c["run_started"][jobs]
        return self.end(jobs)

    def end(self, jobs: Ints) -> Ints:
        """Remove jobs from their accelerators; return the neighbours whose speed changes."""
        neighbours = self._colocated_jobs(jobs)
        self.columns["rate"][jobs] = ZERO
        self.ends[jobs] = INFINITY
        self._next_end = None
        if self.has_dynamics:
            self.dynamics.stop(jobs)
        self.devices.release(jobs)
        self.running = self.running[self.ends[self.running] < INFINITY]
        return np.setdiff1d(neighbours, jobs) if len(neighbours) else NONE

    def steps_at(self, jobs: Ints, when: float | Floats) -> Floats:
        """The steps that running jobs have done at a second."""
        c = self.columns
        done = c["base"][jobs] + c["rate"][jobs] * np.maximum(np.asarray(when) - c["since"][jobs], ZERO)
        return np.minimum(done, c["steps"][jobs])

    def saved_steps(self, jobs: Ints, now: float) -> Floats:
        """The steps of the last checkpoint: that of the start, or the last regular one since."""
        c = self.columns
        whole = self._up_to_last_save(jobs, now - c["saved_at"][jobs])
        return np.where(whole > 0, self.steps_at(jobs, c["saved_at"][jobs] + whole), c["saved"][jobs])

    def _up_to_last_save(self, jobs: Ints, passed: Floats) -> Floats:
        """The part of these seconds of progress up to the last regular save."""
        every = self.columns["save_every"][jobs] + self.columns["save"][jobs]
        regular = every < np.inf
        whole = np.zeros(len(jobs))
        whole[regular] = np.floor(np.maximum(passed, 0.0)[regular] / every[regular]) * every[regular]
        return whole

    def next_end(self) -> float:
        """The first second at which a running job ends by itself."""
        if self._next_end is None:
            ends = self.ends[self.running]
            self._next_end = ends.item(ends.argmin()) if len(ends) else math.inf  # a third of the time of `min`
        return self._next_end

    def ending_by(self, when: float) -> Ints:
        """The jobs that end up to that second, by end and then by number."""
        if self.next_end() > when:
            return NONE
        ending = self.running[self.ends[self.running] <= as_scalar_array(when)]
        ending.sort()
        return ending[self.ends[ending].argsort(kind="stable")]

    def on_node(self, node: int) -> Ints:
        """The jobs that run on a node."""
        return self.devices.on(self.cluster.node_of == node)

    def over_limit(self, jobs: Ints) -> Bools | None:
        """Of jobs that end now, which ones reach their time limit with steps left. None where no job has a limit."""
        if not self._limited:
            return None
        c = self.columns
        by_itself = c["since"][jobs] + (c["steps"][jobs] - c["base"][jobs]) / c["rate"][jobs]
        late: Bools = by_itself > self.ends[jobs]
        return late

    def refresh(self, jobs: Ints, now: float) -> Ints:
        """Let jobs progress at their new speed from now on, because others started or stopped on their accelerators or their
        dynamics changed. This saves nothing."""
        c = self.columns
        if self._saving:
            c["saved"][jobs] = self.saved_steps(jobs, now)
            c["saved_at"][jobs] += self._up_to_last_save(jobs, now - c["saved_at"][jobs])
        done = self.steps_at(jobs, now)
        c["base"][jobs] = self.dynamics.exact_steps(jobs, done, now) if self.has_dynamics else done
        c["since"][jobs] = np.maximum(c["since"][jobs], now)
        return self._set_rates(jobs)

    def _set_sizes(self, launches: Launches) -> None:
        """Note the size that the plan gives each gang, and whether it is on more nodes than it needs, or on several racks."""
        same = launches.workers.tobytes() == self.workers[launches.jobs].tobytes()  # ten times faster than a comparison
        if self.has_dynamics or self._routed or launches.batch_sizes is not None or not same:
            for index, (number, workers) in enumerate(zip(launches.jobs.tolist(), launches.workers.tolist())):
                batch_size = _batch_size(launches, index)
                if number in self.dynamics:
                    host = (launches.cpus, launches.host_memory_gb)
                    self.dynamics.assign(number, batch_size, *(0.0 if one is None else float(one[index]) for one in host))
                self.row[number], self.part[number] = self._row(number, workers, batch_size)
                self.workers[number] = workers
                self._in_part = self._in_part or self.part[number] != 1.0
        if self._spread_matters:
            self.spread[launches.jobs] = self.cluster.spread(launches.accelerators, launches.offsets, launches.types)
        if self._racks_matter:
            self.across_racks[launches.jobs] = self.cluster.across_racks(launches.accelerators, launches.offsets)

    def _row(self, number: int, workers: int, batch_size: int) -> tuple[int, float]:
        """The row of a job at the size and batch size that it is given, and the part of the row's rate. A job with dynamics
        handles batch sizes itself, and replicas of a session do no more than one."""
        job, own = self.jobs[number], number in self.dynamics
        serves = number in self.serving and not own
        return row_for(self.table, job, job.workers if serves else workers, 0 if own or serves else batch_size)

    def _set_rates(self, jobs: Ints) -> Ints:
        c, row, type_ = self.columns, self.row[jobs], self.type[jobs]
        alone = self.table.alone[row, type_]
        if self._spread_matters and np.count_nonzero(spread := self.spread[jobs]):
            alone[spread] = self.table.spread[row[spread], type_[spread]]
        if self._in_part:
            alone *= self.part[jobs]
        if self.has_dynamics:
            for index, number in enumerate(jobs.tolist()):
                if number in self.dynamics:
                    conditions = self._conditions(number, float(alone[index]))
                    alone[index] = self.dynamics.rate(number, self.jobs[number], conditions)
        if self._racks_matter:
            alone *= np.where(self.across_racks[jobs], c["rack_speed"][jobs], 1.0)
        neighbours = self._apply_interference(jobs, alone) if self.devices.shared else NONE
        if len(alone) and alone.item(alone.argmin()) <= 0:
            raise InvalidPlan(self._why_no_rate(int(jobs[int(alone.argmin())])))
        rate = self._slowed_by_saving(jobs, alone) if self._saving else alone
        c["rate"][jobs] = rate
        ends = c["since"][jobs] + (c["steps"][jobs] - c["base"][jobs]) / rate
        if self._limited:
            ends = np.minimum(ends, c["run_started"][jobs] + (c["limit"][jobs] - c["ran"][jobs]))
        self.ends[jobs] = ends
        self._next_end = None
        if self.has_dynamics:
            self.dynamics.schedule_changes(jobs, c["base"][jobs], c["since"][jobs], rate, c["steps"][jobs])
        return np.setdiff1d(neighbours, jobs) if len(neighbours) else NONE

    def _why_no_rate(self, number: int) -> str:
        job, row, type_ = self.jobs[number], self.row[number], self.type[number]
        put = f"job {job.name!r} was placed on {self.cluster.type_names[int(type_)]}"
        _, others = colocated(self.devices, np.array([number]), self.running)
        for mate in others.tolist() if self.table.alone[row, type_] > 0 else ():
            if self.table.paired[row, self.row[mate], type_] <= 0:
                other = self.jobs[mate]
                size = f" with {job.workers} workers" if job.workers > 1 else ""
                lacks = f"the throughput table has no rate of {job.kind!r} with {other.kind!r} there{size}"
                fix = "it needs every two that may be co-located, as `fairlead profile table --together` writes them"
                return f"{put} with {other.name!r}, and {lacks}; {fix}"
        return f"{put}, where it has no throughput"

    def _conditions(self, number: int, rate: float) -> RunConditions:
        job, type_, spread = self.jobs[number], int(self.type[number]), bool(self.spread[number])
        places = self.devices.of(number)
        nodes, per_node = np.unique(self.cluster.node_of[places], return_counts=True)
        size, cpus, memory = self.dynamics.assigned(number)

        def table(batch_size: int) -> float:
            row = self.table.row_of.get((kind_of(model_of(job.kind), batch_size), len(places)))
            rates = self.table.spread if spread else self.table.alone
            return 0.0 if row is None else float(rates[row, type_])

        steps, name = float(self.columns["base"][number]), self.cluster.type_names[type_]
        workers = tuple(sorted(per_node.tolist(), reverse=True))
        cpus = cpus or float((self.cluster.node_cpus / self.cluster.node_size)[nodes].min())
        memory = memory or float((self.cluster.node_memory_gb / self.cluster.node_size)[nodes].min())
        return RunConditions(steps, name, len(places), workers, size, table, rate, cpus, memory)

    def _slowed_by_saving(self, jobs: Ints, rate: Floats) -> Floats:
        every = self.columns["save_every"][jobs]
        regular = every < np.inf
        if regular.any():
            rate[regular] *= every[regular] / (every + self.columns["save"][jobs])[regular]
        return rate

    def _apply_interference(self, jobs: Ints, rate: Floats) -> Ints:
        """Reduce the rates of these jobs by the interference of co-located jobs; return the latter."""
        of, mate = colocated(self.devices, jobs, self.running)
        if not len(of):
            return NONE
        row, type_ = self.row[jobs[of]], self.type[jobs[of]]
        factor = self.table.paired[row, self.row[mate], type_] / np.maximum(self.table.alone[row, type_], 1e-300)
        if self.serving:
            factor[np.isin(jobs[of], list(self.serving))] = 1.0
            mate = mate[~np.isin(mate, list(self.serving))]
        turn = np.arange(len(of)) - of.searchsorted(of)  # multiply in a fixed order: a job's first neighbour, its second, ...
        for one in range(int(turn.max()) + 1):
            now = (turn == one).nonzero()[0]
            rate[of[now]] *= factor[now]
        return np.unique(mate)

    def _colocated_jobs(self, jobs: Ints) -> Ints:
        """The jobs on shared accelerators of these jobs, including themselves."""
        if not self.devices.shared:
            return NONE
        of, mate = colocated(self.devices, jobs, self.running)
        both = np.unique(np.concatenate((jobs[of], mate)))
        return both[~np.isin(both, list(self.serving))] if self.serving else both


def _batch_size(launches: Launches, index: int) -> int:
    """The batch size that a launch gives; 0: none."""
    return 0 if launches.batch_sizes is None else int(launches.batch_sizes[index])


def row_for(table: ThroughputTable, job: Job, workers: int, batch_size: int) -> tuple[int, float]:
    """The table's row for a job at a size and batch size, and the part of the row's rate: for sizes without a row, in
    proportion. A batch size of 0, or one that the job tunes itself, is that of its type."""
    kind = job.kind
    if kind != TIMED and batch_size not in (0, TUNED, batch_size_of(kind)):
        kind = kind_of(model_of(kind), batch_size)
    if workers == job.workers or (kind != TIMED and (kind, workers) in table.row_of):
        return table.row(kind, workers), 1.0
    return table.row(kind, job.workers), workers / job.workers


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
