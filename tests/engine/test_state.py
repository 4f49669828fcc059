"""What events do to the state: phases, service, counts, nodes, and its fingerprint."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import FairleadError, InvalidPlan
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.state import State
from fairlead.testing.contracts import every_event
from scenes import state_of

FOUR = Cluster.parse("4xv100:2")
ONE = np.array([0])


def launch(time: float, number: int, places: list[int], **others) -> ev.RoundPlanned:
    launches = Launches(np.array([number]), np.array([0]), np.array([0, len(places)]), np.array(places))
    return ev.RoundPlanned(RoundPlan(time, launches=launches, **others))


def test_service_is_run_time_times_accelerators_over_all_stretches():
    state = state_of(FOUR, [Job("gang", steps=1e6, workers=2)], {0: [0, 1]}, started_s=10.0)
    apply_event(state, ev.RoundPlanned(RoundPlan(110.0, suspended=ONE)))
    apply_event(state, launch(200.0, 0, [2, 3]))
    jobs = state.snapshot(250.0).jobs
    assert (jobs.run_s[0], jobs.accelerator_s[0], jobs.held[0], jobs.starts[0]) == (150.0, 300.0, 2, 2)
    assert (jobs.first_started_s[0], jobs.run_started_s[0]) == (10.0, 200.0)
    waiting = state_of(FOUR, [Job("gang", steps=1e6, workers=2)], {0: [0, 1]}, started_s=10.0)
    apply_event(waiting, ev.RoundPlanned(RoundPlan(110.0, suspended=ONE)))
    assert waiting.snapshot(500.0).jobs.waited_s.tolist() == [390.0]
    assert waiting.snapshot(500.0).jobs.accelerator_s.tolist() == [200.0]


def test_history_is_the_accelerator_time_of_the_finished_in_order_of_their_end():
    jobs = [Job("gang", steps=50.0, workers=2), Job("single", steps=30.0), Job("failing", steps=90.0)]
    state = state_of(FOUR, jobs, {0: [0, 1], 1: [2], 2: [3]})
    apply_event(state, ev.JobsFinished(60.0, np.array([1, 0]), np.array([30.0, 50.0])))
    apply_event(state, ev.JobsFailed(70.0, np.array([2]), np.array([70.0]), "a test"))
    assert state.snapshot().history.tolist() == [30.0, 100.0]


def test_who_is_suspended_was_preempted_and_who_runs_again_at_once_has_moved():
    state = state_of(FOUR, [Job("a", steps=1e6), Job("b", steps=1e6)], {0: [0], 1: [1]})
    again = Launches(ONE, ONE, np.array([0, 1]), np.array([3]))
    apply_event(state, ev.RoundPlanned(RoundPlan(50.0, suspended=np.array([0, 1]), launches=again)))
    jobs = state.all_jobs()
    assert (jobs.preemptions.tolist(), jobs.moves.tolist(), jobs.starts.tolist()) == ([0, 1], [1, 0], [2, 1])
    assert state.device_map.of(0).tolist() == [3]
    assert state.device_map.of(1).tolist() == []


def test_an_interruption_is_no_preemption_and_counts_as_a_failure_only_where_it_was_the_jobs_own():
    state = state_of(FOUR, [Job("a", steps=1e6), Job("b", steps=1e6)], {0: [0], 1: [1]})
    apply_event(state, ev.JobsInterrupted(20.0, ONE, np.array([5.0])))
    apply_event(state, ev.JobsInterrupted(30.0, np.array([1]), np.array([7.0]), own_fault=True))
    jobs = state.all_jobs()
    assert jobs.preemptions.tolist() == [0, 0]
    assert jobs.failures.tolist() == [0, 1]
    assert jobs.steps_done.tolist() == [5.0, 7.0]
    assert jobs.phase.tolist() == [Phase.WAITING, Phase.WAITING]


stretches = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=8)


@given(stretches)
def test_run_time_is_the_sum_of_the_stretches_in_which_a_job_ran_however_late_their_ends_are_reported(stretches):
    state, now, ran_s = State(FOUR), 0.0, 0.0
    apply_event(state, ev.JournalOpened(0.0, FOUR, {}))
    apply_event(state, ev.JobSubmitted(0.0, 0, Job("gang", steps=1e9, workers=2)))
    apply_event(state, ev.RoundPlanned(RoundPlan(0.0, admitted=ONE)))
    for waited_s, run_s, away_s in stretches:
        apply_event(state, launch(now + waited_s, 0, [0, 1]))
        stopped_s = now + waited_s + run_s
        now = stopped_s + away_s  # the control plane was away meanwhile
        apply_event(state, ev.JobsInterrupted(now, ONE, np.zeros(1), stopped_s=stopped_s))
        ran_s += stopped_s - float(state.columns["run_started_s"][0])
    jobs = state.snapshot(now + 5.0).jobs
    assert jobs.run_s[0] == pytest.approx(ran_s)
    assert jobs.accelerator_s[0] == pytest.approx(2 * ran_s)
    assert jobs.waited_s[0] == pytest.approx(now + 5.0 - stopped_s)


def test_an_interruption_that_is_said_to_be_before_the_launch_takes_no_time_away():
    state = state_of(FOUR, [Job("a", steps=1e6)], {0: [0]}, started_s=10.0)
    apply_event(state, ev.JobsInterrupted(20.0, ONE, np.zeros(1), stopped_s=3.0))
    assert state.snapshot(30.0).jobs.run_s.tolist() == [0.0]


def test_a_finished_job_has_done_all_its_steps_and_a_failed_one_what_it_had_done():
    state = state_of(FOUR, [Job("a", steps=100.0), Job("b", steps=100.0)], {0: [0], 1: [1]})
    apply_event(state, ev.JobsFinished(99.0, ONE, np.array([99.0])))
    apply_event(state, ev.JobsFailed(100.0, np.array([1]), np.array([60.0]), "time limit"))
    jobs = state.all_jobs()
    assert jobs.steps_done.tolist() == [100.0, 60.0]
    assert jobs.ended_s.tolist() == [99.0, 60.0]
    assert jobs.run_s.tolist() == [99.0, 60.0]


def test_a_lost_node_takes_its_accelerators_away_until_it_is_repaired():
    state = State(Cluster.parse("4xv100:2,2xk80:2"))
    apply_event(state, ev.NodeLost(1.0, 1))
    assert state.snapshot().capacity.tolist() == [2, 2]
    assert state.snapshot().up.tolist() == [True, True, False, False, True, True]
    apply_event(state, ev.NodeRepaired(2.0, 1))
    assert state.snapshot().capacity.tolist() == [4, 2]
    with pytest.raises(InvalidPlan, match="there is no node number 3"):
        apply_event(state, ev.NodeLost(3.0, 3))


def test_types_that_suit_a_job_are_a_mask():
    types = (AcceleratorType("a", memory_gb=16.0), AcceleratorType("b", memory_gb=80.0))
    cluster = Cluster((Node("x", "a", 4, cpus=8.0), Node("y", "b", 2, cpus=64.0)), types)
    jobs = [
        Job("any"),
        Job("fat", memory_gb=40.0),
        Job("wide", workers=3),
        Job("picky", allowed_types=("b", "z")),
        Job("never", workers=3, memory_gb=40.0),
        Job("greedy", cpus=32.0),
    ]
    state = State(cluster)
    for number, job in enumerate(jobs):
        apply_event(state, ev.JobSubmitted(0.0, number, job))
    assert state.snapshot().queued.fits.tolist() == [0b11, 0b10, 0b01, 0b10, 0b00, 0b10]


def test_numbers_may_have_gaps_and_do_not_come_twice():
    state = State(FOUR)
    apply_event(state, ev.JobSubmitted(0.0, 3, Job("a")))
    apply_event(state, ev.JobSubmitted(1.0, 700, Job("b", 1.0)))
    assert state.all_jobs().number.tolist() == [3, 700]
    assert state.next_number == 701
    for number in (3, 700, 0):
        with pytest.raises(InvalidPlan, match="was used twice"):
            apply_event(state, ev.JobSubmitted(2.0, number, Job("c", 2.0)))


def test_a_refusal_is_remembered_with_its_reason():
    state = State(FOUR)
    apply_event(state, ev.JobSubmitted(0.0, 0, Job("wide", workers=9)))
    reason = Reasons.needs(9, "accelerators", of_at_most=4)
    apply_event(state, ev.RoundPlanned(RoundPlan(1.0, refused=((0, reason),))))
    assert state.refusals == {0: reason}
    assert not state.busy


def test_many_jobs_grow_every_column():
    state = State(FOUR)
    for number in range(3000):
        apply_event(state, ev.JobSubmitted(0.0, number, Job(f"j{number}", steps=float(number + 1), user=f"u{number % 7}")))
    apply_event(state, ev.MetricsReported(1.0, "loss", np.array([2999]), np.array([0.5])))
    queued = state.snapshot().queued
    assert len(queued) == 3000
    assert queued.steps.tolist() == [float(number + 1) for number in range(3000)]
    assert queued.metric("loss")[2999] == 0.5
    assert math.isnan(queued.metric("loss")[0])
    assert len(state.snapshot().names.users) == 7


# The fingerprint.


def test_equal_histories_have_equal_fingerprints_and_every_event_changes_it():
    states = replay_events(every_event()[:1]), replay_events(every_event()[:1])
    assert states[0].digest() == states[1].digest()
    before = states[0].digest()
    told = (ev.MemoChanged, ev.SchedulerSwitched)  # what a scheduler remembers is no part of the cluster's state
    for event in every_event()[1:]:
        for state in states:
            apply_event(state, event)
        assert states[0].digest() == states[1].digest()
        if not isinstance(event, told):
            assert states[0].digest() != before, type(event).__name__
        before = states[0].digest()


def test_a_replay_begins_with_the_cluster():
    with pytest.raises(FairleadError, match="does not begin with an 'opened' event"):
        replay_events(every_event()[1:])
    with pytest.raises(FairleadError, match="does not begin with an 'opened' event"):
        replay_events([])


def test_columns_are_read_only_and_follow_a_store_that_grows():
    state = state_of(FOUR, [Job("a", steps=1e6)], {0: [0]})
    with pytest.raises(ValueError, match="read-only"):
        state.columns["held"][0] = 3
    with pytest.raises(TypeError):
        state.columns["held"] = np.zeros(1)  # type: ignore[index]
    for number in range(1, 1001):
        apply_event(state, ev.JobSubmitted(10.0, number, Job(f"job {number}", steps=1.0, submitted_s=10.0)))
    assert len(state.columns["held"]) > 1000
    assert state.columns["submitted_s"][1000] == 10.0
