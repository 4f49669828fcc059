"""The simulated backend: virtual time. Jobs arrive from a trace, run at their true rates, end at exact seconds inside a round,
lose their node and fall back to a checkpoint. It carries out plans and tells what happened; it never sees the scheduler."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.device_map import ragged
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.core.plan import Launches, RoundPlan, boundary_after, boundary_at
from fairlead.core.routes import Session
from fairlead.core.snapshot import Snapshot
from fairlead.models.convergence import LOSS, TARGET
from fairlead.simulator.costs import Costs
from fairlead.simulator.sessions import Requests
from fairlead.simulator.world import World
from fairlead.workloads.dynamics import JobDynamics, LossCurve
from fairlead.workloads.throughput_tables import ThroughputTable

# What simulated jobs report about their loss, and when: at the end of each round in which they made steps. Where no job has a
# curve there is nothing to report, and nothing to wait for.

EVERY_S = 300.0
"""Between reports where there are no rounds."""


class LossReports:
    """Curves by the names of jobs."""

    def __init__(self, curves: Mapping[str, LossCurve]) -> None:
        self._curves = curves
        self._of: dict[int, LossCurve] = {}
        self._told_s = -math.inf
        self._introduced: set[int] = set()  # who has said what loss it can reach

    def arrive(self, jobs: Iterable[tuple[int, Job]]) -> None:
        for number, job in jobs:
            if (curve := self._curves.get(job.name)) is not None:
                self._of[number] = curve

    def next_s(self, world: World, now: float, grain: float) -> float:
        """The end of the round, if anybody then has something to report."""
        if not self._curves or not any(number in self._of for number in world.running.tolist()):
            return math.inf
        return boundary_after(max(now, self._told_s), grain or EVERY_S)

    def tell(self, world: World, now: float) -> list[ev.Event]:
        self._told_s = now
        running = np.sort(world.running)
        reporting: Bools = np.array([number in self._of for number in running.tolist()], dtype=np.bool_)
        jobs: Ints = running[reporting & (world.columns["since"][running] < now)]
        if not len(jobs):
            return []
        curves = [self._of[number] for number in jobs.tolist()]
        new = [number not in self._introduced for number in jobs.tolist()]
        told: list[ev.Event] = []
        if any(new):
            self._introduced.update(jobs[new].tolist())
            floors = np.array([curve.floor for curve in curves])
            told.append(ev.MetricsReported(now, TARGET, jobs[new], floors[new]))
        shares: Floats = world.steps_at(jobs, now) / world.columns["steps"][jobs]
        losses = np.array([curve.at(share) for curve, share in zip(curves, shares.tolist())])
        told.append(ev.MetricsReported(now, LOSS, jobs, losses))
        return told


Other: TypeAlias = ev.JobCancelled | ev.NodeDrained | ev.MetricsReported | ev.SchedulerSwitched
"""What comes from outside besides jobs and faults."""

OUT_OF_MEMORY = "out of memory"
"""Why a job failed that has once too often found less on its accelerators than it needs."""


class SimulatedBackend:
    """Give it the cluster, the true rates, and what comes from outside: jobs by submission, and node faults. Jobs that `losses`
    has a curve for, by name, report on their way; those that `dynamics` knows run at the speed of their nature; those that are
    `sessions` get requests, which are served as plans route them."""

    def __init__(
        self,
        cluster: Cluster,
        table: ThroughputTable,
        arrivals: Sequence[Job] = (),
        *,
        costs: Costs | None = None,
        faults: Iterable[ev.NodeLost | ev.NodeRepaired] = (),
        others: Iterable[Other] = (),
        start_s: float = 0.0,
        first_number: int = 0,
        down: Iterable[int] = (),
        losses: Mapping[str, LossCurve] | None = None,
        dynamics: Mapping[str, JobDynamics] | None = None,
        sessions: Mapping[str, Session] | None = None,
    ) -> None:
        self.now = start_s
        self.requests = Requests(cluster, sessions) if sessions else None
        self.world = World(cluster, table, costs or Costs(), max(256, first_number + len(arrivals)), dynamics)
        self._arrivals = sorted(arrivals, key=lambda job: job.submitted_s)
        self._next_job = 0
        self._number = first_number
        self._down = set(down)
        self._faults = _that_change_something(faults, start_s, set(down))
        self._next_fault = next(self._faults, None)
        self._others = sorted(others, key=lambda event: event.time)
        self._next_other = 0
        self._reports = any(isinstance(event, ev.MetricsReported) for event in self._others)
        self._gone: set[int] = set()  # who has ended, and reports nothing any more, where there are reports to come
        self._untold: list[ev.Event] = []  # what is known before the first wait
        self._failures: dict[int, int] = {}  # by job, of its own
        self.world.foresee(self._arrivals, first_number)
        self._losses = LossReports(losses) if losses else None
        if self._losses is not None:
            self._losses.arrive(enumerate(self._arrivals, first_number))
        self._foreseen = True  # numbers are as the world knows them, until somebody comes in between

    @classmethod
    def from_snapshot(
        cls,
        view: Snapshot,
        rates: ThroughputTable,
        arrivals: Sequence[Job] = (),
        *,
        costs: Costs | None = None,
        faults: Iterable[ev.NodeLost | ev.NodeRepaired] = (),
        others: Iterable[Other] = (),
        losses: Mapping[str, LossCurve] | None = None,
        dynamics: Mapping[str, JobDynamics] | None = None,
    ) -> SimulatedBackend:
        """A world that goes on from a moment of any run, real or simulated: the same jobs, progress and places. `arrivals` are
        the jobs still to come, and so are `others`."""
        coming = [job if job.submitted_s >= view.time else replace(job, submitted_s=view.time) for job in arrivals]
        down = {int(node) for node in np.unique(view.cluster.node_of[~view.present])}
        start, first = view.time, view.next_number
        self = cls(
            view.cluster,
            rates,
            coming,
            costs=costs,
            faults=faults,
            others=others,
            start_s=start,
            first_number=first,
            down=down,
            losses=losses,
            dynamics=dynamics,
        )
        numbers = np.concatenate((view.jobs.number, view.queued.number))
        if self._reports:
            self._gone = set(range(first)).difference(numbers.tolist())
        for number in sorted(numbers.tolist()):
            self.world.arrive(number, view.job_of[number])
        if self._losses is not None:
            self._losses.arrive((number, view.job_of[number]) for number in numbers.tolist())
        jobs, c = view.jobs, self.world.columns
        for columns in (jobs, view.queued):
            done = np.maximum(columns.steps_done, columns.base_steps)  # who overran has done more than it declared
            c["base"][columns.number] = np.minimum(done, c["steps"][columns.number])
            c["ran"][columns.number] = columns.settled_run_s
            self.world.started[columns.number] = columns.starts > 0
            self.world.dynamics.said_before(columns.number, columns.metric(BATCH_SIZE))
            for name in columns.metrics if self.world.natural else ():
                self.world.dynamics.reported_before(columns.number, name, columns.metric(name))
            self._failures.update(zip(columns.number.tolist(), columns.failures.tolist()))
        running = jobs.number[jobs.running]
        self.world.serving = frozenset(view.routes)
        if len(running):
            offsets, places = ragged(view.device_map.of(number) for number in running.tolist())
            now_running = jobs.only(jobs.running)
            sizes, of_host = now_running.batch_size, (now_running.cpus_given, now_running.memory_given_gb)
            launches = Launches(running, now_running.type, offsets, places, sizes if sizes.any() else None, *of_host)
            changed = self.world.resume(launches, now_running, view.time)
            if len(changed):
                self._untold.append(self._progress(changed, view.time))
            self._untold.extend(self.world.dynamics.tell(running, view.time))
        return self

    @property
    def exhausted(self) -> bool:
        nothing_comes = self._next_job >= len(self._arrivals) and self._other_time() == math.inf
        hopeful = self._next_fault is not None and (len(self._down) > 0 or isinstance(self._next_fault, ev.NodeRepaired))
        return nothing_comes and not len(self.world.running) and not hopeful

    def wait(self, until: float, grain: float) -> Sequence[ev.Event]:
        happened, self._untold = self._untold, []
        limit, awaited = until, True
        while True:
            reports = math.inf if self._losses is None else self._losses.next_s(self.world, self.now, grain)
            turn = self.world.dynamics.next_turn if self.world.natural else math.inf
            outside = min(self._fault_time(), self._other_time(), reports, turn)
            when = min(self.world.next_end(), self._next_arrival(), outside)
            if when > limit or when == math.inf:
                break
            if awaited:  # the first event fixes where this wait ends
                limit, awaited = min(until, boundary_at(when, grain)), False
            # Where no job's end touches another's speed, all up to the next fault can be told at once.
            stretch = when if self.world.where.shared else max(when, min(limit, outside))
            self._happen(stretch, happened)
            if stretch >= turn:
                self._refresh([self.world.dynamics.turning_by(stretch)], stretch, happened)
            if self._losses is not None and stretch >= reports:
                happened.extend(self._losses.tell(self.world, stretch))
        if limit < math.inf:
            self.now = limit
        self._note(happened)
        return happened

    def submit(self, plan: RoundPlan) -> Sequence[ev.Event]:
        touched: list[Ints] = []
        told: list[ev.Event] = []
        if len(plan.ended):
            going = plan.ended[np.isin(plan.ended, self.world.running)]
            touched.append(self.world.end(going))
        if len(plan.suspended):
            touched.append(self.world.stop(plan.suspended, plan.time, saved=True))
            if self.world.costly:
                lost_some = plan.suspended[self.world.columns["save"][plan.suspended] > 0]
                if len(lost_some):
                    told.append(self._progress(lost_some, plan.time))
            if self.world.natural and len(over := self.world.dynamics.overrun(plan.suspended)):  # further than one would expect
                told.append(self._progress(over, plan.time))
        launches = plan.launches
        touched.append(self.world.route(launches, plan.routes))
        if len(launches) and len(short := self.world.out_of_memory(launches)):
            launches = launches.only(~np.isin(launches.jobs, short))
            told.extend(self._out_of_memory(short, plan.time))
        if len(launches):
            touched.append(self.world.launch(launches, plan.time))
            self._go_on(launches.jobs, plan.time, told)
        self._refresh(touched, plan.time, told)
        if self._reports or self.requests is not None:
            self._note((ev.RoundPlanned(plan), *told))
        return told

    def _note(self, events: Sequence[ev.Event]) -> None:
        if self._reports:
            self._gone.update(number for event in events for number in _ended_by(event))
        if self.requests is not None:
            for event in events:
                self.requests.see(event)

    def _out_of_memory(self, jobs: Ints, now: float) -> Iterator[ev.Event]:
        """They fall over as they start: back to the line, or out of it where that was once too often."""
        self.world.started[jobs] = True  # it was a start, if a short one: the next takes as long as any later one
        for number in jobs.tolist():
            self._failures[number] = self._failures.get(number, 0) + 1
        last = np.array([self._failures[n] > self.world.jobs[n].retry_limit for n in jobs.tolist()], dtype=np.bool_)
        if len(again := jobs[~last]):
            yield ev.JobsInterrupted(now, again, self.world.columns["base"][again], True, OUT_OF_MEMORY)
        if len(over := jobs[last]):
            yield ev.JobsFailed(now, over, np.full(len(over), now), OUT_OF_MEMORY)

    def add(self, job: Job) -> None:
        """One more job comes from outside, at its submission time, or now where that has passed."""
        late = job if job.submitted_s >= self.now else replace(job, submitted_s=self.now)
        self._foreseen = False
        bisect.insort(self._arrivals, late, lo=self._next_job, key=lambda waiting: waiting.submitted_s)

    def reconcile(self, view: Snapshot) -> Sequence[ev.Event]:
        """A simulated world dies with its process: nothing runs that the state does not know of."""
        return ()

    # At the same moment: ends, then faults, then arrivals, then the rest, then what jobs report.

    def _happen(self, stretch: float, happened: list[ev.Event]) -> None:
        """Everything up to a second before which ends and arrivals do not touch each other."""
        ending = self.world.ending_by(stretch)
        if len(ending):
            at = self.world.ends[ending]
            self._arrive(float(at[-1]), happened, before=True)
            late = self.world.over_limit(ending)
            told = float(at[-1])
            if self.world.natural and len(over := self.world.dynamics.overrun(ending)):  # what they did, before they are gone
                self._reach(over, happened, told)
            touched = self.world.end(ending)
            if late is not None and late.any():
                happened.append(ev.JobsFailed(told, ending[late], at[late], "time limit"))
                ending, at = ending[~late], at[~late]
            if len(ending):
                happened.append(ev.JobsFinished(told, ending, at))
            self._refresh([touched], told, happened)
        self._arrive(stretch, happened, before=True)
        while self._next_fault is not None and self._next_fault.time <= stretch:
            self._fault(self._next_fault, happened)
            self._next_fault = next(self._faults, None)
        self._arrive(stretch, happened)
        while self._other_time() <= stretch:
            self._other(self._others[self._next_other], happened)
            self._next_other += 1

    def _reach(self, jobs: Ints, happened: list[ev.Event], now: float) -> None:
        ends, rates = self.world.ends[jobs], self.world.columns["rate"][jobs]
        happened.append(ev.ProgressReported(now, jobs, self.world.steps_at(jobs, ends), rates, ends))

    def _arrive(self, until: float, happened: list[ev.Event], *, before: bool = False) -> None:
        """Jobs submitted up to a second, or strictly before it."""
        coming, last = self._arrivals, len(self._arrivals)
        while self._next_job < last:
            job = coming[self._next_job]
            when = job.submitted_s
            if when >= until and (before or when > until or until == math.inf):
                break
            happened.append(ev.JobSubmitted(when, self._number, job))
            if not self._foreseen:
                self.world.arrive(self._number, job)
                if self._losses is not None:
                    self._losses.arrive([(self._number, job)])
            self._next_job += 1
            self._number += 1

    def _fault(self, event: ev.NodeLost | ev.NodeRepaired, happened: list[ev.Event]) -> None:
        happened.append(event)
        if isinstance(event, ev.NodeRepaired):
            self._down.discard(event.node)
            return
        self._down.add(event.node)
        victims = self.world.on_node(event.node)
        if len(victims):
            touched = self.world.stop(victims, event.time, saved=False)
            happened.append(ev.JobsInterrupted(event.time, victims, self.world.columns["base"][victims]))
            self._refresh([touched], event.time, happened)

    def _other(self, event: Other, happened: list[ev.Event]) -> None:
        happened.append(event)
        if isinstance(event, ev.JobCancelled) and event.number in self.world.running:
            touched = self.world.end(np.array([event.number], dtype=np.int64))
            self._refresh([touched], event.time, happened)

    def _refresh(self, touched: list[Ints], now: float, told: list[ev.Event]) -> None:
        """Neighbours of those who came or went, and who turns by its nature, run at another speed from now on."""
        neighbours = [jobs for jobs in touched if len(jobs)]
        if neighbours:
            jobs = np.intersect1d(np.unique(np.concatenate(neighbours)), self.world.running)
            if len(jobs):
                self.world.refresh(jobs, now)
                self._go_on(jobs, now, told)

    def _go_on(self, jobs: Ints, now: float, told: list[ev.Event]) -> None:
        """They say how fast they are from now on, and a batch size that is new."""
        told.append(self._progress(jobs, now))
        if self.world.natural:
            told.extend(self.world.dynamics.tell(jobs, now))

    def _progress(self, jobs: Ints, now: float) -> ev.ProgressReported:
        c = self.world.columns
        return ev.ProgressReported(now, jobs, c["base"][jobs], c["rate"][jobs], c["since"][jobs])

    def _next_arrival(self) -> float:
        return self._arrivals[self._next_job].submitted_s if self._next_job < len(self._arrivals) else math.inf

    def _fault_time(self) -> float:
        return math.inf if self._next_fault is None else self._next_fault.time

    def _other_time(self) -> float:
        while self._gone and self._next_other < len(self._others):
            following = self._others[self._next_other]
            if not isinstance(following, ev.MetricsReported) or not self._gone.issuperset(following.jobs.tolist()):
                break
            self._next_other += 1
        return self._others[self._next_other].time if self._next_other < len(self._others) else math.inf


def _ended_by(event: ev.Event) -> list[int]:
    match event:
        case ev.JobsFinished(_, jobs) | ev.JobsFailed(_, jobs):
            return [*jobs.tolist()]
        case ev.JobCancelled(_, number):
            return [number]
        case ev.RoundPlanned(plan):
            return [*plan.ended.tolist(), *dict(plan.refused)]
        case _:
            return []


def _that_change_something(
    faults: Iterable[ev.NodeLost | ev.NodeRepaired], start_s: float, down: set[int]
) -> Iterator[ev.NodeLost | ev.NodeRepaired]:
    """Without the past, and without nodes that are lost while they are down or repaired while they are up."""
    for event in faults:
        lost = isinstance(event, ev.NodeLost)
        if event.time >= start_s and lost == (event.node not in down):
            (down.add if lost else down.discard)(event.node)
            yield event
