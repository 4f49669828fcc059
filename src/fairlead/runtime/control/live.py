"""The backend of a real cluster: wall time. Plans become orders to agents; what agents and people say becomes events.

The loop's thread calls `wait`, `submit` and `reconcile`; everybody else speaks through the inbox, from any thread. While `wait`
has nothing to do it lets go of `lock`, and in that time others may read the state."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.inference import Route, Routes
from fairlead.core.job import ELASTIC, Job, Phase
from fairlead.core.plan import Launches as Starts
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.clock import WallClock
from fairlead.runtime.control.counting import Counted
from fairlead.runtime.control.keepable import same
from fairlead.runtime.control.launches import Addressed, Fate, Key, Launches, Outcome, Seat
from fairlead.runtime.control.limits import Limits
from fairlead.runtime.control.measures import Measures
from fairlead.runtime.control.uses import Uses
from fairlead.runtime.messages import Beat
from fairlead.runtime.orders import Ended, Given, Metric, Order, Progress, Routed, Task, Told, Wants

RATE_TELLS = 0.05
"""A rate that differs by less from what is known is not worth an event."""

OFF_S = 1.0
"""Nor is a job that is ahead or behind by less than so many seconds of its work: fast steps come in bursts."""

FIRST_PORT, PORTS = 20_000, 10_000
"""For gangs to find each other."""

LONGEST_WAIT_S = 3600.0

_AS_MADE = Counted()  # of jobs that have told no batch size


LOOK_WITHIN_S = 30.0
"""So long whoever wants to look at the state waits for it."""


class Busy(FairleadError):
    """The state is not at rest. The loop goes on with it, some day."""


class Wire(Protocol):
    """How orders reach agents. An order to a node that is not connected is lost: what it would have done is found out when the
    node comes back and tells what runs there."""

    def send(self, node: int, order: Order) -> None: ...

    def address_of(self, node: int) -> str: ...


@dataclass
class _Request:
    """Something that happened outside, and what is done once it is in the journal."""

    happen: Callable[[float], Sequence[ev.Event]]
    answered: Callable[[Sequence[ev.Event]], None] = lambda events: None


@dataclass
class Live:
    """Give it the cluster, a wire to the agents, and what each job runs."""

    cluster: Cluster
    wire: Wire
    clock: WallClock
    task_of: Callable[[Job], Task]
    next_number: int = 0
    checkpoints: str = ""  # where jobs save, seen by all nodes
    lock: threading.RLock = field(default_factory=threading.RLock)
    scheduler: Mapping[str, Any] = field(default_factory=dict)  # that decides; of switches, the last that was told

    def __post_init__(self) -> None:
        self.launches = Launches(self.wire.address_of, self._ports, self.checkpoints)
        self._inbox: deque[_Request] = deque()
        self._rung = threading.Condition()
        self._unanswered: list[tuple[_Request, Sequence[ev.Event]]] = []  # told, not yet known to be in the journal
        self._job_of: dict[int, Job] = {}
        self._called: set[str] = set()  # names that look like those of jobs without one
        self._generation: dict[int, int] = {}
        self._failures: dict[int, int] = {}
        self._progress: dict[int, tuple[float, float, float]] = {}  # steps, rate, since: as the state knows them
        self._counted: dict[int, Counted] = {}
        self._limits = Limits()
        self._measures = Measures()
        self._uses = Uses()
        self._seen: dict[int, Beat] = {}  # by node, what its agent saw last of its accelerators
        self._saved: dict[int, int] = {}  # steps in the last checkpoint of who does not run
        self._done: set[int] = set()  # jobs that had finished before a restart, and may be saving still
        self._present: set[int] = set()  # nodes that are up, as the state knows it
        self._awaited: set[int] = set()  # nodes that were there before a restart and have not told what runs there
        self._found: dict[int, set[Key]] | None = None  # by node, what runs there, while not everybody has been heard
        self._stopped = False
        self._awake = False  # `wait` returns, though nothing has happened
        first = np.searchsorted(self.cluster.node_of, np.arange(len(self.cluster.nodes)))
        self._first_of_node: list[int] = first.tolist()

    # What the loop calls.

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def exhausted(self) -> bool:
        """People may always come with another job; only `stop` ends it."""
        return self._stopped

    def wait(self, until: float, grain: float) -> Sequence[ev.Event]:
        """Returns as soon as anything has happened. That it is called again says that what it told is in the journal."""
        self._answer()
        return self._next(until)

    def submit(self, plan: RoundPlan) -> Sequence[ev.Event]:
        for job in plan.ended.tolist():  # it is done, and what it has learned is worth keeping: it may save
            self._send(self.launches.revoke(job))
            self._forget(job)
        for job, _ in plan.refused:
            self._forget(job)
        for job in plan.suspended.tolist():
            self._limits.stopped(job, plan.time)
            self._send(self.launches.revoke(job))
        starts = plan.launches
        bounds = starts.offsets.tolist()
        for number, begin, end, given in zip(starts.jobs.tolist(), bounds, bounds[1:], _given(starts, plan.routes)):
            job, generation = self._job_of[number], self._generation.get(number, 0) + 1
            self._generation[number] = generation
            steps, _, _ = self._progress.get(number, (0.0, 0.0, 0.0))
            self._progress[number] = (steps, 0.0, plan.time)
            self._limits.started(number, plan.time)
            seats = self._seats(starts.accelerators[begin:end])
            saved = self._saved.get(number, 0)
            self._send(self.launches.start(number, generation, job.name, self.task_of(job), seats, saved, given))
        launched = set(starts.jobs.tolist())
        for number, route in plan.routes.items():
            if number not in launched:
                self._send(self.launches.reroute(number, _routed(route)))
        return ()

    def reconcile(self, view: Snapshot, keep: Callable[[Sequence[ev.Event]], None] | None = None) -> Sequence[ev.Event]:
        """After a restart: whoever runs by the state is looked for on its nodes. Agents must be able to join meanwhile; it
        returns when every node that was there has told what runs there, or has been given up. That can take as long as a node's
        term and grace; with `keep`, which brings events into the journal, whoever asks for something meanwhile is answered."""
        for jobs in (view.jobs, view.queued):
            for number, starts, failures in zip(jobs.number.tolist(), jobs.starts.tolist(), jobs.failures.tolist()):
                self._know(number, view.job_of[number])
                self._generation[number], self._failures[number] = starts, failures
        known = zip(
            view.jobs.number.tolist(), view.jobs.base_steps.tolist(), view.jobs.rate.tolist(), view.jobs.since_s.tolist()
        )
        self._progress = {number: (steps, rate, since) for number, steps, rate, since in known}
        self._counted = {number: Counted(regimes) for number, regimes in view.regimes.items() if number in self._job_of}
        self._saved = {number: self._made(number) for number, (_, rate, _) in self._progress.items() if not rate}
        everybody = view.jobs.with_rows(np.arange(view.next_number))
        self._done = set(np.flatnonzero(everybody.phase == Phase.FINISHED).tolist())
        self._measures.know(view)
        for jobs in (view.jobs, view.queued):
            for number, ran_s in zip(jobs.number.tolist(), jobs.run_s.tolist()):
                self._limits.add(number, view.job_of[number].time_limit_s, ran_s)
        for number in view.jobs.runners.number.tolist():
            self._limits.started(number, view.time)
        seats = {number: self._seats(view.holdings.of(number)) for number in view.jobs.runners.number.tolist()}
        there = view.jobs.runners
        columns = (there.batch_size, there.cpus_given, there.memory_given_gb)
        given = dict(zip(there.number.tolist(), (Given(*each) for each in zip(*(column.tolist() for column in columns)))))
        for number, route in view.routes.items():
            given[number] = replace(given[number], routed=_routed(route))
        for number, places in seats.items():
            job, saved = self._job_of[number], self._made(number)
            self.launches.adopt(number, self._generation[number], job.name, self.task_of(job), places, saved, given[number])
        self._present |= set(np.unique(self.cluster.node_of[view.present]).tolist())
        # A job that waits, or moved, may still be leaving a node where by the state nothing runs.
        self._awaited = set(self._present) if bool((view.jobs.starts > 0).any()) else set()
        found = self._found = {}
        happened: list[ev.Event] = []
        for node in sorted({seat.node for places in seats.values() for seat in places} - self._present):
            orders, outcomes = self.launches.node_gone(node)  # of a gang, the rest was on its way out
            self._send(orders)
            happened += self._became(outcomes, self.now)
        while self._awaited and not self._stopped:
            happened += self._next(math.inf)
            if keep is not None:
                keep(happened)
                happened = []
                self._answer()
        self._found = None
        return happened if self._stopped else [*happened, *self._compare(found)]

    # What others call, from any thread.

    @contextmanager
    def at_rest(self, within_s: float = LOOK_WITHIN_S) -> Iterator[None]:
        """The state may be read meanwhile. Raises `Busy` where that cannot be for so long."""
        if not self.lock.acquire(timeout=within_s):
            raise Busy(
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
                job = replace(job, submitted_s=now, name=job.name or self._name(), after=after)
                self._know(self.next_number, job)
                self._limits.add(self.next_number, job.time_limit_s)
                events.append(ev.JobSubmitted(now, self.next_number, job))
                self.next_number += 1
            return events

        self._ring(_Request(happen, answered))

    def cancel(self, number: int, answered: Callable[[Sequence[ev.Event]], None] = lambda events: None) -> None:
        """Nothing is killed before it is in the journal why; who has ended already has no event."""
        orders: list[Addressed] = []

        def happen(now: float) -> list[ev.Event]:
            if number not in self._job_of:
                return []
            orders.extend(self.launches.drop(number))
            self._forget(number)
            return [ev.JobCancelled(now, number)]

        def kept(events: Sequence[ev.Event]) -> None:
            self._send(orders)
            answered(events)

        self._ring(_Request(happen, kept))

    def drain(self, node: int, undo: bool, answered: Callable[[Sequence[ev.Event]], None] = lambda events: None) -> None:
        self._ring(_Request(lambda now: [ev.NodeDrained(now, node, undo)], answered))

    def switch(
        self,
        scheduler: Mapping[str, Any],
        why: str,
        answered: Callable[[Sequence[ev.Event]], None] = lambda events: None,
        instead_of: Mapping[str, Any] | None = None,
    ) -> None:
        """With `instead_of`, only where that one decides when this comes; otherwise there is no event."""

        def happen(now: float) -> list[ev.Event]:
            if instead_of is not None and not same(instead_of, self.scheduler):
                return []
            self.scheduler = scheduler
            return [ev.SchedulerSwitched(now, scheduler, why)]

        self._ring(_Request(happen, answered))

    def joined(self, node: int, found: Sequence[Key]) -> None:
        """An agent is there, and this is what it found running. Until `left`, its node is up."""

        def happen(now: float) -> list[ev.Event]:
            back: list[ev.Event] = [] if node in self._present else [ev.NodeRepaired(now, node)]
            self._present.add(node)
            self._awaited.discard(node)
            if self._found is not None:  # after a restart, everybody is heard first
                self._found[node] = set(found)
                return back
            return [*back, *self._compare({node: found})]

        self._ring(_Request(happen))

    def left(self, node: int) -> None:
        """The lease of a node's agent has run out, and so has the grace of its jobs: nothing runs there any more."""

        def happen(now: float) -> list[ev.Event]:
            self._awaited.discard(node)
            if self._found is not None:
                self._found.pop(node, None)
            if node not in self._present:
                return []
            self._present.discard(node)
            orders, outcomes = self.launches.node_gone(node)
            self._send(orders)
            return [ev.NodeLost(now, node), *self._became(outcomes, now)]

        self._ring(_Request(happen))

    def tell(self, node: int, told: Sequence[Told], answered: Callable[[], None] = lambda: None) -> None:
        """What an agent says of its jobs; `answered` when it need not be said again."""

        def happen(now: float) -> list[ev.Event]:
            events: list[ev.Event] = []
            for word in told:
                events += self._heard(node, word, now)
            return events

        self._ring(_Request(happen, lambda events: answered()))

    def see(self, node: int, beat: Beat) -> None:
        """What an agent sees of its accelerators; looked at when something happens, as it does wherever jobs run."""
        self._seen[node] = beat

    @property
    def stopped(self) -> bool:
        return self._stopped

    def wake(self) -> None:
        """`wait` returns: something that the loop waits for is there."""
        with self._rung:
            self._awake = True
            self._rung.notify_all()

    def stop(self) -> None:
        """The loop ends; jobs go on."""
        with self._rung:
            self._stopped = True
            self._rung.notify_all()

    # What the above are made of.

    def _know(self, number: int, job: Job) -> None:
        self._job_of[number] = job
        if job.name.startswith("job-"):
            self._called.add(job.name)

    def _name(self) -> str:
        """Of a job that has none; somebody may have called another one so."""
        name = f"job-{self.next_number}"
        while name in self._called:
            name += "-again"
        return name

    def _ring(self, request: _Request) -> None:
        with self._rung:
            self._inbox.append(request)
            self._rung.notify_all()

    def _answer(self) -> None:
        """What was told is in the journal."""
        unanswered, self._unanswered = self._unanswered, []
        for request, events in unanswered:
            request.answered(events)

    def _next(self, until: float) -> list[ev.Event]:
        """What happens next, or nothing up to a second."""
        until = min(until, self._limits.soonest, self._measures.due_s)
        self.lock.release()
        try:
            with self._rung:
                while not (self._inbox or self._awake or self._stopped) and (left := until - self.clock.now()) > 0:
                    self._rung.wait(min(left, LONGEST_WAIT_S))
                requests = list(self._inbox)
                self._inbox.clear()
                self._awake = False
        finally:
            self.lock.acquire()
        happened: list[ev.Event] = []
        for request in requests:
            events = request.happen(self.now)
            happened += events
            self._unanswered.append((request, events))
        self._look_at_uses()
        if self.now >= self._measures.due_s:
            happened += self._measures.told(self.now)
        return happened + self._overrun()

    def _look_at_uses(self) -> None:
        if not self._seen:
            return
        seen, self._seen = self._seen, {}
        for job, use in self._uses.see(seen, self.launches.everybody()):
            if job in self._job_of:
                self._measures.see(job, use, self._job_of[job].user)

    def _overrun(self) -> list[ev.Event]:
        """Whoever has used its time limit up has failed, and is killed when that is in the journal."""
        now, events = self.now, list[ev.Event]()
        for job in self._limits.over(now):
            orders = self.launches.drop(job)
            self._forget(job)
            events.append(ev.JobsFailed(now, np.array([job], dtype=np.int64), np.array([now]), "time limit"))
            kill = _Request(lambda now: (), lambda events, orders=orders: self._send(orders))  # type: ignore[misc]
            self._unanswered.append((kill, events))
        return events

    def _compare(self, found: Mapping[int, Collection[Key]]) -> list[ev.Event]:
        def places(node: int) -> tuple[int, ...]:
            return tuple(range(self.cluster.nodes[node].accelerators))

        def may_save(job: int) -> bool:
            return job in self._job_of or job in self._done

        orders, outcomes = self.launches.compare(found, places, may_save)
        self._send(orders)
        return self._became(outcomes, self.now)

    def _send(self, orders: Sequence[Addressed]) -> None:
        for node, order in orders:
            self.wire.send(node, order)

    def _heard(self, node: int, word: Told, now: float) -> Sequence[ev.Event]:
        if isinstance(word, Ended):
            before = self._measures.told(now)  # nothing that is said of a job comes after its end
            if self._found is not None:
                self._found.get(node, set()).discard((word.job, word.generation))
            orders, outcomes = self.launches.heard(node, word)
            self._send(orders)
            return [*before, *self._became(outcomes, now)]
        if isinstance(word, Wants):
            self._send(self.launches.renew(node, word))
            return ()
        run = self.launches.get(word.job, word.generation)
        if run is None or word.job not in self._job_of:
            return ()
        if isinstance(word, Metric):
            self._measures.hear(word, self._job_of[word.job].user)
            return ()
        run.saved = max(run.saved, word.saved)
        if run.leaving:  # by the state it does not run any more, or runs elsewhere soon
            return ()
        return self._got_on(word, now)

    def _got_on(self, word: Progress, now: float) -> Sequence[ev.Event]:
        job, told, worth_telling = self._job_of[word.job], word.rate, False
        if word.batch_size and (told or word.job not in self._counted):  # another size counts once it is known how fast it is
            self._measures.hear_size(word.job, word.batch_size, job.user)
            if job.mode != ELASTIC:
                worth_telling = self._counted.setdefault(word.job, Counted()).hear(word.steps, word.batch_size)
        steps, rate, since = self._progress.get(word.job, (0.0, 0.0, now))
        counted = self._counted.get(word.job, _AS_MADE)
        done, told = counted.declared(word.steps), told * counted.worth or rate
        expected = steps + rate * (now - since)
        worth_telling |= abs(done - expected) > max(1.0, RATE_TELLS * (done - steps), OFF_S * told)
        worth_telling |= abs(told - rate) > RATE_TELLS * rate or steps <= job.steps < done
        return (self._progressed(word.job, done, told, now),) if worth_telling else ()

    def _made(self, job: int) -> int:
        """The steps of its own count that the state knows of."""
        return round(self._counted.get(job, _AS_MADE).made(self._progress[job][0]))

    def _progressed(self, job: int, steps: float, rate: float, now: float) -> ev.ProgressReported:
        self._progress[job] = (steps, rate, now)
        return ev.ProgressReported(now, np.array([job]), np.array([float(steps)]), np.array([float(rate)]), np.array([now]))

    def _became(self, outcomes: Sequence[Outcome], now: float) -> list[ev.Event]:
        events: list[ev.Event] = []
        for end in outcomes:
            if end.job not in self._job_of:  # it had ended before it left
                continue
            self._saved[end.job] = end.saved
            if end.fate is not Fate.YIELDED:  # who was asked to leave stopped counting then
                self._limits.stopped(end.job, now)
            one, at = np.array([end.job], dtype=np.int64), np.array([now])
            done = self._counted.get(end.job, _AS_MADE).declared(end.saved)
            saved = np.array([float(done)])
            if end.fate is Fate.FINISHED:
                self._send(self.launches.drop(end.job))  # it may have been about to go on elsewhere
                self._forget(end.job)
                events.append(ev.JobsFinished(now, one, at))
            elif end.fate is Fate.YIELDED:
                events.append(self._progressed(end.job, done, 0.0, now))
            elif end.fate is Fate.LOST:
                self._progress[end.job] = (done, 0.0, now)
                events.append(ev.JobsInterrupted(now, one, saved))
            elif end.fate is Fate.FAILED:
                self._progress[end.job] = (done, 0.0, now)
                self._failures[end.job] = self._failures.get(end.job, 0) + 1
                if self._failures[end.job] > self._job_of[end.job].retry_limit:
                    self._send(self.launches.drop(end.job))
                    self._forget(end.job)
                    events.append(ev.JobsFailed(now, one, at, end.why or f"exit code {end.code}"))
                else:
                    if end.asked:  # by the state it waits, or is about to go on elsewhere
                        self._send(self.launches.drop(end.job))
                        events.append(self._progressed(end.job, done, 0.0, now))
                    events.append(ev.JobsInterrupted(now, one, saved, own_fault=True))
        return events

    def _forget(self, job: int) -> None:
        """It has ended; what agents still say of it is of no interest."""
        for about in (self._job_of, self._generation, self._failures, self._progress, self._saved, self._counted):
            about.pop(job, None)
        self._limits.forget(job)
        self._measures.forget(job)
        self._uses.forget(job)

    def _seats(self, accelerators: Ints) -> tuple[Seat, ...]:
        """By node, in the order of ranks: the first worker stands on the first accelerator."""
        by_node: dict[int, list[tuple[int, int]]] = {}
        for rank, place in enumerate(accelerators.tolist()):
            node = int(self.cluster.node_of[place])
            by_node.setdefault(node, []).append((rank, place - self._first_of_node[node]))
        return tuple(Seat(node, tuple(r for r, _ in here), tuple(p for _, p in here)) for node, here in by_node.items())

    def _ports(self, launch: Key) -> tuple[int, int]:
        """Two for each launch of a gang, out of reach of those that the system gives away, not soon the same again, and others
        than those of a second control plane on this machine."""
        first = FIRST_PORT + 2 * ((crc32(self.checkpoints.encode()) + 7919 * launch[0] + launch[1]) % (PORTS // 2))
        return first, first + 1


def _given(starts: Starts, routes: Routes) -> list[Given]:
    """What a plan gives each of its launches besides accelerators."""
    zeros = [0] * len(starts)
    columns = (starts.batch_sizes, starts.cpus, starts.host_memory_gb)
    given = [Given(*each) for each in zip(*(zeros if column is None else column.tolist() for column in columns))]
    if not routes:
        return given
    mine = [routes.get(number) for number in starts.jobs.tolist()]
    return [one if route is None else replace(one, routed=_routed(route)) for one, route in zip(given, mine)]


def _routed(route: Route) -> Routed:
    """Workers stand on the accelerators of a route in their order."""
    return Routed(route.batch, route.rate, route.parts)
