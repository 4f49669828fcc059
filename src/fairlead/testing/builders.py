"""Jobs, clusters and workloads in a few words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairlead.core.cluster import Cluster, Node
from fairlead.core.job import TIMED, Job
from fairlead.core.rng import stream
from fairlead.workloads.throughput_tables import ThroughputTable


@dataclass(frozen=True)
class JobBuilder:
    """A job in a few words: `job("wide").workers(8).lasting(600).at(30).with_(user="ann")`."""

    value: Job = field(default_factory=lambda: Job("job", steps=3600.0))

    def workers(self, count: int) -> JobBuilder:
        """Ask for this many GPUs."""
        return self.with_(workers=count)

    def lasting(self, seconds: float) -> JobBuilder:
        """Run for this many seconds on any GPU type."""
        return self.with_(steps=float(seconds), kind=TIMED)

    def of_kind(self, kind: str, steps: float) -> JobBuilder:
        """Have a job type of the throughput table, and this many steps."""
        return self.with_(kind=kind, steps=float(steps))

    def at(self, second: float) -> JobBuilder:
        """Be submitted at this second; default: 0."""
        return self.with_(submitted_s=float(second))

    def with_(self, **fields: Any) -> JobBuilder:
        """Change any field of `fairlead.Job`, such as `user`, `priority` or `allowed_types`."""
        return JobBuilder(replace(self.value, **fields))


def job(name: str) -> JobBuilder:
    """Start a job builder; by default an hour of work for one GPU, submitted at second 0."""
    return JobBuilder(Job(name, steps=3600.0))


def cluster(text: str) -> Cluster:
    """`"v100:4"` is one node of four; `"v100:4,v100:4,k80:2"` three nodes; `"8xv100:4"` is understood too."""
    if "x" in text.split(":")[0]:
        return Cluster.parse(text)
    nodes = []
    for index, part in enumerate(text.split(",")):
        type_name, _, size = part.strip().partition(":")
        nodes.append(Node(f"{type_name}-{index}", type_name, int(size or 1)))
    return Cluster(tuple(nodes))


def random_table(seed: int, types: tuple[str, ...], kinds: int = 4, sizes: tuple[int, ...] = (1, 2, 4)) -> ThroughputTable:
    """Made-up rates: later types are slower, gangs scale with losses, spread is slower, co-location costs a third."""
    rng = stream(seed, "testing", "table")
    keys: list[tuple[str, int]] = [(TIMED, 1)]
    rows = [np.ones(len(types))]
    for kind in range(kinds):
        base = rng.uniform(0.5, 5.0) / (1.0 + np.arange(len(types)) * rng.uniform(0.2, 2.0))
        for size in sizes:
            keys.append((f"kind-{kind}", size))
            rows.append(base * size**0.9)
    alone = np.array(rows)
    spread = alone * np.where(np.array([size for _, size in keys]) > 1, 0.7, 1.0)[:, None]
    paired = np.repeat(alone[:, None, :] * (2 / 3), len(keys), axis=1)
    return ThroughputTable(types, tuple(keys), alone, spread, paired, "made up")


def with_hosts(machine: Cluster) -> Cluster:
    """The same cluster with 4 CPUs and 16 GB of host memory to an accelerator."""
    sized = (replace(node, cpus=4.0 * node.accelerators, memory_gb=16.0 * node.accelerators) for node in machine.nodes)
    return Cluster(tuple(sized), machine.types)


def asking_of_hosts(seed: int, jobs: list[Job]) -> list[Job]:
    """The same jobs, some of which want less of CPUs and memory than comes with an accelerator, and some more."""
    rng = stream(seed, "testing", "hosts")
    cpus, memory = rng.choice([0.0, 1.0, 2.5, 4.0, 7.0], len(jobs)), rng.choice([0.0, 8.0, 16.0, 20.0], len(jobs))
    return [replace(job, cpus=c, host_memory_gb=gb) for job, c, gb in zip(jobs, cpus.tolist(), memory.tolist())]


def random_jobs(seed: int, count: int, *, table: ThroughputTable | None = None, largest: int = 4) -> list[Job]:
    """Jobs of all sorts: gangs, weights, priorities, time limits, minimum runs. They come within three hours and are more than
    eight accelerators can do in that time, so that queues build up."""
    rng = stream(seed, "testing", "jobs")
    jobs = []
    sizes = [size for size in (1, 1, 1, 2, 4, 8) if size <= largest]
    for index in range(count):
        kind = TIMED if table is None else table.kinds[int(rng.integers(len(table.kinds)))]
        length = float(rng.lognormal(8.5, 1.0))
        jobs.append(
            Job(
                f"job-{index}",
                submitted_s=float(np.round(rng.uniform(0, 3 * 3600), int(rng.integers(0, 3)))),
                steps=length,
                kind=kind,
                workers=int(sizes[int(rng.integers(len(sizes)))]),
                weight=float(rng.choice([1.0, 1.0, 2.0])),
                priority=int(rng.integers(0, 3)),
                user=f"user-{int(rng.integers(3))}",
                time_limit_s=float(rng.choice([np.inf, np.inf, np.inf, 3000.0])),
                min_run_s=float(rng.choice([0.0, 0.0, 0.0, 700.0])),
            )
        )
    return jobs
