"""The backend of a real cluster, with agents that the test plays: orders go out, words come in, and the loop in between is the
one that simulations run."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace

from emulated_agents import Scene, begun, unable

from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.core.reasons import Code
from fairlead.engine import state_codec
from fairlead.engine.explain import why_in
from fairlead.runtime.control import views
from fairlead.runtime.control.accounting import history_records
from fairlead.runtime.control.engines import Engines
from fairlead.runtime.control.tracked_launch import LaunchEnd, NodeRanks, TrackedLaunch
from fairlead.runtime.protocol.messages import Heartbeat, OrderBatch, decode_message, encode_message
from fairlead.runtime.protocol.orders import Ended, Extend, Kill, Launch, Metric, Progress, RenewalRequest, Revoke, Task
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.termination.by_loss import ByLoss


def test_a_job_is_launched_reports_and_finishes():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0)
    assert scene.at(0.0) == [(0, Launch(0, 1, "a", Task(("true",)), (0,), (0,), master_address="node-0"))]
    scene.backend.report(0, [Progress(0, 1, steps=20, saved=0, rate=2.0), Metric(0, 1, "loss", 0.5)])
    scene.at(12.0)
    assert scene.loop.state.snapshot(22.0).jobs.steps_done.tolist() == [40.0]
    assert scene.loop.state.snapshot(22.0).jobs.metric("loss").tolist() == [0.5]
    scene.backend.report(0, [Ended(0, 1, 0, False, 100, 100)])
    assert scene.at(40.0) == []
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def test_who_has_converged_is_done_and_may_save_before_it_leaves():
    scene = Scene("v100:1", "fifo")
    scene.loop.stages = replace(scene.loop.stages, termination=ByLoss(0.01))
    scene.join()
    scene.job("a", steps=100.0)
    scene.job("b", steps=100.0)
    scene.at(0.0)
    told = [Progress(0, 1, 20, 0, 2.0), Metric(0, 1, "target_loss", 0.5), Metric(0, 1, "loss", 0.6)]
    scene.backend.report(0, told)
    assert scene.at(10.0) == []
    scene.backend.report(0, [Metric(0, 1, "loss", 0.504)])
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    assert scene.phase(0) is Phase.FINISHED
    scene.backend.report(0, [Ended(0, 1, 0, True, 45, 45)])
    assert [order.job for _, order in scene.at(21.0)] == [1]
    assert scene.loop.state.columns["ended_s"][0] == 20.0
    scene.check()


def test_a_launch_that_its_node_could_not_prepare_costs_no_try():
    scene = begun("a", steps=100.0, retry_limit=0)
    scene.backend.report(0, [unable(1)])
    assert [order.generation for _, order in scene.at(10.0)] == [2]
    assert scene.loop.state.columns["failures"][0] == 0
    (told,) = [event for event in scene.journal if isinstance(event, ev.JobsInterrupted)]
    assert (told.own_fault, told.why, told.node) == (False, "/full: No space left on device", 0)
    scene.check()


def test_a_node_that_begins_nothing_rests_longer_each_time_and_others_are_tried():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0)
    for generation in (1, 2, 3):
        assert [(node, order.generation) for node, order in scene.at(10.0 * generation)] == [(0, generation)]
        scene.backend.report(0, [unable(generation)])
    assert [(node, order.generation) for node, order in scene.at(40.0)] == [(1, 4)]
    assert scene.loop.state.up.tolist() == [False, False, True, True]
    scene.backend.report(1, [Progress(0, 4, 10, 0, 1.0)])
    scene.at(69.0)
    assert not scene.loop.state.up[0]
    scene.at(70.0)
    assert scene.loop.state.up.all()
    scene.job("b", steps=100.0, workers=2)
    assert [(node, order.job) for node, order in scene.at(80.0)] == [(0, 1)]
    scene.backend.report(0, [unable(1, job=1)])
    scene.at(90.0)
    assert scene.backend.node_backoff.of(0).until_s == 90.0 + 60.0, "it could not then, and cannot now"
    scene.check()


def test_a_node_on_which_something_runs_is_not_given_up_for_what_it_could_not_begin():
    scene = Scene("v100:2")
    scene.join()
    scene.job("a", steps=100.0)
    scene.job("b", steps=100.0)
    scene.at(0.0)
    for generation in (1, 2, 3, 4):
        scene.backend.report(0, [unable(generation)])
        assert [order.generation for _, order in scene.at(10.0 * generation)] == [generation + 1]
    assert (scene.phase(1), scene.backend.node_backoff.of(0).times) == (Phase.RUNNING, 4)
    scene.backend.report(0, [Progress(1, 1, 10, 0, 1.0)])
    scene.at(42.0)
    assert scene.backend.node_backoff.of(0) is None
    scene.check()


def test_who_could_not_be_begun_is_told_by_which_node_and_why():
    scene = Scene("v100:2")
    scene.join()
    scene.job("a", steps=100.0, retry_limit=0)
    for generation in (1, 2, 3):
        scene.at(10.0 * generation)
        scene.backend.report(0, [unable(generation)])
        scene.at(10.0 * generation + 2)
        told = why_in(scene.loop, 0, 10.0 * generation + 2)
        if generation < 3:
            assert told.code is Code.LAUNCH_FAILED
            could_not = "its node could not start it: /full: No space left on device on v100-0"
            assert told.text == f"I{could_not[1:]}; another attempt at the next decision, in 8 s"
    scene.at(40.0)
    waits = "Waiting for nodes: needs 1 GPU; 0 eligible GPUs are up; position 1 of 1"
    assert why_in(scene.loop, 0, 40.0).text == f"{waits}; {could_not}"
    assert scene.loop.state.columns["failures"][0] == 0
    scene.check()


def test_who_waits_is_told_when_it_is_decided_on_next():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a", steps=100.0)
    scene.job("b", steps=100.0)
    scene.at(0.0)
    scene.job("c", steps=100.0)
    scene.at(3.0)
    told = [views.job_record(scene.loop, number, 4.0) for number in range(3)]
    assert [record.get("next_decision_s") for record in told] == [None, 6.0, 6.0]
    assert [record["reason"]["code"] for record in told[1:]] == ["waiting-for-resources", "next-decision"]


def one_runs_and_one_waits(policy: object) -> Scene:
    scene = Scene("v100:1", policy)
    scene.join()
    scene.job("a", steps=1e6)
    scene.job("b", steps=1e6)
    scene.at(0.0)
    scene.at(23.0)
    return scene


def test_who_was_left_out_may_be_decided_on_at_the_next_round_and_not_only_when_the_policy_looks_again_by_itself():
    scene = one_runs_and_one_waits({"name": "horus", "max_jobs": 1, "starving_s": 7200.0})
    told = views.job_record(scene.loop, 1, 24.0)
    assert (told["next_decision_s"], told["latest_decision_s"]) == (6.0, 7200.0 - 24.0)
    scene.job("c", steps=100.0)
    scene.at(25.0)
    told = views.job_record(scene.loop, 1, 26.0)
    assert (told["next_decision_s"], told["latest_decision_s"]) == (4.0, 4.0), "somebody came, so it is sure"


def test_under_a_policy_that_looks_at_events_alone_the_next_round_is_when_something_may_be_decided():
    scene = one_runs_and_one_waits("fifo")
    told = views.job_record(scene.loop, 1, 24.0)
    assert (told["next_decision_s"], told["latest_decision_s"]) == (6.0, None)
    scene.loop.stages = replace(scene.loop.stages, round_s=0.0)
    told = views.job_record(scene.loop, 1, 24.0)
    assert (told["next_decision_s"], told["latest_decision_s"]) == (None, None), "without rounds, whenever something happens"


def test_submissions_are_answered_when_they_are_in_the_journal():
    scene = Scene()
    scene.job("a")
    scene.at(1.0)
    assert not scene.answers or len(list(scene.journal)) > 3
    scene.at(2.0)
    (events,) = scene.answers
    assert [event.job.name for event in events] == ["a"]


def test_nothing_runs_before_an_agent_is_there():
    scene = Scene()
    scene.job("a")
    assert scene.at(10.0) == []
    assert scene.phase(0) is Phase.WAITING
    scene.join(1)
    assert [(node, order.accelerators) for node, order in scene.at(20.0)] == [(1, (0,))]


def test_a_newcomer_starts_when_the_one_before_it_has_left():
    scene = begun("old", "v100:1", steps=1000.0)
    scene.backend.report(0, [Progress(0, 1, 10, 0, 1.0)])
    scene.at(10.0)
    scene.job("new", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]  # the new one waits for the accelerator, though the plan has it running
    assert scene.phase(1) is Phase.RUNNING
    scene.backend.report(0, [Ended(0, 1, 0, True, 25, 25)])
    assert [order.job for _, order in scene.at(21.0)] == [1]
    assert scene.loop.state.columns["base_steps"][0] == 25.0
    scene.check()


def test_a_gang_is_one_launch_on_several_nodes_and_dies_as_one():
    scene = Scene()
    scene.join()
    scene.job("wide", workers=3, steps=50.0)
    orders = scene.at(0.0)
    assert [(node, order.ranks, order.accelerators, order.world_size) for node, order in orders] == [
        (0, (0, 1), (0, 1), 3),
        (1, (2,), (0,), 3),
    ]
    (one, two) = (order for _, order in orders)
    assert (one.master_port, one.gang_port) == (two.master_port, two.gang_port) != (0, 0)
    assert one.master_address == two.master_address == "node-0"
    assert one.gang_token == two.gang_token != ""
    scene.backend.report(1, [Ended(0, 1, 1, False, 7, 5, "exit code 1")])
    assert scene.at(3.0) == [(0, Kill(0, 1))]
    assert scene.phase(0) is Phase.RUNNING
    scene.backend.report(0, [Ended(0, 1, -9, False, 7, 5)])
    again = [order for _, order in scene.at(10.0)]
    assert [order.generation for order in again] == [2, 2]  # its own fault, and it may try again
    assert again[0].gang_token != one.gang_token
    assert scene.loop.state.columns["failures"][0] == 1
    assert scene.loop.state.columns["base_steps"][0] == 5.0
    scene.check()


def test_who_was_killed_because_its_agent_was_to_leave_has_not_failed_and_neither_has_its_gang():
    scene = begun("wide", workers=3, steps=50.0, retry_limit=0)
    scene.backend.report(1, [Ended(0, 1, -9, True, 7, 5, "killed 30 s after it was asked to stop")])
    assert scene.at(3.0) == [(0, Kill(0, 1))], "half a gang is no gang"
    scene.backend.report(0, [Ended(0, 1, -9, False, 7, 5, "killed at the request of the control plane")])
    assert [order.generation for _, order in scene.at(10.0)] == [2, 2]
    a = scene.loop.state.columns
    assert (a["failures"][0], a["base_steps"][0]) == (0, 5.0)
    scene.check()


def test_a_job_that_fails_too_often_has_failed():
    scene = begun("bad", "v100:1", retry_limit=1)
    scene.backend.report(0, [Ended(0, 1, 3, False, 0, 0, "exit code 3")])
    scene.at(10.0)
    assert scene.phase(0) is Phase.RUNNING
    scene.backend.report(0, [Ended(0, 2, 3, False, 0, 0, "exit code 3")])
    scene.at(20.0)
    assert scene.phase(0) is Phase.FAILED
    scene.check()


def test_what_is_said_of_an_older_launch_is_dropped():
    scene = begun("a", "v100:1", retry_limit=5)
    scene.backend.report(0, [Ended(0, 1, 1, False, 0, 0)])
    scene.at(10.0)
    scene.backend.report(0, [Ended(0, 1, 1, False, 0, 0), Progress(0, 1, 99, 99, 9.0)])
    scene.at(11.0)
    assert scene.phase(0) is Phase.RUNNING
    assert scene.loop.state.columns["failures"][0] == 1
    assert scene.loop.state.columns["base_steps"][0] == 0.0


def test_a_cancelled_job_is_killed_and_its_place_given_when_it_is_gone():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a")
    scene.job("b")
    scene.at(0.0)
    scene.backend.cancel(0)
    assert scene.at(10.0) == []  # not before it is in the journal
    assert scene.at(10.5) == [(0, Kill(0, 1))]
    assert (scene.phase(0), scene.phase(1)) == (Phase.CANCELLED, Phase.RUNNING)
    scene.backend.report(0, [Ended(0, 1, -9, False, 0, 0)])
    assert [(order.job, order.generation) for _, order in scene.at(11.0)] == [(1, 1)]
    scene.check()


def test_a_job_that_finishes_while_it_is_asked_to_leave_has_finished():
    scene = begun("a", "v100:1", steps=30.0)
    scene.job("b")
    assert scene.at(10.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, False, 30, 30)])
    assert [order.job for _, order in scene.at(11.0)] == [1]
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def test_a_job_that_fails_while_it_is_asked_to_leave_has_failed():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a", retry_limit=1)
    for generation in (1, 2):
        scene.at(20.0 * generation)
        scene.job(f"b-{generation}")
        assert (0, Revoke(0, generation)) in scene.at(20.0 * generation + 10.0)
        scene.backend.report(0, [Ended(0, generation, 3, False, 5, 5)])
        (order,) = scene.at(20.0 * generation + 11.0)
        assert scene.loop.state.columns["failures"][0] == 1
        if generation == 1:
            assert scene.phase(0) is Phase.WAITING
            scene.backend.report(0, [Ended(order[1].job, 1, 0, False, 1, 1)])
    assert scene.phase(0) is Phase.FAILED
    scene.check()


def test_jobs_of_a_node_that_left_go_on_elsewhere_from_what_they_saved():
    scene = begun("a", steps=100.0)
    scene.backend.report(0, [Progress(0, 1, 30, 20, 3.0)])
    scene.at(10.0)
    scene.backend.agent_lost(0)
    (order,) = scene.at(20.0)
    assert (order[0], order[1].generation) == (1, 2)
    assert scene.loop.state.columns["base_steps"][0] == 20.0
    scene.check()


def test_who_waited_for_somebody_on_a_node_that_is_gone_is_not_started_there():
    """Its agent may have come back by the time the order goes out, and would begin what counts as lost."""
    scene = begun("first", "v100:1", steps=100.0)
    scene.job("second", steps=100.0)
    assert scene.at(10.0) == [(0, Revoke(0, 1))]
    scene.backend.agent_lost(0)
    assert scene.at(11.0) == []
    assert (scene.phase(0), scene.phase(1)) == (Phase.WAITING, Phase.WAITING)
    scene.join()
    assert [(order.job, order.generation) for _, order in scene.at(20.0)] == [(1, 2)]
    scene.check()


def test_a_lease_is_renewed_unless_it_was_revoked_and_nothing_is_written_down():
    scene = Scene("v100:1")
    scene.backend.task_of = lambda job: Task(("true",), max_steps=100, max_s=60.0)
    scene.join()
    scene.job("old", steps=1000.0)
    scene.at(0.0)
    before = len(scene.journal.events)
    scene.backend.report(0, [RenewalRequest(0, 1, 1), RenewalRequest(0, 2, 1), RenewalRequest(7, 1, 1)])
    assert scene.at(2.0) == [(0, Extend(0, 1, 1, 200, 120.0))]
    scene.backend.report(0, [RenewalRequest(0, 1, 2), RenewalRequest(0, 1, 2)])
    assert scene.at(3.0) == 2 * [(0, Extend(0, 1, 2, 300, 180.0))]
    scene.backend.report(0, [RenewalRequest(0, 1, 2**53)])
    assert scene.at(4.0) == [(0, Extend(0, 1, 2**53, 2**53, 1e9))]
    assert len(scene.journal.events) == before
    scene.backend.report(0, [Progress(0, 1, 10, 0, 1.0)])
    scene.at(10.0)
    scene.job("new", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [RenewalRequest(0, 1, 3)])
    assert scene.at(21.0) == []
    scene.check()


def test_a_launch_that_came_to_nothing_takes_no_steps_away():
    scene = begun("old", "v100:1", steps=1000.0, retry_limit=5)
    scene.backend.report(0, [Progress(0, 1, 40, 40, 1.0)])
    scene.at(5.0)
    scene.backend.report(0, [Ended(0, 1, 1, False, 50, 40, "exit code 1")])
    scene.at(10.0)
    assert scene.phase(0) is Phase.RUNNING
    scene.backend.report(0, [Ended(0, 2, 1, False, 0, 0, "exit code 1")])  # before it had read its checkpoint
    scene.at(11.0)
    assert scene.loop.state.columns["base_steps"][0] == 40.0
    scene.check()


def test_a_launch_that_is_taken_back_before_it_was_sent_changes_no_progress():
    scene = begun("moving", "v100:1,v100:1", steps=1000.0)
    scene.backend.report(0, [Progress(0, 1, 30, 30, 1.0)])
    scene.at(5.0)
    launches = scene.backend.launches
    launches.revoke(0)
    moved = TrackedLaunch(0, 2, "moving", Task(("true",)), (NodeRanks(1, (0,), (0,)),))
    assert launches.start(moved) == []  # the first has not left yet
    assert launches.revoke(0) == []
    orders, (became,) = launches.ended(0, Ended(0, 1, 0, True, 33, 33))
    assert (orders, became.end, became.saved) == ([], LaunchEnd.YIELDED, 33)


def test_a_launch_names_its_user_and_what_its_task_needs():
    scene = Scene("v100:2", "las")
    scene.join()
    scene.job("a", user="ann", cpus=2.0, host_memory_gb=8.0)
    ((_, launch),) = scene.at(0.0)
    assert (launch.user, launch.task.cpus, launch.task.host_memory_gb) == ("ann", 2.0, 8.0)
    (same,) = decode_message(encode_message(OrderBatch((launch,)))).orders
    assert same == launch
    plane = SimpleNamespace(
        loop=scene.loop,
        backend=scene.backend,
        hub=SimpleNamespace(
            connected={0}, silent_s=lambda node: 0.0, heartbeats={0: Heartbeat(limits="none")}, engines=Engines()
        ),
    )
    assert [node["limits"] for node in views.node_records(plane)] == ["none"]  # type: ignore[arg-type]


def test_a_job_that_moves_is_marked_on_both_nodes():
    scene = begun("moving", "v100:1,v100:1", steps=1000.0)
    plane = SimpleNamespace(
        loop=scene.loop,
        backend=scene.backend,
        hub=SimpleNamespace(connected={0, 1}, silent_s=lambda node: 0.0, heartbeats={}, engines=Engines()),
    )

    def jobs() -> list[tuple[list[str], list[str], list[str]]]:
        records = views.node_records(plane)  # type: ignore[arg-type]
        return [(one["jobs"], one["stopping"], one["starting"]) for one in records]

    assert jobs() == [(["moving"], [], []), ([], [], [])]
    scene.backend.drain(0, undo=False)
    assert scene.at(10.0) == [(0, Revoke(0, 1))]
    assert jobs() == [(["moving"], ["moving"], []), (["moving"], [], ["moving"])]
    scene.backend.report(0, [Ended(0, 1, 0, True, 10, 10)])
    scene.at(11.0)
    assert jobs() == [([], [], []), (["moving"], [], [])]
    scene.check()


def preempted(*, saved: int) -> Scene:
    """A job that ran for 20 seconds, one step each, until it was preempted for another."""
    scene = begun("plain", "v100:1", steps=1000.0)
    scene.at(10.0)
    scene.job("other", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    assert "lost_work" not in views.job_record(scene.loop, 0, 20.0), "it may still save"
    scene.backend.report(0, [Ended(0, 1, 0, True, 20, saved)])
    scene.at(21.0)
    return scene


def test_work_that_a_preempted_job_did_without_a_checkpoint_is_counted():
    scene = preempted(saved=0)
    assert views.job_record(scene.loop, 0, 21.0)["lost_work"] == {"seconds": 20.0, "preemptions": 1}
    assert state_codec.load(state_codec.save(scene.loop.state)).lost_work == {0: (20.0, 1)}
    scene.check()


def test_a_job_that_loses_its_work_runs_longer_each_time_and_so_ends():
    scene = preempted(saved=0)
    assert scene.loop.state.columns["min_run_s"][0] == 20.0
    assert state_codec.load(state_codec.save(scene.loop.state)).columns["min_run_s"][0] == 20.0
    assert scene.loop.state.snapshot().any_min_run


def test_a_preempted_job_that_saved_has_lost_nothing():
    scene = preempted(saved=20)
    assert scene.loop.state.lost_work == {}
    scene.check()


def test_work_that_a_user_stopped_by_a_requeue_is_no_preemption():
    scene = begun("plain", "v100:1", steps=1000.0)
    scene.backend.changes.state = lambda: scene.loop.state
    scene.at(10.0)
    scene.backend.changes.requeue(0, True, "ann")
    scene.at(20.0)
    assert scene.at(21.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, True, 20, 0)])
    scene.at(22.0)
    assert scene.loop.state.columns["base_steps"][0] == 0.0
    assert scene.loop.state.lost_work == {}
    assert scene.loop.state.columns["min_run_s"][0] == 0.0
    scene.check()


def test_a_requeued_job_that_was_admitted_before_it_stopped_was_not_preempted():
    scene = begun("plain", "v100:1", steps=1000.0)
    scene.backend.changes.state = lambda: scene.loop.state
    scene.at(10.0)
    scene.backend.changes.requeue(0, False, "ann")
    scene.job("first", steps=1000.0)
    scene.at(20.0)
    scene.at(30.0)
    assert scene.phase(0) is Phase.WAITING
    scene.backend.report(0, [Ended(0, 1, 0, True, 20, 0)])
    scene.at(31.0)
    assert scene.loop.state.lost_work == {}
    scene.check()


def test_history_has_the_work_that_a_job_lost():
    scene = preempted(saved=0)
    scene.backend.cancel(0)
    scene.at(22.0)
    plane = SimpleNamespace(loop=scene.loop, backend=scene.backend, origin=0.0)
    (record,) = history_records(plane, 0)  # type: ignore[arg-type]
    assert (record["state"], record["lost_work_s"]) == ("cancelled", 20.0)


def test_a_finished_job_without_declared_steps_keeps_the_steps_that_it_reported():
    scene = begun("open", "v100:1", steps=UNKNOWN_STEPS, command="true")
    scene.backend.changes.state = lambda: scene.loop.state
    scene.backend.report(0, [Progress(0, 1, 30, 30, 1.0)])
    scene.at(10.0)
    scene.backend.report(0, [Ended(0, 1, 0, False, 42, 42)])
    scene.at(20.0)
    assert scene.phase(0) is Phase.FINISHED
    assert views.job_record(scene.loop, 0, 21.0)["steps_done"] == 42.0
    assert state_codec.load(state_codec.save(scene.loop.state)).reported_steps == {0: 42.0}
    scene.check()
    scene.backend.changes.requeue(0, True, "ann")
    scene.at(30.0)
    assert views.job_record(scene.loop, 0, 31.0)["steps_done"] == 0.0


def test_the_newest_file_of_a_checkpoint_folder_is_found(tmp_path):
    folder = tmp_path / "checkpoints" / "7"
    assert views.newest_checkpoint(str(folder)) is None, "it is on another machine"
    folder.parent.mkdir()
    assert views.newest_checkpoint(str(folder)) == ""
    folder.mkdir()
    assert views.newest_checkpoint(str(folder)) == ""
    for second, name in enumerate(("step-2.pt", "step-1.pt")):
        (folder / name).touch()
        os.utime(folder / name, (second, second))
    assert views.newest_checkpoint(str(folder)) == "step-1.pt"
