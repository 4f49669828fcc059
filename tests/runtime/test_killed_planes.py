"""A control plane that is killed at every kind of journal write, before and after it, and goes on from its journal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cluster_at_work import ClusterAtWork, gone_is_fine

pytestmark = pytest.mark.long


def provoke(cluster: ClusterAtWork, kind: str, number: int) -> None:
    """Something that makes the control plane write an event of that kind, sooner or later."""
    name = f"{kind.lower()}-{number}"
    with gone_is_fine():
        if kind == "JobsFailed":
            cluster.submit(cluster.job(name, steps=3, fails_at=1, retries=0), ends="failed")
        elif kind == "JobsInterrupted":
            cluster.harmed.add(name)
            cluster.submit(cluster.job(name, steps=6, fails_at=3, save_every=2))
        elif kind == "JobCancelled":
            cluster.submit(cluster.job(name, steps=10_000), ends="cancelled")
            cluster.until("it runs", lambda jobs: jobs[name]["phase"] == "running")
            cluster.cancel(name)
        elif kind == "SchedulerSwitched":
            os.kill(cluster.plane, signal.SIGUSR1)
        elif kind not in ("JournalOpened", "NodeRepaired"):
            cluster.submit(cluster.job(name, steps=600 if kind == "ObservationsRecorded" else 8))


KINDS = (
    *(
        "JournalOpened",
        "NodeRepaired",
        "JobSubmitted",
        "MemoChanged",
        "SchedulerSwitched",
        "RoundPlanned",
        "ObservationsRecorded",
    ),
    *("ProgressReported", "MetricsReported", "JobsFinished", "JobsInterrupted", "JobsFailed", "JobCancelled"),
)
"""In a possible order; `NodeLost` is written with `JournalOpened`, and in another test when a node is given up."""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_plane_killed_at_any_kind_of_write_goes_on_from_its_journal(tmp_path: Path, moment: str) -> None:
    with ClusterAtWork(tmp_path, policy="max-min-fairness") as cluster:
        cluster.kill_plane()
        cluster.journal.unlink()  # so that it is opened anew
        (cluster.journal.parent / "alive").unlink(missing_ok=True)
        for number, kind in enumerate(KINDS):
            cluster.start_plane(death=f"{moment} {kind}")
            provoke(cluster, kind, number)
            assert cluster.plane_ended(f"{moment} {kind}") == -signal.SIGKILL
            if kind == "ObservationsRecorded":
                cluster.hurry(f"observationsrecorded-{number}")
            if kind == "SchedulerSwitched":  # the policy with a memo moves jobs all the time; from here on nobody does
                cluster.start_plane()
                os.kill(cluster.plane, signal.SIGUSR1)
                cluster.submit(cluster.job("calm"))
                cluster.until_all_ended()
                cluster.kill_plane()
        cluster.start_plane()
        assert ("jobsubmitted-2" in cluster.jobs()) == (moment == "after")
        if moment == "before":  # nobody knows of it, and nothing was killed
            cluster.cancel("jobcancelled-12")
