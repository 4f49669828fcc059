"""Nodes that are added, drained and removed through the HTTP API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from serving import PATIENCE_S, Served, served

from fairlead.api.connection import ClusterConnection
from fairlead.core import events as ev
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.runtime.protocol.orders import Ended


@pytest.fixture
def control() -> Iterator[Served]:
    with served("v100:2") as found:
        yield found


@pytest.fixture
def admin(control: Served) -> ControlPlaneClient:
    return ControlPlaneClient(control.url, control.token)


def until(reached: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := reached()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def events(control: Served, kind: type) -> list[Any]:
    return [event for event in control.journal if isinstance(event, kind)]


def test_a_node_is_added_waits_for_its_agent_and_is_removed(control: Served, admin: ControlPlaneClient) -> None:
    plane = ClusterConnection(admin)
    added = plane.add_node("n2", "H200", 4, cpus=64, gpu_memory_gb=141, rack="r7")
    assert {"name": "n2", "rack": "r7", "type": "h200", "accelerators": 4, "up": False, "drain": None}.items() <= added.items()
    spec = control.plane.cluster.nodes[1]
    assert (spec.cpus, spec.memory_gb, spec.rack) == (64, float("inf"), "r7")
    assert control.plane.cluster.types[1].memory_gb == 141
    with pytest.raises(RefusedRequest, match="already has a node 'n2'") as refused:
        plane.add_node("n2", "h200", 4)
    assert refused.value.status == 409
    admin.submit([{"name": "large", "run": "true", "types": ["h200"]}, {"name": "small", "run": "true"}])
    until(lambda: admin.job("large")["phase"] == "waiting")
    assert plane.remove_node("n2") == {"name": "n2", "removed": True, "stranded": ["large"]}
    assert [node["name"] for node in plane.nodes()] == ["v100-0"]
    with pytest.raises(RefusedRequest, match="there is no node 'n2'"):
        plane.remove_node("n2")
    assert len(events(control, ev.NodeAdded)) == len(events(control, ev.NodeRemoved)) == 1


def test_a_node_on_which_a_job_runs_is_not_removed(control: Served, admin: ControlPlaneClient) -> None:
    control.plane.backend.agent_joined(0, ())
    admin.submit([{"name": "here", "run": "sleep 9"}])
    until(lambda: admin.job("here")["phase"] == "running")
    with pytest.raises(RefusedRequest, match="jobs run on node 'v100-0': drain it") as refused:
        admin.remove_node("v100-0")
    assert refused.value.status == 409
    control.plane.backend.report(0, [Ended(0, 1, 0, False, 0, 0)])
    until(lambda: admin.job("here")["phase"] == "finished")
    assert admin.remove_node("v100-0")["stranded"] == []


def test_a_drain_has_a_reason_a_user_and_an_end(control: Served, admin: ControlPlaneClient) -> None:
    soon = time.time() + 3600
    plane = ClusterConnection(admin)
    drained = plane.drain("v100-0", reason="new driver", until=soon)
    assert (drained["drained"], drained["drain"]["reason"], drained["drain"]["by"]) == (True, "new driver", "root")
    assert drained["drain"]["until"] == pytest.approx(soon, abs=0.01)
    again = plane.undrain("v100-0")
    assert (again["drained"], again["drain"]) == (False, None)
    assert plane.drain("v100-0")["drain"] == {"reason": "", "by": "root", "from": None, "until": None}
    for wrong in (1.0, -1.0, 3e11):
        with pytest.raises(RefusedRequest, match="until") as refused:
            plane.drain("v100-0", until=wrong)
        assert refused.value.status == 422
    with pytest.raises(RefusedRequest, match="reason"):
        plane.drain("v100-0", reason="x" * 501)
    with pytest.raises(RefusedRequest, match="until"):
        admin.drain("v100-0", until=253_402_300_800.0)  # no date: its year has five digits


def test_a_drain_is_announced_and_begins_by_itself(control: Served, admin: ControlPlaneClient) -> None:
    now = time.time()
    announced = ClusterConnection(admin).drain("v100-0", reason="new disks", start=now + 2000, until=now + 3000)
    assert announced["drained"] is False
    assert announced["drain"]["from"] == pytest.approx(now + 2000, abs=0.01)
    with pytest.raises(RefusedRequest, match="in the future, and later than from") as refused:
        admin.drain("v100-0", start=now + 2000, until=now + 1000)
    assert refused.value.status == 422
    admin.drain("v100-0", start=time.time() + 1)
    until(lambda: admin.nodes()[0]["drained"])
    with pytest.raises(RefusedRequest, match="is drained already") as refused:
        admin.drain("v100-0", start=now + 2000)
    assert refused.value.status == 409


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": "a b"}, "name: expected letters"),
        ({"name": ""}, "name"),
        ({"type": "4"}, "type: expected letters"),
        ({"accelerators": 0}, "accelerators"),
        ({"cpus": -1}, "cpus"),
        ({"memory_gb": 1e30}, "memory_gb"),
        ({"more": 1}, "more"),
    ],
)
def test_a_node_that_cannot_be_is_refused(control: Served, admin: ControlPlaneClient, wrong: dict[str, Any], why: str) -> None:
    node = {"name": "n2", "type": "v100", "accelerators": 1, **wrong}
    with pytest.raises(RefusedRequest, match=why) as refused:
        admin._ask("POST", "/v1/nodes", node)
    assert refused.value.status == 422
    assert not events(control, ev.NodeAdded)


def test_users_cannot_change_nodes(control: Served) -> None:
    user = ControlPlaneClient(control.url, control.user)
    for change in (lambda: user.add_node("n2", "v100", 1), lambda: user.remove_node("v100-0"), lambda: user.drain("v100-0")):
        with pytest.raises(RefusedRequest, match="admin token") as refused:
            change()
        assert refused.value.status == 403
