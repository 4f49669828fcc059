"""Agents on Ray, without Ray: what is asked of it, on a fake of its named actors. `make test-ray` has a real cluster."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.runtime.drivers.ray_pilot import AgentRequest, AgentState, RayNode, RayPilot, nodes_with_gpus


def listed(letter: str, name: str, address: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    about = {"NodeID": letter * 32, "NodeName": name, "NodeManagerAddress": address}
    return {**about, "Alive": alive, "Resources": {"CPU": 4.0, **resources}}


LISTED = [
    listed("a", "gpu 1", "10.0.0.1", GPU=8.0),
    listed("b", "10.0.0.2", "10.0.0.2"),
    listed("c", "10.0.0.3", "10.0.0.3", alive=False, GPU=8.0),
    listed("d", "10.0.0.4", "10.0.0.4", GPU=2.0),
]
CONTROL = "head:7421"


class GetTimeoutError(Exception):
    pass


class RayError(Exception):
    pass


class Actor:
    """An actor whose agent leaves at the second question after it was asked to."""

    def __init__(self, about: tuple[Any, ...]) -> None:
        self.about, self.words = about[:3], about[3]
        self.status, self.reason, self.asked, self.left_after = "running", "", [], 0
        self.state = SimpleNamespace(remote=self._state)
        self.leave = SimpleNamespace(remote=self._leave)

    def _state(self) -> Any:
        self.left_after -= 1
        if self.left_after == 0:
            self.status = "ended"
        return (*self.about, self.status, self.reason)

    def _leave(self) -> None:
        self.asked.append("leave")
        self.left_after = 2


class NamedActors(ModuleType):
    """Ray with nodes and named actors."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.actors: dict[tuple[str, str], Actor] = {}
        self.killed: list[Actor] = []
        self.options: list[dict[str, Any]] = []
        self.exceptions = SimpleNamespace(GetTimeoutError=GetTimeoutError, RayError=RayError)
        affinity = lambda node, soft: (node, soft)  # noqa: E731
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=affinity)
        self.util = SimpleNamespace(scheduling_strategies=strategies, list_named_actors=self._list)

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return LISTED

    def _list(self, all_namespaces: bool) -> list[dict[str, str]]:
        return [{"namespace": namespace, "name": name} for namespace, name in self.actors]

    def get_actor(self, name: str, namespace: str) -> Actor:
        if (namespace, name) not in self.actors:
            raise ValueError(name)
        return self.actors[namespace, name]

    def wait(self, answers: list[Any], **_: Any) -> None:
        pass

    def get(self, answer: Any, timeout: float) -> Any:
        if answer[3] == "waiting":
            raise GetTimeoutError
        if answer[3] == "dead":
            raise RayError("The actor died:\n  ModuleNotFoundError: No module named 'fairlead'\n")
        return answer

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)
        self.actors = {key: one for key, one in self.actors.items() if one is not actor}

    def remote(self, _: type) -> Any:
        def options(**given: Any) -> Any:
            def create(*about: Any) -> None:
                key = (given["namespace"], given["name"])
                if key in self.actors:
                    raise ValueError(f"the name {key} is taken")
                self.options.append(given)
                self.actors[key] = Actor(about)

            return SimpleNamespace(remote=create)

        return SimpleNamespace(options=options)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> NamedActors:
    fake = NamedActors()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def pilot() -> RayPilot:
    return RayPilot("auto", CONTROL, SimpleNamespace(sleep=lambda _: None, monotonic=iter(range(1000)).__next__)).__enter__()


REQUEST = AgentRequest(CONTROL, "secret", gpu_type="v100", insecure=True)


def test_live_nodes_with_gpus_get_agents():
    assert nodes_with_gpus(LISTED) == [
        RayNode("d" * 32, "10.0.0.4", "10.0.0.4", 2),
        RayNode("a" * 32, "gpu 1", "10.0.0.1", 8),
    ]
    assert [node.node_name for node in nodes_with_gpus(LISTED)] == ["10.0.0.4-dddddddd", "gpu-1-aaaaaaaa"]


def test_an_agent_gets_the_gpus_of_its_node_and_no_secret_among_its_words():
    small, large = nodes_with_gpus(LISTED)
    words = " ".join(REQUEST.words(large))
    assert words == (
        "agent --control head:7421 --node gpu-1-aaaaaaaa --address 10.0.0.1 --accelerators v100:8"
        " --end-jobs --temporary --remove-root --insecure"
    )
    assert AgentRequest(CONTROL, "secret", gpus=4).count(large) == 4
    assert AgentRequest(CONTROL, "secret", gpus=4).count(small) == 2
    assert "--accelerators" not in AgentRequest(CONTROL, "secret").words(large), "the agent detects them"


def test_each_node_has_one_agent_which_holds_its_gpus(ray: NamedActors):
    assert [node.address for node in pilot().start(REQUEST)] == ["10.0.0.4", "10.0.0.1"]
    assert pilot().start(REQUEST) == []
    assert [(one["num_gpus"], one["num_cpus"]) for one in ray.options] == [(2, 0), (8, 0)]
    assert {one["lifetime"] for one in ray.options} == {"detached"}
    assert [one["scheduling_strategy"] for one in ray.options] == [("d" * 32, False), ("a" * 32, False)]


def test_an_agent_that_another_command_started_meanwhile_is_no_error(ray: NamedActors, monkeypatch: pytest.MonkeyPatch):
    pilot().start(REQUEST)
    monkeypatch.setattr(RayPilot, "_names", lambda _: [])
    assert pilot().start(REQUEST) == []


def test_agents_of_another_control_plane_are_left_alone(ray: NamedActors):
    RayPilot("auto", "other:7421").__enter__().start(REQUEST)
    assert pilot().states() == []
    assert pilot().end((), print) == []


@pytest.mark.parametrize("command", ["status", "down"])
def test_agents_of_a_control_plane_that_is_known_by_another_address_are_named(ray: NamedActors, command: str):
    said = CliRunner().invoke(app, ["ray", command, "--control", "10.0.0.9:7421"]).output
    assert "no agent runs on this Ray cluster for the control plane 10.0.0.9:7421; 'fairlead ray up' starts them" in said
    pilot().start(REQUEST)
    said = CliRunner().invoke(app, ["ray", command, "--control", "10.0.0.9:7421"]).output
    assert "there are agents for another one: pass '--control head:7421'" in said
    assert not ray.killed


def test_states_say_what_waits_and_why_one_has_ended(ray: NamedActors):
    pilot().start(REQUEST)
    small, large = ray.actors.values()
    small.status, large.status = "waiting", "dead"
    assert pilot().states() == [
        AgentState("10.0.0.4-dddddddd"),
        AgentState("gpu-1-aaaaaaaa", state="ended", reason="ModuleNotFoundError: No module named 'fairlead'"),
    ]


def test_an_actor_is_killed_only_after_its_agent_has_left(ray: NamedActors):
    pilot().start(REQUEST)
    actors, reports = list(ray.actors.values()), []
    assert pilot().end((), reports.append) == ["10.0.0.4-dddddddd", "gpu-1-aaaaaaaa"]
    assert [(one.asked, one.status) for one in actors] == [(["leave"], "ended")] * 2
    assert sorted(map(id, ray.killed)) == sorted(map(id, actors))
    assert reports[0] == "10.0.0.4-dddddddd: its jobs checkpoint, and the node leaves"


def test_an_agent_that_still_waits_for_its_gpus_is_given_up(ray: NamedActors):
    pilot().start(REQUEST)
    next(iter(ray.actors.values())).status = "waiting"
    assert pilot().end(["10.0.0.4-dddddddd"], print) == ["10.0.0.4-dddddddd"]
    assert len(ray.killed) >= 1
    assert len(ray.actors) == 1


def test_agents_that_ended_by_themselves_are_replaced(ray: NamedActors):
    pilot().start(REQUEST)
    first = next(iter(ray.actors.values()))
    first.status, first.reason = "ended", "the token is wrong"
    assert [one.reason for one in pilot().clear_ended()] == ["the token is wrong"]
    assert [node.address for node in pilot().start(REQUEST)] == ["10.0.0.4"]


def test_up_waits_until_agents_have_joined_or_ended(ray: NamedActors):
    pilot().start(REQUEST)
    names = [name for _, name in ray.actors]
    assert pilot().until_joined(lambda: set(names), 60.0) == []
    ray.actors[f"fairlead {CONTROL}", names[0]].status = "ended"
    (left,) = pilot().until_joined(lambda: {names[1]}, 60.0)
    assert (left.node, left.state) == (names[0], "ended")
    assert len(pilot().until_joined(set, 3.0)) == 2, "it does not wait forever"


def test_without_ray_commands_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(app, ["ray", "status"])
    assert done.exit_code
    assert "this needs Ray, which is not installed: run pip install 'fairlead[ray]'" in str(done.exception) + done.output


def test_down_refuses_a_node_without_an_agent(ray: NamedActors):
    done = CliRunner().invoke(app, ["ray", "down", "gpu-9"])
    assert done.exit_code
    assert "no agent gpu-9 runs on this Ray cluster" in str(done.exception) + done.output
