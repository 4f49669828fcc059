"""Agents that say how long they stay and when they leave: what becomes of their nodes, on the real backend."""

from __future__ import annotations

from datetime import datetime

import pytest
from emulated_agents import ROUND, Scene, begun

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Drain, Node
from fairlead.core.job import Phase
from fairlead.engine.apply import replay_events
from fairlead.runtime.control.node_roster import AGENT, AGENT_LEAVES, AgentStay, NodeRoster
from fairlead.runtime.protocol.orders import Ended, Launch
from fairlead.testing.builders import cluster

OPERATOR = Drain("new disks", "root")
LATER = Drain("new disks", "root", None, 500.0)


def restarted(scene: Scene, second: float) -> Scene:
    again = Scene(state=replay_events(scene.journal), journal=scene.journal)
    again.second = second
    return again


def test_the_node_of_an_agent_that_leaves_is_drained_at_once_and_free_when_it_has_left() -> None:
    scene = begun("moves", "v100:2,k80:2", allowed_types=("v100",), steps=100.0)
    scene.backend.agent_leaving(0)
    scene.at(1.0)
    assert scene.loop.state.drains == {0: AGENT_LEAVES}
    scene.backend.report(0, [Ended(0, 1, 0, True, 9, 9)])
    scene.backend.agent_lost(0)
    scene.at(2.0)
    assert scene.phase(0) is Phase.WAITING
    assert scene.loop.state.columns["base_steps"][0] == 9, "what it has saved"
    lost = [event for event in scene.journal if isinstance(event, ev.NodeLost) and event.node == 0]
    assert lost[-1].time == 2.0
    scene.backend.agent_joined(0, ())
    orders = scene.at(ROUND)
    assert scene.loop.state.drains == {}
    assert [type(order) for _, order in orders] == [Launch]
    scene.check()


@pytest.mark.parametrize("drain", [OPERATOR, LATER])
def test_a_drain_by_an_operator_outlives_the_agent(drain: Drain) -> None:
    scene = Scene()
    scene.join()
    scene.backend.drain(0, False, drain=drain)
    scene.at(1.0)
    scene.backend.agent_leaving(0)
    scene.at(2.0)
    assert scene.loop.state.drains == {0: OPERATOR if drain is OPERATOR else AGENT_LEAVES}
    scene.backend.agent_lost(0)
    scene.backend.agent_joined(0, ())
    scene.at(3.0)
    assert scene.loop.state.drains == {0: drain}
    scene.check()


def test_a_node_is_drained_before_its_allocation_ends_and_a_later_end_moves_that() -> None:
    roster, day_s = NodeRoster(cluster("v100:2")), datetime(2026, 5, 1, 12, 0).timestamp()
    (drained,) = roster.agent_joined(100.0, 0, AgentStay(3600.0, 35.0), 60.0, day_s)
    assert drained == ev.NodeDrained(100.0, 0, False, "its allocation ends at 13:00", AGENT, None, 3605.0)
    assert roster.agent_joined(101.0, 0, AgentStay(3599.0, 35.0), 60.0, day_s + 1) == [], "it has only connected again"
    undone, later = roster.agent_joined(200.0, 0, AgentStay(7200.0, 35.0), 60.0, day_s)
    assert undone.undo
    assert (later.reason, later.from_s) == ("its allocation ends at 14:00", 7305.0)
    assert roster.due_drains(7304.0) == []
    (begins,) = roster.due_drains(7305.0)
    assert (begins.undo, begins.from_s, begins.reason) == (False, None, "its allocation ends at 14:00")
    (ends,) = roster.agent_joined(8000.0, 0, AgentStay(), 60.0, day_s)
    assert ends.undo
    (now,) = roster.agent_joined(8001.0, 0, AgentStay(40.0, 35.0), 60.0, day_s)
    assert now.from_s is None, "there is no time left for another round"


def test_an_operators_earlier_drain_stays_when_an_allocation_ends_later() -> None:
    roster = NodeRoster(cluster("v100:2"))
    roster.drain(0.0, 0, False, LATER)
    assert roster.agent_joined(1.0, 0, AgentStay(9000.0), 60.0, 0.0) == []
    (drained,) = roster.agent_joined(1.0, 0, AgentStay(300.0), 60.0, 0.0)
    assert drained.from_s == 241.0
    (former,) = roster.agent_joined(2.0, 0, AgentStay(), 60.0, 0.0)
    assert Drain(former.reason, former.by, former.until_s, former.from_s) == LATER


@pytest.mark.parametrize("restarts", [False, True])
def test_a_temporary_node_is_removed_when_its_agent_has_left_and_no_job_is_there(restarts: bool) -> None:
    scene = Scene("k80:2")
    scene.join(0)
    spec = Node("pilot-1", "k80", 2, temporary=True)
    scene.backend.add_node(spec, None)
    scene.at(0.0)
    scene.backend.agent_joined(1, (), stay=AgentStay(temporary=True))
    scene.job("gang", workers=3, steps=100.0)
    scene.at(ROUND)
    assert scene.phase(0) is Phase.RUNNING
    if restarts:
        scene = restarted(scene, ROUND + 1)
        scene.backend.agent_joined(0, ((0, 1),))
        scene.backend.agent_lost(1)
        scene.reconcile()
    else:
        scene.backend.agent_lost(1)
    scene.at(ROUND + 2)
    assert not scene.backend.cluster.nodes[1].removed, "the rest of the gang still runs"
    scene.backend.report(0, [Ended(0, 1, -9, False, 5, 5)])
    scene.at(ROUND + 3)
    scene.at(ROUND + 4)
    assert scene.loop.state.cluster.nodes[1].removed
    assert scene.wire.removed == [1]
    scene.check()
    scene.backend.add_node(spec, None, scene.answers.append)
    scene.at(ROUND + 5)
    assert scene.backend.cluster.number_of_node["pilot-1"] == 1, "the next pilot has its number"


def test_a_temporary_node_whose_agent_is_gone_after_a_restart_is_removed() -> None:
    scene = Scene("k80:2")
    scene.join(0)
    scene.backend.add_node(Node("pilot-1", "k80", 2, temporary=True), None)
    scene.at(0.0)
    again = restarted(scene, 1.0)
    again.backend.agent_joined(0, ())
    again.reconcile()
    again.at(2.0)
    assert again.loop.state.cluster.nodes[1].removed
    again.check()


def test_a_journal_without_temporary_nodes_reads_as_before() -> None:
    from fairlead.engine.codec import decode, encode

    for spec in (Node("a", "v100", 2), Node("a", "v100", 2, temporary=True)):
        data = encode(ev.NodeAdded(1.0, 0, spec, None))
        assert (b"temporary" in data) == spec.temporary
        assert decode(data).spec == spec
    assert Cluster((Node("a", "v100", 2),)).nodes[0].temporary is False
