"""What each event does to the state: plain functions, one for each type of event. Only `apply_event` calls
them. They know no clock and no I/O, and decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import NO, ONE, ZERO, as_scalar_array, without
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import BATCH_SIZE, ELASTIC, LAUNCH_FAILED, LEGAL, Failure, Phase, check_transition
from fairlead.core.observations import observed_job, without_jobs
from fairlead.core.plan import MEASURED_METRICS, Launches, ObservedValues
from fairlead.core.reasons import Code
from fairlead.core.snapshot import NameTable
from fairlead.engine.fairness_ledger import FairnessLedger
from fairlead.engine.feasibility import feasible_types
from fairlead.engine.state import CODED_COLUMNS, MAX_FORECASTS, State
from fairlead.models.convergence import LOSS, note_losses

# Looked up often, and an enum's members are slow to reach.
QUEUED, WAITING, RUNNING = int(Phase.QUEUED), int(Phase.WAITING), int(Phase.RUNNING)
FINISHED, FAILED, CANCELLED, REFUSED = map(int, (Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED))

_SIGNATURE = attrgetter(*CODED_COLUMNS, "allowed_types", "memory_gb", "workers", "cpus", "host_memory_gb")
MAX_NUMBER_GAP = 1_000_000  # numbers between two submissions; columns have a row for each
MAX_METRICS = 2000  # names; past that, those that no live job uses are forgotten
_PHASE = {int(phase): np.array(int(phase)) for phase in Phase}  # as columns take them
_LEGAL_FROM = {int(new): np.array([new in LEGAL[old] for old in Phase]) for new in Phase}


def _opened(state: State, event: ev.JournalOpened) -> None:
    if state.job_of:
        raise InvalidPlan("a journal is opened once, before anything else")
    state.scheduler, state.journal, state.origin = event.scheduler, event.journal, event.origin
    state.time = event.time
    if event.journal:  # of a cluster
        state.ledger = FairnessLedger()


def _restarted(state: State, event: ev.ControlPlaneRestarted) -> None:
    """Nothing: the ledger observes it."""


def _submitted(state: State, event: ev.JobSubmitted) -> None:
    number, job = event.number, event.job
    if number < state.next_number:
        raise InvalidPlan(f"job number {number} was used twice")
    if number > state.next_number + MAX_NUMBER_GAP:
        raise InvalidPlan(f"job number {number} is too large; the next number is {state.next_number}")
    state.store.reserve(number + 1)
    state.device_map.reserve(number + 1)
    state.next_number = number + 1
    state.job_of[number] = job
    a = state.store.arrays  # columns that are not written here have their default
    a["number"][number], a["workers"][number], a["priority"][number] = number, job.workers, job.priority
    signature = _SIGNATURE(job)
    known = state._signature_columns.get(signature)
    if known is None:
        codes = [code_of(state, name, getattr(job, name)) for name in CODED_COLUMNS]
        known = state._signature_columns[signature] = (*codes, feasible_types(job, state.cluster))
    a["kind"][number], a["user"][number], a["account"][number], a["group"][number], a["fits"][number] = known
    a["group_order"][number] = job.group_order
    if job.group:
        state.groups.enter(known[CODED_COLUMNS.index("group")], number)
    a["submitted_s"][number] = a["waiting_since_s"][number] = event.time
    a["steps"][number], a["weight"][number], a["deadline_s"][number] = job.steps, job.weight, job.deadline_s
    a["min_run_s"][number], a["time_limit_s"][number] = job.min_run_s, job.time_limit_s
    a["memory_gb"][number], a["cpus"][number] = job.memory_gb, job.cpus
    a["host_memory_gb"][number] = job.host_memory_gb
    if (job.min_run_s > 0 and not state.any_min_run) or (job.weight != 1.0 and not state.weighted):
        state.any_min_run, state.weighted = state.any_min_run or job.min_run_s > 0, state.weighted or job.weight != 1.0
        state._template = None
    if job.prediction and state.predictions.get(job.kind) != job.prediction:
        state.predictions, state._template = {**state.predictions, job.kind: job.prediction}, None
    if job.after:
        if not all(0 <= other < number for other in job.after):
            raise InvalidPlan(f"job {job.name!r} can only come after jobs that were submitted before it")
        state.dependents.append(number)
    state._arrived.append(number)


def _cancelled(state: State, event: ev.JobCancelled) -> None:
    if 0 <= event.number < state.next_number and state.store.arrays["phase"][event.number] > RUNNING:
        return  # it ended before the cancellation arrived, or before this state began
    if event.number not in state.job_of:
        raise InvalidPlan(f"there is no job number {event.number} to cancel")
    _end(state, np.array([event.number], dtype=np.int64), as_scalar_array(event.time), CANCELLED)


def _metrics(state: State, event: ev.MetricsReported) -> None:
    values = np.where(np.isnan(event.values), np.inf, event.values)  # NaN means "never reported"
    if event.name not in state.store.metrics and len(state.store.metrics) >= MAX_METRICS:
        reported = state.store.metrics.items()  # decisions see only the metrics of live jobs
        state.store.metrics = {name: column for name, column in reported if not np.isnan(column[state.live]).all()}
    state.store.metric(event.name)[event.jobs] = values
    if event.name == LOSS:
        note_losses(state.store, event.jobs, values, _steps_at(state, event.jobs, as_scalar_array(event.time)))
    elif event.name == BATCH_SIZE:
        steps, kind = _steps_at(state, event.jobs, as_scalar_array(event.time)), state.store.arrays["kind"][event.jobs]
        for number, size, done, code in zip(*(c.tolist() for c in (event.jobs, event.values, steps, kind))):
            job = state.job_of.get(number)  # None: it ended before this state began
            # an elastic job's batch size depends on its placement, not on its progress
            if job is not None and job.mode != ELASTIC:
                state.adaptations.note(number, size, done, job.kind, code, job.workers)


def _switched(state: State, event: ev.SchedulerSwitched) -> None:
    """Observations stay: another estimator uses the observations it recognises by name."""
    state.scheduler = event.scheduler
    state.memo = None


def _forecasts_recorded(state: State, event: ev.ForecastsRecorded) -> None:
    columns = (getattr(event, name).tolist() for name in ev.FORECAST_COLUMNS)
    factors = event.widened_starts, event.widened_ends
    rows = [(event.time, float(number), *values, *factors) for number, *values in zip(event.jobs.tolist(), *columns)]
    state.forecasts = [*state.forecasts, *rows][-MAX_FORECASTS:]


def _slowdown_exceeded(state: State, event: ev.SlowdownExceeded) -> None:
    state.interference.note(state, event)
    state._template = None


def _memo(state: State, event: ev.MemoChanged) -> None:
    state.memo = event.memo


def _observations_recorded(state: State, event: ev.ObservationsRecorded) -> None:
    state.observations = {**state.observations, **drop_ended(state, event.values)}
    state.observation_count += 1
    state._template = None


def drop_ended(state: State, values: ObservedValues) -> ObservedValues:
    """Without the observations of jobs that have ended."""
    phase, about = state.store.arrays["phase"], map(observed_job, values)
    return without_jobs(values, [n for n in about if n is not None and n in state.job_of and phase[n] > RUNNING])


def _planned(state: State, event: ev.RoundPlanned) -> None:
    plan, now = event.plan, as_scalar_array(event.plan.time)
    if plan.refused:
        state.refusals.update(plan.refused)
        for phase, wanted in ((REFUSED, False), (CANCELLED, True)):
            gone = [number for number, reason in plan.refused if (reason.code is Code.DEPENDENCY_FAILED) is wanted]
            if gone:
                _end(state, np.array(gone, dtype=np.int64), now, phase)
    if len(plan.admitted):
        _set_phase(state, plan.admitted, WAITING)
        _drop_left_from_queue(state)
        state.live = _merged(state.live, plan.admitted)
    if len(plan.ended):
        _end(state, plan.ended, now, FINISHED)
        state.add_history(state.store.arrays["settled_accelerator_s"][plan.ended])
    if len(plan.suspended):
        _set_phase(state, plan.suspended, WAITING)
        keep_progress(state, plan.suspended, now)
        stop_and_account(state, plan.suspended, now)
    if len(plan.launches):
        _launch(state, plan.launches, now)
    if plan.routes:
        for number, route in plan.routes.items():
            there = state.device_map.of(number).tolist()
            if list(route.accelerators) != there:
                raise InvalidPlan(f"job {number} is routed to GPUs {list(route.accelerators)}, and has {there}")
        state.routes, state._template = {**state.routes, **plan.routes}, None
    if len(plan.suspended):  # a job that runs again at once has moved or changed its size; any other was preempted
        a = state.store.arrays
        preempted = a["phase"][plan.suspended] == _PHASE[WAITING]
        a["preemptions"][plan.suspended] += preempted
        if np.count_nonzero(preempted) < len(preempted):
            a["moves"][plan.suspended] += ~preempted


def _launch(state: State, launches: Launches, time: Floats) -> None:
    jobs, a = launches.jobs, state.store.arrays
    _set_phase(state, jobs, RUNNING)
    state.running = np.concatenate((state.running, jobs))
    state.running.sort()
    state.device_map.take(jobs, launches.offsets, launches.accelerators, exclusive=launches.exclusive)
    a["held"][jobs] = launches.workers
    a["type"][jobs] = launches.types
    if launches.has_overrides or state.has_launch_overrides:
        state.has_launch_overrides = True
        a["batch_size"][jobs] = 0 if launches.batch_sizes is None else launches.batch_sizes
        a["cpus_given"][jobs] = 0.0 if launches.cpus is None else launches.cpus
        a["memory_given_gb"][jobs] = 0.0 if launches.host_memory_gb is None else launches.host_memory_gb
    a["run_started_s"][jobs] = time
    a["run_started_steps"][jobs] = a["base_steps"][jobs]
    a["since_s"][jobs] = time
    first = a["first_started_s"]
    first[jobs] = np.fmin(first[jobs], time)
    a["starts"][jobs] += ONE
    for number in state.ended_runs.keys() & set(jobs.tolist()) if state.ended_runs else ():
        state.rerun_started_s.setdefault(number, float(time))
    if state.store.metrics:
        for name in MEASURED_METRICS & state.store.metrics.keys():  # measured on the GPUs that the jobs had before
            state.store.metrics[name][jobs] = np.nan


def _progress(state: State, event: ev.ProgressReported) -> None:
    a = state.store.arrays
    a["base_steps"][event.jobs] = event.steps
    held = a["held"][event.jobs]
    late = np.count_nonzero(held) < len(held)  # a late report moves no job
    if late:
        for number in event.jobs[(held == NO) & (event.steps == 0) & (a["starts"][event.jobs] > NO)].tolist():
            ran_s = float(a["settled_run_s"][number]) - state.uncounted_s(number)
            times = state.lost_work.get(number, (0.0, 0))[1] + 1
            if a["phase"][number] == QUEUED or a["preemptions"][number] < times:  # a user has requeued it
                continue
            state.lost_work[number] = ran_s, times  # without a checkpoint it begins again
            a["min_run_s"][number] = max(a["min_run_s"][number], ran_s)  # twice as long each time, so that it can end
            state.any_min_run, state._template = True, None
    a["rate"][event.jobs] = np.where(held > 0, event.rates, 0.0) if late else event.rates
    a["since_s"][event.jobs] = event.since


def _finished(state: State, event: ev.JobsFinished) -> None:
    _end(state, event.jobs, event.at, FINISHED, all_steps_done=True)
    a = state.store.arrays
    for number in event.jobs.tolist():
        if state.job_of[number].command and 0 < (reported := float(a["base_steps"][number])) < a["steps"][number]:
            state.reported_steps[number] = reported
    a["base_steps"][event.jobs] = np.maximum(a["base_steps"][event.jobs], a["steps"][event.jobs])
    state.add_history(a["settled_accelerator_s"][event.jobs])


def _failed(state: State, event: ev.JobsFailed) -> None:
    if event.node != -1:
        check_node(state, event.node)
    _end(state, event.jobs, event.at, FAILED)
    _note_failure(state, event, event.jobs)


def _interrupted(state: State, event: ev.JobsInterrupted) -> None:
    if event.node != -1:
        check_node(state, event.node)
    a = state.store.arrays
    held_gpus = a["held"][event.jobs] > 0  # a job that was suspended or ended meanwhile loses nothing
    jobs = event.jobs[held_gpus]
    _set_phase(state, jobs, WAITING)
    stopped = as_scalar_array(event.at_s)
    stop_and_account(state, jobs, stopped if event.stopped_s is None else np.maximum(stopped, a["run_started_s"][jobs]))
    a["base_steps"][jobs] = event.steps[held_gpus]
    if event.own_fault:  # also of a job that failed while it was suspended
        tried = event.jobs[a["phase"][event.jobs] <= RUNNING]
        a["failures"][tried] += 1
        _note_failure(state, event, tried)
    elif event.code == LAUNCH_FAILED and event.node >= 0:
        _note_failure(state, event, jobs)


def _set_phase(state: State, jobs: Ints, new: int) -> None:
    phase = state.store.arrays["phase"]
    legal = _LEGAL_FROM[new][phase[jobs]]
    if np.count_nonzero(legal) < len(jobs):
        wrong = int(jobs[int((~legal).argmax())])
        check_transition(state.job_of[wrong].name, Phase(int(phase[wrong])), Phase(new))
    phase[jobs] = _PHASE[new]


def _note_failure(state: State, event: ev.JobsFailed | ev.JobsInterrupted, jobs: Ints) -> None:
    starts = state.store.arrays["starts"][jobs]
    own = isinstance(event, ev.JobsFailed) or event.own_fault
    for number, start in zip(jobs.tolist(), starts.tolist()):
        state.last_failure[number] = Failure(event.why, event.code, event.node, event.rank, start, own)


def keep_progress(state: State, jobs: Ints, time: Floats) -> None:
    """Save the progress up to a time as the resume point."""
    state.store.arrays["base_steps"][jobs] = _steps_at(state, jobs, time)


def _steps_at(state: State, jobs: Ints, time: Floats) -> Floats:
    a = state.store.arrays
    done: Floats = a["base_steps"][jobs] + a["rate"][jobs] * np.maximum(time - a["since_s"][jobs], ZERO)
    steps: Floats = np.minimum(done, a["steps"][jobs])
    return steps


def stop_and_account(state: State, jobs: Ints, time: Floats) -> None:
    """Stop running jobs: account for their service and free their accelerators. The caller sets their steps."""
    if state.ledger is not None:
        state.ledger.stop(state, jobs, time)
    a = state.store.arrays
    ran = time - a["run_started_s"][jobs]
    a["settled_run_s"][jobs] += ran
    service = ran * a["held"][jobs]
    a["settled_accelerator_s"][jobs] += service
    if len(state.cluster.types) > 1:
        state.service_by_type += np.bincount(a["type"][jobs], service, minlength=len(state.cluster.types))
    a["rate"][jobs] = ZERO
    a["held"][jobs] = NO
    a["waiting_since_s"][jobs] = time
    state.device_map.release(jobs)
    state.running = state.running[a["held"][state.running].nonzero()[0]]
    if state.routes:
        gone = set(jobs.tolist())
        state.routes, state._template = {n: route for n, route in state.routes.items() if n not in gone}, None


def count_shared_service(state: State, seconds: float) -> None:
    """Count a GPU shared by two jobs once in the service by type."""
    more = np.maximum(state.device_map.occupancy - 1, 0)
    state.service_by_type -= np.bincount(state.cluster.type_of, more, minlength=len(state.cluster.types)) * seconds


def _end(state: State, jobs: Ints, time: Floats, phase: int, *, all_steps_done: bool = False) -> None:
    """End jobs, whether they run or not."""
    a = state.store.arrays
    held = a["held"][jobs]
    if np.count_nonzero(held) < len(jobs):
        _admit_requeued(state, jobs)
    _set_phase(state, jobs, phase)
    if np.count_nonzero(held) == len(jobs):
        if not all_steps_done:
            keep_progress(state, jobs, time)
        stop_and_account(state, jobs, time)
        state.live = without(state.live, jobs)
    else:
        _drop_left_from_queue(state)
        running = held > NO
        if running.any():
            stopping, when = jobs[running], time[running] if time.ndim else time
            keep_progress(state, stopping, when)
            stop_and_account(state, stopping, when)
        state.live = state.live[a["phase"][state.live] <= _PHASE[RUNNING]]
    a["ended_s"][jobs] = time
    if state.observations and (left := without_jobs(state.observations, jobs.tolist())) is not state.observations:
        state.observations, state._template = left, None
    if state.last_failure:
        for number in jobs.tolist():
            state.last_failure.pop(number, None)
    if state.groups.sizes:
        whole = (a["base_steps"][jobs] >= a["steps"][jobs]) | all_steps_done
        for group, number, all_steps in zip(a["group"][jobs].tolist(), jobs.tolist(), whole.tolist()):
            state.groups.leave(group, number, whole=all_steps and phase == FINISHED)


def _admit_requeued(state: State, jobs: Ints) -> None:
    """A job that was requeued while it ran may end before it has stopped, as one that was suspended may."""
    a = state.store.arrays
    stopping = jobs[(a["phase"][jobs] == _PHASE[QUEUED]) & (a["starts"][jobs] > NO)]
    a["phase"][stopping] = _PHASE[WAITING]
    if state.held:
        gone = set(jobs.tolist())
        state.held, state._template = {n: by for n, by in state.held.items() if n not in gone}, None


def _drop_left_from_queue(state: State) -> None:
    queue = state.queue
    if len(queue):
        state._queue = queue[state.store.arrays["phase"][queue] == _PHASE[QUEUED]]
    if state.dependents:
        state.dependents = [number for number in state.dependents if state.store.arrays["phase"][number] == QUEUED]


def check_node(state: State, node: int) -> None:
    """Raise `InvalidPlan` if there never was such a node."""
    if not 0 <= node < len(state.cluster.nodes):
        raise InvalidPlan(f"there is no node number {node}")


def code_of(state: State, column: str, name: str) -> int:
    """Return the code of a name in a column; a new name gets the next one."""
    codes = state._codes[column]
    code = codes.get(name)
    if code is None:
        code = codes[name] = len(codes)
        state._names = NameTable(*(tuple(known) for known in state._codes.values()))
        state._template = None
    return code


def _merged(live: Ints, entering: Ints) -> Ints:
    merged = np.concatenate((live, entering))
    if len(live) and live[-1] > entering[0]:
        merged.sort()
    return merged


APPLY: dict[type, Callable[[State, Any], None]] = {
    ev.JournalOpened: _opened,
    ev.ControlPlaneRestarted: _restarted,
    ev.JobSubmitted: _submitted,
    ev.JobCancelled: _cancelled,
    ev.MetricsReported: _metrics,
    ev.SchedulerSwitched: _switched,
    ev.MemoChanged: _memo,
    ev.ObservationsRecorded: _observations_recorded,
    ev.ForecastsRecorded: _forecasts_recorded,
    ev.SlowdownExceeded: _slowdown_exceeded,
    ev.RoundPlanned: _planned,
    ev.ProgressReported: _progress,
    ev.JobsFinished: _finished,
    ev.JobsFailed: _failed,
    ev.JobsInterrupted: _interrupted,
}
