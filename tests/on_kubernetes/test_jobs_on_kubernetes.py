"""Jobs of a control plane on a real API server, with real processes: each launch is a Pod. Every scene ends with the audit of
`ClusterAtWork`: all steps done, none twice at once, and a journal that replays to the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from emulated_kubelet import EmulatedKubelet
from kubernetes_bed import KubernetesBed

from fairlead.runtime.drivers.base import EngineDriver
from fairlead.runtime.drivers.kubernetes_driver import KubernetesDriver
from fairlead.testing.contracts.driver_contract import DriverContract

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from cluster_at_work import ClusterAtWork, wait_for


@pytest.fixture(scope="module")
def kubelet(bed: KubernetesBed) -> Iterator[EmulatedKubelet]:
    bed.namespace("demo")
    with EmulatedKubelet(bed, {f"w{n}": 4 for n in range(4)}) as started:
        yield started


@contextmanager
def on_kubernetes(root: Path, kubelet: EmulatedKubelet, more: str = "", **about: Any) -> Iterator[ClusterAtWork]:
    bed = kubelet.bed
    engine = f"kubernetes:server={bed.server},ca={bed.ca},token_file={bed.admin_token},namespace=demo,image=train:1{more}"
    options = {"lease_s": 10.0, "grace_s": 10.0, "round_s": 1.0, **about}
    with ClusterAtWork(root, machines="", engine=engine, **options) as cluster:
        wait_for(lambda: sum(node["up"] for node in cluster.nodes().values()) == len(kubelet.nodes), "nodes", cluster._logs)
        yield cluster


def pods(bed: KubernetesBed, job: int | None = None) -> list[dict[str, Any]]:
    selected = "" if job is None else f"?labelSelector=fairlead/job={job}"
    return list(bed.ask("GET", f"/api/v1/namespaces/demo/pods{selected}")["items"])


@pytest.mark.parametrize("policy", ["las", "max-min-fairness"])
def test_a_dozen_jobs_end_as_they_should(tmp_path: Path, kubelet: EmulatedKubelet, policy: str) -> None:
    before = len(kubelet.started)
    with on_kubernetes(tmp_path, kubelet, policy=policy, round_s=2.0) as cluster:
        names = [f"count-{n}" for n in range(7)]
        cluster.submit(*(cluster.job(name, steps=300, step_s=0.1, workers=3) for name in names))
        cluster.submit(cluster.job("gang", steps=300, step_s=0.1, workers=6))
        cluster.submit(cluster.job("pair", steps=300, step_s=0.1, workers=2))
        cluster.submit(cluster.job("lone", steps=300, step_s=0.1))
        cluster.submit(cluster.job("fails", steps=5, fails_at=2, retries=0), ends="failed")
        cluster.submit(cluster.job("cancelled", steps=10_000), ends="cancelled")
        cluster.until("the short ones run", lambda jobs: jobs["cancelled"]["steps_done"] > 2)
        cluster.cancel("cancelled")
        cluster.until("one was preempted", lambda jobs: sum(job["preemptions"] for job in jobs.values()) > 0)
        for name in (*names, "gang", "pair", "lone"):
            cluster.hurry(name)
        jobs = cluster.until_all_ended()
        assert len(jobs) == 12
    started = kubelet.started[before:]
    assert len(started) == len(set(started)), "a Pod ran twice"


def test_a_control_plane_that_is_killed_adopts_its_pods(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    with on_kubernetes(tmp_path, kubelet) as cluster:
        cluster.submit(cluster.job("one", steps=400, step_s=0.1), cluster.job("gang", steps=400, step_s=0.1, workers=6))
        cluster.until("both run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        cluster.kill_plane()
        cluster.start_plane()
        for name in ("one", "gang"):
            cluster.hurry(name)
        jobs = cluster.until_all_ended()
        assert {name: job["starts"] for name, job in jobs.items()} == {"one": 1, "gang": 1}


def test_an_api_server_that_is_away_touches_no_running_job(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    with on_kubernetes(tmp_path, kubelet) as cluster:
        cluster.submit(cluster.job("runs", steps=2000, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["runs"]["steps_done"] > 2)
        kubelet.bed.kill()
        cluster.submit(cluster.job("waits", steps=5))
        cluster.until("longer than a lease and a grace", lambda jobs: jobs["runs"]["steps_done"] > 250)
        assert cluster.jobs()["waits"]["steps_done"] == 0
        kubelet.bed.start()
        cluster.until("the order is carried out", lambda jobs: jobs["waits"]["phase"] == "finished")
        cluster.hurry("runs")
        assert cluster.until_all_ended()["runs"]["starts"] == 1


def test_a_cordoned_node_is_drained(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    merge = {"Content-Type": "application/merge-patch+json"}
    with on_kubernetes(tmp_path, kubelet) as cluster:
        cluster.submit(cluster.job("moves", steps=2000, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["moves"]["steps_done"] > 2)
        here = next(name for name, node in cluster.nodes().items() if node["jobs"])
        kubelet.bed.ask("PATCH", f"/api/v1/nodes/{here}", {"spec": {"unschedulable": True}}, **merge)
        cluster.until("it has moved", lambda jobs: jobs["moves"]["starts"] == 2 and jobs["moves"]["steps_done"] > 2)
        kubelet.bed.ask("PATCH", f"/api/v1/nodes/{here}", {"spec": {"unschedulable": None, "taints": None}}, **merge)
        wait_for(lambda: not cluster.nodes()[here]["drained"], "the drain ends", cluster._logs)
        cluster.hurry("moves")


def test_a_pod_that_is_deleted_by_force_is_not_overlapped(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    """The job notices when it runs twice at once, and `ClusterAtWork` checks it."""
    with on_kubernetes(tmp_path, kubelet, lease_s=3.0, grace_s=3.0) as cluster:
        cluster.submit(cluster.job("forced", steps=3000, step_s=0.1, save_every=5))
        cluster.harmed.add("forced")
        steps = 0
        for launch in (1, 2, 3):

            def runs(jobs: dict[str, Any], launch: int = launch, steps: int = steps) -> bool:
                return bool(jobs["forced"]["starts"] == launch and jobs["forced"]["steps_done"] > steps + 5)

            cluster.until("it runs", runs)
            number = cluster.jobs()["forced"]["number"]

            def running(number: int = number) -> list[str]:
                found = [pod for pod in pods(kubelet.bed, number) if pod["status"]["phase"] == "Running"]
                return [pod["metadata"]["name"] for pod in found]

            wait_for(lambda: len(running()) == 1, "its pod is reported", cluster._logs)
            kubelet.bed.ask("DELETE", f"/api/v1/namespaces/demo/pods/{running()[0]}", {"gracePeriodSeconds": 0})
            cluster.until("it starts again", lambda jobs, n=launch: jobs["forced"]["starts"] > n)
            steps = cluster.jobs()["forced"]["steps_done"]
        cluster.until("it resumed", lambda jobs: jobs["forced"]["starts"] >= 4)
        cluster.hurry("forced")
        cluster.until_all_ended()


def test_a_wrong_image_and_a_forbidden_volume_are_one_clear_line(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    with on_kubernetes(tmp_path, kubelet) as cluster:
        host = {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}
        cluster.submit({**cluster.job("volume", steps=5), "kubernetes": host}, ends="failed")
        cluster.until_all_ended()
        line = "volume v of the type hostPath is not allowed here; an operator can allow it (allow=hostPath)"
        assert line in str(cluster.jobs()["volume"])
        cluster.submit({**cluster.job("image", steps=5), "kubernetes": {"image": "missing:1"}}, ends="cancelled")
        wait_for(lambda: any("ImagePullBackOff" in str(pod) for pod in pods(kubelet.bed)), "its pod waits", cluster._logs)
        cluster.cancel("image")
        cluster.until_all_ended()


class TestContract(DriverContract):
    """The contract of all drivers, on the real API server."""

    patience_s = 120.0

    @pytest.fixture(autouse=True)
    def _on_bed(self, kubelet: EmulatedKubelet) -> None:
        self.bed = kubelet.bed

    def make(self) -> EngineDriver:
        bed = self.bed
        return KubernetesDriver(
            server=bed.server, ca=str(bed.ca), token_file=str(bed.admin_token), namespace="demo", image="train:1"
        )

    @contextmanager
    def _api_killed(self) -> Iterator[None]:
        self.bed.kill()
        try:
            yield
        finally:
            self.bed.start()

    def away(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._api_killed()
