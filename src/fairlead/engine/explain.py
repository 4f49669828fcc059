"""Why a job does not run, by the state and the last plan: at the door, in line, between two tries, or because it has failed."""

from __future__ import annotations

from fairlead.core.job import Failure, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Code, Reason, Unplaced
from fairlead.engine.decide import why_waiting
from fairlead.engine.loop import Loop
from fairlead.engine.state import State


def why_in(loop: Loop, number: int, now: float) -> Reason | None:
    """The same of a loop at work: who waits for a decision is told when that will be."""
    reason = why_not_running(loop.state, loop.plan, number, now)
    if reason is None:
        return None
    since_s = float(loop.state.store.arrays["waiting_since_s"][number])
    return reason.due(loop.decides_s(since_s, now) - now)


def why_not_running(state: State, plan: RoundPlan | None, number: int, now: float) -> Reason | None:
    """None where it runs, has finished, or was cancelled by a person. Without a plan nothing was decided yet."""
    phase = Phase(int(state.store.arrays["phase"][number]))
    failure = state.last_failure.get(number)
    if phase in (Phase.REFUSED, Phase.CANCELLED):
        return state.refusals.get(number)
    if phase is Phase.FAILED:
        return None if failure is None else Unplaced.failed(failure, *_tries(state, number), node_of(state, failure))
    if phase not in (Phase.QUEUED, Phase.WAITING):
        return None
    reason = why_waiting(plan, number, state.job_of[number], state.snapshot(max(now, state.time)))
    if failure is None or failure.start != state.store.arrays["starts"][number]:  # it has run since
        return reason
    if not failure.own:
        told = (failure, node_of(state, failure))
        return Unplaced.launch_failed(*told) if reason.code is Code.NEXT_DECISION else reason.after_failed_launch(*told)
    about = (failure, *_tries(state, number), node_of(state, failure))
    return Unplaced.retrying(*about) if reason.code is Code.NEXT_DECISION else reason.after_failure(*about)


def node_of(state: State, failure: Failure) -> str:
    """The name of the node where it happened, empty where that is not known."""
    nodes = state.cluster.nodes
    return nodes[failure.node].name if 0 <= failure.node < len(nodes) else ""


def _tries(state: State, number: int) -> tuple[int, int]:
    """How many went wrong and were followed by another, and how many there may be."""
    return int(state.store.arrays["failures"][number]), state.job_of[number].retry_limit + 1
