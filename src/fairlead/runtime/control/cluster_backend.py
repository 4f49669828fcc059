"""The backend of a real cluster, on wall time: plans become orders to agents; requests of users and agents become events. The
loop's thread calls `wait`, `submit` and `reconcile`. Other threads use the inbox. While `wait` has nothing to do it releases
`lock`, and other threads may read the state."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import MAX_TYPES, NO_DRAIN, AcceleratorType, Cluster, Drain, Node
from fairlead.core.errors import FairleadError
from fairlead.core.job import Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.inbox import Answer, Inbox, Refusal, ignore
from fairlead.runtime.control.job_changes import JobChanges
from fairlead.runtime.control.job_metrics import HeartbeatBuffer, MetricBuffer, UtilizationTracker
from fairlead.runtime.control.job_tracker import ReportHandler, TrackedJobs
from fairlead.runtime.control.launches import (
    Addressed,
    LaunchTracker,
    RankAssignment,
    planned_parameters,
    routing,
    running_parameters,
)
from fairlead.runtime.control.node_backoff import NodeBackoff
from fairlead.runtime.control.node_roster import STAYS, AgentStay, NodeRoster
from fairlead.runtime.control.snapshotter import same_scheduler
from fairlead.runtime.control.tracked_launch import Key, NodeRanks, TrackedLaunch
from fairlead.runtime.control.wall_clock import WallClock
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.network import gang_ports
from fairlead.runtime.protocol.orders import Ended, LaunchParameters, Metric, OrderTransport, Progress, Report, Task

log = logging.getLogger(__name__)

READ_WITHIN_S = 30.0  # how long a reader waits for the state
RESEND_WITHIN_S = 10.0  # after a restart, older orders that no agent knows are not repeated: the job is planned again
REPORTS_WITHIN_S = 0.25  # progress and metrics are handled
ENDS_WITHIN_S = 5.0  # after a restart, for agents to report launches that ended meanwhile; only then are time limits enforced


class StateBusy(FairleadError):
    """The state cannot be read now; try again later."""


@dataclass
class ClusterBackend:
    """The backend of one control plane. `task_of` is what a job runs; `checkpoints` is a folder that all nodes see."""

    first_cluster: Cluster  # at the start; `cluster` is the present one
    transport: OrderTransport
    clock: WallClock
    task_of: Callable[[Job], Task]
    next_number: int = 0
    checkpoints: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)
    scheduler: Mapping[str, Any] = field(default_factory=dict)  # in use, or that the last request switches to
    last_alive_s: float = 0.0  # before a restart: when the control plane was last known to run
    host: Host = field(default_factory=Host)

    def __post_init__(self) -> None:
        checkpoints, self.roster = self.checkpoints, NodeRoster(self.first_cluster)
        self.launches = LaunchTracker(self.transport.address_of, lambda launch: gang_ports(launch, checkpoints), checkpoints)
        self.inbox = Inbox(self.host)
        self.wake, self.stop = self.inbox.wake, self.inbox.stop  # `wait` returns; the loop ends, and jobs keep running
        self.node_backoff = NodeBackoff()
        self._jobs = TrackedJobs()
        self._ranks = RankAssignment(lambda: self.cluster)
        self._metrics = MetricBuffer()
        self._utilization = UtilizationTracker()
        self._heartbeats = HeartbeatBuffer()
        self._limits_from_s = -math.inf  # when time limits are enforced again
        self._reports = ReportHandler(self._jobs, self.launches, self._metrics, self._utilization, self._send)
        self._finished: set[int] = set()  # jobs that had finished before a restart, and may still be saving
        self.changes = JobChanges(self._jobs, self.launches, self.inbox, self._send, self._finished, checkpoints)
        self._present: set[int] = set()  # nodes that are up in the state
        self._awaited: set[int] = set()  # nodes from before a restart that have not joined yet
        self._found: dict[int, set[Key]] | None = None  # launches by node, while nodes are awaited

    # For the loop.

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def exhausted(self) -> bool:
        """Whether nothing can happen any more; users may submit jobs until `stop`."""
        return self.stopped

    def wait(self, until: float, grain: float) -> Sequence[ev.Event]:
        """Return as soon as anything has happened. The events of the call before are in the journal by now."""
        self.inbox.send_answers()
        return self._next(until)

    def submit(self, plan: RoundPlan) -> Sequence[ev.Event]:
        self._measure()  # before jobs move
        for job in plan.ended.tolist():  # it may save what it has learned
            self._send(self.launches.revoke(job))
            self._reports.remove(job)
        for job, _ in plan.refused:
            self._reports.remove(job)
        for job in plan.suspended.tolist():
            self._jobs.suspend(job, plan.time)
            self._send(self.launches.revoke(job))
        starts = plan.launches
        bounds, all_parameters = starts.offsets.tolist(), planned_parameters(starts, plan.routes)
        for number, begin, end, parameters in zip(starts.jobs.tolist(), bounds, bounds[1:], all_parameters):
            job = self._jobs[number]
            job.generation += 1
            job.set_progress(job.steps, 0.0, plan.time)
            self._jobs.limits.start(number, plan.time)
            self._metrics.launched(number)
            assignment = self._ranks.of(starts.accelerators[begin:end])
            self._send(self.launches.start(self._launch(number, assignment, job.saved, parameters)))
        launched = set(starts.jobs.tolist())
        for number, route in plan.routes.items():
            if number not in launched:
                self._send(self.launches.reroute(number, routing(route)))
        return ()

    def reconcile(self, view: Snapshot, keep: Callable[[Sequence[ev.Event]], None] | None = None) -> Sequence[ev.Event]:
        """After a restart, find the launches of the state on their nodes. It returns when every node that was up has joined or
        was given up, at most a lease and a grace later. Agents must be able to join meanwhile. With `keep`, which journals
        events, requests are answered meanwhile."""
        self._jobs.restore(view)
        self._limits_from_s = math.inf  # whether its jobs ran while it was away is not known yet
        every_job = view.jobs.with_rows(np.arange(view.next_number))
        self._finished.update(np.flatnonzero(every_job.phase == Phase.FINISHED).tolist())
        self._metrics.restore(view)
        running, parameters = view.jobs.runners.number.tolist(), running_parameters(view)
        assignments = {number: self._ranks.of(view.device_map.of(number)) for number in running}
        for number, assignment in assignments.items():
            self.launches.adopt(self._launch(number, assignment, self._jobs[number].own_steps, parameters[number]))
        self._present |= set(np.unique(self.cluster.node_of[view.present]).tolist()) - set(view.backoffs)
        self.node_backoff.restore(view.backoffs)
        drained = set(np.unique(self.cluster.node_of[view.drained]).tolist())
        self.roster.restore(view.drains, drained, self._present | set(view.backoffs))
        # A waiting job may still be leaving a node on which nothing runs in the state.
        self._awaited = set(self._present) if bool((view.jobs.starts > 0).any()) else set()
        found = self._found = {}
        events: list[ev.Event] = []
        for node in sorted({part.node for assignment in assignments.values() for part in assignment} - self._present):
            orders, outcomes = self.launches.node_lost(node, self.last_alive_s)  # the rest of a gang was on its way out
            self._send(orders)
            events += self._reports.record_outcomes(outcomes, self.now)
        while self._awaited and not self.stopped:
            events += self._next(math.inf)
            if keep is not None:
                keep(events)
                events = []
                self.inbox.send_answers()
        self._found = None
        self._limits_from_s = self.now + ENDS_WITHIN_S
        if self.stopped:
            return events
        since = {number: self._jobs[number].since for number in running if number in self._jobs}  # others have ended meanwhile
        old = [number for number, started_s in since.items() if self.now - started_s > RESEND_WITHIN_S]
        return [*events, *self._compare(found, old)]

    # For any thread.

    @property
    def cluster(self) -> Cluster:
        """The cluster, with nodes that were added and removed up to now; the state follows with the present commit."""
        return self.roster.cluster

    @contextmanager
    def at_rest(self, within_s: float = READ_WITHIN_S) -> Iterator[None]:
        """Hold the state still for reading. Raises `StateBusy`: the loop does not release the state in time."""
        if not self.lock.acquire(timeout=within_s):
            raise StateBusy("the control plane is busy, for instance because its journal is unreachable; try again later")
        try:
            yield
        finally:
            self.lock.release()

    def submit_jobs(self, jobs: Sequence[Job], answer: Answer) -> None:
        """Submit jobs. A job that depends on another of them names it by -1 for the first, -2 for the second, and so on."""

        def handle(now: float) -> list[ev.Event]:
            events: list[ev.Event] = []
            first = self.next_number
            for job in jobs:
                after = tuple(other if other >= 0 else first - 1 - other for other in job.after)
                job = replace(job, submitted_s=now, name=job.name or self._jobs.default_name(self.next_number), after=after)
                self._jobs.add(self.next_number, job)
                events.append(ev.JobSubmitted(now, self.next_number, job))
                self.next_number += 1
            return events

        self.inbox.put(handle, answer)

    def cancel(self, number: int, answer: Answer = ignore) -> None:
        """Cancel a job. It is killed when the event is in the journal; a job that has ended gets no event."""
        orders: list[Addressed] = []

        def handle(now: float) -> list[ev.Event]:
            if number not in self._jobs:
                return []
            orders.extend(self.launches.drop(number))
            self._reports.remove(number)
            return [ev.JobCancelled(now, number)]

        def kill(events: Sequence[ev.Event]) -> None:
            self._send(orders)
            answer(events)

        self.inbox.put(handle, kill)

    def drain(self, node: int, undo: bool, answer: Answer = ignore, drain: Drain = NO_DRAIN) -> None:
        """Drain a node, or end its drain. It begins and ends by itself at the times of `drain`, if it has any. A removed node
        is answered by a `Refusal`."""
        self.inbox.put(lambda now: self.roster.drain(now, node, undo, drain), answer)

    def add_node(self, spec: Node, type_: AcceleratorType | None, answer: Answer = ignore, max_types: int = MAX_TYPES) -> None:
        """Add a node, which is down until its agent joins, and its GPU type if that is new. A node that cannot be added, for
        instance because of its name, is answered by a `Refusal`."""
        self.inbox.put(lambda now: self.roster.add(now, spec, type_, max_types), answer)

    def remove_node(self, node: int, answer: Answer = ignore) -> None:
        """Remove a node, and end its agent's session. While a job runs there or is leaving, the answer is a `Refusal`."""

        def close(events: Sequence[ev.Event]) -> None:
            if events:
                self.transport.remove(node)
            answer(events)

        self.inbox.put(lambda now: self._remove(now, node), close)

    def _remove(self, now: float, node: int) -> Sequence[ev.Event]:
        if self._found is not None and node in self._present and not self.roster.is_removed(node):
            return Refusal("after a restart, agents are still reporting what runs; try again in a minute")
        events = self.roster.remove(now, node, self.launches.has_part_on(node))
        if events:
            self._present.discard(node)
            self._awaited.discard(node)
            self.node_backoff.started(node)
        return events

    def switch(
        self,
        scheduler: Mapping[str, Any],
        why: str,
        answer: Answer = ignore,
        instead_of: Mapping[str, Any] | None = None,
    ) -> None:
        """Switch the scheduler. With `instead_of`, only if that one is in use; otherwise there is no event."""

        def handle(now: float) -> list[ev.Event]:
            if instead_of is not None and not same_scheduler(instead_of, self.scheduler):
                return []
            self.scheduler = scheduler
            return [ev.SchedulerSwitched(now, scheduler, why)]

        self.inbox.put(handle, answer)

    def agent_joined(
        self,
        node: int,
        found: Sequence[Key] | Callable[[], Sequence[Key]],
        accept: Callable[[], None] = lambda: None,
        stay: AgentStay = STAYS,
    ) -> None:
        """An agent has connected, and found these launches running; a function is called in the loop's thread. The node is up
        until `agent_lost`. From `accept` on, the agent gets orders: those from before were made without knowing of it."""

        def handle(now: float) -> list[ev.Event]:
            if self.roster.is_removed(node):
                return []
            accept()
            here = set(found() if callable(found) else found)
            back: list[ev.Event] = [] if node in self._present else [ev.NodeRepaired(now, node)]
            self._present.add(node)
            self.node_backoff.end(node)
            self._awaited.discard(node)
            round_s = value if isinstance(value := self.scheduler.get("rounds"), int | float) else 0.0
            back += self.roster.agent_joined(now, node, stay, round_s, self.host.time())
            if self._found is not None:  # after a restart all nodes are compared together
                self._found[node] = here
                return back
            return [*back, *self._compare({node: here})]

        self.inbox.put(handle)

    def agent_leaving(self, node: int) -> None:
        """An agent is about to end: no launch may come to its node any more."""
        self.inbox.put(lambda now: self.roster.agent_drains(now, node))

    def agent_lost(self, node: int, silent_s: float = 0.0) -> None:
        """An agent has left, or its lease and the grace of its jobs are over: nothing runs on its node. It was heard `silent_s`
        ago. A temporary node is removed."""

        def handle(now: float) -> list[ev.Event]:
            self._awaited.discard(node)
            usable = node in self._present
            backed_off = (failures := self.node_backoff.of(node)) is not None and failures.until_s > -math.inf
            self.node_backoff.started(node)  # its next agent may do better
            self.roster.agent_gone(node)
            stopped_s = now - silent_s
            if self._found is not None and self._found.pop(node, None) is None:
                stopped_s = self.last_alive_s  # its jobs ran while the control plane was known to run, at least
            if not usable and not backed_off:
                return []
            self._present.discard(node)
            orders, outcomes = self.launches.node_lost(node, stopped_s)
            self._send(orders)
            return [ev.NodeLost(now, node), *self._reports.record_outcomes(outcomes, now)]

        self.inbox.put(handle)

    def part_lost(self, node: int, launch: Key, silent_s: float = 0.0) -> None:
        """Nothing of a launch runs on this node any more, and how it ended is not known."""

        def handle(now: float) -> list[ev.Event]:
            orders, outcomes = self.launches.node_lost(node, now - silent_s, launch)
            self._send(orders)
            return self._reports.record_outcomes(outcomes, now)

        self.inbox.put(handle)

    def report(self, node: int, reports: Sequence[Report], answer: Callable[[], None] = lambda: None) -> None:
        """Handle an agent's reports; `answer` is called when the agent need not repeat them. Progress and metrics of thousands
        of nodes are handled together, a few times a second."""

        def handle(now: float) -> list[ev.Event]:
            events: list[ev.Event] = []
            for one in reports:
                if self._found is not None and isinstance(one, Ended):
                    self._found.get(node, set()).discard(one.key)
                self.node_backoff.reported(node, self.launches.get(*one.key), one)
                events += self._reports.handle(node, one, now)
            return [*events, *self._back_off(node, now)]

        can_wait = all(isinstance(one, Progress | Metric) for one in reports)
        self.inbox.put(handle, lambda events: answer(), REPORTS_WITHIN_S if can_wait else 0.0)

    def heartbeat(self, node: int, beat: Heartbeat) -> None:
        """Collect what an agent measures of its accelerators."""
        if self._heartbeats.add(node, beat):
            self.wake()

    @property
    def stopped(self) -> bool:
        return self.inbox.stopped

    def _launch(
        self, number: int, assignment: tuple[NodeRanks, ...], saved: int, parameters: LaunchParameters
    ) -> TrackedLaunch:
        job = self._jobs[number]
        task, user = replace(self.task_of(job.job), cpus=job.job.cpus, host_memory_gb=job.job.host_memory_gb), job.job.user
        return TrackedLaunch(number, job.generation, job.job.name, task, assignment, saved, parameters, user=user)

    def _next(self, until: float) -> list[ev.Event]:
        until = min(until, max(self._jobs.limits.next_s, self._limits_from_s), self.node_backoff.next_s, self._metrics.due_s)
        until = min(until, self._heartbeats.due_s, self.roster.next_s)
        self.lock.release()
        try:
            requests = self.inbox.take(until, self.clock.now)
        finally:
            self.lock.acquire()
        if self.now >= self._heartbeats.due_s:
            self._measure()
        happened: list[ev.Event] = []
        for handle, answer in requests:
            events = handle(self.now)
            happened += events
            self.inbox.defer_answer(answer, events)
        if self.now >= self._metrics.due_s:
            happened += self._metrics.flush(self.now)
        happened += self._enforce_limits() + self._end_backoffs() + self.roster.due_drains(self.now)
        return happened + self._remove_departed()

    def _remove_departed(self) -> list[ev.Event]:
        """Remove temporary nodes whose agents have left, once no job runs there."""
        now = self.now
        removed = [event for node in sorted(self.roster.departed) for event in self._remove(now, node)]
        self.inbox.defer_answer(self._end_sessions, removed)
        return removed

    def _end_sessions(self, removed: Sequence[ev.Event]) -> None:
        for event in removed:
            if isinstance(event, ev.NodeRemoved):
                self.transport.remove(event.node)

    def _back_off(self, node: int, now: float) -> list[ev.Event]:
        """Leave a node alone that starts nothing and on which nothing runs."""
        if node not in self._present or not self.node_backoff.is_due(node) or self.launches.uses(node):
            return []
        self._present.discard(node)
        failures = self.node_backoff.begin(node, now)
        details = {"node": self.cluster.nodes[node].name, "seconds": failures.until_s - now, "why": failures.why}
        log.warning("node in back-off: it could not start its jobs", extra=details)
        return [ev.NodeBackedOff(now, node, failures.until_s, failures.why)]

    def _end_backoffs(self) -> list[ev.Event]:
        now, events = self.now, list[ev.Event]()
        for node in self.node_backoff.ended(now):
            self.node_backoff.end(node)
            self._present.add(node)
            events.append(ev.NodeRepaired(now, node))
        return events

    def _measure(self) -> None:
        runs = self.launches.all()
        for beats in self._heartbeats.take(self.now):
            for job, measured in self._utilization.update(
                beats, runs, lambda job: job in self._jobs and self._jobs[job].rate > 0
            ):
                if job in self._jobs:
                    self._metrics.add_measured(job, measured, self._jobs[job].job.user)

    def _enforce_limits(self) -> list[ev.Event]:
        """Ask jobs at their time limit to save and leave, as at a preemption. They fail when they have left."""
        now, events = self.now, list[ev.Event]()
        for job in self._jobs.limits.reached(now) if now >= self._limits_from_s else ():
            if (run := self.launches.latest(job)) is not None and any(self.transport.silent_s(node) for node in run.nodes_left):
                self._jobs.limits.postponed[job] = now + 1.0  # whether it still runs is not known
                continue
            self._jobs.limits.stop(job, now)
            self._jobs[job].limit_reached = True
            self._send(self.launches.revoke(job))
            if self.launches.latest(job) is None:  # it had not begun
                events.append(self._reports.end_at_limit(job, now, now))
        return events

    def _compare(self, found: Mapping[int, Collection[Key]], forgotten: Collection[int] = ()) -> list[ev.Event]:
        may_save = lambda job: job in self._jobs or job in self._finished  # noqa: E731
        orders, outcomes = self.launches.compare(found, self._ranks.all_of, may_save, forgotten)
        self._send(orders)
        return self._reports.record_outcomes(outcomes, self.now)

    def _send(self, orders: Sequence[Addressed]) -> None:
        for node, order in orders:
            self.transport.send(node, order)
