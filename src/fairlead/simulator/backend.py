"""The simulated backend: virtual time. Jobs arrive from a trace, run at their true rates, end at exact seconds inside a round,
lose their node and fall back to a checkpoint. The backend carries out plans and reports what happened; it never sees the
scheduler."""

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
from fairlead.core.job import TIME_LIMIT, Job
from fairlead.core.plan import Launches, RoundPlan, boundary_after, decision_at
from fairlead.core.routes import Session
from fairlead.core.snapshot import Snapshot
from fairlead.models.convergence import LOSS, TARGET
from fairlead.simulator.costs import Costs
from fairlead.simulator.sessions import SessionTracker
from fairlead.simulator.world import World
from fairlead.workloads.dynamics import JobDynamics, LossCurve
from fairlead.workloads.throughput_tables import ThroughputTable

LOSS_INTERVAL_S = 300.0
"""Seconds between loss reports where there are no rounds."""


class _LossReports:
    """The losses that jobs report at the end of each round in which they made steps, by curves of the jobs' names."""

    def __init__(self, curves: Mapping[str, LossCurve]) -> None:
        self._curves = curves
        self._of: dict[int, LossCurve] = {}
        self._reported_s = -math.inf
        self._with_target: set[int] = set()  # jobs that have reported the loss that they can reach

    def add(self, jobs: Iterable[tuple[int, Job]]) -> None:
        self._of.update((number, self._curves[job.name]) for number, job in jobs if job.name in self._curves)

    def next_s(self, world: World, now: float, grain: float) -> float:
        """The end of the round, if a running job has a loss to report."""
        if not any(number in self._of for number in world.running.tolist()):
            return math.inf
        return boundary_after(max(now, self._reported_s), grain or LOSS_INTERVAL_S)

    def report(self, world: World, now: float) -> Iterator[ev.Event]:
        self._reported_s = now
        running = np.sort(world.running)
        reporting: Bools = np.array([number in self._of for number in running.tolist()], dtype=np.bool_)
        jobs: Ints = running[reporting & (world.columns["since"][running] < now)]
        if not len(jobs):
            return
        curves = [self._of[number] for number in jobs.tolist()]
        new = [number not in self._with_target for number in jobs.tolist()]
        if any(new):
            self._with_target.update(jobs[new].tolist())
            yield ev.MetricsReported(now, TARGET, jobs[new], np.array([curve.floor for curve in curves])[new])
        shares: Floats = world.steps_at(jobs, now) / world.columns["steps"][jobs]
        losses = np.array([curve.at(share) for curve, share in zip(curves, shares.tolist())])
        yield ev.MetricsReported(now, LOSS, jobs, losses)


JobControl: TypeAlias = ev.JobHeld | ev.JobReleased | ev.JobRequeued | ev.JobUpdated
"""What users do to submitted jobs, besides cancelling them."""

Other: TypeAlias = ev.JobCancelled | JobControl | ev.NodeDrained | ev.MetricsReported | ev.SchedulerSwitched
"""External events other than jobs and faults."""

OUT_OF_MEMORY = "out of memory"
"""The reason of a job that failed because its accelerators had too little memory once too often."""


class SimulatedBackend:
    """A cluster in virtual time.

    Args:
        table: True rates.
        arrivals: Jobs, submitted at their submission times.
        others: Other external events.
        losses: Loss curves by job name; these jobs report their loss.
        dynamics: By job name; these jobs run at the speed of their dynamics instead of the table's.
        sessions: By job name; these jobs get requests, which are served as plans route them.
    """

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
        self.sessions = SessionTracker(cluster, sessions) if sessions else None
        self.world = World(cluster, table, costs or Costs(), max(256, first_number + len(arrivals)), dynamics)
        self._arrivals = sorted(arrivals, key=lambda job: job.submitted_s)
        self._next_job = 0
        self._number = first_number
        self._down = set(down)
        self._faults = _effective(faults, start_s, set(down))
        self._next_fault = next(self._faults, None)
        self._others = sorted(others, key=lambda event: event.time)
        self._next_other = 0
        self._reports = any(isinstance(event, ev.MetricsReported) for event in self._others)
        self._gone: set[int] = set()  # ended jobs, which report nothing any more; kept where there are reports to come
        self._unreported: list[ev.Event] = []  # events before the first wait
        self._failures: dict[int, int] = {}  # by job
        self.world.add(dict(enumerate(self._arrivals, first_number)))
        self._losses = _LossReports(losses) if losses else None
        if self._losses is not None:
            self._losses.add(enumerate(self._arrivals, first_number))
        self._all_added = True  # the world has all arrivals under their numbers, until `add` inserts a job

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
        """Continue from a moment of any run, real or simulated: the same jobs, progress and devices. `arrivals` and `others`
        are still to come."""
        coming = [job if job.submitted_s >= view.time else replace(job, submitted_s=view.time) for job in arrivals]
        down = {int(node) for node in np.unique(view.cluster.node_of[~view.present])} | set(view.backoffs)
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
        present = {number: view.job_of[number] for number in sorted(numbers.tolist())}
        self.world.add(present)
        if self._losses is not None:
            self._losses.add(present.items())
        jobs, c = view.jobs, self.world.columns
        for columns in (jobs, view.queued):
            done = np.maximum(columns.steps_done, columns.base_steps)  # a job that overran has done more than it declared
            c["base"][columns.number] = np.minimum(done, c["steps"][columns.number])
            c["ran"][columns.number] = columns.settled_run_s
            self.world.started[columns.number] = columns.starts > 0
            for name in columns.metrics if self.world.has_dynamics else ():
                self.world.dynamics.restore_reports(columns.number, name, columns.metric(name))
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
                self._unreported.append(self._progress(changed, view.time))
            self._unreported.extend(self.world.dynamics.new_reports(running, view.time))
        return self

    @property
    def exhausted(self) -> bool:
        """Whether nothing can happen any more. While a node is down, a repair may still let jobs run."""
        nothing_comes = self._next_job >= len(self._arrivals) and self._other_time() == math.inf
        repairable = self._next_fault is not None and (len(self._down) > 0 or isinstance(self._next_fault, ev.NodeRepaired))
        return nothing_comes and not len(self.world.running) and not repairable

    def wait(self, until: float, grain: float) -> Sequence[ev.Event]:
        """Let time pass until an event, and then to the end of its round of length `grain`, at most until `until`."""
        happened, self._unreported = self._unreported, []
        limit, awaited = until, True
        while True:
            reports = math.inf if self._losses is None else self._losses.next_s(self.world, self.now, grain)
            change = self.world.dynamics.next_change_s if self.world.has_dynamics else math.inf
            outside = min(self._fault_time(), self._other_time(), reports, change)
            when = min(self.world.next_end(), self._next_arrival(), outside)
            if when > limit or when == math.inf:
                break
            if awaited:  # the first event fixes where this wait ends
                limit, awaited = min(until, decision_at(when, grain)), False
            # Where no job shares its accelerators, all ends up to the next other event can be handled at once.
            stretch = when if self.world.devices.shared else max(when, min(limit, outside))
            self._happen(stretch, happened)
            if stretch >= change:
                self._refresh([self.world.dynamics.changing_by(stretch)], stretch, happened)
            if self._losses is not None and stretch >= reports:
                happened.extend(self._losses.report(self.world, stretch))
        if limit < math.inf:
            self.now = limit
        self._note(happened)
        return happened

    def submit(self, plan: RoundPlan) -> Sequence[ev.Event]:
        """Carry out a plan; return the events that this causes at once."""
        touched: list[Ints] = []
        events: list[ev.Event] = []
        if len(plan.ended):
            going = plan.ended[np.isin(plan.ended, self.world.running)]
            touched.append(self.world.end(going))
        if len(plan.suspended):
            touched.append(self.world.stop(plan.suspended, plan.time, saved=True))
            if self.world.has_costs:
                with_cost = plan.suspended[self.world.columns["save"][plan.suspended] > 0]
                if len(with_cost):
                    events.append(self._progress(with_cost, plan.time))
            if self.world.has_dynamics and len(over := self.world.dynamics.overrunning(plan.suspended)):
                events.append(self._progress(over, plan.time))
        launches = plan.launches
        touched.append(self.world.route(launches, plan.routes))
        if len(launches) and len(short := self.world.out_of_memory(launches)):
            launches = launches.only(~np.isin(launches.jobs, short))
            events.extend(self._out_of_memory(short, plan.time))
        if len(launches):
            touched.append(self.world.launch(launches, plan.time))
            self._report_progress(launches.jobs, plan.time, events)
        self._refresh(touched, plan.time, events)
        if self._reports or self.sessions is not None:
            self._note((ev.RoundPlanned(plan), *events))
        return events

    def _note(self, events: Sequence[ev.Event]) -> None:
        if self._reports:
            self._gone.update(number for event in events for number in _ended_by(event))
        if self.sessions is not None:
            for event in events:
                self.sessions.observe(event)

    def _out_of_memory(self, jobs: Ints, now: float) -> Iterator[ev.Event]:
        """Jobs fail as they start: they wait again, or end where they failed once too often."""
        self.world.started[jobs] = True  # this was a start: the next one costs a restart
        for number in jobs.tolist():
            self._failures[number] = self._failures.get(number, 0) + 1
        ends = np.array([self._failures[n] > self.world.jobs[n].retry_limit for n in jobs.tolist()], dtype=np.bool_)
        if len(again := jobs[~ends]):
            yield ev.JobsInterrupted(now, again, self.world.columns["base"][again], True, OUT_OF_MEMORY)
        if len(over := jobs[ends]):
            yield ev.JobsFailed(now, over, np.full(len(over), now), OUT_OF_MEMORY)

    def add(self, job: Job) -> None:
        """Add a job, submitted at its submission time, or now where that has passed."""
        late = job if job.submitted_s >= self.now else replace(job, submitted_s=self.now)
        self._all_added = False
        bisect.insort(self._arrivals, late, lo=self._next_job, key=lambda waiting: waiting.submitted_s)

    def reconcile(self, view: Snapshot) -> Sequence[ev.Event]:
        """A simulation ends with its process, so nothing runs that the state does not know."""
        return ()

    # Order at one moment: ends, faults, arrivals, other events, reports of jobs.

    def _happen(self, stretch: float, happened: list[ev.Event]) -> None:
        """Handle all events up to a second before which ends and arrivals do not affect each other."""
        ending = self.world.ending_by(stretch)
        if len(ending):
            at = self.world.ends[ending]
            last = float(at[-1])
            self._arrive(last, happened, before=True)
            late = self.world.over_limit(ending)
            if self.world.has_dynamics and len(over := self.world.dynamics.overrunning(ending)):
                ends, rates = self.world.ends[over], self.world.columns["rate"][over]
                happened.append(ev.ProgressReported(last, over, self.world.steps_at(over, ends), rates, ends))
            touched = self.world.end(ending)
            if late is not None and late.any():
                happened.append(ev.JobsFailed(last, ending[late], at[late], TIME_LIMIT))
                ending, at = ending[~late], at[~late]
            if len(ending):
                happened.append(ev.JobsFinished(last, ending, at))
            self._refresh([touched], last, happened)
        self._arrive(stretch, happened, before=True)
        while self._next_fault is not None and self._next_fault.time <= stretch:
            self._fault(self._next_fault, happened)
            self._next_fault = next(self._faults, None)
        self._arrive(stretch, happened)
        while self._other_time() <= stretch:
            self._other(self._others[self._next_other], happened)
            self._next_other += 1

    def _arrive(self, until: float, happened: list[ev.Event], *, before: bool = False) -> None:
        """Submit the jobs of the time up to a second, or strictly before it."""
        coming, last = self._arrivals, len(self._arrivals)
        while self._next_job < last:
            job = coming[self._next_job]
            when = job.submitted_s
            if when >= until and (before or when > until or until == math.inf):
                break
            happened.append(ev.JobSubmitted(when, self._number, job))
            if not self._all_added:
                self.world.add({self._number: job})
                if self._losses is not None:
                    self._losses.add([(self._number, job)])
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
        if isinstance(event, (ev.JobHeld, ev.JobRequeued)):
            self._requeue(event, happened)
            return
        happened.append(event)
        if isinstance(event, ev.JobCancelled) and event.number in self.world.running:
            touched = self.world.end(np.array([event.number], dtype=np.int64))
            self._refresh([touched], event.time, happened)

    def _requeue(self, event: ev.JobHeld | ev.JobRequeued, happened: list[ev.Event]) -> None:
        """Hold or requeue a job. In another simulation than the one that recorded it, it may run, wait or have ended."""
        hold, by = (True, event.by) if isinstance(event, ev.JobHeld) else (event.hold, event.by)
        if event.number in self.world.running:
            one = np.array([event.number], dtype=np.int64)
            touched = self.world.stop(one, event.time, saved=True)
            happened += [ev.JobRequeued(event.time, event.number, hold, by), self._progress(one, event.time)]
            self._refresh([touched], event.time, happened)
        elif hold:
            happened.append(ev.JobHeld(event.time, event.number, by))

    def _refresh(self, touched: list[Ints], now: float, events: list[ev.Event]) -> None:
        """Let jobs progress at another speed: neighbours of started or stopped jobs, and those whose dynamics changed."""
        neighbours = [jobs for jobs in touched if len(jobs)]
        if neighbours:
            jobs = np.intersect1d(np.unique(np.concatenate(neighbours)), self.world.running)
            if len(jobs):
                self.world.refresh(jobs, now)
                self._report_progress(jobs, now, events)

    def _report_progress(self, jobs: Ints, now: float, events: list[ev.Event]) -> None:
        """Report the speed of jobs from now on, and new metrics."""
        events.append(self._progress(jobs, now))
        if self.world.has_dynamics:
            events.extend(self.world.dynamics.new_reports(jobs, now))

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


def _effective(
    faults: Iterable[ev.NodeLost | ev.NodeRepaired], start_s: float, down: set[int]
) -> Iterator[ev.NodeLost | ev.NodeRepaired]:
    """Drop past faults, losses of nodes that are down and repairs of nodes that are up."""
    for event in faults:
        lost = isinstance(event, ev.NodeLost)
        if event.time >= start_s and lost == (event.node not in down):
            (down.add if lost else down.discard)(event.node)
            yield event
