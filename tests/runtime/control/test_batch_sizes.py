"""What the control plane makes of a plan that gives an elastic job another size: orders, and what it hears back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_agents import Scene

from fairlead.config.schedulers import compose, scheduler_of
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.job import BATCH_SIZE, ELASTIC
from fairlead.core.plan import TUNED, Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import replay_events
from fairlead.models.goodput import REPORTED
from fairlead.placement.basic import Consolidated
from fairlead.policies.serving.nexus import Nexus, SessionSpec
from fairlead.runtime.agent.settings import worker_environment
from fairlead.runtime.control.job_metrics import MAX_NAMES, MetricBuffer
from fairlead.runtime.protocol.messages import OrderBatch, decode_message, encode_message
from fairlead.runtime.protocol.orders import (
    Ended,
    Launch,
    LaunchParameters,
    Metric,
    Progress,
    RequestRouting,
    Reroute,
    Revoke,
    Task,
)
from fairlead.runtime.protocol.task_file import parse_task


class Says:
    """A policy that gives the first job what the test says: workers, and a batch size."""

    workers, size = 1, 0

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        mine = view.jobs.number[:1]
        ones = np.ones_like(mine)
        return Selection(mine, 0 * mine, self.workers * ones, batch_sizes=self.size * ones), memo


def resized() -> tuple[Scene, Says]:
    scene, policy = Scene("v100:2,v100:2"), Says()
    scene.loop.stages = replace(scene.loop.stages, policy=policy)
    scene.join()
    scene.job("a", steps=100.0, workers=2, mode=ELASTIC)
    return scene, policy


def test_a_launch_says_how_many_nodes_and_which_batch_size():
    scene, policy = resized()
    ((_, first),) = scene.at(0.0)
    assert isinstance(first, Launch)
    assert (first.world_size, first.nodes, first.parameters.batch_size) == (1, 1, 0)
    policy.workers, policy.size = 3, 64
    assert scene.at(10.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, True, 30, 30)])
    orders = [order for _, order in scene.at(11.0)]
    assert [(one.world_size, one.nodes, one.parameters.batch_size, one.generation) for one in orders] == [(3, 2, 64, 2)] * 2
    assert sorted(rank for order in orders for rank in order.ranks) == [0, 1, 2]
    policy.size = TUNED
    assert scene.at(20.0) == [(0, Revoke(0, 2)), (1, Revoke(0, 2))], "another batch size is another launch"
    scene.check()


def test_the_same_size_is_no_reason_to_start_again():
    scene, policy = resized()
    policy.size = TUNED
    scene.at(0.0)
    assert scene.at(10.0) == scene.at(20.0) == []


def test_after_a_restart_an_order_that_nobody_heard_is_said_again_as_it_was():
    scene, policy = resized()
    policy.workers, policy.size = 2, 64
    ((_, order),) = scene.at(0.0)
    again = Scene("v100:2,v100:2", state=replay_events(scene.journal), journal=scene.journal)
    again.backend.agent_joined(0, ())
    again.backend.agent_joined(1, ())
    for event in again.backend.reconcile(again.loop.state.snapshot(1.0)):
        again.loop.record(event)
    ((_, said),) = again.wire.new()
    assert replace(said, gang_token="") == replace(order, gang_token="")


def test_a_session_is_started_with_the_replicas_and_the_batch_that_its_requests_need():
    scene = Scene("v100:4")
    photos = SessionSpec(slo_ms=100, batches=(1, 32), latency_ms={"v100": (9, 40)}, rate=700)
    scene.loop.stages = replace(scene.loop.stages, policy=Nexus({"photos": photos}))
    scene.join()
    scene.job("photos", steps=1e9, mode=ELASTIC)
    ((_, first),) = scene.at(0.0)
    assert isinstance(first, Launch)
    assert (first.world_size, first.parameters.batch_size, first.parameters.routing) == (
        2,
        32,
        RequestRouting(32, 700.0, (0.5, 0.5)),
    )
    assert decode_message(encode_message(OrderBatch((first,)))) == OrderBatch((first,))
    scene.backend.report(0, [Metric(0, 1, "request_rate", 600.0)])
    scene.at(1.0)
    ((_, other),) = scene.at(10.0)
    assert other == Reroute(0, 1, RequestRouting(32, 600.0, (0.5, 0.5)))
    assert decode_message(encode_message(OrderBatch((other,)))) == OrderBatch((other,))
    scene.backend.agent_joined(0, [(0, 1)])  # the agent was away for a moment, and may not have heard it
    assert scene.at(11.0) == [(0, other)]
    scene.backend.report(0, [Metric(0, 1, "request_rate", 2000.0)])
    scene.at(12.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    scene.backend.report(0, [Ended(0, 1, 0, True, 9, 9)])
    ((_, second),) = scene.at(21.0)
    assert isinstance(second, Launch)
    assert (second.world_size, second.parameters.batch_size) == (3, 32)
    scene.check()


def test_sessions_that_share_an_accelerator_are_started_beside_each_other():
    scene = Scene("v100:4")
    small = SessionSpec(slo_ms=100, batches=(1, 32), latency_ms={"v100": (9, 40)}, rate=150)
    names = ("a", "b", "c")
    scene.loop.stages = replace(scene.loop.stages, policy=Nexus(dict.fromkeys(names, small)))
    scene.join()
    for name in names:
        scene.job(name, steps=1e9, mode=ELASTIC)
    orders = [order for _, order in scene.at(0.0)]
    assert all(isinstance(order, Launch) and order.parameters.routing is not None for order in orders)
    assert len(orders) == 3
    assert len({place for order in orders for place in order.accelerators}) < 3
    scene.check()


def test_a_worker_finds_its_size_in_its_environment(tmp_path):
    launch = Launch(7, 2, "a", Task(("true",)), (2, 3), (0, 1), 4, nodes=2, parameters=LaunchParameters(64, 3.0, 20.5))

    def of(launch: Launch) -> dict[str, str]:
        return worker_environment(launch, 1, device="1", page=tmp_path, reports=tmp_path, checkpoints=tmp_path, inherited={})

    found = of(launch)
    assert (found["WORLD_SIZE"], found["RANK"], found["FAIRLEAD_NODES"], found["FAIRLEAD_BATCH_SIZE"]) == ("4", "3", "2", "64")
    assert (found["FAIRLEAD_CPUS"], found["FAIRLEAD_HOST_MEMORY_GB"]) == ("3", "20.5")
    assert of(replace(launch, parameters=LaunchParameters(TUNED)))["FAIRLEAD_BATCH_SIZE"] == "tuned"
    assert not {"FAIRLEAD_BATCH_SIZE", "FAIRLEAD_CPUS", "FAIRLEAD_HOST_MEMORY_GB"} & set(
        of(replace(launch, parameters=LaunchParameters()))
    )


def test_what_a_placement_gives_of_a_host_reaches_the_worker():
    scene = Scene("v100:4")
    scene.loop.stages = replace(scene.loop.stages, placement=Modest())
    scene.join()
    scene.job("a")
    ((_, first),) = scene.at(0.0)
    assert isinstance(first, Launch)
    assert first.parameters == LaunchParameters(0, 3.0, 20.0)
    assert decode_message(encode_message(OrderBatch((first,)))) == OrderBatch((first,))
    again = Scene("v100:4", state=replay_events(scene.journal), journal=scene.journal)
    again.backend.agent_joined(0, ())
    again.backend.reconcile(again.loop.state.snapshot(1.0))
    assert again.wire.new() == [(0, first)]


class Modest:
    """Everybody has three CPUs."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        placed = Consolidated().place(selection, view)
        three = np.full(len(placed.launches), 3.0)
        return replace(placed, launches=replace(placed.launches, cpus=three, host_memory_gb=three + 17.0))


def test_a_batch_size_on_the_lease_page_is_told_when_it_changes():
    scene, _ = resized()
    scene.at(0.0)
    for second, size in ((1.0, 32), (3.0, 32), (5.0, 64)):
        scene.backend.report(0, [Progress(0, 1, int(10 * second), 0, 10.0, size)])
        scene.at(second)
        scene.at(second + 1)
    told = [(event.time, event.values.tolist()) for event in scene.journal if getattr(event, "name", "") == BATCH_SIZE]
    assert [values for _, values in told] == [[32.0], [64.0]]
    again = MetricBuffer()
    again.restore(scene.loop.state.snapshot(9.0))
    again.add_batch_size(0, 64)
    assert again.flush(9.0) == [], "a restart is no change"


def test_there_is_always_room_for_what_decisions_are_made_of():
    measures = MetricBuffer()
    for number in range(MAX_NAMES):
        measures.add(Metric(number, 1, f"name-{number}", 1.0), f"user-{number}")
    for name in REPORTED:
        measures.add(Metric(0, 1, name, 1.0))
    assert {event.name for event in measures.flush(1.0)} >= set(REPORTED)


def test_a_task_says_that_it_is_elastic():
    task = parse_task({"run": "python x.py", "mode": "elastic", "workers": 2}, "task")
    assert task.job("a", "ann").mode == ELASTIC
    assert parse_task({"run": "true"}, "task").job("a", "ann").mode == "static"
    with pytest.raises(InputError, match="field 'mode' is 'rubber'"):
        parse_task({"run": "true", "mode": "rubber"}, "task")


@pytest.mark.parametrize("preset", ["optimus", "pollux"])
def test_elastic_presets_measure_on_a_real_cluster(preset):
    stages = compose(scheduler_of({"preset": preset}).to_data())
    assert type(stages.estimator).__name__ == "Measured"
    with pytest.raises(InputError, match=r"'fitted': expected an estimator without a throughput table, .*: measured$"):
        compose(scheduler_of({"preset": preset, "estimator": "fitted"}).to_data())
