"""A job at its time limit is asked to stop as at a preemption, and fails when it has left, unless it finishes meanwhile."""

from __future__ import annotations

import math

import pytest
from emulated_agents import Scene, begun, restarted

from fairlead.core import events as ev
from fairlead.core.job import TIME_LIMIT, Phase
from fairlead.runtime.control import views
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Progress, Revoke


def at_limit() -> Scene:
    """A job of 1,000 steps that was asked to stop at second 25, after its limit."""
    scene = begun("limited", "v100:1", steps=1000.0, time_limit_s=25.0)
    scene.backend.changes.state = lambda: scene.loop.state
    scene.backend.report(0, [Progress(0, 1, 10, 10, 1.0)])
    scene.at(10.0)
    assert scene.at(26.0) == [(0, Revoke(0, 1))]
    assert scene.phase(0) is Phase.RUNNING
    return scene


@pytest.mark.parametrize(
    "end",
    [
        Ended(0, 1, 0, True, 27, 27),
        Ended(0, 1, 1, False, 27, 20, "worker 0 ended with status 1"),
        Ended(0, 1, -9, True, 27, 20, "killed 30 s after it was asked to stop"),
    ],
    ids=["saved", "failed", "killed"],
)
def test_a_job_at_its_limit_fails_by_its_limit_whatever_its_exit_code(end: Ended) -> None:
    scene = at_limit()
    scene.backend.report(0, [end])
    scene.at(30.0)
    assert scene.phase(0) is Phase.FAILED
    (failed,) = [event for event in scene.journal if isinstance(event, ev.JobsFailed)]
    assert (failed.why, failed.code, failed.node) == (TIME_LIMIT, 0, -1)
    record = views.job_record(scene.loop, 0, 31.0)
    assert record["reason"]["text"] == "reached its time limit of 25 s"
    assert record["last_failure"]["why"] == "reached its time limit of 25 s"
    assert (record["failures"], record["steps_done"]) == (0, end.saved)
    assert scene.at(60.0) == [], "it is not retried"
    assert scene.loop.state.columns["settled_run_s"][0] == 30.0, "the grace period counts as run time"
    scene.check()


def test_a_job_that_does_its_last_step_within_the_grace_has_finished() -> None:
    scene = at_limit()
    scene.backend.report(0, [Ended(0, 1, 0, False, 1000, 1000)])
    scene.at(30.0)
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def test_a_job_that_leaves_at_its_limit_is_not_placed_again() -> None:
    scene = at_limit()
    scene.job("other", steps=1000.0)
    assert scene.at(30.0) == [(0, Revoke(0, 1))], "the plan preempts it, too"
    assert scene.phase(0) is Phase.WAITING
    scene.backend.report(0, [Ended(0, 1, 0, True, 27, 27)])
    assert [order.job for _, order in scene.at(31.0)] == [1]
    assert scene.phase(0) is Phase.FAILED
    scene.check()


def test_the_limit_counts_all_launches_and_the_control_plane_may_restart_in_between() -> None:
    scene = begun("limited", "v100:1", steps=1000.0, time_limit_s=25.0)
    scene.backend.report(0, [Progress(0, 1, 10, 10, 1.0)])
    scene.at(10.0)
    scene.job("other", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]  # it has run for 20 s
    scene.backend.report(0, [Ended(0, 1, 0, True, 20, 20)])
    assert [order.job for _, order in scene.at(21.0)] == [1]
    again = restarted(scene, "v100:1", 40.0)
    again.backend.agent_joined(0, [(1, 1)])
    again.reconcile()
    again.backend.report(0, [Ended(1, 1, 0, False, 1000, 1000)])
    assert [order.job for _, order in again.at(50.0)] == [0]
    assert again.at(54.0) == []
    assert again.at(56.0) == [(0, Revoke(0, 2))]
    again.backend.report(0, [Ended(0, 2, -9, True, 25, 20)])
    again.at(60.0)
    assert again.phase(0) is Phase.FAILED
    again.check()


def test_a_job_that_left_at_its_limit_while_the_control_plane_was_away_has_failed() -> None:
    scene = restarted(at_limit(), "v100:1", 100.0)
    scene.backend.agent_joined(0, [(0, 1)])
    scene.reconcile()
    scene.backend.report(0, [Ended(0, 1, 0, True, 27, 27, ago_s=72.0)])
    scene.at(100.0)
    assert scene.phase(0) is Phase.FAILED
    assert scene.loop.state.last_failure[0].why == TIME_LIMIT
    scene.check()


def test_a_job_that_leaves_at_its_limit_can_be_held_requeued_and_updated_without_harm() -> None:
    scene = at_limit()
    changes = scene.backend.changes
    changes.hold(0, "ann")  # it runs: no event
    changes.update(0, {"time_limit_s": 500.0})
    scene.at(27.0)
    assert scene.phase(0) is Phase.RUNNING
    changes.requeue(0, True, "ann")
    scene.at(28.0)
    assert scene.phase(0) is Phase.QUEUED
    scene.backend.report(0, [Ended(0, 1, 0, True, 27, 27)])
    scene.at(29.0)
    assert scene.phase(0) is Phase.QUEUED, "it is held, and has time left"
    scene.check()


@pytest.mark.parametrize("limit_s", [500.0, math.inf])
@pytest.mark.parametrize("code", [0, -9])
def test_a_job_whose_limit_is_raised_while_it_leaves_runs_again(limit_s: float, code: int) -> None:
    scene = at_limit()
    scene.backend.changes.update(0, {"time_limit_s": limit_s})
    assert scene.at(27.0) == []
    scene.backend.report(0, [Ended(0, 1, code, True, 27, 27)])
    assert [order.generation for _, order in scene.at(30.0)] == [2]
    assert (scene.phase(0), scene.loop.state.columns["base_steps"][0]) == (Phase.RUNNING, 27.0)
    assert scene.at(490.0) == []
    assert scene.at(502.0) == ([(0, Revoke(0, 2))] if limit_s == 500.0 else [])
    scene.check()


def test_a_job_that_the_plan_preempts_at_its_limit_waits_if_the_limit_is_raised_then() -> None:
    scene = at_limit()
    scene.job("other", steps=1000.0)
    assert scene.at(30.0) == [(0, Revoke(0, 1))]
    scene.backend.changes.update(0, {"time_limit_s": 500.0})
    scene.at(31.0)
    scene.backend.report(0, [Ended(0, 1, 0, True, 27, 27)])
    scene.at(32.0)
    assert (scene.phase(0), scene.loop.state.columns["base_steps"][0]) == (Phase.WAITING, 27.0)
    scene.check()


def test_a_shorter_limit_stops_a_running_job_and_a_requeued_one_has_its_whole_limit() -> None:
    scene = begun("free", "v100:1", steps=1000.0)
    scene.backend.changes.state = lambda: scene.loop.state
    scene.at(40.0)
    scene.backend.changes.update(0, {"time_limit_s": 30.0})
    assert scene.at(41.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, True, 27, 27)])
    scene.at(42.0)
    scene.backend.changes.requeue(0, False, "ann")
    assert [order.generation for _, order in scene.at(50.0)] == [2]
    assert scene.at(79.0) == []
    assert scene.at(81.0) == [(0, Revoke(0, 2))]
    scene.check()


def test_run_time_before_a_requeue_does_not_count_for_a_limit_that_came_later() -> None:
    scene = begun("free", "v100:1", steps=1000.0, retry_limit=0)
    scene.backend.changes.state = lambda: scene.loop.state
    scene.backend.report(0, [Ended(0, 1, 1, False, 0, 0)])
    scene.at(40.0)
    assert scene.phase(0) is Phase.FAILED
    scene.backend.changes.requeue(0, False, "ann")
    assert [order.generation for _, order in scene.at(50.0)] == [2]
    scene.backend.changes.update(0, {"time_limit_s": 30.0})
    assert scene.at(79.0) == []
    again = restarted(scene, "v100:1", 79.5)
    again.backend.agent_joined(0, [(0, 2)])
    again.reconcile()
    assert scene.at(81.0) == [(0, Revoke(0, 2))]
    assert again.at(86.0) == [(0, Revoke(0, 2))]


@pytest.mark.parametrize("workers", [1, 2], ids=["one node", "a gang on two nodes"])
def test_time_without_contact_to_the_agent_does_not_fail_a_job_at_its_limit(workers: int) -> None:
    scene = begun("limited", "v100:1,v100:1,v100:1", steps=1000.0, time_limit_s=60.0, workers=workers)
    scene.backend.report(0, [Progress(0, 1, 10, 10, 1.0)])
    scene.at(10.0)
    scene.wire.silent[0] = 1.0
    assert scene.at(65.0) == [], "whether it still runs is not known"
    scene.backend.agent_lost(0, silent_s=55.0)
    orders = scene.at(65.0)
    if workers == 2:
        assert Kill(0, 1) in [order for _, order in orders]
        scene.backend.report(1, [Ended(0, 1, -9, True, 60, 60)])
        orders = scene.at(66.0)
    assert [event.own_fault for event in scene.journal if isinstance(event, ev.JobsInterrupted)] == [False]
    orders += scene.at(70.0)
    assert {order.generation for _, order in orders if isinstance(order, Launch)} == {2}
    assert scene.loop.state.columns["settled_run_s"][0] == 10.0
    assert scene.at(119.0) == [], "it has 50 s left"
    assert {order for _, order in scene.at(121.0)} == {Revoke(0, 2)}
    scene.check()


def test_a_job_that_ran_on_while_its_agent_was_unreachable_is_stopped_when_the_agent_is_back() -> None:
    scene = begun("limited", "v100:1", steps=1000.0, time_limit_s=60.0)
    scene.wire.silent[0] = 1.0
    assert scene.at(65.0) == []
    del scene.wire.silent[0]
    scene.backend.agent_joined(0, [(0, 1)])
    assert scene.at(67.0) == [(0, Revoke(0, 1))]
    scene.check()
