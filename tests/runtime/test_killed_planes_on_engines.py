"""A control plane on an engine that is killed at every kind of journal write, before and after it: the agents of the engine
keep what they have, and nothing is started a second time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cluster_at_work import ClusterAtWork, gone_is_fine, wait_for
from test_engines import on_engine
from test_killed_planes import provoke

from foundry import has_ended

pytestmark = pytest.mark.long

AT_THE_BEGINNING = ("JournalOpened", "NodeAdded", "NodeRepaired", "MemoChanged", "SchedulerSwitched")
"""Until then a policy with a memo moves jobs all the time; afterwards one job runs through everything."""

OF_JOBS = (
    *("JobSubmitted", "RoundPlanned", "ObservationsRecorded", "ProgressReported", "MetricsReported", "JobsFinished"),
    *("JobsInterrupted", "JobsFailed", "JobCancelled", "JobHeld", "JobReleased", "JobUpdated", "JobRequeued"),
)
OF_NODES = ("NodeAdded", "NodeRepaired", "NodeDrained", "NodeBackedOff", "NodeLost", "NodeRemoved")


def provoke_change(cluster: ClusterAtWork, kind: str, number: int) -> None:
    """What `provoke` does not: changes of jobs by users."""
    with gone_is_fine():
        if kind == "JobHeld":
            cluster.ask("PUT", "/v1/jobs/waits/hold")
        elif kind == "JobReleased":
            cluster.ask("PUT", "/v1/jobs/waits/hold")
            cluster.ask("DELETE", "/v1/jobs/waits/hold")
        elif kind == "JobUpdated":
            cluster.ask("PATCH", "/v1/jobs/steady", {"weight": 2.0})
        elif kind == "JobRequeued":
            cluster.submit(cluster.job("again", steps=200, step_s=0.1))
            cluster.until("it runs", lambda jobs: jobs["again"]["steps_done"] > 2)
            cluster.ask("POST", "/v1/jobs/again/requeue", {})
        else:
            provoke(cluster, kind, number)


def is_up(cluster: ClusterAtWork, node: str) -> bool:
    """Whether a control plane, which may be starting, says so."""
    with gone_is_fine():
        return bool(cluster.nodes().get(node, {}).get("up", False))
    return False


def provoke_node(cluster: ClusterAtWork, folder: Path, kind: str) -> None:
    """Something that the engine's operator does with the machine m2, or that goes wrong on machines."""
    (folder / "gone").write_text("")
    if kind in ("NodeLost", "NodeRemoved"):
        (folder / "broken").unlink(missing_ok=True)
        wait_for(lambda: has_ended(cluster.plane) or is_up(cluster, "m2"), "the node is there")
        (folder / "gone").write_text("m2")
    if kind == "NodeDrained":
        (folder / "cordoned").write_text("m2")
    elif kind == "NodeBackedOff":
        (folder / "cordoned").unlink()
        (folder / "broken").write_text("m1 m2")
        with gone_is_fine():
            cluster.submit(cluster.job("late", steps=5, workers=2))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_running_launches_outlive_a_plane_that_is_killed_at_any_kind_of_write(tmp_path: Path, moment: str) -> None:
    with on_engine(tmp_path, policy="max-min-fairness", machines=3, gone="m2") as (cluster, folder):
        cluster.kill_plane()
        cluster.journal.unlink()  # so that it is opened anew
        for number, kind in enumerate(AT_THE_BEGINNING):
            cluster.start_plane(death=f"{moment} {kind}")
            if not kind.startswith("Node"):
                provoke(cluster, kind, number)
            assert cluster.plane_ended(f"{moment} {kind}") == -signal.SIGKILL
        cluster.start_plane()
        os.kill(cluster.plane, signal.SIGUSR1)
        wait_for(lambda: cluster.ask("GET", "/v1/scheduler")["scheduler"]["policy"] == "fifo", "the policy is another")
        cluster.until_all_ended()
        cluster.submit(cluster.job("steady", steps=50_000, step_s=0.1), cluster.job("waits", after=["steady"]))
        cluster.until("it runs", lambda jobs: jobs["steady"]["steps_done"] > 2)
        worker = cluster.workers_of("steady")
        cluster.kill_plane()
        for number, kind in enumerate((*OF_JOBS, *OF_NODES)):
            cluster.start_plane(death=f"{moment} {kind}")
            provoke_node(cluster, folder, kind) if kind in OF_NODES else provoke_change(cluster, kind, number + 10)
            assert cluster.plane_ended(f"{moment} {kind}") == -signal.SIGKILL
            if kind == "ObservationsRecorded":
                cluster.hurry(f"observationsrecorded-{number + 10}")
            assert cluster.workers_of("steady") == worker, f"{moment} {kind}"
        cluster.start_plane()
        if moment == "before":  # nobody knows of it, and nothing was killed
            cluster.cancel(f"jobcancelled-{10 + OF_JOBS.index('JobCancelled')}")
            cluster.ask("DELETE", "/v1/jobs/waits/hold")
        wait_for(lambda: "m2" not in cluster.nodes(), "the node is removed")
        assert cluster.jobs()["steady"]["phase"] == "running"
        for name in ("steady", "again"):
            cluster.hurry(name)
        assert cluster.until_all_ended()["steady"]["starts"] == 1
