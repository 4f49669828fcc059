"""Why a job does not run, from the state and the last plan: queued, waiting, between attempts, or failed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from fairlead.core.job import TIME_LIMIT, Failure, Phase
from fairlead.core.plan import QueueOrder, RoundPlan
from fairlead.core.reasons import Code, Reason, Reasons
from fairlead.engine.decide import why_waiting
from fairlead.engine.loop import Loop
from fairlead.engine.state import State


def why_in(loop: Loop, number: int, now: float) -> Reason | None:
    """The same for a running loop, with the time until the next decision for a job that waits for it."""
    reason = why_not_running(loop.state, loop.plan, number, now)
    if reason is None:
        return None
    since_s = float(loop.state.store.arrays["waiting_since_s"][number])
    return reason.due(loop.latest_decision_s(since_s, now) - now)


def why_not_running(state: State, plan: RoundPlan | None, number: int, now: float) -> Reason | None:
    """None if the job runs, has finished, or was cancelled by a user. Without a plan nothing was decided yet."""
    phase = Phase(int(state.store.arrays["phase"][number]))
    failure = state.last_failure.get(number)
    if phase in (Phase.REFUSED, Phase.CANCELLED):
        return state.refusals.get(number)
    if phase is Phase.FAILED:
        if failure is not None and failure.why == TIME_LIMIT:
            return Reasons.time_limit(state.job_of[number].time_limit_s)
        return None if failure is None else Reasons.failed(failure, *_attempts(state, number), node_of(state, failure))
    if phase not in (Phase.QUEUED, Phase.WAITING):
        return None
    if number in state.held:
        return Reasons.held(state.held[number])
    reason = why_waiting(plan, number, state.job_of[number], state.snapshot(max(now, state.time)))
    later = plan is not None and state.time > plan.time
    if later and reason.code is Code.WAITING_FOR_RESOURCES and _has_room(state, number):
        reason = Reasons.next_decision()  # GPUs became free since the last one
    if plan is not None and plan.order is not None and (place := _position(state, plan.order, number)) is not None:
        reason = reason.at_position(*place)
    if failure is None or failure.start != state.store.arrays["starts"][number]:  # it has run since
        return reason
    if not failure.own:
        launch = (failure, node_of(state, failure))
        return Reasons.launch_failed(*launch) if reason.code is Code.NEXT_DECISION else reason.after_failed_launch(*launch)
    about = (failure, *_attempts(state, number), node_of(state, failure))
    return Reasons.retrying(*about) if reason.code is Code.NEXT_DECISION else reason.after_failure(*about)


def reason_codes(state: State, plan: RoundPlan | None, numbers: Sequence[int]) -> dict[int, str]:
    """Return the code of `why_not_running` for each of many jobs, empty for None, without the facts: about 1 µs for a job."""
    a, at = state.store.arrays, np.array(numbers, dtype=np.int64)
    phase, since_s, fits, starts = (a[name][at].tolist() for name in ("phase", "waiting_since_s", "fits", "starts"))
    blocked, no_nodes = state.snapshot().blocked, not state.cluster.number_of_node
    launched, suspended = (set(plan.launches.jobs.tolist()), set(plan.suspended.tolist())) if plan else (set(), set())
    seen_s = 0.0 if plan is None else plan.time if plan.snapshot_s is None else plan.snapshot_s
    free = np.bincount(state.cluster.type_of[state.up & (state.device_map.occupancy == 0)], minlength=len(state.cluster.types))
    now_free = free.tolist() if plan is not None and state.time > plan.time else ()

    @cache
    def most(by_type: tuple[int, ...], fits: int) -> int:
        return max((count for type_, count in enumerate(by_type) if fits >> type_ & 1), default=0)

    def waiting(number: int, queued: bool, since_s: float, fits: int) -> Code:
        if number in blocked:
            return Code.WAITING_FOR_JOBS
        if no_nodes:
            return Code.NO_NODES
        if plan is None or number in launched or (since_s > seen_s and number not in suspended):
            return Code.NEXT_DECISION
        workers = state.job_of[number].workers
        if (known := plan.reasons.get(number)) is not None:
            code = known.code
        elif queued:
            code = Code.NEXT_DECISION if plan.not_admitted is None else plan.not_admitted.code
        elif most(plan.up, fits) < workers:
            code = Code.NODES_DOWN
        elif plan.head is not None and plan.head != number:
            code = Code.BEHIND_HEAD
        else:
            code = Code.NOT_SELECTED if most(plan.free, fits) >= workers else Code.WAITING_FOR_RESOURCES
        became_free = code is Code.WAITING_FOR_RESOURCES and most(tuple(now_free), fits) >= workers
        return Code.NEXT_DECISION if became_free else code

    def code_of(number: int, phase: int, since_s: float, fits: int, starts: int) -> str:
        if phase == Phase.RUNNING or phase == Phase.FINISHED:
            return ""
        failure = state.last_failure.get(number)
        if phase > Phase.RUNNING:
            reason = None if phase == Phase.FAILED else state.refusals.get(number)
            return str(reason.code) if reason is not None else str(Code.FAILED) if phase == Phase.FAILED and failure else ""
        if number in state.held:
            return str(Code.HELD)
        code = waiting(number, phase == Phase.QUEUED, since_s, fits)
        if code is Code.NEXT_DECISION and failure is not None and failure.start == starts:
            code = Code.RETRYING if failure.own else Code.LAUNCH_FAILED
        return str(code)

    return {number: code_of(number, *about) for number, *about in zip(numbers, phase, since_s, fits, starts)}


def _has_room(state: State, number: int) -> bool:
    """Whether enough GPUs of one type that suits a job are free now."""
    free = np.bincount(state.cluster.type_of[state.up & (state.device_map.occupancy == 0)], minlength=len(state.cluster.types))
    fits = int(state.columns["fits"][number])
    return any(fits >> type_ & 1 and count >= state.job_of[number].workers for type_, count in enumerate(free.tolist()))


def _position(state: State, order: QueueOrder, number: int) -> tuple[int, int] | None:
    """A job's position among the waiting jobs in the policy's order, and how many there are; None if it was not ranked."""
    numbers, key = order
    at = int(numbers.searchsorted(number))
    if at == len(numbers) or numbers[at] != number:
        return None
    waiting = state.store.arrays["phase"][numbers] == Phase.WAITING
    before = int(np.count_nonzero(waiting[:at] if key is None else waiting[:at] & (key[:at] <= key[at])))
    later = 0 if key is None else int(np.count_nonzero(waiting[at:] & (key[at:] < key[at])))
    return before + later + 1, int(np.count_nonzero(waiting))


def node_of(state: State, failure: Failure) -> str:
    """The name of the node where it happened, empty where that is not known."""
    nodes = state.cluster.nodes
    return nodes[failure.node].name if 0 <= failure.node < len(nodes) else ""


def _attempts(state: State, number: int) -> tuple[int, int]:
    """How many attempts failed and were retried, and how many are allowed."""
    return int(state.store.arrays["failures"][number]), state.job_of[number].retry_limit + 1
