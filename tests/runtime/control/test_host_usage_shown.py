"""What agents say of CPU, memory and disk in the hub, the HTTP API and the metrics; none of it is journaled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from test_agent_hub import hello, with_hub
from test_api import with_plane

from fairlead.runtime.control.prometheus import MAX_HOSTS, host_series
from fairlead.runtime.protocol.messages import Heartbeat, HostUsage, LaunchUsage, Welcome

USAGE = HostUsage(0.25, 3.5, 6.0, 8.0, 97.0, 100.0, (LaunchUsage(0, 1, 2.0, 1.5), LaunchUsage(1, 1, 1.0, 0.5)))


def test_only_an_agent_that_offers_samples_is_asked_for_them():
    async def scene(hub, backend, connect):
        old = connect()
        await old.say(hello(0))
        assert await old.hear() == Welcome(15.0)
        new = connect()
        await new.say(hello(1, reports_host=True))
        assert await new.hear() == Welcome(15.0, wants_host=True)
        await new.say(Heartbeat((0.5,), (1.0,), host=USAGE))
        await backend.until("seen", 1, Heartbeat((0.5,), (1.0,), host=USAGE))
        await new.say(Heartbeat((0.25,), (1.0,)))
        await backend.until("seen", 1, Heartbeat((0.25,), (1.0,)))
        assert hub.heartbeats[1] == Heartbeat((0.25,), (1.0,), host=USAGE), "the last sample counts until the next"
        former = connect()
        await former.say(hello(1))
        assert await former.hear() == Welcome(15.0)
        assert 1 not in hub.heartbeats, "an agent of a former version takes no samples"

    with_hub(scene)


def test_a_node_shows_what_is_used_and_warns_and_a_user_sees_own_jobs_only():
    async def scene(plane, who):
        for name in ("ann", "bob"):
            await who(name).post("/v1/jobs", json={"jobs": [{"name": f"of-{name}", "run": "x"}]})
        before = (await who("ann").get("/v1/nodes")).json()["nodes"]
        assert [node["host"] for node in before] == [None, None]
        plane.hub.heartbeats[0] = Heartbeat(host=USAGE)
        assert (await who("ann").get("/v1/nodes")).json()["nodes"][0]["host"] is None, "its agent is away"
        plane.hub._sessions[0] = SimpleNamespace(out=lambda message: None)
        plane.backend.launches.jobs_on = lambda node: {0: False, 1: False}
        while len(plane.loop.state.job_of) < 2:
            await asyncio.sleep(0.05)
        [first, second] = (await who("ann").get("/v1/nodes")).json()["nodes"]
        assert first["host"] == {
            "cpu": 0.25,
            "load": 3.5,
            "memory_gb": 6.0,
            "memory_total_gb": 8.0,
            "disk_gb": 97.0,
            "disk_total_gb": 100.0,
            "jobs": {"of-ann": {"cpus": 2.0, "memory_gb": 1.5}},
            "warnings": ["97% of the disk with its agent's folder is used: jobs may be unable to write"],
        }
        assert second["host"] is None
        assert (await who("root").get("/v1/nodes")).json()["nodes"][0]["host"]["jobs"].keys() == {"of-ann", "of-bob"}
        metrics = plane.metrics.text().decode()
        name = plane.cluster.nodes[0].name
        [used] = (line for line in metrics.splitlines() if line.startswith(f'fairlead_node_disk_used_bytes{{node="{name}"}}'))
        assert float(used.split()[1]) == 97.0 * 2**30
        assert 'fairlead_nodes_nearly_full{resource="disk"} 1.0' in metrics
        assert 'fairlead_nodes_nearly_full{resource="memory"} 0.0' in metrics
        del plane.hub._sessions[0]

    journal = with_plane(scene)
    known = {"JournalOpened", "NodeLost", "JobSubmitted", "RoundPlanned"}  # the last if a round has begun meanwhile
    assert {type(event).__name__ for event in journal} <= known, "measurements of hosts are not journaled"


def test_series_of_nodes_are_bounded_and_counts_are_not():
    full = HostUsage(disk_gb=99.0, disk_total_gb=100.0)
    found = {one.name: one.samples for one in host_series({f"n{number:05}": full for number in range(MAX_HOSTS + 5)})}
    assert len(found["fairlead_node_disk_bytes"]) == MAX_HOSTS
    assert not found["fairlead_node_cpu_utilization"], "what is not measured has no series"
    counts = {sample.labels["resource"]: sample.value for sample in found["fairlead_nodes_nearly_full"]}
    assert counts == {"disk": MAX_HOSTS + 5, "memory": 0}
