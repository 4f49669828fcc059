"""What users do to submitted jobs: hold, release, requeue and update. Plain functions as in `transitions`; only `apply_event`
calls them. They know nothing of processes: what runs is stopped by the backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.columns import as_scalar_array, without
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import UPDATABLE, UPDATABLE_ENDED, EndedRun
from fairlead.engine import transitions as tr
from fairlead.engine.feasibility import feasible_types
from fairlead.engine.state import State


def _held(state: State, event: ev.JobHeld) -> None:
    phase = _phase(state, event.number)
    if phase > tr.RUNNING:
        return  # it ended before the request arrived
    if phase == tr.RUNNING:
        raise InvalidPlan(f"job {state.job_of[event.number].name!r} is running and cannot be held: use `requeue --hold`")
    _to_queue(state, event.number, event.time)
    _hold(state, event.number, event.by)


def _released(state: State, event: ev.JobReleased) -> None:
    _phase(state, event.number)
    if state.held.pop(event.number, None) is not None:
        state.store.arrays["waiting_since_s"][event.number] = event.time
        state._template = None


def _requeued(state: State, event: ev.JobRequeued) -> None:
    number, one, now = event.number, np.array([event.number], dtype=np.int64), as_scalar_array(event.time)
    phase = _phase(state, number)
    if phase == tr.RUNNING:
        tr.keep_progress(state, one, now)
        tr.stop_and_account(state, one, now)
    elif phase > tr.RUNNING:
        _revive(state, number, phase, event.time)
    _to_queue(state, number, event.time)
    if event.hold:
        _hold(state, number, event.by)


def _updated(state: State, event: ev.JobUpdated) -> None:
    number, changes, a = event.number, dict(event.changes), state.store.arrays
    for name in changes:
        if name not in UPDATABLE:
            raise InvalidPlan(f"{name!r} of a job cannot be changed")
    if _phase(state, number) > tr.RUNNING:  # it may have ended before the request arrived
        changes = {name: value for name, value in changes.items() if name in UPDATABLE_ENDED}
    uncounted_s = state.uncounted_s(number)  # by the limit before
    job = state.job_of[number] = replace(state.job_of[number], **changes)
    a["priority"][number], a["weight"][number], a["deadline_s"][number] = job.priority, job.weight, job.deadline_s
    a["time_limit_s"][number] = job.time_limit_s + uncounted_s
    a["account"][number] = tr.code_of(state, "account", job.account)
    state.weighted = state.weighted or job.weight != 1.0
    state._template = None


def _phase(state: State, number: int) -> int:
    if number not in state.job_of:
        raise InvalidPlan(f"there is no job number {number}")
    return int(state.store.arrays["phase"][number])


def _hold(state: State, number: int, by: str) -> None:
    state.held[number] = by
    state._template = None


def _revive(state: State, number: int, phase: int, now: float) -> None:
    """Let an ended job run again: with all its attempts and its whole time limit, a finished job from its first step."""
    a, job = state.store.arrays, state.job_of[number]
    state.ended_runs[number] = (*state.ended_runs.get(number, ()), last_run(state, number, now))
    state.rerun_started_s.pop(number, None)
    a["ended_s"][number], a["failures"][number] = math.nan, 0
    if phase == tr.FINISHED:
        a["base_steps"][number] = 0.0
    a["time_limit_s"][number] = job.time_limit_s + state.uncounted_s(number)
    a["fits"][number] = feasible_types(job, state.cluster)  # the cluster may have changed
    state.refusals.pop(number, None)
    state.last_failure.pop(number, None)
    state.reported_steps.pop(number, None)
    if job.group:
        group = int(a["group"][number])
        members = [n for n, other in state.job_of.items() if other.group == job.group and n >= state.groups.since[group]]
        through = {n for n in members if a["phase"][n] == tr.FINISHED and a["base_steps"][n] >= a["steps"][n]}
        state.groups.enter_again(group, through - {number})


def last_run(state: State, number: int, requeued_s: float = math.inf) -> EndedRun:
    """Return how an ended job ended, since it was last requeued."""
    a, failure = state.columns, state.last_failure.get(number)
    again = number in state.ended_runs
    started_s = state.rerun_started_s.get(number, math.nan) if again else float(a["first_started_s"][number])
    ended_s, run_s, accelerator_s = (float(a[name][number]) for name in ("ended_s", "settled_run_s", "settled_accelerator_s"))
    started = None if math.isnan(started_s) else started_s
    code = failure.code if failure else 0
    return EndedRun(int(a["phase"][number]), code, started, ended_s, run_s, accelerator_s, requeued_s)


def _to_queue(state: State, number: int, time: float) -> None:
    a, queue = state.store.arrays, state.queue
    if number in queue:
        return
    if number in state.live:
        state.live = without(state.live, np.array([number], dtype=np.int64))
    a["phase"][number], a["waiting_since_s"][number] = tr.QUEUED, time
    state._queue = np.sort(np.append(queue, number))
    if state.job_of[number].after:
        state.dependents = sorted((*state.dependents, number))


APPLY: dict[type, Callable[[State, Any], None]] = {
    ev.JobHeld: _held,
    ev.JobReleased: _released,
    ev.JobRequeued: _requeued,
    ev.JobUpdated: _updated,
}
"""What these events do to the state."""
