"""Agents on a Ray cluster of this machine, with 3 nodes of 2 GPUs: seconds from `fairlead ray up` to nodes that have joined,
and from the order of a launch, and from its submission, to the first step. Jobs are submitted one after the other. Needs the
extra fairlead[ray]; takes 5 minutes. Wall times depend on what else the machine does, so its load is printed."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "on_ray"))
from cluster_at_work import wait_for
from ray_at_work import RayAtWork
from ray_cluster import ray_cluster, ray_environment

from fairlead.core import events as ev
from fairlead.journal.recovery import read_journal

NODES, GPUS = 3, 2


def report(what: str, took: Sequence[float]) -> None:
    p95 = statistics.quantiles(took, n=20)[-1] if len(took) >= 20 else max(took)
    spread = f"median {statistics.median(took):.2f}, p95 {p95:.2f}, {min(took):.2f} to {max(took):.2f}"
    print(f"{what}: {spread} s ({len(took)} times; load {os.getloadavg()[0]:.1f})", flush=True)


def joining(cluster: RayAtWork, times: int) -> None:
    """Leaves the agents of the last time running."""
    begun, returned = [], []
    for number in range(times):
        if number:
            cluster.down()
            cluster.until_left()
        begun.append(time.time())
        cluster.up()
        returned.append(time.time() - begun[-1])
        cluster.until_joined(NODES)
    events = list(read_journal(str(cluster.journal)))
    joined = [origin(events) + event.time for event in events if isinstance(event, ev.NodeAdded)]
    report(f"`fairlead ray up` to {NODES} joined nodes", [joined[NODES * n - 1] - begun[n - 1] for n in range(1, times + 1)])
    report("`fairlead ray up` to its end", returned)


def origin(events: Sequence[ev.Event]) -> float:
    """The Unix time of second 0."""
    return next(event.origin for event in events if isinstance(event, ev.JournalOpened))


def launching(cluster: RayAtWork, times: int) -> None:
    submitted, begun = [], []
    for number in range(times):
        name = f"one-{number}"
        submitted.append(time.time())
        cluster.submit(cluster.job(name, steps=1))
        wait_for(lambda name=name: bool(cluster.steps_of(name)), "its first step", cluster._logs)
        begun.append((cluster.root / f"{name}.steps").stat().st_mtime)  # of its only line
    cluster.until_all_ended()
    events = list(read_journal(str(cluster.journal)))
    orders: dict[int, float] = {}  # by job, of its launch
    for event in events:
        if isinstance(event, ev.RoundPlanned):
            orders.update((int(job), origin(events) + event.time) for job in event.plan.launches.jobs)
    report("order to first step", [begun[job] - ordered for job, ordered in sorted(orders.items())])
    report("submission to first step", [end - start for start, end in zip(submitted, begun, strict=True)])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--joins", type=int, default=5)
    options.add_argument("--launches", type=int, default=40)
    chosen = options.parse_args()
    os.environ.update(ray_environment())
    with (
        ray_cluster(NODES, num_gpus=GPUS) as ray,
        tempfile.TemporaryDirectory(prefix="on-ray-") as folder,
        RayAtWork(Path(folder), ray) as cluster,
    ):
        joining(cluster, chosen.joins)
        launching(cluster, chosen.launches)


if __name__ == "__main__":
    main()
