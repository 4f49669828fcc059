"""Jobs of a control plane on a real API server, with real processes: each launch is a Pod. Every scene ends with the audit of
`ClusterAtWork`: all steps done, none twice at once, and a journal that replays to the same bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from emulated_kubelet import EmulatedKubelet
from kubernetes_at_work import delete_by_force, on_kubernetes, said, wait_for
from kubernetes_bed import KubernetesBed

from fairlead.runtime.drivers.base import EngineDriver
from fairlead.runtime.drivers.kubernetes_driver import KubernetesDriver
from fairlead.testing.contracts.driver_contract import DriverContract


@pytest.fixture(scope="module")
def kubelet(bed: KubernetesBed) -> Iterator[EmulatedKubelet]:
    bed.namespace("demo")
    with EmulatedKubelet(bed, {f"w{n}": 4 for n in range(4)}) as started:
        yield started


@pytest.mark.parametrize("policy", ["las", "max-min-fairness", "max-min-fairness-perf"])
def test_a_dozen_jobs_end_as_they_should(tmp_path: Path, kubelet: EmulatedKubelet, policy: str) -> None:
    before = len(kubelet.started)
    with on_kubernetes(tmp_path, kubelet, policy=policy) as cluster:
        cluster.run_the_dozen()
    started = kubelet.started[before:]
    assert len(started) == len(set(started)), "a Pod ran twice"


def test_an_elastic_job_changes_its_size(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    with on_kubernetes(tmp_path, kubelet, policy="optimus:restart_s=1") as cluster:
        sizes = lambda: {len(ranks) for ranks in cluster.launches_of("elastic").values()}  # noqa: E731
        cluster.run_the_dozen(seen=lambda jobs: len(sizes()) > 1)


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
        with kubelet.bed.away():
            done = cluster.jobs()["runs"]["steps_done"]
            cluster.submit(cluster.job("waits", steps=5))
            cluster.until("longer than a lease and a grace", lambda jobs: jobs["runs"]["steps_done"] > done + 250)
            assert cluster.jobs()["waits"]["steps_done"] == 0
            assert "kubernetes is unavailable: the API server" in said(cluster, "why", "waits")
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
    delete_by_force(tmp_path, kubelet, int(os.environ.get("FAIRLEAD_FORCED_DELETIONS", "3")))


def test_a_forbidden_volume_and_a_wrong_image_are_one_clear_line(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    with on_kubernetes(tmp_path, kubelet, more=",start_within_s=10") as cluster:
        host = {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}
        cluster.submit(cluster.job("volume", steps=5, kubernetes=host), ends="failed")
        cluster.submit(cluster.job("image", steps=5, retries=1, kubernetes={"image": "missing:1"}), ends="failed")
        wait_for(lambda: "has not started" in said(cluster, "why", "image"), "its pod waits", cluster._logs)
        line = r'image is running; it has not started on w\d: ImagePullBackOff: Back-off pulling image "missing:1"\n'
        assert re.fullmatch(line, said(cluster, "why", "image"))
        cluster.until_all_ended()
        assert "volume v of the type hostPath is not allowed here; an operator can allow it" in said(cluster, "why", "volume")
        assert 'Back-off pulling image "missing:1"' in said(cluster, "why", "image")
        assert cluster.jobs()["image"]["failures"] == 2
        assert not [node for node in cluster.nodes().values() if node.get("launch_error")], "no node is to blame"


def test_an_expired_token_is_one_clear_line_and_nothing_is_lost(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    token = tmp_path / "token"
    token.write_text(kubelet.bed.admin_token.read_text())
    with on_kubernetes(tmp_path, kubelet, token_file=str(token)) as cluster:
        cluster.submit(cluster.job("runs", steps=3000, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["runs"]["steps_done"] > 2)
        token.write_text("expired")
        cluster.submit(cluster.job("waits", steps=5))
        line = f"kubernetes is unavailable: {kubelet.bed.server} does not accept the token of {token}: it may have expired"
        wait_for(lambda: line in said(cluster, "why", "waits"), "the line", cluster._logs)
        assert line in said(cluster, "nodes")
        token.write_text(kubelet.bed.admin_token.read_text())
        cluster.until("the order is carried out", lambda jobs: jobs["waits"]["phase"] == "finished")
        assert "is unavailable" not in said(cluster, "nodes")
        cluster.hurry("runs")
        assert cluster.until_all_ended()["runs"]["starts"] == 1


def test_a_missing_namespace_is_one_clear_line_and_nothing_is_lost(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    with on_kubernetes(tmp_path, kubelet, namespace="nowhere") as cluster:
        cluster.submit(cluster.job("waits", steps=5))
        line = 'kubernetes is unavailable: namespaces "nowhere" not found'
        wait_for(lambda: line in said(cluster, "why", "waits"), "the line", cluster._logs)
        assert line in said(cluster, "nodes")
        kubelet.bed.namespace("nowhere")
        cluster.until_all_ended()


def test_missing_rights_are_one_clear_line(tmp_path: Path, kubelet: EmulatedKubelet) -> None:
    """Nodes come, and jobs run, when an operator has given the rights."""
    bed, name, token = kubelet.bed, "rights", tmp_path / "token"
    bed.namespace(name)
    bed.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "fairlead"}})
    token.write_text(bed.account_token(name, "fairlead"))
    with on_kubernetes(tmp_path, kubelet, nodes=0, namespace=name, token_file=str(token)) as cluster:
        line = rf"kubernetes is unavailable: .* User \"system:serviceaccount:{name}:fairlead\" cannot list resource"

        cluster.submit(cluster.job("early"))
        told = lambda: cluster.ask("GET", "/v1/jobs/early")  # noqa: E731
        wait_for(lambda: told()["reason"]["code"] == "no-nodes", "it waits for nodes", cluster._logs)
        wait_for(lambda: re.search(line, " ".join(told()["engine_problems"])) is not None, "the line", cluster._logs)
        subject = {"kind": "ServiceAccount", "name": "fairlead", "namespace": name}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        roles = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        bed.ask("POST", roles, {"metadata": {"name": name}, "subjects": [subject], "roleRef": role})
        wait_for(lambda: len(cluster.nodes()) == len(kubelet.nodes), "nodes come", cluster._logs)
        cluster.submit(cluster.job("runs", steps=5))
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

    def away(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return self.bed.away()
