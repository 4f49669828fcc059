"""Agents of one launch each, which an engine starts: what they are given, and when a part of a launch counts as over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.core.cluster import Cluster, Node
from fairlead.core.errors import FairleadError
from fairlead.core.events import NodeAdded
from fairlead.core.job import LAUNCH_FAILED
from fairlead.engine.codec import decode, encode
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.agent_sessions import PartSession
from fairlead.runtime.control.engine_hub import MAX_STARTS, PREPARE_WITHIN_S, START_WITHIN_S, EngineHub
from fairlead.runtime.control.engines import Engines
from fairlead.runtime.control.inbox import Refusal
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.runtime.drivers.base import (
    Capabilities,
    EngineTask,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)
from fairlead.runtime.host import Host
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od
from fairlead.testing.builders import cluster

LEASE_S, GRACE_S = 10.0, 5.0
KEY = LaunchKey("j", 7, 1, "v100-0")


class Clock(Host):
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


class Backend:
    """In the place of the loop's: it remembers, and answers at once."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.sent: list[tuple[int, int]] = []
        self.launches = SimpleNamespace(sent_to=lambda node: list(self.sent))
        self.now = 0.0

    def agent_joined(self, node: int, found: Any, accept: Callable[[], None] = lambda: None, stay: object = None) -> None:
        accept()
        self.heard.append(("joined", node, tuple(found() if callable(found) else found)))

    def agent_lost(self, node: int, silent_s: float = 0.0) -> None:
        self.heard.append(("lost", node))

    def part_lost(self, node: int, launch: tuple[int, int], silent_s: float = 0.0) -> None:
        self.heard.append(("part lost", node, launch))

    def report(self, node: int, reports: Sequence[od.Report], answer: Callable[[], None] = lambda: None) -> None:
        self.heard.extend(("report", node, one) for one in reports)
        answer()

    def drain(self, node: int, undo: bool, **about: Any) -> None:
        self.heard.append(("undrain" if undo else "drain", node, about["drain"].reason))

    def remove_node(self, node: int) -> None:
        self.heard.append(("removed", node))

    def take(self) -> list[tuple[Any, ...]]:
        heard, self.heard = self.heard, []
        return heard


class Calls:
    """In the place of the thread that speaks to the engine."""

    problem = ""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        self.made.append(("start", parts, needs))

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        self.made.append(("stop", key))

    def forget(self, key: LaunchKey) -> None:
        self.made.append(("forget", key))

    def observe_soon(self) -> None:
        pass

    def take(self) -> list[tuple[Any, ...]]:
        made, self.made = self.made, []
        return made


class Scene:
    def __init__(self, machines: str = "v100:4", tokens: Tokens | None = None, owner: str = "slurm") -> None:
        self.clock, self.backend, self.calls = Clock(), Backend(), Calls()
        nodes = cluster(machines)
        self.nodes = Cluster(tuple(replace(node, engine=owner) for node in nodes.nodes), nodes.types)
        self.hub = AgentHub(lambda: self.nodes, LEASE_S, GRACE_S, tokens, self.clock, journal="j", post=lambda call: call())
        self.hub.backend = self.backend  # type: ignore[assignment]
        self.engine, self.other = self._engine("slurm", tokens), self._engine("kubernetes", tokens)
        self.hub.engines = Engines([self.engine, self.other])
        self.machines = [Machine(node.name, node.type, node.accelerators) for node in nodes.nodes]

    def _engine(self, name: str, tokens: Tokens | None) -> EngineHub:
        driver: Any = SimpleNamespace(name=name, capabilities=Capabilities())
        engine = EngineHub(driver, self.hub, lambda key: tokens.launch_token(key.text) if tokens else "")
        engine.thread = self.calls  # type: ignore[assignment]
        engine.nodes.observe_soon = self.calls.observe_soon
        return engine

    def home_agent(self) -> list[Any]:
        """An agent of a node, for all its launches."""
        said: list[Any] = []
        bearer = Bearer(Role.AGENT, "") if self.hub.tokens is None else self.hub.admit(self.hub.tokens.issue(Role.AGENT, "all"))
        self.hub.welcome(ms.Hello("v100-0", "v100", 4, 1, identity="h", keeps_credential=True), said.append, bearer)
        return said

    def observe(self, *tasks: EngineTask, machines: Sequence[Machine] | None = None) -> None:
        self.engine._observe(self.machines if machines is None else machines, tasks)

    def begin(self) -> None:
        self.observe()
        self.backend.take()

    def launch(self, **about: Any) -> od.Launch:
        values: dict[str, Any] = {"ranks": (0, 1), "accelerators": (2, 3), "world_size": 2, **about}
        return od.Launch(7, 1, "train", od.Task(("true",), engines={"slurm": {"qos": "high"}}), **values)

    def accepted(self) -> list[LaunchPart]:
        parts = [part for call in self.calls.take() if call[0] == "start" for part in call[1]]
        self.engine._accepted(parts)
        return parts

    def agent(
        self, node: str = "v100-0", identity: str = "a", running: bool = False, address: str = "10.0.0.1"
    ) -> tuple[PartSession, list[Any]]:
        said: list[Any] = []
        known = ((7, 1),) if running else ()
        hello = ms.Hello(node, "v100", 2, 1, address, known, identity=identity, launch=(7, 1))
        session = self.hub.welcome(hello, said.append)
        assert isinstance(session, PartSession)
        return session, said

    def ended(self, session: PartSession, code: int = 0) -> None:
        self.hub.receive(session, ms.ReportBatch(1, (od.Ended(7, 1, code, False, 5, 5),)))
        self.hub.leave(session)


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without those of libraries, which may log in other threads."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("fairlead")]


def orders(said: list[Any]) -> list[od.Order]:
    return [order for message in said if isinstance(message, ms.OrderBatch) for order in message.orders]


def test_a_launch_is_given_to_the_agent_that_the_engine_started():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    ((_, (part,), needs),) = scene.calls.take()
    assert (part.key, part.accelerators, needs.name, needs.options) == (KEY, (2, 3), "train", {"qos": "high"})
    assert part.arguments[:5] == ("agent", "--launch", "7.1", "--node", "v100-0")
    assert "v100:2" in part.arguments
    scene.engine._accepted([part])
    session, said = scene.agent()
    (launch,) = orders(said)
    assert isinstance(launch, od.Launch)
    assert (launch.ranks, launch.accelerators, launch.task.engines) == ((0, 1), (0, 1), {})
    scene.ended(session)
    assert [heard[2].code for heard in scene.backend.take()] == [0]
    assert ms.Acknowledged(1) in said
    assert scene.calls.take() == [("forget", KEY)]
    with pytest.raises(ms.BadMessage, match="is over"):
        scene.agent(identity="b")


def test_a_second_agent_of_the_same_launch_is_refused():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.agent()
    with pytest.raises(ms.BadMessage, match="started it twice"):
        scene.agent(identity="b")
    _, said = scene.agent(running=True)  # the first one again, after its stream broke
    assert orders(said) == []


def test_an_agent_that_did_not_get_its_launch_gets_it_again():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.agent()
    _, said = scene.agent()
    assert len(orders(said)) == 1


@pytest.mark.parametrize("order", [od.Revoke(7, 1), od.Kill(7, 1)])
def test_a_launch_that_was_not_given_out_is_over_at_once_when_it_is_withdrawn(order):
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    scene.hub.send(0, order)
    ((_, _, ended),) = scene.backend.take()
    assert (ended.code, ended.yielded) == (LAUNCH_FAILED, True)
    assert scene.calls.take() == [("stop", KEY)]
    with pytest.raises(ms.BadMessage, match="is over"):
        scene.agent()


def test_orders_reach_an_agent_again_that_connects_again():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    session, said = scene.agent()
    scene.hub.send(0, od.Revoke(7, 1))
    assert orders(said)[1:] == [od.Revoke(7, 1)]
    scene.hub.leave(session)
    _, again = scene.agent(running=True)
    assert orders(again) == [od.Revoke(7, 1)]


def test_what_ends_before_its_agent_connects_could_not_start_and_the_engine_is_quoted():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    scene.observe(EngineTask(KEY, TaskState.WAITING, reason="Resources"))
    assert scene.backend.take() == []
    scene.observe(EngineTask(KEY, TaskState.OVER, 1, "no such image"))
    ((_, _, ended),) = scene.backend.take()
    assert ended.could_not_start
    assert ended.why == "slurm: its agent ended with status 1: no such image"


def test_what_waits_for_too_long_in_the_engine_is_tried_elsewhere():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    waits = EngineTask(KEY, TaskState.WAITING, reason="Priority")
    scene.clock.now += START_WITHIN_S - 1
    scene.observe(waits)
    assert scene.backend.take() == []
    scene.clock.now += 2
    scene.observe(waits)
    ((_, _, ended),) = scene.backend.take()
    assert ended.could_not_start
    assert "Priority" in ended.why


def test_a_part_whose_machine_pulls_a_large_image_has_more_time():
    scene = Scene("v100:4,v100:4")
    scene.begin()
    for node, ranks in ((0, (0, 1)), (1, (2, 3))):
        scene.hub.send(node, scene.launch(ranks=ranks, nodes=2, world_size=4))
    scene.accepted()
    other = KEY._replace(machine="v100-1")
    pulls = EngineTask(KEY, TaskState.WAITING, reason="ContainerCreating", preparing=True)
    scene.observe(pulls, EngineTask(other, TaskState.RUNNING))
    _, said = scene.agent("v100-1", address="10.0.0.2")
    for _ in range(5):
        scene.clock.now += START_WITHIN_S
        scene.observe(pulls, EngineTask(other, TaskState.RUNNING))
    scene.clock.now += 2  # it runs, and its agent is about to connect
    scene.observe(EngineTask(KEY, TaskState.RUNNING), EngineTask(other, TaskState.RUNNING))
    assert scene.backend.take() == []
    scene.agent(identity="b")
    assert orders(said)


def test_a_machine_that_prepares_a_part_without_end_is_given_up():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    pulls = EngineTask(KEY, TaskState.WAITING, reason="ContainerCreating", preparing=True)
    began = scene.clock.now
    while not (heard := scene.backend.take()):
        scene.clock.now += 60
        scene.observe(pulls)
    assert heard[0][2].could_not_start
    assert PREPARE_WITHIN_S < scene.clock.now - began <= PREPARE_WITHIN_S + START_WITHIN_S + 120


def test_what_its_job_is_to_blame_for_counts_as_a_failure_of_the_job_and_not_of_the_node():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    waits = EngineTask(KEY, TaskState.WAITING, reason="ImagePullBackOff: typo:1", own_fault=True)
    scene.observe(waits)
    assert scene.engine.not_begun(7) == {"v100-0": "ImagePullBackOff: typo:1"}
    assert scene.engine.not_begun(8) == {}
    scene.calls.problem = "the token has expired"
    assert scene.engine.not_begun(7) == {"v100-0": "slurm is unavailable: the token has expired"}
    scene.clock.now += START_WITHIN_S + 1
    scene.observe(waits)
    ((_, _, ended),) = scene.backend.take()
    assert (ended.code, ended.yielded, ended.permanent) == (LAUNCH_FAILED, False, False)
    assert "ImagePullBackOff: typo:1" in ended.why


@pytest.mark.parametrize("order", [od.Revoke, od.Kill])
def test_a_launch_that_is_withdrawn_while_its_image_is_missing_is_no_failure_of_its_job(order):
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    scene.observe(EngineTask(KEY, TaskState.WAITING, reason="ImagePullBackOff: typo:1", own_fault=True, preparing=True))
    scene.hub.send(0, order(7, 1))
    ((_, _, ended),) = scene.backend.take()
    assert (ended.code, ended.yielded) == (LAUNCH_FAILED, True)


@pytest.mark.parametrize("seen", [(), (EngineTask(KEY, TaskState.UNKNOWN),)])
def test_what_disappeared_before_it_was_given_is_started_again_at_once(seen):
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    scene.observe(EngineTask(KEY, TaskState.WAITING))
    scene.observe(*seen)
    stopped, (what, (part,), needs) = scene.calls.take()
    assert (stopped, what, part.key, needs.name) == (("stop", KEY), "start", KEY, "train")
    scene.observe(*seen)
    assert scene.calls.take() == [], "it was asked for, and the engine has not accepted it yet"
    scene.engine._accepted([part])
    session, said = scene.agent()
    assert len(orders(said)) == 1
    assert scene.backend.take() == []
    scene.hub.leave(session)
    scene.observe(EngineTask(KEY, TaskState.OVER))
    assert scene.backend.take() == [], "the launch may be with an agent of the object that disappeared"
    scene.clock.now += LEASE_S + GRACE_S
    scene.hub.expire()
    assert scene.backend.take() == [("part lost", 0, (7, 1))]


def test_what_disappears_again_and_again_is_tried_elsewhere():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    for _ in range(MAX_STARTS):
        assert scene.backend.take() == []
        assert len(scene.accepted()) == 1
        scene.observe(EngineTask(KEY, TaskState.WAITING))
        scene.observe()
    ((_, _, ended),) = scene.backend.take()
    assert ended.could_not_start


def test_one_part_of_a_gang_is_started_again_alone_also_if_its_agent_was_there():
    scene = Scene("v100:2,v100:2")
    scene.begin()
    for node in range(2):
        scene.hub.send(node, scene.launch(ranks=(2 * node, 2 * node + 1), world_size=4, nodes=2, accelerators=(0, 1)))
    scene.accepted()
    second = KEY._replace(machine="v100-1")
    both = [EngineTask(key, TaskState.RUNNING) for key in (KEY, second)]
    session, _ = scene.agent("v100-1", "b")  # it waits for the address of the first
    scene.observe(*both)
    scene.observe(both[0])
    assert scene.calls.take() == [], "its agent is connected"
    scene.hub.leave(session)
    scene.observe(both[0])
    assert [part.key for part in scene.accepted()] == [second]
    _, said = scene.agent("v100-1", "c")
    scene.agent("v100-0", "a")
    assert len(orders(said)) == 1


@pytest.mark.parametrize("there", [False, True])
def test_what_waits_on_a_machine_that_is_gone_or_unreachable_is_tried_elsewhere_at_once(there):
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    waits = EngineTask(KEY, TaskState.WAITING)
    scene.observe(waits, machines=[Machine("v100-0", "v100", 4, MachineState.UNREACHABLE)] if there else [])
    (_, _, ended), *others = scene.backend.take()
    assert ended.could_not_start
    assert others == [("lost", 0)] if there else [("lost", 0), ("removed", 0)]
    with pytest.raises(ms.BadMessage, match="is over"):
        scene.agent()


@pytest.mark.parametrize("seen", [(), (EngineTask(KEY, TaskState.UNKNOWN),)])
def test_what_disappeared_from_the_engine_may_still_run_until_lease_and_grace_are_over(seen):
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    session, _ = scene.agent()
    scene.hub.leave(session)
    for _ in range(int(LEASE_S + GRACE_S) - 1):
        scene.clock.now += 1
        scene.observe(*seen)
        scene.hub.expire()
    assert scene.backend.take() == []
    scene.clock.now += 1.5
    scene.hub.expire()
    assert scene.backend.take() == [("part lost", 0, (7, 1))]
    with pytest.raises(ms.BadMessage, match="is over"):
        scene.agent()


def test_what_the_engine_saw_end_is_over_at_once():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.accepted()
    session, _ = scene.agent()
    scene.observe(EngineTask(KEY, TaskState.OVER, 137))
    assert scene.backend.take() == [], "its last reports may be on their way"
    scene.hub.leave(session)
    scene.observe(EngineTask(KEY, TaskState.OVER, 137))
    assert scene.backend.take() == [("part lost", 0, (7, 1))]


def test_heartbeats_renew_the_lease_of_one_launch():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    session, said = scene.agent()
    for _ in range(20):
        scene.clock.now += LEASE_S / 3
        assert scene.hub.receive(session, ms.Heartbeat())
        scene.hub.expire()
    assert scene.backend.take() == []
    assert said.count(ms.LeaseRenewed()) == 20


def test_the_parts_of_a_gang_start_in_one_call_and_learn_the_address_of_the_first():
    scene = Scene("v100:2,v100:2")
    scene.begin()
    first = scene.launch(ranks=(0, 1), world_size=4, nodes=2, accelerators=(0, 1))
    scene.hub.send(0, first)
    assert scene.calls.take() == [], "the other part is on its way"
    scene.hub.send(1, scene.launch(ranks=(2, 3), world_size=4, nodes=2, accelerators=(0, 1)))
    ((_, parts, _),) = scene.calls.take()
    assert [part.key.machine for part in parts] == ["v100-0", "v100-1"]
    _, second = scene.agent("v100-1", "b", address="10.0.0.2")
    assert orders(second) == []
    _, said = scene.agent("v100-0", "a", address="10.0.0.1")
    for heard in (said, second):
        (launch,) = orders(heard)
        assert isinstance(launch, od.Launch)
        assert launch.master_address == "10.0.0.1"


def test_a_part_of_a_gang_with_nodes_elsewhere_starts_after_a_moment():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch(ranks=(2, 3), world_size=4, nodes=2))
    scene.clock.now += 1
    scene.hub.expire()
    assert len(scene.accepted()) == 1


def test_after_a_restart_launches_are_adopted_and_those_whose_agents_do_not_come_are_lost():
    scene = Scene("v100:4,v100:4")
    scene.backend.sent = [(7, 1)]
    for node in range(2):
        scene.hub.expect(node)
    _, said = scene.agent(running=True)  # before the engine was asked for the first time
    scene.observe(EngineTask(KEY, TaskState.RUNNING))
    assert [heard[:2] for heard in scene.backend.take()] == [("joined", 0), ("joined", 1)]
    assert orders(said) == []
    for _ in range(int(LEASE_S + GRACE_S) + 1):
        scene.clock.now += 1
        session = scene.engine.session_of(0, 7, 1)
        assert session is not None
        scene.hub.receive(session, ms.Heartbeat())
        scene.hub.expire()
    assert scene.backend.take() == [("part lost", 1, (7, 1))]


@pytest.mark.parametrize("known", [True, False])
def test_an_agent_that_connects_after_a_restart_before_its_launches_are_known_is_not_killed_yet(known):
    scene = Scene()
    scene.hub.expect(0)
    asked: list[Callable[[], object]] = []
    scene.backend.agent_joined = lambda node, found: asked.append(found)  # type: ignore[method-assign,assignment]
    scene.observe()
    _, said = scene.agent(running=True)
    assert orders(said) == []
    scene.backend.sent = [(7, 1)] if known else []
    asked[0]()  # by the thread of the loop, which may be late
    assert orders(said) == ([] if known else [od.Kill(7, 1)])


def test_after_a_restart_a_launch_that_only_the_engine_knows_is_found_and_leaves_when_its_agent_connects():
    scene = Scene()
    scene.hub.expect(0)
    scene.observe(EngineTask(KEY, TaskState.RUNNING))
    assert scene.backend.take() == [("joined", 0, ((7, 1),))]
    scene.hub.send(0, od.Revoke(7, 1))  # as its job does not run in the state, and may save
    scene.observe(EngineTask(KEY, TaskState.RUNNING))
    assert scene.calls.take() == []
    _, said = scene.agent(running=True)
    assert orders(said) == [od.Revoke(7, 1)]


def test_a_node_whose_engine_is_away_after_a_restart_is_kept_for_agents_that_are_there():
    scene = Scene("v100:4,v100:4")
    scene.backend.sent = [(7, 1)]
    for node in range(2):
        scene.hub.expect(node)
    session, _ = scene.agent(running=True)
    for _ in range(int(LEASE_S + GRACE_S) + 1):
        scene.clock.now += 1
        scene.hub.receive(session, ms.Heartbeat())
        scene.hub.expire()
    assert scene.backend.take() == [("joined", 0, ((7, 1),)), ("lost", 1)]


def test_an_agent_of_a_launch_that_nobody_wants_any_more_is_killed():
    scene = Scene()
    scene.begin()
    _, said = scene.agent(running=True)
    assert orders(said) == [od.Kill(7, 1)]


def test_objects_that_belong_to_no_launch_are_stopped_and_those_that_are_over_forgotten():
    scene = Scene()
    scene.begin()
    other = KEY._replace(job=8)
    scene.observe(EngineTask(KEY, TaskState.RUNNING), EngineTask(other, TaskState.OVER))
    assert scene.calls.take() == [("stop", KEY), ("forget", other)]


def test_an_engine_that_refuses_a_launch_fails_the_job_with_its_words():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    scene.engine._refuse(scene.accepted(), "slurm: invalid qos")
    ((_, _, ended),) = scene.backend.take()
    assert (ended.permanent, ended.yielded, ended.why) == (True, False, "slurm: invalid qos")


def test_machines_are_drained_given_up_and_removed_as_the_engine_says():
    scene = Scene()
    scene.begin()
    (machine,) = scene.machines
    cordoned = Machine(machine.name, machine.type, 4, MachineState.CORDONED, "disk")
    scene.observe(machines=[cordoned])
    scene.observe(machines=[cordoned])
    assert scene.backend.take() == [("drain", 0, "slurm: disk")]
    scene.observe()
    assert scene.backend.take() == [("undrain", 0, "")]
    scene.hub.send(0, scene.launch())
    session, _ = scene.agent()
    away = Machine(machine.name, machine.type, 4, MachineState.UNREACHABLE)
    scene.observe(machines=[away])
    assert scene.backend.take() == [], "its agent still answers"
    scene.ended(session)
    scene.backend.take()
    scene.observe(machines=[])
    assert scene.backend.take() == [("lost", 0), ("removed", 0)]


def test_an_end_that_moves_by_a_second_at_each_look_is_one_drain():
    scene = Scene()
    scene.begin()
    (machine,) = scene.machines
    for moved in (0.0, 1.0, -1.0, 3.4, 8.0):
        scene.observe(machines=[replace(machine, until=5000.0 + moved)])
    assert [heard[0] for heard in scene.backend.take()] == ["drain"]
    scene.observe(machines=[replace(machine, until=5060.0)])
    assert [heard[0] for heard in scene.backend.take()] == ["drain"]


@pytest.mark.parametrize(("name", "type_"), [("rack 1/n\n0", "v100"), ("", "v100"), ("n" * 300, "v100"), ("n0", "tesla v100")])
def test_a_machine_that_no_node_can_be_named_after_is_not_used(caplog, name, type_):
    scene = Scene()
    scene.nodes = Cluster(())
    for _ in range(2):
        scene.observe(machines=[Machine(name, type_, 4)])
    assert scene.backend.take() == []
    (line,) = log_lines(caplog)
    assert "\n" not in line
    assert "is not used: names have letters, digits, '.', '_' and '-', at most 128" in line


def test_a_node_stays_with_its_agent_when_an_engine_has_a_machine_of_its_name(caplog):
    scene = Scene(owner="")
    said = scene.home_agent()
    scene.backend.take()
    for _ in range(2):
        scene.observe()
    scene.hub.send(0, scene.launch())
    assert len(orders(said)) == 1
    assert (scene.backend.take(), scene.calls.take()) == ([], [])
    (line,) = log_lines(caplog)
    assert "node v100-0 has an agent of its own" in line
    assert "slurm does not use it" in line


@pytest.mark.parametrize("credential", [True, False])
def test_after_a_restart_a_node_is_kept_for_the_agent_that_it_had(credential):
    tokens = Tokens() if credential else None
    scene = Scene(owner="", tokens=tokens)
    scene.home_agent()
    again = Scene(owner="", tokens=tokens)
    again.hub.expect(0)
    again.observe()
    assert again.backend.take() == []
    again.clock.now += LEASE_S + GRACE_S
    again.hub.expire()
    again.observe()
    expected = [("lost", 0)] if credential else [("lost", 0), ("joined", 0, ())]
    assert again.backend.take() == expected, "without a credential, the agent is not expected any more"


@pytest.mark.parametrize("seen", [True, False])
def test_an_agent_with_the_name_of_an_engines_machine_is_refused(seen):
    scene = Scene()
    if seen:  # otherwise the engine has not answered since a restart
        scene.observe()
    with pytest.raises(ms.BadMessage, match="is a machine of slurm, which starts its agents: pass another --node"):
        scene.home_agent()


def test_a_machine_that_another_engine_has_already_stays_with_it(caplog):
    scene = Scene()
    scene.begin()
    again = Scene()  # after a restart, where the other engine answers first
    for one in (scene, again):
        one.other._observe(one.machines, ())
        assert one.backend.take() == []
        one.observe()
        one.hub.send(0, one.launch())
        assert len(one.engine._parts) == 1
    assert log_lines(caplog)[0].startswith("node v100-0 is a machine of slurm: kubernetes does not use it")


def test_an_agent_that_registers_while_an_engine_adds_a_machine_of_its_name_is_refused():
    scene = Scene()
    nodes, scene.nodes = scene.nodes, Cluster(())
    added: list[Callable[[Any], None]] = []
    scene.backend.add_node = lambda spec, type_, answer, *types: added.append(answer)  # type: ignore[attr-defined]
    scene.observe()
    said = scene.home_agent()
    scene.nodes = nodes
    added[0](())
    added[1](Refusal("the cluster already has a node 'v100-0'"))
    assert "is a machine of slurm" in said[0].why
    assert said[1:] == [None]


def test_a_machine_whose_node_an_operator_removed_is_added_and_used_again():
    scene = Scene()
    scene.begin()
    nodes = scene.nodes
    scene.nodes = Cluster(tuple(replace(node, removed=True) for node in nodes.nodes), nodes.types)
    scene.backend.add_node = lambda *about: scene.backend.heard.append(("added",))  # type: ignore[attr-defined]
    scene.observe()
    scene.nodes = nodes
    scene.observe()
    assert scene.backend.take() == [("added",), ("joined", 0, ())]


def test_a_machine_that_was_taken_away_while_no_control_plane_ran_is_removed_when_its_lease_is_over():
    scene = Scene()
    scene.hub.expect(0)
    scene.observe(machines=[])
    assert scene.backend.take() == []
    scene.clock.now += LEASE_S + GRACE_S
    scene.hub.expire()
    scene.observe(machines=[])
    assert scene.backend.take() == [("lost", 0), ("removed", 0)]


def test_the_journal_says_which_engine_has_a_node():
    for spec in (Node("a", "v100", 2), Node("a", "v100", 2, engine="slurm")):
        data = encode(NodeAdded(0.0, 0, spec, None))
        assert (b"engine" in data) == bool(spec.engine)
        assert decode(data).spec == spec  # type: ignore[attr-defined]


def test_a_token_is_good_for_its_own_launch_only():
    tokens = Tokens()
    scene = Scene("v100:4,v100:4", tokens)
    scene.begin()
    scene.hub.send(0, scene.launch())
    (part,) = scene.accepted()
    bearer = scene.hub.admit(part.token)
    hello = ms.Hello("v100-0", "v100", 2, 1, launch=(7, 1))
    assert isinstance(scene.hub.welcome(hello, lambda message: None, bearer), PartSession)
    for wrong in (
        ms.Hello("v100-1", "v100", 2, 1, launch=(7, 1)),
        ms.Hello("v100-0", "v100", 2, 1, launch=(7, 2)),
        ms.Hello("v100-0", "v100", 4, 1),
    ):
        with pytest.raises(ms.BadMessage, match="token"):
            scene.hub.welcome(wrong, lambda message: None, bearer)
    for damaged in (part.token[:-1] + "x", part.token.replace(".", ""), "fl_launch_", "fl_launch_é.é"):
        with pytest.raises(ms.BadMessage, match="not an agent's token"):
            scene.hub.admit(damaged)


def test_an_agent_of_one_launch_cannot_report_about_another():
    scene = Scene()
    scene.begin()
    scene.hub.send(0, scene.launch())
    session, _ = scene.agent()
    with pytest.raises(ms.BadMessage, match="another"):
        scene.hub.receive(session, ms.ReportBatch(1, (od.Ended(8, 1, 0, False, 0, 0),)))


def test_an_agent_of_one_launch_gets_no_code_and_answers_no_request_of_another():
    scene = Scene("v100:4,v100:4")
    scene.begin()
    scene.hub.code = SimpleNamespace(remote=False, chunk=ms.CodeChunk)  # type: ignore[assignment]
    for node in (0, 1):
        about: dict[str, Any] = {"ranks": (node,), "accelerators": (0,), "nodes": 2}
        scene.hub.send(node, replace(scene.launch(**about), task=od.Task(("true",), code="own")))
    session, said = scene.agent()
    other, _ = scene.agent("v100-1", "b")
    scene.hub.receive(session, ms.CodeRequest("own"))
    assert said[-1] == ms.CodeChunk("own", 0)
    with pytest.raises(ms.BadMessage, match="the code of another"):
        scene.hub.receive(session, ms.CodeRequest("others"))
    for tail in (ms.LogTail(7, 1, 0), ms.LogTail(8, 1, 0), ms.LogTail(7, 1, 1), ms.LogTail(7, 1, 2)):
        scene.hub.receive(session, tail)
    assert list(scene.hub.transfers._tails) == [ms.LogTail(7, 1, 0)], "of its own workers only"
    answers: list[ms.LogChunk] = []
    number = scene.hub.request_log(1, ms.LogRequest(0, 7, 1, 1, 0, 10), answers.append)
    scene.hub.receive(session, ms.LogChunk(number, 0, "Zm9yZ2Vk"))
    assert answers == []
    scene.hub.receive(other, ms.LogChunk(number, 0, "dHJ1ZQ=="))
    assert [chunk.data for chunk in answers] == ["dHJ1ZQ=="]


def test_an_agent_from_before_a_restart_gets_the_code_of_its_launch():
    scene = Scene()
    scene.begin()
    scene.hub.code = SimpleNamespace(remote=False, chunk=ms.CodeChunk)  # type: ignore[assignment]
    known = SimpleNamespace(task=od.Task(("true",), code="own"))
    scene.backend.launches.get = lambda job, generation: known if (job, generation) == (7, 1) else None
    session, said = scene.agent(running=True)
    scene.hub.receive(session, ms.CodeRequest("own"))
    assert said[-1] == ms.CodeChunk("own", 0)


def test_the_credential_of_a_node_is_no_token_of_a_launch():
    tokens = Tokens()
    scene = Scene(tokens=tokens)
    scene.begin()
    scene.hub.send(0, scene.launch())
    bearer = scene.hub.admit(tokens.issue(Role.AGENT, KEY.text))
    with pytest.raises(ms.BadMessage, match="not for this launch"):
        scene.hub.welcome(ms.Hello("v100-0", "v100", 2, 1, launch=(7, 1)), lambda message: None, bearer)


def test_a_node_sends_the_ends_of_its_own_logs_only():
    nodes, kept = cluster("v100:4,v100:4"), list[ms.LogTail]()
    host = SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 0.0, spawn=lambda name, work: work())
    hub = AgentHub(lambda: nodes, host=host, post=lambda call: call())  # type: ignore[arg-type]
    hub.backend = SimpleNamespace(agent_joined=lambda node, running, accept, stay: accept())  # type: ignore[assignment]
    hub.transfers.logs = SimpleNamespace(add=kept.append)  # type: ignore[assignment]
    first, second = (
        hub.welcome(ms.Hello(node.name, "v100", 4, 1, identity=node.name), lambda message: None) for node in nodes.nodes
    )
    hub.send(0, od.Launch(7, 1, "train", od.Task(("true",)), (0,), (0,)))
    assert first is not None
    assert second is not None
    hub.receive(second, ms.LogTail(7, 1, 0, 0, "forged"))
    assert kept == []
    hub.receive(first, ms.LogTail(7, 1, 0, 0, "true"))
    hub.receive(second, ms.LogTail(6, 1, 0, 0, "from before a restart"))
    assert [tail.data for tail in kept] == ["true", "from before a restart"]


def test_a_launch_whose_token_could_not_be_made_is_started_later():
    scene = Scene()
    scene.begin()
    problems = [FairleadError("the database does not answer")]

    def token(key: LaunchKey) -> str:
        if problems:
            raise problems.pop()
        return "token"

    scene.engine.token_of = token
    with pytest.raises(FairleadError):
        scene.hub.send(0, scene.launch())
    assert scene.accepted() == []
    scene.clock.now += 1.0
    scene.hub.expire()
    assert [part.token for part in scene.accepted()] == ["token"]


def test_the_key_of_a_launch_is_read_back_from_its_text():
    assert LaunchKey.parse(KEY.text) == KEY
    assert LaunchKey.parse("nothing") is None
    assert len(LaunchKey("j", 10**14, 10**14, "m" * 100).label) <= 63
