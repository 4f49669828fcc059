"""The backend of a real cluster: wall time. Plans become orders to agents; what agents and people say becomes events.

The loop's thread calls `wait`, `submit` and `reconcile`; everybody else speaks through the inbox, from any thread. While `wait`
has nothing to do it lets go of `lock`, and in that time others may read the state."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.job import LAUNCH_FAILED, Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.inbox import Inbox, Request
from fairlead.runtime.control.job_metrics import MetricBuffer, UtilizationTracker
from fairlead.runtime.control.job_tracker import TimeLimits, TrackedJobs
from fairlead.runtime.control.launches import Addressed, Key, LaunchTracker
from fairlead.runtime.control.node_backoff import NodeBackoff
from fairlead.runtime.control.rank_assignment import RankAssignment, gang_ports, given_before, given_by, routed
from fairlead.runtime.control.report_handler import ReportHandler
from fairlead.runtime.control.snapshotter import same_scheduler
from fairlead.runtime.control.wall_clock import WallClock
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import Ended, Order, Report, Task

log = logging.getLogger(__name__)

LOOK_WITHIN_S = 30.0
"""So long whoever wants to look at the state waits for it."""

SEE_EVERY_S = 1.0
"""What agents see of accelerators is gathered so long: they are many, and each look goes over all launches."""

MOST_BEATS = 20_000
"""That are gathered while nobody looks, such as when the journal is away; the oldest go first."""


class StateBusy(FairleadError):
    """The state is not at rest. The loop goes on with it, some day."""


class OrderTransport(Protocol):
    """How orders reach agents. An order to a node that is not connected is lost: what it would have done is found out when the
    node comes back and tells what runs there."""

    def send(self, node: int, order: Order) -> None: ...

    def address_of(self, node: int) -> str: ...


@dataclass
class ClusterBackend:
    """Give it the cluster, a wire to the agents, and what each job runs."""

    cluster: Cluster
    wire: OrderTransport
    clock: WallClock
    task_of: Callable[[Job], Task]
    next_number: int = 0
    checkpoints: str = ""  # where jobs save, seen by all nodes
    lock: threading.RLock = field(default_factory=threading.RLock)
    scheduler: Mapping[str, Any] = field(default_factory=dict)  # that decides; of switches, the last that was told

    def __post_init__(self) -> None:
        checkpoints = self.checkpoints
        self.launches = LaunchTracker(self.wire.address_of, lambda launch: gang_ports(launch, checkpoints), checkpoints)
        self.inbox = Inbox()
        self._jobs = TrackedJobs()
        self._seating = RankAssignment(self.cluster)
        self._limits = TimeLimits()
        self._measures = MetricBuffer()
        self._uses = UtilizationTracker()
        self._seen: deque[tuple[int, Heartbeat]] = deque(maxlen=MOST_BEATS)  # by nodes, what agents saw of their accelerators
        self._see_s = -math.inf  # when that is looked at again
        self._hearing = ReportHandler(self._jobs, self.launches, self._limits, self._measures, self._uses, self._send)
        self.resting = NodeBackoff()
        self._done: set[int] = set()  # jobs that had finished before a restart, and may be saving still
        self._present: set[int] = set()  # nodes that are up, as the state knows it
        self._awaited: set[int] = set()  # nodes that were there before a restart and have not told what runs there
        self._found: dict[int, set[Key]] | None = None  # by node, what runs there, while not everybody has been heard

    # What the loop calls.

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def exhausted(self) -> bool:
        """People may always come with another job; only `stop` ends it."""
        return self.stopped

    def wait(self, until: float, grain: float) -> Sequence[ev.Event]:
        """Returns as soon as anything has happened. That it is called again says that what it told is in the journal."""
        self.inbox.answer()
        return self._next(until)

    def submit(self, plan: RoundPlan) -> Sequence[ev.Event]:
        self._look_at_uses()  # of who was there before
        for job in plan.ended.tolist():  # it is done, and what it has learned is worth keeping: it may save
            self._send(self.launches.revoke(job))
            self._hearing.forget(job)
        for job, _ in plan.refused:
            self._hearing.forget(job)
        for job in plan.suspended.tolist():
            self._limits.stopped(job, plan.time)
            self._send(self.launches.revoke(job))
        starts = plan.launches
        bounds = starts.offsets.tolist()
        for number, begin, end, given in zip(starts.jobs.tolist(), bounds, bounds[1:], given_by(starts, plan.routes)):
            known = self._jobs[number]
            known.generation += 1
            known.at(known.steps, 0.0, plan.time)
            self._limits.started(number, plan.time)
            self._measures.launched(number)
            assignment, task = self._seating.assignment(starts.accelerators[begin:end]), self.task_of(known.job)
            self._send(self.launches.start(number, known.generation, known.job.name, task, assignment, known.saved, given))
        launched = set(starts.jobs.tolist())
        for number, route in plan.routes.items():
            if number not in launched:
                self._send(self.launches.reroute(number, routed(route)))
        return ()

    def reconcile(self, view: Snapshot, keep: Callable[[Sequence[ev.Event]], None] | None = None) -> Sequence[ev.Event]:
        """After a restart: whoever runs by the state is looked for on its nodes. Agents must be able to join meanwhile; it
        returns when every node that was there has told what runs there, or has been given up. That can take as long as a node's
        term and grace; with `keep`, which brings events into the journal, whoever asks for something meanwhile is answered."""
        self._jobs.recall(view)
        everybody = view.jobs.with_rows(np.arange(view.next_number))
        self._done = set(np.flatnonzero(everybody.phase == Phase.FINISHED).tolist())
        self._measures.know(view)
        for jobs in (view.jobs, view.queued):
            for number, ran_s in zip(jobs.number.tolist(), jobs.run_s.tolist()):
                self._limits.add(number, view.job_of[number].time_limit_s, ran_s)
        for number in view.jobs.runners.number.tolist():
            self._limits.started(number, view.time)
        assignment = {
            number: self._seating.assignment(view.device_map.of(number)) for number in view.jobs.runners.number.tolist()
        }
        given = given_before(view)
        for number, places in assignment.items():
            known = self._jobs[number]
            name, task, saved = known.job.name, self.task_of(known.job), known.made
            self.launches.adopt(number, known.generation, name, task, places, saved, given[number])
        self._present |= set(np.unique(self.cluster.node_of[view.present]).tolist()) - set(view.backoffs)
        self.resting.restore(view.backoffs)
        # A job that waits, or moved, may still be leaving a node where by the state nothing runs.
        self._awaited = set(self._present) if bool((view.jobs.starts > 0).any()) else set()
        found = self._found = {}
        happened: list[ev.Event] = []
        for node in sorted({seat.node for places in assignment.values() for seat in places} - self._present):
            orders, outcomes = self.launches.node_gone(node)  # of a gang, the rest was on its way out
            self._send(orders)
            happened += self._hearing.became(outcomes, self.now)
        while self._awaited and not self.stopped:
            happened += self._next(math.inf)
            if keep is not None:
                keep(happened)
                happened = []
                self.inbox.answer()
        self._found = None
        return happened if self.stopped else [*happened, *self._compare(found)]

    # What others call, from any thread.

    @contextmanager
    def at_rest(self, within_s: float = LOOK_WITHIN_S) -> Iterator[None]:
        """The state may be read meanwhile. Raises `Busy` where that cannot be for so long."""
        if not self.lock.acquire(timeout=within_s):
            raise StateBusy(
                "the control plane is at work and cannot be looked into, such as when its journal is away; ask again later"
            )
        try:
            yield
        finally:
            self.lock.release()

    def submit_jobs(self, jobs: Sequence[Job], answered: Callable[[Sequence[ev.Event]], None]) -> None:
        """Jobs come from outside; `answered` is called with their events once these are in the journal. Where one comes after
        another of them, it says so by -1 for the first, -2 for the second, …: their numbers are given here."""

        def happen(now: float) -> list[ev.Event]:
            events: list[ev.Event] = []
            first = self.next_number
            for job in jobs:
                after = tuple(other if other >= 0 else first - 1 - other for other in job.after)
                job = replace(job, submitted_s=now, name=job.name or self._jobs.name_for(self.next_number), after=after)
                self._jobs.enter(self.next_number, job)
                self._limits.add(self.next_number, job.time_limit_s)
                events.append(ev.JobSubmitted(now, self.next_number, job))
                self.next_number += 1
            return events

        self.inbox.ring(Request(happen, answered))

    def cancel(self, number: int, answered: Callable[[Sequence[ev.Event]], None] = lambda events: None) -> None:
        """Nothing is killed before it is in the journal why; who has ended already has no event."""
        orders: list[Addressed] = []

        def happen(now: float) -> list[ev.Event]:
            if number not in self._jobs:
                return []
            orders.extend(self.launches.drop(number))
            self._hearing.forget(number)
            return [ev.JobCancelled(now, number)]

        def kept(events: Sequence[ev.Event]) -> None:
            self._send(orders)
            answered(events)

        self.inbox.ring(Request(happen, kept))

    def drain(self, node: int, undo: bool, answered: Callable[[Sequence[ev.Event]], None] = lambda events: None) -> None:
        self.inbox.ring(Request(lambda now: [ev.NodeDrained(now, node, undo)], answered))

    def switch(
        self,
        scheduler: Mapping[str, Any],
        why: str,
        answered: Callable[[Sequence[ev.Event]], None] = lambda events: None,
        instead_of: Mapping[str, Any] | None = None,
    ) -> None:
        """With `instead_of`, only where that one decides when this comes; otherwise there is no event."""

        def happen(now: float) -> list[ev.Event]:
            if instead_of is not None and not same_scheduler(instead_of, self.scheduler):
                return []
            self.scheduler = scheduler
            return [ev.SchedulerSwitched(now, scheduler, why)]

        self.inbox.ring(Request(happen, answered))

    def joined(self, node: int, found: Sequence[Key]) -> None:
        """An agent is there, and this is what it found running. Until `left`, its node is up."""

        def happen(now: float) -> list[ev.Event]:
            back: list[ev.Event] = [] if node in self._present else [ev.NodeRepaired(now, node)]
            self._present.add(node)
            self.resting.rise(node)
            self._awaited.discard(node)
            if self._found is not None:  # after a restart, everybody is heard first
                self._found[node] = set(found)
                return back
            return [*back, *self._compare({node: found})]

        self.inbox.ring(Request(happen))

    def left(self, node: int) -> None:
        """The lease of a node's agent has run out, and so has the grace of its jobs: nothing runs there any more."""

        def happen(now: float) -> list[ev.Event]:
            self._awaited.discard(node)
            usable = node in self._present
            backed_off = (failures := self.resting.of(node)) is not None and failures.until_s > now
            self.resting.began(node)  # what its next agent can is to be seen
            if self._found is not None:
                self._found.pop(node, None)
            if not usable and not backed_off:
                return []
            self._present.discard(node)
            orders, outcomes = self.launches.node_gone(node)
            self._send(orders)
            return [ev.NodeLost(now, node), *self._hearing.became(outcomes, now)]

        self.inbox.ring(Request(happen))

    def tell(self, node: int, told: Sequence[Report], answered: Callable[[], None] = lambda: None) -> None:
        """What an agent says of its jobs; `answered` when it need not be said again."""

        def happen(now: float) -> list[ev.Event]:
            events: list[ev.Event] = []
            for word in told:
                if self._found is not None and isinstance(word, Ended):
                    self._found.get(node, set()).discard((word.job, word.generation))
                self._watch(node, word)
                events += self._hearing.heard(node, word, now)
            return [*events, *self._rest(node, now)]

        self.inbox.ring(Request(happen, lambda events: answered()))

    def see(self, node: int, beat: Heartbeat) -> None:
        """What an agent sees of its accelerators: every beat counts, also while nothing else happens."""
        self._seen.append((node, beat))
        if len(self._seen) == 1:
            self.wake()

    @property
    def stopped(self) -> bool:
        return self.inbox.stopped

    def wake(self) -> None:
        """`wait` returns: something that the loop waits for is there."""
        self.inbox.wake()

    def stop(self) -> None:
        """The loop ends; jobs go on."""
        self.inbox.stop()

    # What the above are made of.

    def _next(self, until: float) -> list[ev.Event]:
        """What happens next, or nothing up to a second."""
        until = min(until, self._limits.soonest, self.resting.soonest, self._measures.due_s)
        until = min(until, self._see_s) if self._seen else until
        self.lock.release()
        try:
            requests = self.inbox.taken(until, self.clock.now)
        finally:
            self.lock.acquire()
        if self._seen and self.now >= self._see_s:
            self._look_at_uses()
        happened: list[ev.Event] = []
        for request in requests:
            events = request.happen(self.now)
            happened += events
            self.inbox.told(request, events)
        if self.now >= self._measures.due_s:
            happened += self._measures.told(self.now)
        return happened + self._overrun() + self._risen()

    def _watch(self, node: int, word: Report) -> None:
        """Whether a node could begin what it was given."""
        run = self.launches.get(word.job, word.generation)
        if run is None or run.leaving:
            return
        if isinstance(word, Ended) and word.could_not_start:
            self.resting.failed(node, word.why)
        elif not isinstance(word, Ended) or word.code != LAUNCH_FAILED:
            self.resting.began(node)

    def _rest(self, node: int, now: float) -> list[ev.Event]:
        """A node that begins nothing and on which nothing runs is left alone for a while."""
        if node not in self._present or not self.resting.tired(node) or self.launches.wants(node):
            return []
        self._present.discard(node)
        unable = self.resting.rest(node, now)
        told = {"node": self.cluster.nodes[node].name, "seconds": unable.until_s - now, "why": unable.why}
        log.warning("node rests: it could not begin what it was given", extra=told)
        return [ev.NodeBackedOff(now, node, unable.until_s, unable.why)]

    def _risen(self) -> list[ev.Event]:
        now, events = self.now, list[ev.Event]()
        for node in self.resting.over(now):
            self.resting.rise(node)
            self._present.add(node)
            events.append(ev.NodeRepaired(now, node))
        return events

    def _look_at_uses(self) -> None:
        """All beats that were gathered, of each node in their order."""
        self._see_s = self.now + SEE_EVERY_S
        turns: list[dict[int, Heartbeat]] = []
        count = Counter[int]()
        while self._seen:
            node, beat = self._seen.popleft()
            if count[node] == len(turns):
                turns.append({})
            turns[count[node]][node] = beat
            count[node] += 1
        runs = self.launches.everybody()
        for beats in turns:
            for job, use in self._uses.see(beats, runs, lambda job: job in self._jobs and self._jobs[job].rate > 0):
                if job in self._jobs:
                    self._measures.see(job, use, self._jobs[job].job.user)

    def _overrun(self) -> list[ev.Event]:
        """Whoever has used its time limit up has failed, and is killed when that is in the journal."""
        now, events = self.now, list[ev.Event]()
        for job in self._limits.over(now):
            orders = self.launches.drop(job)
            self._hearing.forget(job)
            events.append(ev.JobsFailed(now, np.array([job], dtype=np.int64), np.array([now]), "time limit"))
            kill = Request(lambda now: (), lambda events, orders=orders: self._send(orders))  # type: ignore[misc]
            self.inbox.told(kill, events)
        return events

    def _compare(self, found: Mapping[int, Collection[Key]]) -> list[ev.Event]:
        def may_save(job: int) -> bool:
            return job in self._jobs or job in self._done

        orders, outcomes = self.launches.compare(found, self._seating.places, may_save)
        self._send(orders)
        return self._hearing.became(outcomes, self.now)

    def _send(self, orders: Sequence[Addressed]) -> None:
        for node, order in orders:
            self.wire.send(node, order)
