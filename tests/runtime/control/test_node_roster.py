"""Nodes that join and leave a running cluster: the real backend on emulated agents, with restarts in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from emulated_agents import ROUND, Scene

from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Drain, Node
from fairlead.core.job import Job, Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.inbox import Refusal
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.control.views import node_records
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol.orders import Ended, Launch, Revoke
from fairlead.testing.builders import cluster

PATIENCE_S = 120.0
SPEC, K80 = Node("k80-1", "k80", 2), AcceleratorType("k80", 12.0)


def scene_of(machines: str = "v100:2", before: Scene | None = None, second: float = 0.0) -> Scene:
    """A scene; after another one, with its journal."""
    given: dict[str, Any] = {"estimator": "measured"}
    if before is None:
        return Scene(machines, **given)
    scene = Scene(state=replay_events(before.journal), journal=before.journal, **given)
    scene.second = second
    return scene


def answer_of(scene: Scene) -> Any:
    """The answer to the last request, which `at` has let the loop handle."""
    return scene.answers[-1]


def test_a_node_joins_runs_a_job_is_drained_and_removed_with_restarts_in_between():
    scene = scene_of()
    scene.join(0)
    scene.backend.add_node(SPEC, K80, scene.answers.append)
    scene.backend.add_node(SPEC, K80, scene.answers.append)
    scene.at(0.0)
    scene.at(0.5)
    added, twice = scene.answers
    assert added == [ev.NodeAdded(0.0, 1, SPEC, K80)]
    assert isinstance(twice, Refusal)
    assert (list(twice), twice.why) == ([], "the cluster already has a node 'k80-1'")
    assert scene.loop.state.capacity.tolist() == [2, 0]

    scene = scene_of(before=scene, second=1.0)
    assert [node.name for node in scene.backend.cluster.nodes] == ["v100-0", "k80-1"]
    scene.backend.agent_joined(0, ())
    scene.reconcile()
    scene.backend.agent_joined(1, ())
    scene.job("a", allowed_types=("k80",), workers=2)
    orders = scene.at(ROUND)
    assert [(node, type(order)) for node, order in orders] == [(1, Launch)]
    assert orders[0][1].accelerators == (0, 1)
    scene.backend.remove_node(1, scene.answers.append)
    scene.at(ROUND + 1)
    scene.at(ROUND + 2)
    assert answer_of(scene).why == "jobs run on node 'k80-1': drain it first, or use 'fairlead nodes remove k80-1 --drain'"

    scene = scene_of(before=scene, second=ROUND + 3)
    scene.backend.agent_joined(0, ())
    scene.backend.agent_joined(1, ((0, 1),))
    scene.reconcile()
    scene.backend.drain(1, False, scene.answers.append, Drain("disk", "ann"))
    assert (1, Revoke(0, 1)) in scene.at(2 * ROUND)
    assert scene.phase(0) is Phase.WAITING
    scene.backend.remove_node(1, scene.answers.append)
    scene.at(2 * ROUND + 1)
    scene.at(2 * ROUND + 2)
    assert isinstance(answer_of(scene), Refusal), "the job is still leaving"
    scene.backend.report(1, [Ended(0, 1, 0, True, 0, 5)])
    scene.backend.remove_node(1, scene.answers.append)
    scene.at(2 * ROUND + 3)
    assert scene.wire.removed == [], "not before the event is in the journal"
    scene.at(2 * ROUND + 4)
    assert (answer_of(scene), scene.wire.removed) == ([ev.NodeRemoved(2 * ROUND + 3, 1)], [1])
    for late in (
        lambda: scene.backend.agent_joined(1, ()),
        lambda: scene.backend.agent_lost(1),
        lambda: scene.backend.drain(1, True, scene.answers.append),
        lambda: scene.backend.remove_node(1, scene.answers.append),
    ):
        late()
    scene.at(2 * ROUND + 5)
    scene.at(2 * ROUND + 6)
    assert [one.why for one in scene.answers[-2:]] == ["node 'k80-1' was removed", "node 'k80-1' was already removed"]
    assert scene.loop.state.capacity.tolist() == [2, 0]
    scene.check()

    scene = scene_of(before=scene, second=2 * ROUND + 7)
    scene.backend.agent_joined(0, ())
    scene.reconcile()
    scene.backend.add_node(SPEC, K80, scene.answers.append)
    scene.at(2 * ROUND + 8)
    scene.backend.agent_joined(1, ())
    launched = [(node, order) for node, order in scene.at(3 * ROUND) if isinstance(order, Launch)]
    assert [(node, order.job, order.generation) for node, order in launched] == [(1, 0, 2)]
    assert answer_of(scene) == [ev.NodeAdded(2 * ROUND + 8, 1, SPEC)]
    scene.check()


def test_a_drain_ends_by_itself_also_after_a_restart_and_a_later_one_replaces_its_end():
    scene = scene_of("v100:2,v100:2,v100:2")
    scene.join()
    for node, until_s in ((0, 25.0), (1, 25.0), (2, 5.0)):
        scene.backend.drain(node, False, scene.answers.append, Drain("disk", "ann", until_s))
    scene.at(1.0)
    assert scene.loop.state.drains[2] == Drain("disk", "ann", 5.0)
    scene.backend.drain(1, False, scene.answers.append, Drain("fan", "ben", 45.0))
    scene.at(6.0)
    assert sorted(scene.loop.state.drains.items()) == [(0, Drain("disk", "ann", 25.0)), (1, Drain("fan", "ben", 45.0))]
    scene = scene_of(before=scene, second=26.0)
    for node in range(3):
        scene.backend.agent_joined(node, ())
    scene.reconcile()
    scene.at(27.0)
    assert scene.loop.state.drains == {1: Drain("fan", "ben", 45.0)}
    assert scene.loop.state.capacity.tolist() == [4]
    scene.at(46.0)
    assert scene.loop.state.capacity.tolist() == [6]
    scene.check()


@pytest.mark.parametrize("how", ["ended", "lost"])
def test_a_node_on_which_a_part_of_a_gang_is_over_is_removed_when_the_gang_is(how: str):
    scene = scene_of("v100:2,v100:2")
    scene.join()
    scene.job("gang", workers=3)
    scene.at(0.0)
    over = Ended(0, 1, 1, False, 0, 0, "defect")
    if how == "ended":
        scene.backend.report(1, [over])
    else:
        scene.backend.agent_lost(1)
    scene.backend.remove_node(1, scene.answers.append)
    scene.at(1.0)
    scene.at(2.0)
    assert isinstance(answer_of(scene), Refusal)
    assert len(scene.loop.state.device_map.of(0)) == 3, "the state has it on both nodes"
    scene.backend.report(0, [over])
    scene.backend.remove_node(1, scene.answers.append)
    scene.at(3.0)
    scene.at(4.0)
    assert answer_of(scene) == [ev.NodeRemoved(3.0, 1)]
    scene.check()


def test_a_removed_node_is_not_awaited_after_a_restart():
    scene = scene_of("v100:2,v100:2")
    scene.join()
    scene.job("a", workers=2)
    scene.at(0.0)
    idle = 1 - int(scene.loop.state.cluster.node_of[scene.loop.state.device_map.of(0)[0]])
    scene.backend.remove_node(idle, scene.answers.append)
    scene.at(0.5)
    scene = scene_of(before=scene, second=1.0)
    scene.backend.agent_joined(1 - idle, ((0, 1),))
    scene.reconcile()  # it would wait for ever
    assert scene.loop.state.cluster.nodes[idle].removed
    scene.check()


def test_the_session_of_a_removed_node_is_closed_and_its_agent_refused():
    machines, sent = [cluster("v100:2,v100:2")], list[Any]()
    hub = AgentHub(lambda: machines[0], post=lambda call: call())
    hub.backend = type("Backend", (), {"agent_joined": lambda *_: None})()
    hello = ms.Hello("v100-1", type="v100", accelerators=2, incarnation=1)
    bearer = Bearer(Role.NODE, "v100-1")
    assert hub.welcome(hello, sent.append, bearer) is not None
    assert hub.connected == {1}
    machines[0] = machines[0].with_node(1, Node("v100-1", "v100", 2, removed=True))
    hub.remove(1)
    assert (sent[-1], hub.connected, hub.expire()) == (None, frozenset(), 1.0)
    with pytest.raises(ms.BadMessage, match="node 'v100-1' is not in the cluster, or was removed"):
        hub.welcome(hello, sent.append, bearer)
    machines[0] = machines[0].with_node(2, Node("v100-1", "v100", 4))
    session = hub.welcome(ms.Hello("v100-1", type="v100", accelerators=4, incarnation=1), sent.append, bearer)
    assert session is not None
    assert session.node == 2


def test_a_control_plane_begins_without_nodes_and_serves_those_that_are_added():
    journal = MemoryJournal()
    plane = ControlPlane(Cluster(()), {"policy": "las", "rounds": 0.2}, compose, journal, lease_s=1000.0)

    async def until(reached: Any) -> None:
        while True:
            with plane.backend.at_rest():
                if reached():
                    return
            assert plane.failure is None
            await asyncio.sleep(0.02)

    async def story() -> None:
        await plane.start()
        try:
            state = plane.loop.state
            plane.backend.submit_jobs([Job("early", command='{"run": ["true"]}')], lambda events: None)
            plane.backend.submit_jobs([Job("large", workers=99)], lambda events: None)
            await until(lambda: plane.loop.decisions > 0 and len(state.queue) == 2)
            assert (str(plane.cluster), node_records(plane)) == ("no nodes", [])
            plane.backend.add_node(SPEC, K80, lambda events: None)
            await until(lambda: len(plane.cluster.nodes) == 1)
            plane.backend.agent_joined(0, ())
            await until(lambda: len(state.running) == 1)
            assert [(one["name"], one["jobs"]) for one in node_records(plane)] == [("k80-1", ["early"])]
            await until(lambda: {"early": ["k80-1"]} in [one["launched"] for one in plane.decisions.records(state)])
            assert state.queue.tolist() == [1], "a larger node may join"
            assert not state.refusals
        finally:
            await plane.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert plane.failure is None
    assert replay_events(journal).digest() == plane.loop.state.digest()
