"""Agents on a real Ray cluster of three nodes with two GPUs each: jobs run there, save when agents leave, and resume."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import wait_for
from ray_at_work import RayAtWork
from ray_cluster import add_node, ray_cluster

from fairlead.runtime.drivers.ray_pilot import RayPilot, nodes_with_gpus


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[Any]:
    with ray_cluster(3, num_gpus=2) as found:
        yield found


@pytest.mark.parametrize("policy", ["las", "max-min-fairness-perf"])
def test_the_jobs_of_the_demo_end_on_ray(tmp_path: Path, ray_nodes: Any, policy: str):
    with RayAtWork(tmp_path, ray_nodes, policy) as cluster:
        started = cluster.up()
        assert len(started) == 3
        cluster.until_joined(3)
        assert not cluster.up(), "each node has its agent"
        assert [(one["state"], one["gpus"], one["joined"]) for one in cluster.status().values()] == [("running", 2, True)] * 3
        cluster.run_the_dozen(widen=1)
        assert sorted(cluster.down()) == sorted(started)
        cluster.until_left()
        assert not cluster.status()


def test_an_elastic_job_changes_its_size_on_ray(tmp_path: Path, ray_nodes: Any):
    with RayAtWork(tmp_path, ray_nodes, "optimus:restart_s=1") as cluster:
        cluster.up()
        cluster.until_joined(3)
        launches = lambda: cluster.launches_of("elastic").values()  # noqa: E731
        cluster.run_the_dozen(widen=1, seen=lambda _: len({len(ranks) for ranks in launches()}) > 1)


def test_jobs_save_when_agents_leave_and_resume_with_the_next(tmp_path: Path, ray_nodes: Any):
    with RayAtWork(tmp_path, ray_nodes) as cluster:
        cluster.up()
        names = cluster.counts(4)
        cluster.until_counting(names)
        cluster.down()
        cluster.until_left()
        assert not [pid for name in names for pid in cluster.workers_of(name)], "GPUs are free to Ray after the last process"
        assert {job["phase"] for job in cluster.jobs().values()} <= {"waiting", "queued"}
        cluster.up()
        for name in names:
            cluster.hurry(name)
        cluster.until_all_ended()


def test_a_gang_runs_on_ray_and_on_a_home_agent_at_once(tmp_path: Path, ray_nodes: Any):
    with RayAtWork(tmp_path, ray_nodes, machines="2xv100:2") as cluster:
        (home,) = cluster.agents
        started = cluster.up()
        cluster.until_joined(4)
        cluster.submit(cluster.job("gang", steps=2000, step_s=0.1, workers=8))
        cluster.until("all its workers count", lambda _: all(len(cluster.steps_of("gang", str(rank))) > 2 for rank in range(8)))
        assert sorted(cluster.jobs()["gang"]["nodes"]) == sorted([home, *started])
        for node in cluster.down():
            assert not (Path(tempfile.gettempdir()) / f"fairlead-{os.getuid()}-{node}").exists()
        cluster.until_left()
        (alone,) = cluster.counts(1)
        cluster.until_counting([alone])
        assert cluster.jobs()[alone]["nodes"] == [home]
        cluster.up()
        for name in ("gang", alone):
            cluster.hurry(name)
        cluster.until_all_ended()


def test_workers_end_with_a_killed_actor(tmp_path: Path, ray_nodes: Any):
    with RayAtWork(tmp_path, ray_nodes) as cluster:
        (first, *_) = cluster.up()
        names = cluster.counts(6)
        cluster.until_counting(names)
        cluster.harmed.update(names)
        with RayPilot(ray_nodes.address, f"127.0.0.1:{cluster.port}") as pilot:
            before = sum(len(cluster.workers_of(name)) for name in names)
            pilot._ray.kill(pilot._handle(first))
            wait_for(lambda: sum(len(cluster.workers_of(name)) for name in names) <= before - 2, "its workers end")
        for name in names:
            cluster.hurry(name)
        cluster.until_all_ended()


def test_a_killed_node_of_ray_and_a_new_one(tmp_path: Path, ray_nodes: Any):
    with RayAtWork(tmp_path, ray_nodes) as cluster:
        cluster.up()
        cluster.until_joined(3)
        names = cluster.counts(6)
        cluster.until_counting(names)
        cluster.harmed.update(names)
        victim = next(iter(ray_nodes.worker_nodes))
        ray_nodes.remove_node(victim, allow_graceful=False)
        with RayPilot(ray_nodes.address, f"127.0.0.1:{cluster.port}") as pilot:
            wait_for(lambda: victim.node_id not in ids(pilot), "Ray sees its end")
        add_node(ray_nodes, "127.0.0.8", num_gpus=2)
        (new,) = cluster.up()
        assert new.startswith("127.0.0.8")
        for name in names:
            cluster.hurry(name)
        cluster.until_all_ended()


def ids(pilot: RayPilot) -> list[str]:
    return [node.id for node in nodes_with_gpus(pilot._ray.nodes())]


def test_an_agent_that_is_refused_is_one_line(tmp_path: Path, ray_nodes: Any):
    with RayAtWork(tmp_path, ray_nodes) as cluster:
        (tmp_path / "wrong.token").write_text("fl-wrong")
        cluster.command("up", "--type", "v100", "--token-file", tmp_path / "wrong.token", code=4)
        assert all("token" in one["reason"] for one in cluster.status().values())
