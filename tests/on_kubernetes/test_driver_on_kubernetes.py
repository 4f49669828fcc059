"""The Kubernetes driver on a real API server, with real processes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emulated_kubelet import EmulatedKubelet
from kubernetes_bed import DEADLINE_S, KubernetesBed

from fairlead.runtime.drivers.base import (
    EngineRefused,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    MachineState,
    TaskState,
)
from fairlead.runtime.drivers.kubernetes_driver import KubernetesDriver

JOURNAL = "journal-1"
_numbers = itertools.count(1)
SLEEPS = "import time; print('begun', flush=True); time.sleep(600)"
SAVES = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(7)); print('begun', flush=True); time.sleep(600)"


class Site:
    """A namespace with a driver; the nodes belong to the test."""

    def __init__(self, bed: KubernetesBed, kubelet: EmulatedKubelet, **keys: Any) -> None:
        self.bed, self.kubelet = bed, kubelet
        self.namespace = bed.namespace(f"jobs-{next(_numbers)}")
        self.keys = {"server": bed.server, "ca": str(bed.ca), "token_file": str(bed.admin_token), "image": "train:1", **keys}
        self.driver = self.another_driver()

    def another_driver(self, **keys: Any) -> KubernetesDriver:
        return KubernetesDriver(namespace=self.namespace, command="python -c", **{**self.keys, **keys})

    def start(
        self, code: str, *machines: str, job: int = 1, gpus: int = 1, driver: KubernetesDriver | None = None, **needs: Any
    ) -> list[LaunchKey]:
        keys = [LaunchKey(JOURNAL, job, 1, machine) for machine in machines or ("n1",)]
        parts = [LaunchPart(key, tuple(range(gpus)), (code,), f"token of {key.machine}") for key in keys]
        (driver or self.driver).start(parts, LaunchNeeds("train", **needs))
        return keys

    def task(self, key: LaunchKey) -> EngineTask | None:
        return {task.key: task for task in self.driver.observe(key.journal)[1]}.get(key)

    def until(self, holds: Callable[[], Any]) -> Any:
        """Wait until a condition holds, and return what it gave; the engine may be away meanwhile."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if found := holds():
                    return found
            except EngineUnavailable:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def is_in(self, key: LaunchKey, state: TaskState) -> EngineTask:
        def found() -> EngineTask | None:
            task = self.task(key)
            return task if task is not None and task.state is state else None

        return self.until(found)

    def begun(self, key: LaunchKey) -> None:
        self.is_in(key, TaskState.RUNNING)
        self.until(lambda: b"begun" in (self.driver.log(key, 0, 100) or b""))

    def pods(self) -> list[dict[str, Any]]:
        return list(self.bed.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"])


@pytest.fixture(scope="module")
def kubelet(bed: KubernetesBed) -> Iterator[EmulatedKubelet]:
    with EmulatedKubelet(bed, {"n1": 4, "n2": 4, "n3": 4}) as started:
        yield started


@pytest.fixture
def sites(bed: KubernetesBed, kubelet: EmulatedKubelet) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**keys: Any) -> Site:
        made.append(Site(bed, kubelet, **keys))
        return made[-1]

    yield make
    for each in made:
        each.driver.close()
        bed.ask("DELETE", f"/api/v1/namespaces/{each.namespace}/pods?gracePeriodSeconds=0", {})


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    return sites()


def test_nodes_are_machines_and_a_cordon_is_seen(site: Site):
    machines = {machine.name: machine for machine in site.driver.observe(JOURNAL)[0]}
    assert sorted(machines) == ["n1", "n2", "n3"]
    assert {(each.type, each.accelerators, each.state) for each in machines.values()} == {("v100", 4, MachineState.READY)}
    assert machines["n1"].memory_gb == 256.0

    def state() -> tuple[MachineState, str]:
        [found] = [machine for machine in site.driver.observe(JOURNAL)[0] if machine.name == "n2"]
        return found.state, found.reason

    merge = {"Content-Type": "application/merge-patch+json"}
    site.bed.ask("PATCH", "/api/v1/nodes/n2", {"spec": {"unschedulable": True}}, **merge)
    site.until(lambda: state() == (MachineState.CORDONED, "cordoned"))
    site.bed.ask("PATCH", "/api/v1/nodes/n2", {"spec": {"unschedulable": None, "taints": None}}, **merge)
    site.kubelet.node_status("n2", conditions=[{"type": "Ready", "status": "Unknown", "message": "no heartbeat"}])
    site.until(lambda: state() == (MachineState.UNREACHABLE, "NotReady: no heartbeat"))
    site.kubelet.node_status("n2", conditions=[{"type": "Ready", "status": "True"}])
    site.until(lambda: state() == (MachineState.READY, ""))


def test_a_start_that_is_repeated_runs_once(site: Site):
    crashed = site.another_driver()  # has not listed anything
    keys = [site.start("print('hello')", job=job, gpus=0)[0] for job in range(20)]
    for job in range(20):
        site.start("print('hello')", job=job, gpus=0)
        site.start("print('hello')", job=job, gpus=0, driver=crashed)
    crashed.close()
    for key in keys:
        assert site.is_in(key, TaskState.OVER) == EngineTask(key, TaskState.OVER, 0, "")
        assert site.kubelet.started.count(key.label) == 1
        assert site.driver.log(key, 0, 100) == b"hello\n"
    assert len(site.pods()) == 20


def test_the_token_reaches_the_agent_and_is_not_in_the_pod(site: Site):
    [key] = site.start("import os; print(os.environ['FAIRLEAD_TOKEN'], os.environ['FAIRLEAD_POD_ADDRESS'], '$(HOME)')")
    site.is_in(key, TaskState.OVER)
    assert site.driver.log(key, 0, 100) == b"token of n1 127.0.0.1 $(HOME)\n"
    assert site.driver.log(key, 6, 5) == b"of n1"
    assert "token of n1" not in str(site.pods())
    [secret] = site.bed.ask("GET", f"/api/v1/namespaces/{site.namespace}/secrets")["items"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == site.pods()[0]["metadata"]["uid"]


def test_a_gang_and_the_end_of_one_part(site: Site):
    keys = site.start(SAVES, "n1", "n2", "n3")
    for key in keys:
        site.begun(key)
    site.driver.stop(keys[1], 60.0)
    assert site.is_in(keys[1], TaskState.OVER).code == 7  # it had its grace
    assert [site.is_in(key, TaskState.RUNNING).key for key in (keys[0], keys[2])] == [keys[0], keys[2]]
    for key in keys:
        site.driver.stop(key, 0.0)
        site.driver.stop(key, 0.0)


def test_a_pod_is_gone_when_it_is_forgotten(sites: Callable[..., Site]):
    site = sites(keep_s=0.0)
    [key] = site.start("raise SystemExit(3)")
    assert site.is_in(key, TaskState.OVER) == EngineTask(key, TaskState.OVER, 3, "")
    site.driver.forget(key)
    site.until(lambda: site.task(key) is None and not site.pods())
    assert not site.bed.ask("GET", f"/api/v1/namespaces/{site.namespace}/secrets")["items"]
    assert site.task(key) is None


def test_a_pod_that_was_deleted_by_force_may_still_run(site: Site):
    [key] = site.start(SLEEPS)
    site.begun(key)
    [pod] = site.pods()
    process = site.kubelet.processes[pod["metadata"]["uid"]]
    path = f"/api/v1/namespaces/{site.namespace}/pods/{key.label}"
    site.bed.ask("DELETE", path, {"gracePeriodSeconds": 0})
    task = site.is_in(key, TaskState.UNKNOWN)
    assert task.reason == "the pod was deleted before Fairlead saw its end"
    site.start(SLEEPS)  # repeated after a crash: it is not started again
    assert not site.pods()
    process.wait(120)
    site.driver.forget(key)
    assert site.task(key) is None


def test_an_api_server_that_is_killed_touches_no_running_job(site: Site):
    running, ends = site.start(SLEEPS, job=1)[0], site.start("import time; time.sleep(1)", "n2", job=2)[0]
    site.begun(running)
    [pod] = [pod for pod in site.pods() if pod["metadata"]["name"] == running.label]
    process = site.kubelet.processes[pod["metadata"]["uid"]]

    def away() -> bool:
        try:
            site.driver.observe(JOURNAL)
        except EngineUnavailable as problem:
            return f"{site.bed.server} does not answer" in str(problem)
        return False

    with site.bed.away():
        with pytest.raises(EngineUnavailable, match="does not answer"):
            site.start(SLEEPS, job=3)
        site.until(away)
    assert site.is_in(ends, TaskState.OVER).code == 0
    assert site.is_in(running, TaskState.RUNNING)
    assert process.poll() is None
    [late] = site.start(SLEEPS, job=3)
    site.begun(late)


def test_a_job_with_a_wrong_image_is_over_after_a_while(sites: Callable[..., Site]):
    site = sites(start_within_s=1.0)
    [key] = site.start(SLEEPS, options={"image": "missing:1"})
    assert site.is_in(key, TaskState.OVER).reason == 'ImagePullBackOff: Back-off pulling image "missing:1"'
    site.driver.forget(key)
    site.until(lambda: not site.pods())
    assert site.task(key) is None


def test_a_node_that_has_too_few_gpus_does_not_admit_a_pod(site: Site):
    [key] = site.start(SLEEPS, gpus=5)
    task = site.is_in(key, TaskState.OVER)
    assert (task.code, task.reason.split(":")[0]) == (1, "OutOfnvidia.com/gpu")


def test_what_kubernetes_finds_invalid_is_refused_in_its_words(site: Site):
    with pytest.raises(EngineRefused) as refused:
        site.start(SLEEPS, options={"volumeMounts": [{"name": "none", "mountPath": "/data"}]})
    assert 'volumeMounts[2].name: Not found: "none"' in str(refused.value)
    assert not site.pods()
    assert not site.bed.ask("GET", f"/api/v1/namespaces/{site.namespace}/secrets")["items"]


def test_a_namespace_that_does_not_exist(site: Site):
    driver = site.another_driver()
    driver.namespace = "missing"
    with pytest.raises(EngineUnavailable, match='namespaces "missing" not found'):
        site.start(SLEEPS, driver=driver)
    driver.close()


def test_an_expired_token_is_one_line_and_a_new_one_is_used(bed: KubernetesBed, sites: Callable[..., Site], tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("expired")
    site = sites(token_file=str(token))
    with pytest.raises(EngineUnavailable) as unavailable:
        site.start(SLEEPS)
    line = f"{bed.server} does not accept the token of {token}: it may have expired; provide a new one"
    assert str(unavailable.value) == line
    with pytest.raises(EngineUnavailable, match="it may have expired"):
        site.driver.observe(JOURNAL)
    new = tmp_path / "new"
    new.write_text(bed.admin_token.read_text())
    os.replace(new, token)
    [key] = site.start(SLEEPS)
    site.begun(key)
