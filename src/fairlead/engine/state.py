"""The state of a cluster and its jobs. It changes by `apply(event)` and by nothing else: no clock, no I/O, no decisions.
Replaying the same events gives the same state, which is what recovery and what-if rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import NO, ONE, ZERO, moment, without
from fairlead.core.errors import FairleadError, InvalidPlan
from fairlead.core.job import BATCH_SIZE, ELASTIC, LAUNCH_FAILED, LEGAL, Failure, Phase, check_transition
from fairlead.core.observations import observed_job, without_jobs
from fairlead.core.plan import MEASURED_METRICS, Launches, ObservedValues
from fairlead.core.reasons import Code
from fairlead.core.routes import Routes
from fairlead.core.snapshot import NameTable
from fairlead.engine.feasibility import feasible_types
from fairlead.engine.state_views import CODED, Known
from fairlead.models.convergence import LOSS, note_losses

# Looked up often, and an enum's members are slow to reach.
QUEUED, WAITING, RUNNING = int(Phase.QUEUED), int(Phase.WAITING), int(Phase.RUNNING)
FINISHED, FAILED, CANCELLED, REFUSED = map(int, (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED))

_LOOK = attrgetter(*CODED, "allowed_types", "memory_gb", "workers", "cpus", "host_memory_gb")
MOST_LEFT_OUT = 1_000_000  # numbers between two submissions; columns have a row for each
MOST_METRICS_KEPT = 2000  # names; past that, those that nobody alive uses are forgotten
_PHASE = {int(phase): np.array(int(phase)) for phase in Phase}  # as columns take them
_MAY_GO_TO = {int(new): np.array([new in LEGAL[old] for old in Phase]) for new in Phase}


class State(Known):
    """Build one with `State(cluster)` or from a journal's events with `State.replay(events)`."""

    @classmethod
    def replay(cls, events: Iterable[ev.Event]) -> State:
        stream = iter(events)
        opened = next(stream, None)
        if not isinstance(opened, ev.JournalOpened):
            raise FairleadError("a journal begins with the cluster it is about; this one does not")
        state = cls(opened.cluster)
        state.apply(opened)
        for event in stream:
            state.apply(event)
        return state

    # What events do.

    def apply(self, event: ev.Event) -> None:
        if event.time < self.time - 1e-6:
            raise FairleadError(f"{type(event).__name__} at second {event.time:g} comes after second {self.time:g}")
        self.store.version += 1
        if self.device_map.shared and event.time > self.time:
            self._count_company(event.time - self.time)
        _APPLY[type(event)](self, event)
        if event.time > self.time:
            self.time = event.time

    def _opened(self, event: ev.JournalOpened) -> None:
        if self.job_of:
            raise InvalidPlan("a journal is opened once, before anything else")
        self.scheduler, self.journal = event.scheduler, event.journal
        self.time = event.time

    def _submitted(self, event: ev.JobSubmitted) -> None:
        number, job = event.number, event.job
        if number < self.next_number:
            raise InvalidPlan(f"job number {number} was given twice")
        if number > self.next_number + MOST_LEFT_OUT:
            raise InvalidPlan(f"job number {number} comes before number {self.next_number}; they are given in order")
        self.store.reserve(number + 1)
        self.device_map.reserve(number + 1)
        self.next_number = number + 1
        self.job_of[number] = job
        a = self.store.arrays  # what is not written here has its default already
        a["number"][number], a["workers"][number], a["priority"][number] = number, job.workers, job.priority
        look = _LOOK(job)
        known = self._looks.get(look)
        if known is None:
            codes = [self._code(name, getattr(job, name)) for name in CODED]
            known = self._looks[look] = (*codes, feasible_types(job, self.cluster))
        a["kind"][number], a["user"][number], a["account"][number], a["group"][number], a["fits"][number] = known
        a["group_order"][number] = job.group_order
        if job.group:
            self.groups.enter(known[CODED.index("group")], number)
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
        if 0 <= event.number < self.next_number and self.store.arrays["phase"][event.number] > RUNNING:
            return  # it ended before the cancellation arrived, or before this state began
        if event.number not in self.job_of:
            raise InvalidPlan(f"there is no job number {event.number} to cancel")
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
                job = self.job_of.get(number)  # None: it ended before this state began
                # an elastic job's batch size follows from where it stands, and not from how far it is
                if job is not None and job.mode != ELASTIC:
                    self.adaptations.note(number, size, done, job.kind, code, job.workers)

    def _forget_metrics(self) -> None:
        """Decisions see what those say who are alive."""
        said = self.store.metrics.items()
        self.store.metrics = {name: column for name, column in said if not np.isnan(column[self.live]).all()}

    def _switched(self, event: ev.SchedulerSwitched) -> None:
        """What was learned stays: its names say what it is, and another estimation looks at those that it knows."""
        self.scheduler = event.scheduler
        self.memo = None

    def _memo(self, event: ev.MemoChanged) -> None:
        self.memo = event.memo

    def _learned(self, event: ev.ObservationsRecorded) -> None:
        self.observations = {**self.observations, **self.without_the_ended(event.values)}
        self.observation_count += 1
        self._blank = None

    def without_the_ended(self, facts: ObservedValues) -> ObservedValues:
        """Less those about jobs that have ended."""
        phase, about = self.store.arrays["phase"], map(observed_job, facts)
        return without_jobs(facts, [n for n in about if n is not None and n in self.job_of and phase[n] > RUNNING])

    def _planned(self, event: ev.RoundPlanned) -> None:
        plan, now = event.plan, moment(event.plan.time)
        if plan.refused:
            self.refusals.update(plan.refused)
            for phase, wanted in ((REFUSED, False), (CANCELLED, True)):
                gone = [number for number, reason in plan.refused if (reason.code is Code.DEPENDENCY_FAILED) is wanted]
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
            self._check_routes(plan.routes)
            self._route({**self.routes, **plan.routes})
        if len(plan.suspended):  # who runs again at once has moved, or changed its size; who does not was preempted
            a = self.store.arrays
            preempted = a["phase"][plan.suspended] == _PHASE[WAITING]
            a["preemptions"][plan.suspended] += preempted
            if np.count_nonzero(preempted) < len(preempted):
                a["moves"][plan.suspended] += ~preempted

    def _check_routes(self, routes: Routes) -> None:
        for number, route in routes.items():
            there = self.device_map.of(number).tolist()
            if list(route.accelerators) != there:
                raise InvalidPlan(f"job {number} is routed to accelerators {list(route.accelerators)}, and has {there}")

    def _route(self, routes: Routes) -> None:
        if routes is not self.routes:
            self.routes, self._blank = routes, None

    def _launch(self, launches: Launches, time: Floats) -> None:
        jobs, a = launches.jobs, self.store.arrays
        self._go(jobs, RUNNING)
        self.running = np.concatenate((self.running, jobs))
        self.running.sort()
        self.device_map.take(jobs, launches.offsets, launches.accelerators, exclusive=launches.exclusive)
        a["held"][jobs] = launches.workers
        a["type"][jobs] = launches.types
        if launches.has_overrides or self.given:
            self.given = True
            a["batch_size"][jobs] = 0 if launches.batch_sizes is None else launches.batch_sizes
            a["cpus_given"][jobs] = 0.0 if launches.cpus is None else launches.cpus
            a["memory_given_gb"][jobs] = 0.0 if launches.host_memory_gb is None else launches.host_memory_gb
        a["run_started_s"][jobs] = time
        a["run_started_steps"][jobs] = a["base_steps"][jobs]
        a["since_s"][jobs] = time
        first = a["first_started_s"]
        first[jobs] = np.fmin(first[jobs], time)
        a["starts"][jobs] += ONE
        if self.store.metrics:
            for name in MEASURED_METRICS & self.store.metrics.keys():  # what was seen of them was seen where they stood before
                self.store.metrics[name][jobs] = np.nan

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
        self._check_failure(event)
        self._end(event.jobs, event.at, FAILED)
        self._note_failure(event, event.jobs)

    def _interrupted(self, event: ev.JobsInterrupted) -> None:
        self._check_failure(event)
        a = self.store.arrays
        hit = a["held"][event.jobs] > 0  # who was suspended or ended meanwhile has nothing to lose
        jobs = event.jobs[hit]
        self._go(jobs, WAITING)
        self._settle(jobs, moment(event.time))
        a["base_steps"][jobs] = event.steps[hit]
        if event.own_fault:  # also of who failed while it was suspended
            tried = event.jobs[a["phase"][event.jobs] <= RUNNING]
            a["failures"][tried] += 1
            self._note_failure(event, tried)
        elif event.code == LAUNCH_FAILED and event.node >= 0:
            self._note_failure(event, jobs)

    # What the above are made of.

    def _check_failure(self, event: ev.JobsFailed | ev.JobsInterrupted) -> None:
        if event.node != -1:
            self._check_node(event.node)

    def _go(self, jobs: Ints, new: int) -> None:
        phase = self.store.arrays["phase"]
        legal = _MAY_GO_TO[new][phase[jobs]]
        if np.count_nonzero(legal) < len(jobs):
            wrong = int(jobs[int((~legal).argmax())])
            check_transition(self.job_of[wrong].name, Phase(int(phase[wrong])), Phase(new))
        phase[jobs] = _PHASE[new]

    def _note_failure(self, event: ev.JobsFailed | ev.JobsInterrupted, jobs: Ints) -> None:
        starts = self.store.arrays["starts"][jobs]
        own = isinstance(event, ev.JobsFailed) or event.own_fault
        for number, start in zip(jobs.tolist(), starts.tolist()):
            self.last_failure[number] = Failure(event.why, event.code, event.node, event.rank, start, own)

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
        self.device_map.release(jobs)
        self.running = self.running[a["held"][self.running].nonzero()[0]]
        if self.routes:
            gone = set(jobs.tolist())
            self._route({number: route for number, route in self.routes.items() if number not in gone})

    def _count_company(self, seconds: float) -> None:
        """So long an accelerator with two jobs on it was held once, and each of them counts it."""
        more = np.maximum(self.device_map.occupancy - 1, 0)
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
        if self.observations and (left := without_jobs(self.observations, jobs.tolist())) is not self.observations:
            self.observations, self._blank = left, None
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

    def _with_node(self, column: Bools, node: int, value: bool) -> Bools:
        self._check_node(node)
        changed = column.copy()
        changed[self.cluster.node_of == node] = value
        return changed

    def _check_node(self, node: int) -> None:
        if not 0 <= node < len(self.cluster.nodes):
            raise InvalidPlan(f"there is no node number {node}")

    def _code(self, column: str, name: str) -> int:
        codes = self._codes[column]
        code = codes.get(name)
        if code is None:
            code = codes[name] = len(codes)
            self._names = NameTable(*(tuple(known) for known in self._codes.values()))
            self._blank = None
        return code


def _merged(live: Ints, entering: Ints) -> Ints:
    merged = np.concatenate((live, entering))
    if len(live) and live[-1] > entering[0]:
        merged.sort()
    return merged


_APPLY: dict[type, Callable[[State, Any], None]] = {
    ev.JournalOpened: State._opened,
    ev.JobSubmitted: State._submitted,
    ev.JobCancelled: State._cancelled,
    ev.NodeLost: State._node_lost,
    ev.NodeRepaired: State._node_repaired,
    ev.NodeDrained: State._node_drained,
    ev.MetricsReported: State._metrics,
    ev.SchedulerSwitched: State._switched,
    ev.MemoChanged: State._memo,
    ev.ObservationsRecorded: State._learned,
    ev.RoundPlanned: State._planned,
    ev.ProgressReported: State._progress,
    ev.JobsFinished: State._finished,
    ev.JobsFailed: State._failed,
    ev.JobsInterrupted: State._interrupted,
}
