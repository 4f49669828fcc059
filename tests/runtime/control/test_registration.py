"""Agents of nodes that the cluster does not have: their sessions begin when their nodes are in the journal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.cluster import MAX_TYPES, AcceleratorType, Cluster, Node
from fairlead.core.events import Event, NodeAdded
from fairlead.engine.codec import decode, encode
from fairlead.runtime.control import agent_hub
from fairlead.runtime.control.agent_hub import AGENT_TYPES, AgentHub
from fairlead.runtime.control.node_roster import NodeRoster
from fairlead.runtime.protocol import messages as ms


class Backend:
    """In the place of the loop's: events are in the journal at `commit`."""

    def __init__(self) -> None:
        self.roster = NodeRoster(Cluster(()))
        self.joined: list[int] = []
        self.events: list[Event] = []
        self._answers: list[Callable[[], None]] = []

    def add_node(self, spec: Any, type_: Any, answer: Callable[[Any], None], max_types: int) -> None:
        found = self.roster.add(0.0, spec, type_, max_types)
        self.events += found
        self._answers.append(lambda: answer(found))

    def agent_joined(self, node: int, found: object, accept: object, stay: object = None) -> None:
        self.joined.append(node)

    def commit(self) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def hub(backend: Backend) -> AgentHub:
    hub = AgentHub(lambda: backend.roster.cluster, post=lambda call: call())
    hub.backend = backend  # type: ignore[assignment]
    return hub


def hello(identity: str = "a" * 32, **about: Any) -> ms.Hello:
    return ms.Hello("n1", **{"type": "H200", "accelerators": 8, "incarnation": 1, "identity": identity, **about})


def test_a_session_begins_when_the_node_is_in_the_journal(hub: AgentHub, backend: Backend) -> None:
    received: list[ms.FromControl | None] = []
    session = hub.welcome(hello(cpus=192, memory_gb=2000, gpu_memory_gb=139.8, rack="r7"), received.append)
    assert session is not None
    assert received == []
    assert hub.receive(session, ms.Heartbeat()), "an early message is no reason to end the stream"
    assert not hub.connected
    backend.commit()
    assert received == [ms.Welcome(15.0)]
    assert (backend.joined, hub.connected) == ([0], {0})
    [added] = backend.events
    assert isinstance(added, NodeAdded)
    assert (added.spec.name, added.spec.type, added.spec.accelerators) == ("n1", "h200", 8)
    assert (added.spec.cpus, added.spec.memory_gb, added.spec.rack) == (192, 2000, "r7")
    assert added.type is not None
    assert added.type.memory_gb == 139.8
    assert hub.receive(session, ms.Heartbeat())


def test_what_an_agent_does_not_know_is_not_limited(hub: AgentHub, backend: Backend) -> None:
    hub.welcome(hello(type="novel"), lambda message: None)
    [added] = backend.events
    assert isinstance(added, NodeAdded)
    assert (added.spec.cpus, added.spec.memory_gb) == (math.inf, math.inf)
    assert added.type is not None
    assert added.type.memory_gb == math.inf


def test_what_the_catalogue_knows_of_a_type_is_as_a_journal_has_it(hub: AgentHub, backend: Backend) -> None:
    hub.welcome(hello(type="a100"), lambda message: None)
    [added] = backend.events
    assert repr(decode(encode(added))) == repr(added), "a state and its replay have the same digest"


def test_of_two_new_agents_with_one_name_the_second_is_refused(hub: AgentHub, backend: Backend) -> None:
    first: list[Any] = []
    second: list[Any] = []
    hub.welcome(hello(), first.append)
    hub.welcome(hello("b" * 32), second.append)
    backend.commit()
    assert first == [ms.Welcome(15.0)]
    assert isinstance(second[0], ms.Refused)
    assert "another root folder" in second[0].why
    assert second[1:] == [None]
    assert (len(backend.events), backend.joined) == (1, [0])


def test_an_agent_that_connects_again_meanwhile_waits_for_the_journal_too(hub: AgentHub, backend: Backend) -> None:
    lost: list[Any] = []
    again: list[Any] = []
    session = hub.welcome(hello(), lost.append)
    assert session is not None
    hub.leave(session)
    hub.welcome(hello(), again.append)
    assert again == [], "a credential for a node that is not in the journal would be refused after a crash"
    backend.commit()
    assert (lost, again) == ([], [ms.Welcome(15.0)])
    assert (len(backend.events), backend.joined) == (1, [0])


def test_an_agent_that_has_left_meanwhile_gets_no_session(hub: AgentHub, backend: Backend) -> None:
    received: list[Any] = []
    session = hub.welcome(hello(), received.append)
    assert session is not None
    hub.leave(session)
    backend.commit()
    assert (received, backend.joined) == ([], [])
    again: list[Any] = []
    hub.welcome(hello(), again.append)
    assert again == [ms.Welcome(15.0)], "the node is known now"


def test_an_agent_with_jobs_of_another_journal_does_not_add_its_node(hub: AgentHub, backend: Backend) -> None:
    hub.journal = "mine"
    assert hub.welcome(hello(journal="another"), lambda message: None) is None
    assert backend.events == []


@pytest.mark.parametrize("about", [{"type": "x" * 129}, {"type": "Ä100"}, {"type": "x\n"}, {"accelerators": 10_001}])
def test_an_agent_cannot_add_a_node_that_an_admin_could_not_add(hub: AgentHub, backend: Backend, about: dict[str, Any]) -> None:
    with pytest.raises(ms.BadMessage, match="cannot have"):
        hub.welcome(hello(**about), lambda message: None)
    assert backend.events == []


def connect(hub: AgentHub, backend: Backend, node: str, type_: str = "h200") -> Any:
    """The last message that the agent of a new node receives."""
    received: list[Any] = []
    hub.welcome(ms.Hello(node, type_, 1, 1, identity=node.rjust(32, "-")), received.append)
    backend.commit()
    return received[0]


def test_a_cluster_has_no_more_nodes_than_its_limit(hub: AgentHub, backend: Backend) -> None:
    backend.roster.max_nodes = 2
    assert [type(connect(hub, backend, name)) for name in ("n1", "n2", "n3")] == [ms.Welcome, ms.Welcome, ms.Refused]
    assert "2 nodes" in connect(hub, backend, "n4").why


def test_agents_use_up_neither_all_gpu_types_nor_those_of_operators(hub: AgentHub, backend: Backend) -> None:
    answers = [connect(hub, backend, f"n{number}", f"type{number}") for number in range(MAX_TYPES)]
    assert [type(one) for one in answers].count(ms.Welcome) == AGENT_TYPES < MAX_TYPES
    assert "fairlead nodes add n62 type62:1" in answers[-1].why
    assert isinstance(connect(hub, backend, "n63", "type0"), ms.Welcome), "a known type is no new one"
    assert backend.roster.add(0.0, Node("mine", "type62", 1), AcceleratorType("type62")), "operators can add more"


def test_of_too_many_new_nodes_the_last_connect_again_later(
    hub: AgentHub, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(hub.host, "monotonic", lambda: now)
    monkeypatch.setattr(agent_hub, "NEW_NODES_BURST", 3)
    assert [connect(hub, backend, f"n{number}") for number in range(4)][2:] == [ms.Welcome(15.0), None]
    assert connect(hub, backend, "n1") == ms.Welcome(15.0), "a known node is no new one"
    now = 1 / agent_hub.NEW_NODES_PER_S + 1e-6
    assert connect(hub, backend, "n3") == ms.Welcome(15.0)


def test_a_list_of_running_launches_has_a_bound(hub: AgentHub) -> None:
    with pytest.raises(ms.BadMessage, match="100,001 launches"):
        hub.welcome(hello(running=((1, 1),) * 100_001), lambda message: None)
