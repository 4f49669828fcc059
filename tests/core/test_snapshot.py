"""A snapshot is read-only, good for one decision, and refuses to answer wrongly."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, StaleSnapshot
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State

COLUMNS = (
    *("number", "phase", "workers", "held", "type", "kind", "user", "account", "group", "group_order", "priority", "fits"),
    *("starts", "preemptions", "failures", "batch_size", "submitted_s", "weight", "steps", "deadline_s", "min_run_s"),
    *("memory_gb", "cpus", "host_memory_gb", "time_limit_s", "base_steps", "rate", "since_s", "settled_run_s"),
    *("settled_accelerator_s", "run_started_s", "run_started_steps", "first_started_s", "waiting_since_s", "ended_s"),
)
DERIVED = ("running", "steps_done", "steps_left", "run_s", "accelerator_s", "waited_s")


def some_state() -> State:
    """Two run (one a gang of two), one waits, two stand at the door; second 100."""
    state = State(Cluster.parse("4xv100:2"))
    described = [
        Job("gang", 0.0, 1000.0, "LM", workers=2, weight=2.0, user="ann", account="lab", priority=1, min_run_s=150.0),
        Job("single", 1.0, 500.0, user="bob", group="g", group_order=3),
        Job("waiter", 2.0, 50.0, workers=4, deadline_s=600.0, memory_gb=8.0, cpus=2.0, host_memory_gb=32.0),
        Job("early", 3.0, 5.0),
        Job("late", 4.0, 6.0, time_limit_s=60.0),
    ]
    for number, job in enumerate(described):
        apply_event(state, ev.JobSubmitted(job.submitted_s, number, job))
    launches = Launches(np.array([0, 1]), np.array([0, 0]), np.array([0, 2, 3]), np.array([0, 1, 2]), np.array([64, 0]))
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, admitted=np.array([0, 1, 2]), launches=launches)))
    two = np.array([0, 1])
    apply_event(state, ev.ProgressReported(10.0, two, np.array([0.0, 0.0]), np.array([2.0, 1.0]), np.array([20.0, 10.0])))
    apply_event(state, ev.MetricsReported(100.0, "loss", np.array([1]), np.array([0.5])))
    return state


def test_a_snapshot_tells_who_is_where_and_how_far():
    view = some_state().snapshot()
    jobs = view.jobs
    assert view.time == 100.0
    assert jobs.number.tolist() == [0, 1, 2]
    assert view.queued.number.tolist() == [3, 4]
    assert jobs.running.tolist() == [True, True, False]
    assert jobs.held.tolist() == [2, 1, 0]
    assert jobs.steps_done.tolist() == [160.0, 90.0, 0.0]
    assert jobs.steps_left.tolist() == [840.0, 410.0, 50.0]
    assert jobs.run_s.tolist() == [90.0, 90.0, 0.0]
    assert jobs.accelerator_s.tolist() == [180.0, 90.0, 0.0]
    assert jobs.waited_s.tolist() == [0.0, 0.0, 98.0]
    assert jobs.batch_size.tolist() == [64, 0, 0]
    assert [view.names.kinds[k] for k in jobs.kind] == ["LM", "", ""]
    assert [view.names.users[u] for u in jobs.user] == ["ann", "bob", ""]
    assert view.names.accounts[jobs.account[0]] == "lab"
    assert view.names.groups[jobs.group[1]] == "g"
    assert jobs.group_order.tolist() == [0, 3, 0]
    assert jobs.deadline_s.tolist() == [math.inf, math.inf, 600.0]
    assert (jobs.memory_gb[2], jobs.cpus[2], jobs.host_memory_gb[2]) == (8.0, 2.0, 32.0)
    assert view.queued.time_limit_s.tolist() == [math.inf, 60.0]
    assert view.job_of[2].name == "waiter"


def test_progress_never_goes_beyond_the_last_step_nor_before_the_start():
    state = some_state()
    assert state.snapshot(5000.0).jobs.steps_done.tolist() == [1000.0, 500.0, 0.0]
    starting = some_state()
    apply_event(starting, ev.ProgressReported(100.0, np.array([0]), np.array([7.0]), np.array([2.0]), np.array([130.0])))
    assert starting.snapshot(110.0).jobs.steps_done[0] == 7.0


@pytest.mark.parametrize("name", [*COLUMNS, *DERIVED])
def test_no_column_can_be_written(name):
    view = some_state().snapshot()
    for columns in (view.jobs, view.queued):
        with pytest.raises(ValueError, match="read-only"):
            getattr(columns, name)[0] = 0


@pytest.mark.parametrize("name", [*COLUMNS, *DERIVED])
def test_a_column_first_read_after_the_state_moved_on_refuses(name):
    state = some_state()
    view = state.snapshot()
    apply_event(state, ev.NodeLost(101.0, 1))
    with pytest.raises(StaleSnapshot, match="after the state had moved on from second 100"):
        getattr(view.jobs, name)


def test_a_metric_first_read_after_the_state_moved_on_refuses():
    state = some_state()
    view = state.snapshot()
    apply_event(state, ev.NodeLost(101.0, 1))
    with pytest.raises(StaleSnapshot, match="metric 'loss'"):
        view.jobs.metric("loss")


def test_what_was_read_in_time_stays_as_it_was():
    state = some_state()
    view = state.snapshot()
    before = {name: getattr(view.jobs, name).copy() for name in (*COLUMNS, *DERIVED)}
    up, capacity = view.up.copy(), view.capacity.copy()
    apply_event(state, ev.RoundPlanned(RoundPlan(120.0, suspended=np.array([0, 1]))))
    apply_event(state, ev.NodeLost(121.0, 0))
    for name, column in before.items():
        assert np.array_equal(getattr(view.jobs, name), column, equal_nan=column.dtype.kind == "f"), name
    assert view.up.tolist() == up.tolist()
    assert view.capacity.tolist() == capacity.tolist()


def test_metrics_are_known_by_the_names_jobs_gave_them_and_nan_for_who_said_nothing():
    view = some_state().snapshot()
    assert "loss" in view.jobs.metrics
    assert "accuracy" not in view.jobs.metrics
    assert np.array_equal(view.jobs.metric("loss"), [np.nan, 0.5, np.nan], equal_nan=True)
    assert np.isnan(view.jobs.metric("accuracy")).all()


def test_a_detached_snapshot_equals_the_live_one_and_survives_what_comes_after():
    state = some_state()
    live = state.snapshot()
    kept = live.detached()
    expected = {name: getattr(live.jobs, name).copy() for name in (*COLUMNS, *DERIVED)}
    waiting = {name: getattr(live.queued, name).copy() for name in (*COLUMNS, *DERIVED)}
    apply_event(state, ev.RoundPlanned(RoundPlan(120.0, admitted=np.array([3, 4]), suspended=np.array([0, 1]))))
    apply_event(state, ev.NodeLost(121.0, 0))
    apply_event(state, ev.JobSubmitted(122.0, 5, Job("newcomer", 122.0, kind="Transformer")))
    for again in (kept, pickle.loads(pickle.dumps(kept))):
        for name in expected:
            for columns, known in ((again.jobs, expected), (again.queued, waiting)):
                assert np.array_equal(getattr(columns, name), known[name], equal_nan=known[name].dtype.kind == "f"), name
        assert again.time == 100.0
        assert again.device_map.of(0).tolist() == [0, 1]
        assert again.up.all()
        assert again.capacity.tolist() == [4]
        assert {number: job.name for number, job in again.job_of.items()} == {
            0: "gang",
            1: "single",
            2: "waiter",
            3: "early",
            4: "late",
        }
        assert again.jobs.metric("loss")[1] == 0.5


def test_a_state_goes_on_from_a_detached_snapshot_as_the_original_does():
    state = some_state()
    fork = State.from_snapshot(state.snapshot().detached())
    for one in (state, fork):
        apply_event(one, ev.RoundPlanned(RoundPlan(120.0, admitted=np.array([3]), suspended=np.array([0]))))
        apply_event(one, ev.JobsFinished(130.0, np.array([1]), np.array([128.0])))
    ours, theirs = state.snapshot(140.0), fork.snapshot(140.0)
    for name in (*COLUMNS, *DERIVED):
        column = getattr(ours.jobs, name)
        assert np.array_equal(column, getattr(theirs.jobs, name), equal_nan=column.dtype.kind == "f"), name
    assert ours.queued.number.tolist() == theirs.queued.number.tolist() == [4]
    assert ours.history.tolist() == theirs.history.tolist() == [118.0]
    assert ours.device_map.occupancy.tolist() == theirs.device_map.occupancy.tolist()


def test_admitting_lets_queued_jobs_in_by_their_number():
    view = some_state().snapshot()
    inside = view.admitting(np.array([4]))
    assert inside.jobs.number.tolist() == [0, 1, 2, 4]
    assert inside.queued.number.tolist() == [3]
    assert view.jobs.number.tolist() == [0, 1, 2]
    everybody = view.admitting(np.array([3, 4]))
    assert everybody.jobs.number.tolist() == [0, 1, 2, 3, 4]
    assert len(everybody.queued) == 0
    assert view.admitting(np.array([], dtype=np.int64)) is view


def test_admitting_keeps_the_order_of_submission_where_a_younger_job_is_inside_already():
    state = some_state()
    apply_event(state, ev.RoundPlanned(RoundPlan(110.0, admitted=np.array([4]))))
    assert state.snapshot().admitting(np.array([3])).jobs.number.tolist() == [0, 1, 2, 3, 4]
    apply_event(state, ev.RoundPlanned(RoundPlan(111.0, admitted=np.array([3]))))
    assert state.snapshot().jobs.number.tolist() == [0, 1, 2, 3, 4]


def test_without_leaves_jobs_out_and_their_accelerators_taken():
    view = some_state().snapshot()
    rest = view.without(np.array([0]))
    assert rest.jobs.number.tolist() == [1, 2]
    assert rest.device_map.occupancy.tolist() == [1, 1, 1, 0]
    assert view.without(np.array([], dtype=np.int64)) is view


def test_rates_are_asked_for_once_and_only_where_there_is_an_estimation():
    view = some_state().snapshot()
    with pytest.raises(FairleadError, match="no estimator"):
        _ = view.rates
    asked = []
    informed = view.with_changes(estimate=lambda v: asked.append(v.time) or "rates")
    assert informed.rates == informed.rates == "rates"
    assert asked == [100.0]


def test_who_is_inside_its_minimum_run_is_protected_until_it_is_over():
    view = some_state().snapshot()
    assert view.protected.tolist() == [True, False, False]
    assert view.protection_ends == 160.0
    later = some_state().snapshot(160.0)
    assert later.protected is None
    assert later.protection_ends == math.inf


def test_run_to_completion_protects_whoever_runs():
    view = some_state().snapshot(1000.0, run_to_completion=True)
    assert view.protected.tolist() == [True, True, False]
    assert view.protection_ends == math.inf


def test_who_has_not_made_a_step_since_its_start_is_left_alone_for_a_while():
    state = some_state()
    rates = state.columns["rate"][:2].tolist()
    began, none = state.columns["run_started_s"][1].item(), np.zeros(1)
    apply_event(state, ev.ProgressReported(100.0, np.array([1]), none, none, np.array([100.0])))
    assert state.snapshot(began + 99.0, first_step_s=100.0).protected[1]
    assert state.snapshot(began + 300.0, first_step_s=100.0).protected is None
    assert not state.snapshot(101.0).protected[1]
    assert state.snapshot(161.0, first_step_s=500.0).protection_ends == began + 500.0
    apply_event(state, ev.ProgressReported(110.0, np.array([1]), np.ones(1), np.ones(1), np.array([110.0])))
    young = state.snapshot(111.0, first_step_s=500.0).protected
    assert not young[1], rates


def test_who_loads_has_not_made_a_step_though_its_rate_is_known():
    state = some_state()
    began = state.columns["run_started_s"][1].item()
    apply_event(state, ev.ProgressReported(100.0, np.array([1]), np.zeros(1), np.array([2.0]), np.array([170.0])))
    view = state.snapshot(165.0, first_step_s=500.0)
    assert (view.protected[1], view.protection_ends) == (True, pytest.approx(170.5))
    assert state.snapshot(170.0, first_step_s=500.0).protected[1], "it has loaded, and not made a step"
    assert state.snapshot(170.5, first_step_s=500.0).protected is None
    assert state.snapshot(165.0, first_step_s=165.0 - began).protected is None, "nor for longer than that"


def told(state: State, second: float, steps: float, rate: float) -> None:
    """What a real job tells, at the very second at which it does."""
    apply_event(state, ev.ProgressReported(second, np.array([1]), np.array([steps]), np.array([rate]), np.array([second])))


def test_who_tells_of_steps_that_it_made_is_left_alone_no_longer_however_long_one_takes():
    state = some_state()
    moved = Launches(np.array([1]), np.array([0]), np.array([0, 1]), np.array([3]), np.array([0]))
    apply_event(state, ev.RoundPlanned(RoundPlan(200.0, suspended=np.array([1]), launches=moved)))
    told(state, 205.0, 193.0, 0.0)  # where it left; it had been thought to be at 190
    assert state.snapshot(230.0, first_step_s=120.0).protected[1], "those were steps of before"
    told(state, 270.0, 195.0, 0.01)
    assert state.snapshot(270.0, first_step_s=120.0).protected is None, "a step takes 100 s, and it has made two"


def test_who_falls_back_makes_its_first_step_from_there():
    state = some_state()
    moved = Launches(np.array([1]), np.array([0]), np.array([0, 1]), np.array([3]), np.array([0]))
    apply_event(state, ev.RoundPlanned(RoundPlan(200.0, suspended=np.array([1]), launches=moved)))
    apply_event(state, ev.ProgressReported(200.0, np.array([1]), np.array([150.0]), np.array([0.5]), np.array([210.0])))
    assert state.snapshot(205.0, first_step_s=120.0).protection_ends == pytest.approx(212.0), "and not when it is where it was"


def test_positions_of_jobs_are_found_by_number():
    jobs = some_state().snapshot().jobs
    assert jobs.position_of(np.array([2, 0])).tolist() == [2, 0]
    assert jobs.only(jobs.running).number.tolist() == [0, 1]
