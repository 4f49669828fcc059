"""Agents that are told to leave: their jobs save, their ends are reported, and their nodes are free at once. The leases are so
long that nothing else would free them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cluster_at_work import ClusterAtWork, wait_for

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.journal.recovery import read_journal

pytestmark = pytest.mark.long

TWO = {"machines": "2xv100:2,2xk80:2", "policy": "fifo", "lease_s": 600.0, "grace_s": 600.0}


def _drains(cluster: ClusterAtWork) -> list[tuple[str, str, bool]]:
    found = (event for event in read_journal(cluster._journal) if isinstance(event, ev.NodeDrained))
    return [(event.reason, event.by, event.undo) for event in found]


def test_jobs_of_an_agent_that_leaves_resume_elsewhere_at_once_where_they_have_saved(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, **TWO) as cluster:
        cluster.until_up()
        cluster.submit(cluster.job("saves", 400, 0.2), cluster.job("loses", 400, 0.2, save_every=5, cooperative=False))
        cluster.until("they run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        cluster.harmed.add("loses")
        os.kill(cluster.agents["v100-0"], signal.SIGTERM)
        cluster.end_agent("v100-0", signal.SIGTERM)  # the second signal changes nothing
        wait_for(lambda: not cluster.nodes()["v100-0"]["up"], "the node is given up")
        jobs = cluster.until("they run elsewhere", lambda jobs: all(job["starts"] == 2 for job in jobs.values()))
        assert jobs["saves"]["steps_done"] > 2, "as it was saved"
        assert all(job["failures"] == 0 for job in jobs.values())
        assert _drains(cluster) == [("its agent is leaving", "agent", False)]
        cluster.start_agent("v100-0")
        cluster.until_up()
        assert _drains(cluster)[-1] == ("", "agent", True)
        for name in jobs:
            cluster.hurry(name)


def test_jobs_wait_for_nodes_that_suit_while_the_cluster_has_none(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, machines="", policy="fifo") as cluster:

        def waits(name: str, words: str) -> None:
            def reason() -> bool:
                told = cluster.ask("GET", f"/v1/jobs/{name}")["reason"]
                return told["code"] == "no-nodes" and words in told["text"]

            wait_for(reason, f"{name}: {words}", cluster._logs)

        cluster.submit(cluster.job("early", steps=300, step_s=0.1), cluster.job("wide", workers=4))
        for name in ("early", "wide"):
            waits(name, "Waiting for nodes to join: the cluster has no nodes yet")
        cluster.cluster = Cluster.parse("4xv100:2")
        cluster.start_agent("v100-0", temporary=True)
        cluster.until("it runs", lambda jobs: jobs["early"]["steps_done"] > 2)
        waits("wide", "none suits yet (Too large for this cluster: needs 4 GPUs, and there are at most 2)")
        cluster.end_agent("v100-0", signal.SIGTERM)
        wait_for(lambda: not cluster.nodes(), "the node is removed")
        assert not (tmp_path / "v100-0").exists()
        waits("early", "the cluster has no nodes yet")
        cluster.kill_plane()
        cluster.start_plane()
        cluster.hurry("early")
        for node in ("v100-0", "v100-1"):
            cluster.start_agent(node, temporary=True)
        jobs = cluster.until_all_ended()
        assert (jobs["early"]["starts"], jobs["wide"]["starts"]) == (2, 1)


def test_an_agent_leaves_without_its_control_plane_and_the_next_one_reports(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, "1xv100:1", "fifo", lease_s=600.0, grace_s=600.0) as cluster:
        cluster.until_up()
        cluster.submit(cluster.job("saves", 400, 0.2))
        cluster.until("it runs", lambda jobs: jobs["saves"]["steps_done"] > 2)
        cluster.kill_plane()
        cluster.end_agent("v100-0", signal.SIGTERM)
        done = len(cluster.steps_of("saves"))
        cluster.start_plane()
        cluster.start_agent("v100-0")
        jobs = cluster.until("it runs again", lambda jobs: jobs["saves"]["starts"] == 2)
        assert jobs["saves"]["steps_done"] >= done
        cluster.hurry("saves")


def test_a_gang_whose_leader_leaves_saves_once_and_resumes_elsewhere(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, "8xv100:2", "fifo", lease_s=600.0, grace_s=600.0) as cluster:
        cluster.until_up()
        cluster.submit(cluster.job("gang", 2000, 0.1, workers=4))
        for rank in ("0", "3", "0"):
            node = _leave(cluster, rank)
            cluster.start_agent(node)
            cluster.until_up()
        cluster.hurry("gang")


def _leave(cluster: ClusterAtWork, rank: str) -> str:
    """End the agent of this worker of the gang, which runs elsewhere then; the name of the node."""
    done, starts = len(cluster.steps_of("gang", rank)), cluster.jobs()["gang"]["starts"]
    wait_for(lambda: len(cluster.steps_of("gang", rank)) > done + 2, "it counts", cluster._logs)
    node = cluster.node_of("gang", rank)
    cluster.end_agent(node, signal.SIGTERM)
    jobs = cluster.until(
        "it runs elsewhere", lambda jobs: jobs["gang"]["phase"] == "running" and node not in jobs["gang"]["nodes"]
    )
    assert (jobs["gang"]["failures"], jobs["gang"]["starts"]) == (0, max(starts, 1) + 1)
    return node
