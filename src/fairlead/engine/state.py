"""The state of a cluster and its jobs. It changes by `apply(event)` and by nothing else: no clock, no I/O, no decisions.
Replaying the same events gives the same state, which is what recovery and what-if rest on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.adaptation import BATCH_SIZE, Adaptations, flags_of
from fairlead.core.after import NO_WAITS, Awaited, Waits, awaited
from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.columns import (
    ALL_COLUMNS,
    ColumnStore,
    JobColumns,
    without,
)
from fairlead.core.errors import FairleadError, InvalidPlan
from fairlead.core.facts import about_whom, without_jobs
from fairlead.core.failure import Failure
from fairlead.core.holdings import NONE, Holdings
from fairlead.core.inference import NO_ROUTES, Routes
from fairlead.core.job import ELASTIC, LEGAL, Job, Phase, check_transition
from fairlead.core.losses import LOSS, note_losses
from fairlead.core.operands import NO, ONE, ZERO, moment
from fairlead.core.plan import NO_FACTS, Facts, Launches
from fairlead.core.reasons import Code, Reason
from fairlead.core.snapshot import Names, Snapshot
from fairlead.engine.codec import encode_memo
from fairlead.engine.groups import Groups

# Looked up often, and an enum's members are slow to reach.
QUEUED, WAITING, RUNNING = int(Phase.QUEUED), int(Phase.WAITING), int(Phase.RUNNING)
FINISHED, FAILED, CANCELLED, REFUSED = map(int, (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED))

_CODED = ("kind", "user", "entity", "group")  # columns of codes for names
_LOOK = attrgetter(*_CODED, "allowed_types", "memory_gb", "workers", "cpus", "host_memory_gb")
MOST_METRICS_KEPT = 2000  # names; past that, those that nobody alive uses are forgotten
_PHASE = {int(phase): np.array(int(phase)) for phase in Phase}  # as columns take them
_MAY_GO_TO = {int(new): np.array([new in LEGAL[old] for old in Phase]) for new in Phase}


class State:
    """Build one with `State(cluster)` or from a journal's events with `State.replay(events)`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.time = 0.0
        self.store = ColumnStore()
        self.holdings = Holdings(cluster.size)
        self.job_of: dict[int, Job] = {}
        self.next_number = 0
        self._blank: Snapshot | None = None  # what snapshots have in common, until it changes
        self._show(np.ones(cluster.size, dtype=np.bool_), np.zeros(cluster.size, dtype=np.bool_))
        self.live: Ints = NONE  # waiting or running, by number
        self.running: Ints = NONE  # those of them that run
        self._queue: Ints = NONE  # still at the door
        # Accelerator-seconds of stretches that are over, less those for which an accelerator was held by one more.
        self.service_by_type: Floats = np.zeros(len(cluster.types))
        self._arrived: list[int] = []  # the youngest of them, not yet in the array
        self.memo: ev.Memo = None
        self.learned: Facts = NO_FACTS  # by estimation; another mapping whenever something is learned
        self.lessons = 0  # how often that was
        self.routes: Routes = NO_ROUTES  # of those who serve requests; another mapping whenever one changes
        self.scheduler: Mapping[str, object] = {}
        self.refusals: dict[int, Reason] = {}
        self.last_failure: dict[int, Failure] = {}  # of who failed, or failed and is tried again
        self.journal = ""  # its name, where it has one
        self.any_min_run, self.weighted = False, False
        self.given = False  # whether a plan so far has said with which batch size, or how much of its host, a job is to run
        self.groups = Groups()
        self.adaptations = Adaptations()
        self.followers: list[int] = []  # those at the door that come after others
        self._codes: dict[str, dict[str, int]] = {name: {} for name in _CODED}
        self._names = Names((), (), (), ())
        self._looks: dict[tuple[Any, ...], tuple[int, ...]] = {}  # what jobs that look like this have in their columns
        self._history: Floats = np.zeros(256)
        self._finished_count = 0

    @classmethod
    def replay(cls, events: Iterable[ev.Event]) -> State:
        stream = iter(events)
        opened = next(stream, None)
        if not isinstance(opened, ev.Opened):
            raise FairleadError("a journal begins with the cluster it is about; this one does not")
        state = cls(opened.cluster)
        state.apply(opened)
        for event in stream:
            state.apply(event)
        return state

    @classmethod
    def from_snapshot(cls, view: Snapshot, memo: ev.Memo = None) -> State:
        """A state that goes on from a moment of another: the same live jobs by the same numbers; those that ended are gone."""
        state = cls(view.cluster)
        state.time, state.memo, state.any_min_run, state.weighted = view.time, memo, view.any_min_run, view.weighted
        state.given = True
        state._show(view.present.copy(), view.drained.copy())
        state.learned, state.lessons, state.routes = view.learned, view.lessons, view.routes
        numbers = np.concatenate((view.jobs.number, view.queued.number))
        state.next_number = view.next_number
        state.store.reserve(state.next_number)
        for columns in (view.jobs, view.queued, view.through):
            for name in ALL_COLUMNS:
                state.store.arrays[name][columns.number] = getattr(columns, name)
            for name in columns.metrics:
                state.store.metric(name)[columns.number] = columns.metric(name)
        state._group(view)
        state._follow(view)
        state.live, state._queue = view.jobs.number.copy(), view.queued.number.copy()
        state.running = view.jobs.runners.number.copy()
        state.job_of = {number: view.job_of[number] for number in sorted(numbers.tolist())}
        state.adaptations = view.adaptations.of(state.job_of)
        state.holdings = view.holdings.copy()
        state.holdings.reserve(state.next_number)
        state._remember(view.history)
        state._names = view.names
        codes = (view.names.kinds, view.names.users, view.names.entities, view.names.groups)
        state._codes = {column: {name: code for code, name in enumerate(known)} for column, known in zip(state._codes, codes)}
        return state

    # What others read.

    def snapshot(
        self,
        time: float | None = None,
        *,
        run_to_completion: bool = False,
        first_step_s: float = 0.0,
        round_s: float = 0.0,
    ) -> Snapshot:
        """The state as the stages see it, at a moment not before the last event."""
        now = self.time if time is None else time
        if self._blank is None:
            self._blank = self._nobody()
        view = self._blank.but(
            time=now,
            jobs=JobColumns(self.store, self.live, now, self.running),
            queued=JobColumns(self.store, self.queue, now),
            next_number=self.next_number,
            history=self._history[: self._finished_count],
            run_to_completion=run_to_completion,
            first_step_s=first_step_s,
            round_s=round_s,
        )
        if self.groups.through or self.followers:
            through = self._through(now) if self.groups.through else view.through
            return view.but(through=through, waits=self._waits() if self.followers else NO_WAITS)
        return view

    def _nobody(self) -> Snapshot:
        """A snapshot without jobs: what they have in common."""
        nobody = JobColumns(self.store, NONE, 0.0)
        return Snapshot(
            0.0,
            self.cluster,
            nobody,
            nobody,
            self.holdings,
            self.present,
            self.drained,
            self.up,
            self.capacity,
            self._names,
            self.job_of,
            self.next_number,
            self._history,
            any_drained=self.any_drained,
            any_min_run=self.any_min_run,
            weighted=self.weighted,
            learned=self.learned,
            lessons=self.lessons,
            group_sizes=self.groups.sizes,
            adaptations=self.adaptations,
            routes=self.routes,
        )

    def everybody(self) -> JobColumns:
        """All jobs there ever were, in order of submission."""
        return JobColumns(self.store, np.array(sorted(self.job_of), dtype=np.int64), self.time)

    def flags(self) -> dict[int, tuple[str, ...]]:
        """By number, what jobs did that they had not declared."""
        everybody = self.everybody()
        suspects = {*everybody.number[everybody.overran].tolist(), *self.adaptations.regimes}
        over = dict(zip(everybody.number.tolist(), everybody.overran.tolist()))
        regimes = self.adaptations.regimes
        found = {n: flags_of(self.job_of[n], regimes.get(n, ()), over[n]) for n in sorted(suspects)}
        return {number: flags for number, flags in found.items() if flags}

    @property
    def queue(self) -> Ints:
        """Who still stands at the door, by number."""
        if self._arrived:
            arrived = np.array(self._arrived, dtype=np.int64)
            self._queue = np.concatenate((self._queue, arrived)) if len(self._queue) else arrived
            self._arrived.clear()
        return self._queue

    @property
    def busy(self) -> bool:
        return bool(len(self.live) or len(self.queue))

    def digest(self) -> str:
        """A fingerprint of everything that events determine and decisions can rest on; equal states have equal ones."""
        digest = hashlib.blake2b(digest_size=16)
        for name in ALL_COLUMNS:
            digest.update(np.ascontiguousarray(self.store.arrays[name][: self.next_number]).tobytes())
        for metric in sorted(self.store.metrics):
            digest.update(metric.encode() + self.store.metrics[metric][: self.next_number].tobytes())
        last = self.holdings.last[: self.next_number]
        history, services = self._history[: self._finished_count], self.service_by_type
        parts = (self.up, self.capacity, self.holdings.occupancy, last, self.live, self.queue, history, services)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        large = (self.store.arrays["held"][: self.next_number] > 1).nonzero()[0].tolist()
        gangs = [(number, self.holdings.of(number).tolist()) for number in large]
        digest.update(repr((float(self.time), gangs, sorted(self.job_of.items()), sorted(self.refusals), self._codes)).encode())
        digest.update(encode_memo(self.memo) + encode_memo(self.scheduler))
        if self.any_drained:
            digest.update(self.present.tobytes() + self.drained.tobytes())
        if self.journal:
            digest.update(self.journal.encode())
        if self.adaptations:
            digest.update(encode_memo(self.adaptations.to_data()))
        if self.groups.since:
            digest.update(repr(sorted(self.groups.since.items())).encode())
        if self.learned:
            digest.update(encode_memo({"lessons": self.lessons, "facts": self.learned}))
        if self.routes:
            digest.update(repr(sorted((number, route) for number, route in self.routes.items())).encode())
        return digest.hexdigest()

    # What events do.

    def apply(self, event: ev.Event) -> None:
        if event.time < self.time - 1e-6:
            raise FairleadError(f"{type(event).__name__} at second {event.time:g} comes after second {self.time:g}")
        self.store.version += 1
        if self.holdings.shared and event.time > self.time:
            self._count_company(event.time - self.time)
        _APPLY[type(event)](self, event)
        if event.time > self.time:
            self.time = event.time

    def _opened(self, event: ev.Opened) -> None:
        if self.job_of:
            raise InvalidPlan("a journal is opened once, before anything else")
        self.scheduler, self.journal = event.scheduler, event.journal
        self.time = event.time

    def _submitted(self, event: ev.JobSubmitted) -> None:
        number, job = event.number, event.job
        if number < self.next_number:
            raise InvalidPlan(f"job number {number} was given twice")
        self.store.reserve(number + 1)
        self.holdings.reserve(number + 1)
        self.next_number = number + 1
        self.job_of[number] = job
        a = self.store.arrays  # what is not written here has its default already
        a["number"][number], a["workers"][number], a["priority"][number] = number, job.workers, job.priority
        look = _LOOK(job)
        known = self._looks.get(look)
        if known is None:
            known = self._looks[look] = (*(self._code(name, getattr(job, name)) for name in _CODED), self.types_that_fit(job))
        a["kind"][number], a["user"][number], a["entity"][number], a["group"][number], a["fits"][number] = known
        a["group_order"][number] = job.group_order
        if job.group:
            self.groups.enter(known[_CODED.index("group")], number)
        a["submitted_s"][number] = a["waiting_since_s"][number] = event.time
        a["steps"][number], a["weight"][number], a["deadline_s"][number] = job.steps, job.weight, job.deadline_s
        a["min_run_s"][number], a["time_limit_s"][number] = job.min_run_s, job.time_limit_s
        a["memory_gb"][number], a["cpus"][number] = job.memory_gb, job.cpus
        a["host_memory_gb"][number] = job.host_memory_gb
        if (job.min_run_s > 0 and not self.any_min_run) or (job.weight != 1.0 and not self.weighted):
            self.any_min_run, self.weighted = self.any_min_run or job.min_run_s > 0, self.weighted or job.weight != 1.0
            self._blank = None
        if job.after:
            if not all(0 <= other < number for other in job.after):
                raise InvalidPlan(f"job {job.name!r} can only come after jobs that were submitted before it")
            self.followers.append(number)
        self._arrived.append(number)

    def _cancelled(self, event: ev.JobCancelled) -> None:
        if event.number not in self.job_of:
            raise InvalidPlan(f"there is no job number {event.number} to cancel")
        if self.store.arrays["phase"][event.number] > RUNNING:
            return  # it ended before the cancellation arrived
        self._end(np.array([event.number], dtype=np.int64), moment(event.time), CANCELLED)

    def _node_lost(self, event: ev.NodeLost) -> None:
        self._show(self._with_node(self.present, event.node, False), self.drained)

    def _node_repaired(self, event: ev.NodeRepaired) -> None:
        self._show(self._with_node(self.present, event.node, True), self.drained)

    def _node_drained(self, event: ev.NodeDrained) -> None:
        self._show(self.present, self._with_node(self.drained, event.node, not event.undo))

    def _metrics(self, event: ev.MetricsReported) -> None:
        values = np.where(np.isnan(event.values), np.inf, event.values)  # NaN would be that nothing was reported
        if event.name not in self.store.metrics and len(self.store.metrics) >= MOST_METRICS_KEPT:
            self._forget_metrics()
        self.store.metric(event.name)[event.jobs] = values
        if event.name == LOSS:
            note_losses(self.store, event.jobs, values, self._steps_at(event.jobs, moment(event.time)))
        elif event.name == BATCH_SIZE:
            steps, kind = self._steps_at(event.jobs, moment(event.time)), self.store.arrays["kind"][event.jobs]
            for number, size, done, code in zip(*(c.tolist() for c in (event.jobs, event.values, steps, kind))):
                job = self.job_of[number]
                if job.mode != ELASTIC:  # whose batch size follows from where it stands, and not from how far it is
                    self.adaptations.note(number, size, done, job.kind, code, job.workers)

    def _forget_metrics(self) -> None:
        """Decisions see what those say who are alive."""
        said = self.store.metrics.items()
        self.store.metrics = {name: column for name, column in said if not np.isnan(column[self.live]).all()}

    def _switched(self, event: ev.SchedulerSwitched) -> None:
        if event.scheduler.get("estimation") != self.scheduler.get("estimation"):
            self.learned = NO_FACTS  # another estimation would not understand it; the same one goes on from there
            self._blank = None
        self.scheduler = event.scheduler
        self.memo = None
        self._route(NO_ROUTES)  # whether and where there are any is for the other to say

    def _memo(self, event: ev.MemoChanged) -> None:
        self.memo = event.memo

    def _learned(self, event: ev.FactsLearned) -> None:
        phase = self.store.arrays["phase"]
        late = [n for n in map(about_whom, event.facts) if n is not None and n in self.job_of and phase[n] > RUNNING]
        self.learned = {**self.learned, **without_jobs(event.facts, late)}
        self.lessons += 1
        self._blank = None

    def _planned(self, event: ev.RoundPlanned) -> None:
        plan, now = event.plan, moment(event.plan.time)
        if plan.refused:
            self.refusals.update(plan.refused)
            for phase, wanted in ((REFUSED, False), (CANCELLED, True)):
                gone = [number for number, reason in plan.refused if (reason.code is Code.AFTER_NOBODY) is wanted]
                if gone:
                    self._end(np.array(gone, dtype=np.int64), now, phase)
        if len(plan.admitted):
            self._go(plan.admitted, WAITING)
            self._still_queued()
            self.live = _merged(self.live, plan.admitted)
        if len(plan.ended):
            self._end(plan.ended, now, FINISHED)
            self._remember(self.store.arrays["settled_accelerator_s"][plan.ended])
        if len(plan.suspended):
            self._go(plan.suspended, WAITING)
            self._keep_progress(plan.suspended, now)
            self._settle(plan.suspended, now)
        if len(plan.launches):
            self._launch(plan.launches, now)
        if plan.routes:
            self._route({**self.routes, **plan.routes})
        if len(plan.suspended):  # who runs again at once has moved, or changed its size; who does not was preempted
            a = self.store.arrays
            preempted = a["phase"][plan.suspended] == _PHASE[WAITING]
            a["preemptions"][plan.suspended] += preempted
            if np.count_nonzero(preempted) < len(preempted):
                a["moves"][plan.suspended] += ~preempted

    def _route(self, routes: Routes) -> None:
        if routes is not self.routes:
            self.routes, self._blank = routes, None

    def _launch(self, launches: Launches, time: Floats) -> None:
        jobs, a = launches.jobs, self.store.arrays
        self._go(jobs, RUNNING)
        self.running = np.concatenate((self.running, jobs))
        self.running.sort()
        self.holdings.take(jobs, launches.offsets, launches.accelerators, exclusive=launches.exclusive)
        a["held"][jobs] = launches.workers
        a["type"][jobs] = launches.types
        if launches.gives or self.given:
            self.given = True
            a["batch_size"][jobs] = 0 if launches.batch_sizes is None else launches.batch_sizes
            a["cpus_given"][jobs] = 0.0 if launches.cpus is None else launches.cpus
            a["memory_given_gb"][jobs] = 0.0 if launches.host_memory_gb is None else launches.host_memory_gb
        a["run_started_s"][jobs] = time
        a["since_s"][jobs] = time
        first = a["first_started_s"]
        first[jobs] = np.fmin(first[jobs], time)
        a["starts"][jobs] += ONE

    def _progress(self, event: ev.ProgressReported) -> None:
        a = self.store.arrays
        a["base_steps"][event.jobs] = event.steps
        held = a["held"][event.jobs]
        late = np.count_nonzero(held) < len(held)  # a late report moves nobody
        a["rate"][event.jobs] = np.where(held > 0, event.rates, 0.0) if late else event.rates
        a["since_s"][event.jobs] = event.since

    def _finished(self, event: ev.JobsFinished) -> None:
        self._end(event.jobs, event.at, FINISHED, done=True)
        a = self.store.arrays
        a["base_steps"][event.jobs] = np.maximum(a["base_steps"][event.jobs], a["steps"][event.jobs])
        self._remember(a["settled_accelerator_s"][event.jobs])

    def _failed(self, event: ev.JobsFailed) -> None:
        self._end(event.jobs, event.at, FAILED)
        self.last_failure.update(dict.fromkeys(event.jobs.tolist(), Failure(event.why, event.code, event.node, event.rank)))

    def _interrupted(self, event: ev.JobsInterrupted) -> None:
        a = self.store.arrays
        hit = a["held"][event.jobs] > 0  # who was suspended or ended meanwhile has nothing to lose
        jobs = event.jobs[hit]
        self._go(jobs, WAITING)
        self._settle(jobs, moment(event.time))
        a["base_steps"][jobs] = event.steps[hit]
        if event.own_fault:  # also of who failed while it was suspended
            tried = event.jobs[a["phase"][event.jobs] <= RUNNING]
            a["failures"][tried] += 1
            self.last_failure.update(dict.fromkeys(tried.tolist(), Failure(event.why, event.code, event.node, event.rank)))

    # What the above are made of.

    def _go(self, jobs: Ints, new: int) -> None:
        phase = self.store.arrays["phase"]
        legal = _MAY_GO_TO[new][phase[jobs]]
        if np.count_nonzero(legal) < len(jobs):
            wrong = int(jobs[int((~legal).argmax())])
            check_transition(self.job_of[wrong].name, Phase(int(phase[wrong])), Phase(new))
        phase[jobs] = _PHASE[new]

    def _keep_progress(self, jobs: Ints, time: Floats) -> None:
        """What jobs have done up to a second is where they go on from."""
        self.store.arrays["base_steps"][jobs] = self._steps_at(jobs, time)

    def _steps_at(self, jobs: Ints, time: Floats) -> Floats:
        a = self.store.arrays
        done: Floats = a["base_steps"][jobs] + a["rate"][jobs] * np.maximum(time - a["since_s"][jobs], ZERO)
        steps: Floats = np.minimum(done, a["steps"][jobs])
        return steps

    def _settle(self, jobs: Ints, time: Floats) -> None:
        """Running jobs stop: their service becomes part of the past, their accelerators free. Where their steps stand is said
        by who calls this."""
        a = self.store.arrays
        ran = time - a["run_started_s"][jobs]
        a["settled_run_s"][jobs] += ran
        service = ran * a["held"][jobs]
        a["settled_accelerator_s"][jobs] += service
        if len(self.cluster.types) > 1:
            self.service_by_type += np.bincount(a["type"][jobs], service, minlength=len(self.cluster.types))
        a["rate"][jobs] = ZERO
        a["held"][jobs] = NO
        a["waiting_since_s"][jobs] = time
        self.holdings.release(jobs)
        self.running = self.running[a["held"][self.running].nonzero()[0]]
        if self.routes:
            gone = set(jobs.tolist())
            self._route({number: route for number, route in self.routes.items() if number not in gone})

    def _count_company(self, seconds: float) -> None:
        """So long an accelerator with two jobs on it was held once, and each of them counts it."""
        more = np.maximum(self.holdings.occupancy - 1, 0)
        self.service_by_type -= np.bincount(self.cluster.type_of, more, minlength=len(self.cluster.types)) * seconds

    def _end(self, jobs: Ints, time: Floats, phase: int, *, done: bool = False) -> None:
        """Jobs leave, whether they ran or not; `done` where all their steps are."""
        a = self.store.arrays
        held = a["held"][jobs]
        self._go(jobs, phase)
        if np.count_nonzero(held) == len(jobs):
            if not done:
                self._keep_progress(jobs, time)
            self._settle(jobs, time)
            self.live = without(self.live, jobs)
        else:
            self._still_queued()
            running = held > NO
            if running.any():
                stopping, when = jobs[running], time[running] if time.ndim else time
                self._keep_progress(stopping, when)
                self._settle(stopping, when)
            self.live = self.live[a["phase"][self.live] <= _PHASE[RUNNING]]
        a["ended_s"][jobs] = time
        if self.learned and (left := without_jobs(self.learned, jobs.tolist())) is not self.learned:
            self.learned, self._blank = left, None
        if self.last_failure:
            for number in jobs.tolist():
                self.last_failure.pop(number, None)
        if self.groups.sizes:
            whole = (a["base_steps"][jobs] >= a["steps"][jobs]) | done
            for group, number, all_steps in zip(a["group"][jobs].tolist(), jobs.tolist(), whole.tolist()):
                self.groups.leave(group, number, whole=all_steps and phase == FINISHED)

    def _still_queued(self) -> None:
        queue = self.queue
        if len(queue):
            self._queue = queue[self.store.arrays["phase"][queue] == _PHASE[QUEUED]]
        if self.followers:
            self.followers = [number for number in self.followers if self.store.arrays["phase"][number] == QUEUED]

    def _remember(self, services: Floats) -> None:
        end = self._finished_count + len(services)
        if end > len(self._history):
            self._history = np.concatenate((self._history, np.zeros(max(end, len(self._history)))))
        self._history[self._finished_count : end] = services
        self._finished_count = end

    def _with_node(self, column: Bools, node: int, value: bool) -> Bools:
        if not 0 <= node < len(self.cluster.nodes):
            raise InvalidPlan(f"there is no node number {node}")
        changed = column.copy()
        changed[self.cluster.node_of == node] = value
        return changed

    def _show(self, present: Bools, drained: Bools) -> None:
        """Which accelerators are there and which are to be left; the others may be used."""
        self.present, self.drained, self.up = present, drained, present & ~drained
        self.any_drained = bool(drained.any())
        self._blank = None
        self.capacity: Ints = np.bincount(self.cluster.type_of[self.up], minlength=len(self.cluster.types)).astype(np.int64)
        for column in (self.present, self.drained, self.up, self.capacity):  # snapshots hand them out as they are
            column.setflags(write=False)

    def _waits(self) -> Waits:
        phase = self.store.arrays["phase"]
        found = {n: awaited(self.job_of[n].after, lambda other: Phase(int(phase[other]))) for n in self.followers}
        return {number: waits for number, waits in found.items() if waits is not None}

    def _follow(self, view: Snapshot) -> None:
        """Of those who ended before a snapshot it knows only what others waited for."""
        self.followers = [number for number in view.queued.number.tolist() if view.job_of[number].after]
        phase = self.store.arrays["phase"]
        for number in self.followers:
            waits = view.waits.get(number, Awaited())
            for other in view.job_of[number].after:
                if other not in waits.unfinished:
                    phase[other] = int(waits.how) if other == waits.lost else FINISHED

    def _through(self, now: float) -> JobColumns:
        return JobColumns(self.store, np.array(self.groups.all_through, dtype=np.int64), now)

    def _group(self, view: Snapshot) -> None:
        """Of groups a snapshot knows how many came, and who is there or got through."""
        self.groups.sizes = dict(view.group_sizes)
        self.groups.since = dict.fromkeys(view.group_sizes, 0)
        there = Counter((*view.jobs.group.tolist(), *view.queued.group.tolist()))
        self.groups.there = {group: there[group] for group in view.group_sizes}
        for group, number in zip(view.through.group.tolist(), view.through.number.tolist()):
            self.groups.through.setdefault(group, set()).add(number)

    def _code(self, column: str, name: str) -> int:
        codes = self._codes[column]
        code = codes.get(name)
        if code is None:
            code = codes[name] = len(codes)
            self._names = Names(*(tuple(known) for known in self._codes.values()))
            self._blank = None
        return code

    def types_that_fit(self, job: Job) -> int:
        """With bit t set where a job could run on type t, were the cluster empty."""
        mask = 0
        for code, kind in enumerate(self.cluster.types):
            allowed = not job.allowed_types or kind.name in job.allowed_types
            large = job.memory_gb <= kind.memory_gb and job.workers <= self.cluster.size_of_type[code]
            if allowed and large and self.cluster.workers_hosted(kind.name, job.cpus, job.host_memory_gb) >= job.workers:
                mask |= 1 << code
        return mask


def _merged(live: Ints, entering: Ints) -> Ints:
    merged = np.concatenate((live, entering))
    if len(live) and live[-1] > entering[0]:
        merged.sort()
    return merged


_APPLY: dict[type, Callable[[State, Any], None]] = {
    ev.Opened: State._opened,
    ev.JobSubmitted: State._submitted,
    ev.JobCancelled: State._cancelled,
    ev.NodeLost: State._node_lost,
    ev.NodeRepaired: State._node_repaired,
    ev.NodeDrained: State._node_drained,
    ev.MetricsReported: State._metrics,
    ev.SchedulerSwitched: State._switched,
    ev.MemoChanged: State._memo,
    ev.FactsLearned: State._learned,
    ev.RoundPlanned: State._planned,
    ev.ProgressReported: State._progress,
    ev.JobsFinished: State._finished,
    ev.JobsFailed: State._failed,
    ev.JobsInterrupted: State._interrupted,
}
