"""The table of phases: every move it has, and every move it has not."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import IllegalTransition, InvalidPlan
from fairlead.core.job import ENDED, LEGAL, Job, Phase, check_transition
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State

WAYS = {
    (Phase.QUEUED, Phase.WAITING),
    (Phase.QUEUED, Phase.CANCELLED),
    (Phase.QUEUED, Phase.REFUSED),
    (Phase.WAITING, Phase.RUNNING),
    (Phase.WAITING, Phase.FINISHED),
    (Phase.WAITING, Phase.FAILED),
    (Phase.WAITING, Phase.CANCELLED),
    (Phase.WAITING, Phase.REFUSED),
    (Phase.RUNNING, Phase.WAITING),
    (Phase.RUNNING, Phase.FINISHED),
    (Phase.RUNNING, Phase.FAILED),
    (Phase.RUNNING, Phase.CANCELLED),
}
ONE = np.array([0])
MOVES = list(itertools.product(Phase, Phase))


def move_to(new: Phase, time: float, old: Phase | None = None) -> ev.Event:
    """The event by which job 0 is asked to go into a phase; who has been running waits again by suspension."""
    if (old, new) == (Phase.RUNNING, Phase.WAITING):
        return ev.RoundPlanned(RoundPlan(time, suspended=ONE))
    if new is Phase.QUEUED:
        return ev.JobSubmitted(time, 0, Job("mover", time))
    if new is Phase.WAITING:
        return ev.RoundPlanned(RoundPlan(time, admitted=ONE))
    if new is Phase.RUNNING:
        return ev.RoundPlanned(RoundPlan(time, launches=Launches(ONE, ONE * 0, np.array([0, 1]), np.array([1]))))
    if new is Phase.FINISHED:
        return ev.JobsFinished(time, ONE, np.array([time]))
    if new is Phase.FAILED:
        return ev.JobsFailed(time, ONE, np.array([time]), "a test")
    if new is Phase.CANCELLED:
        return ev.JobCancelled(time, 0)
    return ev.RoundPlanned(RoundPlan(time, refused=((0, Reasons.needs(9, "accelerators", of_at_most=2)),)))


def in_phase(phase: Phase) -> State:
    way = {
        Phase.QUEUED: [],
        Phase.WAITING: [Phase.WAITING],
        Phase.RUNNING: [Phase.WAITING, Phase.RUNNING],
        Phase.FINISHED: [Phase.WAITING, Phase.RUNNING, Phase.FINISHED],
        Phase.FAILED: [Phase.WAITING, Phase.RUNNING, Phase.FAILED],
        Phase.CANCELLED: [Phase.CANCELLED],
        Phase.REFUSED: [Phase.REFUSED],
    }[phase]
    state = State(Cluster.parse("2xv100:2"))
    apply_event(state, move_to(Phase.QUEUED, 0.0))
    for step, reached in enumerate(way, 1):
        apply_event(state, move_to(reached, float(step)))
    return state


@pytest.mark.parametrize(("old", "new"), MOVES, ids=lambda phase: phase.name.lower())
def test_the_table_has_just_these_ways(old, new):
    assert (new in LEGAL[old]) == ((old, new) in WAYS)
    if (old, new) in WAYS:
        check_transition("mover", old, new)
        return
    wanted = f"job 'mover' cannot go from {old.name.lower()} to {new.name.lower()}"
    with pytest.raises(IllegalTransition, match=re.escape(wanted)):
        check_transition("mover", old, new)


@pytest.mark.parametrize(("old", "new"), MOVES, ids=lambda phase: phase.name.lower())
def test_an_event_moves_a_job_only_along_the_table(old, new):
    state = in_phase(old)
    if new is Phase.QUEUED:
        with pytest.raises(InvalidPlan, match="twice"):
            apply_event(state, move_to(new, 10.0))
    elif (old, new) in WAYS:
        apply_event(state, move_to(new, 10.0, old))
        assert state.all_jobs().phase.tolist() == [new]
        assert state.device_map.of(0).tolist() == ([1] if new is Phase.RUNNING else [])
        assert state.busy == (new not in ENDED)
    elif old in ENDED and new is Phase.CANCELLED:  # it ended while the cancellation was on its way
        apply_event(state, move_to(new, 10.0))
        assert state.all_jobs().phase.tolist() == [old]
    else:
        with pytest.raises(IllegalTransition, match=f"job 'mover' cannot go from {old.name.lower()} to {new.name.lower()}"):
            apply_event(state, move_to(new, 10.0))


@pytest.mark.parametrize("old", [Phase.WAITING, *ENDED], ids=lambda phase: phase.name.lower())
def test_who_does_not_run_cannot_be_suspended_and_is_not_interrupted(old):
    with pytest.raises(IllegalTransition, match="job 'mover'"):
        apply_event(in_phase(old), ev.RoundPlanned(RoundPlan(10.0, suspended=ONE)))
    state = in_phase(old)
    apply_event(state, ev.JobsInterrupted(10.0, ONE, np.array([0.0])))
    assert state.all_jobs().phase.tolist() == [old]


def test_of_several_jobs_the_error_names_the_one_that_cannot_go():
    state = in_phase(Phase.RUNNING)
    apply_event(state, ev.JobSubmitted(4.0, 1, Job("late", 4.0)))
    with pytest.raises(IllegalTransition, match="job 'late' cannot go from queued to finished"):
        apply_event(state, ev.JobsFinished(5.0, np.array([0, 1]), np.array([5.0, 5.0])))


def test_a_phase_that_has_ended_is_left_by_no_way():
    assert frozenset(Phase) - {Phase.QUEUED, Phase.WAITING, Phase.RUNNING} == ENDED
    assert all(not LEGAL[phase] for phase in ENDED)
