"""Launches as Pods of a real API server, with processes in place of containers: seconds from an order until its Pod runs and
until the first step of a job; and Pods that are deleted by force, of which none may overlap its successor. The API server comes
from `tests/on_kubernetes/build.sh`."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "on_kubernetes"))
from emulated_kubelet import EmulatedKubelet
from kubernetes_at_work import NAMESPACE, delete_by_force, on_kubernetes, wait_for
from kubernetes_bed import KubernetesBed

from fairlead.runtime.drivers.base import LaunchKey, LaunchNeeds, LaunchPart, TaskState
from fairlead.runtime.drivers.kubernetes_driver import KubernetesDriver

ORDERS, JOBS, FORCED = 60, 20, 50


def orders(bed: KubernetesBed) -> None:
    """Print the seconds from `start` until the driver sees the Pod run, one order after the other."""
    keys = {"server": bed.server, "ca": str(bed.ca), "token_file": str(bed.admin_token), "namespace": NAMESPACE}
    driver, took = KubernetesDriver(**keys, image="train:1", command="python -c"), []
    driver.observe("orders")
    for number in range(ORDERS):
        key = LaunchKey("orders", number, 1, f"w{number % 4}")
        begun = time.monotonic()
        driver.start([LaunchPart(key, (0,), ("import time; time.sleep(600)",), "token")], LaunchNeeds("one"))
        wait_for(
            lambda key=key: (key, TaskState.RUNNING) in [(task.key, task.state) for task in driver.observe("orders")[1]], ""
        )
        took.append(time.monotonic() - begun)
        driver.stop(key, 0.0)
    driver.close()
    _print(f"{ORDERS} orders: running", took)


def jobs(root: Path, kubelet: EmulatedKubelet) -> None:
    """Print the seconds from a submission to the first step, of jobs that are submitted one after the other."""
    took = []
    with on_kubernetes(root, kubelet, round_s=0.5) as cluster:
        for number in range(JOBS):
            begun, name = time.monotonic(), f"one-{number}"
            cluster.submit(cluster.job(name, steps=1))
            wait_for(lambda name=name: bool(cluster.steps_of(name)), "its first step", cluster._logs)
            took.append(time.monotonic() - begun)
        cluster.until_all_ended()
    _print(f"{JOBS} jobs: first step", took)


def _print(what: str, took: list[float]) -> None:
    p95 = sorted(took)[int(0.95 * (len(took) - 1))]
    median, most, load = statistics.median(took), max(took), os.getloadavg()[0]
    print(f"{what} {median:.2f} s after it (p95 {p95:.2f}, most {most:.2f}); load {load:.0f}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="native-") as place, KubernetesBed() as server:
        server.namespace(NAMESPACE)
        for folder in ("jobs", "forced"):
            Path(place, folder).mkdir()
        with EmulatedKubelet(server, {f"w{n}": 4 for n in range(4)}) as started:
            orders(server)
            jobs(Path(place, "jobs"), started)
            delete_by_force(Path(place, "forced"), started, FORCED)
