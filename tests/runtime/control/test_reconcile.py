"""Control planes and agents that come back: what runs is compared with what is wanted, and nothing runs twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_agents import Scene, begun, restarted
from serving import served

from fairlead.core import events as ev
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.runtime.control.launches import LaunchTracker
from fairlead.runtime.control.tracked_launch import LaunchEnd, NodeRanks, TrackedLaunch
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Metric, Progress, Revoke, Task
from fairlead.termination.by_loss import ByLoss
from fairlead.testing.builders import cluster


@pytest.mark.parametrize("found", [True, False])
def test_after_a_restart_what_runs_is_looked_for_first(found):
    before = Scene()
    before.join()
    before.job("a", steps=100.0)
    before.job("b", steps=100.0, workers=2)
    before.at(0.0)
    before.backend.report(0, [Progress(0, 1, 30, 20, 3.0)])
    before.at(10.0)
    scene = restarted(before, "v100:2,v100:2", 15.0)
    here = {seat.node for run in before.backend.launches.all() if run.job == 0 for seat in run.assignment}
    for node in (0, 1):
        mine = [run.key for run in before.backend.launches.all() if any(seat.node == node for seat in run.assignment)]
        scene.backend.agent_joined(node, mine if found or node not in here else [key for key in mine if key[0] != 0])
    scene.reconcile()
    orders = scene.at(20.0)
    if found:
        assert orders == []
        assert (scene.phase(0), scene.phase(1)) == (Phase.RUNNING, Phase.RUNNING)
    else:
        assert [(order.job, order.generation) for _, order in orders] == [(0, 1)]  # its agent never heard of it: once more
        assert scene.phase(1) is Phase.RUNNING
    scene.backend.report(next(iter(here)), [Ended(0, 1, 0, False, 100, 100)])
    scene.at(21.0)
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def test_time_while_the_plane_is_away_counts_only_for_jobs_that_ran():
    """Two jobs with a limit of 60 s ran 12 s. One ended with the plane; the other went on, and finished 20 s later."""
    before = Scene("v100:1,v100:1")
    before.join()
    for name in ("ended", "went on"):
        before.job(name, steps=1000.0, time_limit_s=60.0)
    before.at(0.0)
    before.backend.report(0, [Progress(0, 1, 10, 10, 1.0)])
    before.at(10.0)
    scene = restarted(before, "v100:1,v100:1", 112.0)
    scene.backend.agent_joined(0, [(0, 1)])
    scene.backend.agent_joined(1, [(1, 1)])
    scene.reconcile()
    scene.at(112.0)
    assert (scene.phase(0), scene.phase(1)) == (Phase.RUNNING, Phase.RUNNING), "not at its limit before its agent has spoken"
    scene.backend.report(0, [Ended(0, 1, 0, True, 12, 12, ago_s=100.0)])
    scene.backend.report(1, [Ended(1, 1, 0, False, 1000, 1000, ago_s=80.0)])
    scene.at(113.0)
    assert (scene.phase(0), scene.phase(1)) == (Phase.WAITING, Phase.FINISHED)
    assert scene.loop.state.columns["settled_run_s"][:2].tolist() == [13.0, 33.0]
    assert scene.backend._jobs.limits._left_s == {0: 47.0}
    scene.check()


def test_a_job_that_ran_past_its_limit_while_the_plane_was_away_fails_once_agents_had_time_to_report():
    before = begun("long", "v100:1", steps=1000.0, time_limit_s=60.0)
    scene = restarted(before, "v100:1", 100.0)
    scene.backend.agent_joined(0, [(0, 1)])
    scene.reconcile()
    scene.at(100.0)
    assert scene.phase(0) is Phase.RUNNING
    assert scene.at(105.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, True, 90, 90)])
    scene.at(106.0)
    assert scene.phase(0) is Phase.FAILED
    scene.check()


@pytest.mark.parametrize("returns", [True, False])
def test_a_launch_that_no_agent_knows_after_a_long_time_ran_as_long_as_was_heard_of_it(returns):
    before = begun("a", "v100:1,v100:1", steps=1000.0)
    before.backend.report(0, [Progress(0, 1, 10, 10, 1.0)])
    before.at(9.0)
    scene = restarted(before, "v100:1,v100:1", 500.0)
    scene.backend.last_alive_s = 40.0
    scene.backend.agent_joined(1, ())
    if returns:  # with an empty disk
        scene.backend.agent_joined(0, ())
    else:
        scene.backend.agent_lost(0)
    scene.reconcile()
    assert scene.phase(0) is Phase.WAITING
    assert scene.loop.state.columns["settled_run_s"][0] == (9.0 if returns else 40.0)
    assert [order.generation for _, order in scene.at(510.0)] == [2]
    scene.check()


def test_an_end_that_is_told_while_another_node_is_waited_for_counts():
    before = Scene("v100:1,v100:1")
    before.join()
    before.job("a", steps=100.0)
    before.job("b", steps=100.0)
    before.at(0.0)
    scene = restarted(before, "v100:1,v100:1", 5.0)
    scene.backend.agent_joined(0, [(0, 1)])
    scene.backend.report(0, [Ended(0, 1, 0, False, 100, 100)])
    scene.backend.agent_joined(1, [(1, 1)])
    scene.reconcile()
    assert (scene.phase(0), scene.phase(1)) == (Phase.FINISHED, Phase.RUNNING)
    scene.check()


def test_a_job_that_was_moving_when_the_plane_died_waits_for_the_node_that_it_leaves():
    before = Scene("v100:1,v100:1")
    before.join()
    before.job("a", steps=100.0)
    ((old, _),) = before.at(0.0)
    before.backend.drain(old, False)
    assert before.at(10.0) == [(old, Revoke(0, 1))]  # by the state it runs on the other node now
    scene = restarted(before, "v100:1,v100:1", 11.0)
    scene.backend.agent_joined(1 - old, ())
    scene.backend.agent_joined(old, [(0, 1)])
    kept: list[ev.Event] = []
    first, waiting = scene.backend._next, scene.backend.inbox._requests

    def one_by_one(until: float) -> list[ev.Event]:
        later = [waiting.pop() for _ in range(len(waiting) - 1)]
        events = first(until)
        waiting.extend(reversed(later))
        scene.backend.wake()
        return events

    scene.backend._next = one_by_one  # type: ignore[method-assign]
    for event in scene.backend.reconcile(scene.loop.state.snapshot(11.0), kept.extend):
        scene.loop.record(event)
    scene.backend._next = first  # type: ignore[method-assign]
    assert scene.wire.new() == [(old, Revoke(0, 1))], "not twice at once"
    scene.backend.report(old, [Ended(0, 1, 0, True, 30, 30)])
    assert [(node, order.generation) for node, order in scene.at(12.0)] == [(1 - old, 2)]
    scene.check()


def test_a_node_that_a_job_may_be_leaving_when_the_plane_died_is_not_removed_until_its_agent_has_reported():
    before = Scene("v100:1,v100:1")
    before.join()
    before.job("a", steps=100.0)
    ((old, _),) = before.at(0.0)
    before.backend.drain(old, False)
    before.at(10.0)  # by the state it runs on the other node now
    scene = restarted(before, "v100:1,v100:1", 11.0)
    scene.backend.remove_node(old, scene.answers.append)
    scene.backend.agent_joined(old, [(0, 1)])
    scene.backend.remove_node(old, scene.answers.append)
    scene.backend.agent_joined(1 - old, ())
    scene.reconcile()
    scene.backend.remove_node(old, scene.answers.append)
    assert scene.at(12.0) == [(old, Revoke(0, 1))]
    scene.backend.report(old, [Ended(0, 1, 0, True, 30, 30)])
    scene.backend.remove_node(old, scene.answers.append)
    assert [(node, order.generation) for node, order in scene.at(13.0)] == [(1 - old, 2)]
    scene.at(14.0)
    assert [answer.why.partition(":")[0] for answer in scene.answers[:3]] == [
        *["after a restart, agents are still reporting what runs; try again in a minute"] * 2,
        f"jobs run on node 'v100-{old}'",
    ]
    assert scene.answers[3] == [ev.NodeRemoved(13.0, old)]
    scene.check()


def test_half_a_gang_on_a_node_that_was_given_up_before_the_plane_died_is_not_waited_for():
    before = begun("wide", workers=3, steps=50.0)
    before.backend.agent_lost(1)
    assert before.at(3.0) == [(0, Kill(0, 1))]
    scene = restarted(before, "v100:2,v100:2", 5.0)
    scene.backend.agent_joined(0, [(0, 1)])
    scene.reconcile()
    assert set(scene.wire.new()) == {(0, Kill(0, 1))}
    scene.backend.report(0, [Ended(0, 1, -9, False, 7, 5)])
    scene.at(6.0)
    assert scene.phase(0) is Phase.WAITING
    scene.check()


@pytest.mark.parametrize("how", ["cancelled", "revoked", "failed", "lost"])
def test_half_a_gang_that_was_still_to_begin_never_does_once_the_other_half_leaves(how):
    """After a restart one node has lost its half, and still has a stranger on the same accelerator, who leaves late."""
    launches = LaunchTracker(lambda node: f"node-{node}", lambda key: (1000, 1001))
    launches.adopt(TrackedLaunch(7, 1, "gang", Task(("true",)), (NodeRanks(0, (0,), (0,)), NodeRanks(1, (1,), (0,)))))
    orders, _ = launches.compare({0: {(7, 1)}, 1: {(3, 2)}}, lambda node: (0, 1), lambda job: True)
    assert orders == [(1, Revoke(3, 2))]
    if how == "cancelled":
        assert launches.drop(7) == [(0, Kill(7, 1))]
    elif how == "revoked":
        assert launches.revoke(7) == [(0, Revoke(7, 1))]
    elif how == "failed":
        orders, (became,) = launches.ended(0, Ended(7, 1, 1, False, 9, 5))
        assert (orders, became.end) == ([], LaunchEnd.LOST), "without its other half"
    else:
        orders, (became,) = launches.node_lost(0)
        assert (orders, became.end) == ([], LaunchEnd.LOST)
    assert launches.ended(1, Ended(3, 2, 0, True, 0, 0))[0] == []
    if how in ("cancelled", "revoked"):
        orders, (became,) = launches.ended(0, Ended(7, 1, 0, True, 9, 9))
        assert (orders, became.end) == ([], LaunchEnd.DROPPED if how == "cancelled" else LaunchEnd.YIELDED)
    assert launches.all() == []


def test_a_gang_that_two_nodes_have_lost_one_after_the_other_begins_on_both():
    launches = LaunchTracker(lambda node: f"node-{node}", lambda key: (1000, 1001))
    launches.adopt(TrackedLaunch(7, 1, "gang", Task(("true",)), tuple(NodeRanks(node, (node,), (0,)) for node in range(3))))
    launches.compare({0: {(7, 1)}, 1: {(3, 2)}, 2: {(7, 1)}}, lambda node: (0, 1), lambda job: True)
    assert launches.compare({2: ()}, lambda node: (0, 1), lambda job: True) == ([], [])
    orders, _ = launches.ended(1, Ended(3, 2, 0, True, 0, 0))
    assert [node for node, order in orders if isinstance(order, Launch)] == [1, 2]


@pytest.mark.parametrize("how", ["converged", "cancelled"])
def test_who_was_done_when_the_plane_died_may_save_and_who_was_cancelled_may_not(how):
    before = Scene("v100:1", "fifo")
    before.loop.stages = replace(before.loop.stages, termination=ByLoss(0.01))
    before.join()
    before.job("a", steps=100.0)
    before.at(0.0)
    before.backend.report(0, [Progress(0, 1, 20, 0, 2.0)])
    before.at(5.0)
    if how == "cancelled":
        before.backend.cancel(0)
    else:
        before.backend.report(0, [Metric(0, 1, "target_loss", 0.5), Metric(0, 1, "loss", 0.504)])
    before.at(10.0)
    assert before.phase(0) is (Phase.CANCELLED if how == "cancelled" else Phase.FINISHED)
    scene = restarted(before, "v100:1", 12.0)
    scene.backend.agent_joined(0, [(0, 1)])  # the order to leave was lost with the control plane
    scene.reconcile()
    scene.job("next")
    orders = [*scene.wire.new(), *scene.at(13.0)]
    assert orders == [(0, Kill(0, 1) if how == "cancelled" else Revoke(0, 1))], "and the next waits for it"
    scene.backend.report(0, [Ended(0, 1, 0, True, 45, 45)])
    assert [order.job for _, order in scene.at(20.0)] == [1]
    scene.check()


def test_a_job_that_was_on_its_way_out_when_the_plane_died_may_save_and_is_waited_for():
    before = begun("old", "v100:1", steps=1000.0)
    before.job("new", steps=1000.0)
    before.at(10.0)  # planned, and the order to leave is lost with the control plane
    scene = restarted(before, "v100:1", 12.0)
    scene.backend.agent_joined(0, [(0, 1)])
    scene.reconcile()
    assert scene.wire.new() == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, True, 25, 25)])
    assert [(order.job, order.generation) for _, order in scene.at(13.0)] == [(1, 1)]
    assert scene.loop.state.columns["base_steps"][0] == 25.0
    scene.check()


def test_an_agent_that_comes_back_with_strangers_is_told_to_end_them():
    scene = Scene()
    scene.join(0)
    scene.job("a")
    scene.at(0.0)
    scene.backend.agent_joined(1, [(5, 1)])
    scene.backend.agent_joined(0, [(0, 1)])  # a second time: its connection was cut for a moment
    assert scene.at(1.0) == [(1, Kill(5, 1))]
    assert scene.phase(0) is Phase.RUNNING


def test_who_follows_a_leaver_does_not_begin_beside_a_stranger():
    scene = begun("old", "v100:1", steps=1000.0)
    scene.backend.report(0, [Progress(0, 1, 10, 0, 1.0)])
    scene.at(10.0)
    scene.job("new", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    scene.backend.agent_joined(0, [(5, 1)])  # the old one is gone, and somebody else is there
    assert scene.at(21.0) == [(0, Kill(5, 1))]
    scene.backend.report(0, [Ended(5, 1, -9, False, 0, 0)])
    assert [order.job for _, order in scene.at(22.0)] == [1]
    scene.check()


@pytest.mark.parametrize("revoked", [False, True])
def test_half_a_gang_that_nobody_heard_of_does_not_begin_beside_a_stranger(revoked):
    scene = Scene()
    scene.join()
    scene.job("wide", workers=4, steps=50.0)
    launches = scene.at(0.0)
    scene.backend.agent_joined(1, [(5, 1)])
    assert scene.at(1.0) == [(1, Kill(5, 1))]
    if revoked:  # then it is not begun at all
        assert scene.backend.launches.revoke(0) == [(0, Revoke(0, 1))]
    scene.backend.report(1, [Ended(5, 1, -9, False, 0, 0)])
    assert scene.at(2.0) == ([] if revoked else launches[1:])
    if revoked:
        scene.backend.report(0, [Ended(0, 1, 0, True, 3, 3)])
        scene.at(3.0)
        assert scene.backend.launches.latest(0) is None


def test_orders_that_nobody_heard_are_given_again_when_the_agent_is_back():
    scene = Scene("v100:2")
    scene.join()
    scene.job("a")
    launched = scene.at(0.0)
    scene.backend.agent_joined(0, [])
    assert scene.at(1.0) == launched
    scene.backend.agent_joined(0, [(0, 1)])
    assert scene.at(2.0) == []
    scene.backend.cancel(0)
    scene.at(3.0)
    assert scene.at(3.5) == [(0, Kill(0, 1))]
    scene.backend.agent_joined(0, [(0, 1)])
    assert scene.at(4.0) == [(0, Kill(0, 1))]


def test_what_was_ordered_while_an_agent_was_away_is_ordered_again():
    scene = Scene("v100:1,v100:1,v100:1")
    scene.join()
    for name in ("lost", "revoked", "cancelled"):
        scene.job(name, steps=1000.0)
    launches = scene.at(0.0)
    assert [node for node, _ in launches] == [0, 1, 2]
    scene.backend.agent_joined(0, ())  # it came back, and never heard of its job
    assert scene.at(1.0) == [launches[0]]
    scene.backend.agent_joined(0, [(0, 1)])
    assert scene.at(2.0) == []
    scene.backend.launches.revoke(1)
    scene.backend.cancel(2)
    scene.at(3.0)
    assert scene.at(4.0) == [(2, Kill(2, 1))]
    for node, found in ((1, [(1, 1)]), (2, [(2, 1)])):
        scene.backend.agent_joined(node, found)
    assert scene.at(5.0) == [(1, Revoke(1, 1)), (2, Kill(2, 1))]
    for node in (1, 2):
        scene.backend.agent_joined(node, ())
    assert scene.at(6.0) == []  # they are gone
    assert scene.backend.launches.latest(1) is None


def test_half_a_gang_whose_agent_was_away_when_the_other_failed_is_ended_when_it_is_back():
    scene = begun("wide", workers=3, steps=50.0)
    scene.backend.report(1, [Ended(0, 1, 1, False, 7, 5, "exit code 1")])
    scene.at(3.0)  # an order to end it that nobody hears
    scene.backend.agent_joined(0, [(0, 1)])
    assert scene.at(4.0) == [(0, Kill(0, 1))]
    scene.backend.report(0, [Ended(0, 1, -9, False, 7, 5)])
    assert [order.generation for _, order in scene.at(10.0)] == [2, 2]
    scene.check()


def test_half_a_gang_that_never_began_does_not_begin_when_the_other_has_failed():
    scene = begun("wide", workers=3, steps=50.0)
    scene.backend.report(1, [Ended(0, 1, 1, False, 7, 5, "exit code 1")])
    scene.at(3.0)
    scene.backend.agent_joined(0, ())
    assert scene.at(4.0) == []
    assert [order.generation for _, order in scene.at(10.0)] == [2, 2]
    scene.check()


def test_steps_are_told_up_to_the_restart_until_agents_have_said_what_became_of_them():
    """A job that was ended with its plane did nothing in between, whatever its last report promised."""
    one, machines = np.array([0]), cluster("v100:1")
    state = State(machines)
    for event in (
        ev.JournalOpened(0.0, machines, {"policy": "las", "estimator": "measured", "rounds": 0.2}, journal="x"),
        ev.JobSubmitted(1.0, 0, Job("a", 1.0, 1e12, user="root", command='{"run": ["true"]}')),
        ev.RoundPlanned(RoundPlan(2.0, admitted=one, launches=Launches(one, one * 0, np.array([0, 1]), one))),
        ev.ProgressReported(3.0, one, np.array([100.0]), np.array([1e6]), np.array([3.0])),
    ):
        apply_event(state, event)
    with served("v100:1", state) as control:
        told = ControlPlaneClient(control.url, control.token).job("a")
    assert (told["phase"], told["steps_done"]) == ("running", 100.0)


def test_a_held_job_is_still_held_after_a_restart_and_runs_after_its_release():
    before = begun("runs", "v100:1", steps=1000.0)
    before.job("held", steps=50.0, time_limit_s=60.0)
    before.at(1.0)
    before.backend.changes.hold(1, "ann")
    before.backend.changes.hold(0, "ann")  # it runs: no event
    before.at(2.0)
    scene = restarted(before, "v100:1", 5.0)
    scene.backend.changes.state = lambda: scene.loop.state
    scene.backend.agent_joined(0, [(0, 1)])
    scene.reconcile()
    assert scene.loop.state.held == {1: "ann"}
    scene.backend.changes.requeue(0, True, "ann")
    scene.at(6.0)
    assert scene.at(7.0) == [(0, Revoke(0, 1))], "once it is in the journal"
    scene.backend.report(0, [Ended(0, 1, 0, True, 45, 45)])
    scene.backend.changes.release(1)
    assert [(order.job, order.generation) for _, order in scene.at(20.0)] == [(1, 1)]
    assert (scene.phase(0), scene.loop.state.columns["base_steps"][0]) == (Phase.QUEUED, 45.0)
    scene.backend.changes.update(1, {"time_limit_s": 10.0})
    scene.at(29.0)
    assert scene.phase(1) is Phase.RUNNING
    scene.at(31.0)
    scene.backend.report(0, [Ended(1, 1, 0, True, 10, 10)])
    scene.at(31.5)
    assert scene.phase(1) is Phase.FAILED
    scene.backend.changes.requeue(1, False, "ann")
    scene.at(32.0)
    assert (scene.phase(1), scene.backend._jobs.limits._left_s) == (Phase.QUEUED, {1: 10.0})
    scene.check()
