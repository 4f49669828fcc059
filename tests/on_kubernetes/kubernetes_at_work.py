"""A control plane whose launches are Pods of a real API server, with the jobs and the audit of `ClusterAtWork`."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from emulated_kubelet import EmulatedKubelet
from kubernetes_bed import KubernetesBed
from typer.testing import CliRunner

from fairlead.cli.main import app

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from cluster_at_work import ClusterAtWork, wait_for

NAMESPACE = "demo"
JOBS = 10  # at most, of which Pods are deleted by force at the same time


@contextmanager
def on_kubernetes(
    root: Path,
    kubelet: EmulatedKubelet,
    more: str = "",
    *,
    nodes: int | None = None,
    namespace: str = NAMESPACE,
    token_file: str = "",
    **about: Any,
) -> Iterator[ClusterAtWork]:
    """A control plane that sees `nodes` nodes; by default, all."""
    bed = kubelet.bed
    where = f"server={bed.server},ca={bed.ca},token_file={token_file or bed.admin_token},namespace={namespace}"
    options = {"lease_s": 12.0, "grace_s": 10.0, "round_s": 1.0, **about}
    with ClusterAtWork(root, machines="", engine=f"kubernetes:{where},image=train:1{more}", **options) as cluster:
        count = len(kubelet.nodes) if nodes is None else nodes
        wait_for(lambda: sum(node["up"] for node in cluster.nodes().values()) == count, "nodes", cluster._logs)
        yield cluster


def said(cluster: ClusterAtWork, *words: str) -> str:
    """What a command of a user prints."""
    token = (cluster.root / "plane" / "admin.token").read_text()
    with patch.dict(
        os.environ, {"FAIRLEAD_URL": f"http://127.0.0.1:{cluster.http}", "FAIRLEAD_TOKEN": token, "COLUMNS": "300"}
    ):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def delete_by_force(root: Path, kubelet: EmulatedKubelet, times: int) -> None:
    """Delete Pods of running jobs by force, so many times in all. Their processes live on for a while, at most twice as long
    as a lease and a grace. A job notices when it runs twice at once, and `ClusterAtWork` checks it."""
    jobs = min(times, JOBS)
    left = {f"forced-{n}": times // jobs + (n < times % jobs) for n in range(jobs)}  # how often each is to be deleted
    last = dict.fromkeys(left, 0)  # the launch that was deleted last
    lives, before = random.Random(1), kubelet.forced_s
    kubelet.forced_s = lambda: lives.uniform(0.2, 12.0)

    def delete(found: dict[str, dict[str, Any]]) -> int:
        """Delete the Pods of launches that work. Returns how many are left to delete or to resume."""
        for name, job in found.items():
            if left[name] and job["starts"] > last[name] and job["rate"] > 0 and (pod := _running_pod(kubelet.bed, job)):
                kubelet.bed.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}", {"gracePeriodSeconds": 0})
                left[name], last[name] = left[name] - 1, job["starts"]
        return sum(left.values()) + sum(job["starts"] == last[name] or job["rate"] == 0 for name, job in found.items())

    try:
        with on_kubernetes(root, kubelet, lease_s=3.0, grace_s=3.0) as cluster:
            cluster.harmed.update(left)
            cluster.submit(*(cluster.job(name, steps=3000, step_s=0.1, save_every=5) for name in left))
            for more in range(times, -1, -1):  # there is patience for each
                cluster.until("pods are deleted and their jobs resume", lambda found, more=more: delete(found) <= more)
            for name in left:
                cluster.hurry(name)
            starts = sum(job["starts"] for job in cluster.until_all_ended().values())
        print(f"{times} pods were deleted by force: {starts} launches, none overlapped its successor")
    finally:
        kubelet.forced_s = before


def _running_pod(bed: KubernetesBed, job: dict[str, Any]) -> str:
    """The name of the Pod of a job's present launch, if it is reported as running."""
    labels = f"fairlead/job={job['number']},fairlead/generation={job['starts']}"
    found = bed.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={labels}")["items"]
    return next((str(pod["metadata"]["name"]) for pod in found if pod["status"]["phase"] == "Running"), "")
