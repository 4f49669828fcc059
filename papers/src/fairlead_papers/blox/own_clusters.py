"""How large the studies are that have a cluster of their own at every scale: Pollux' 64 accelerators and 160 jobs, Synergy's
128 with 24 CPUs for eight. Smaller scales have fewer workloads, loads and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from fairlead_papers.blox.scale import Scale, seeds_told
from fairlead_papers.blox.traces import POLLUX_WORKLOADS


@dataclass(frozen=True)
class OwnClusters:
    """`loads` are jobs per hour on Pollux' cluster."""

    workloads: tuple[int, ...]  # of Pollux' eight
    seeds: tuple[int, ...]  # of arrivals, for each of them
    loads: tuple[float, ...]
    stream_measure: tuple[int, int]  # of all eight workloads in one stream
    hosts_measure: tuple[int, int]  # jobs on Synergy's cluster
    hosts_seeds: tuple[int, ...]
    takes: str  # processor time of Figures 3, 5, 8 and 9
    jobs: int = 160  # of each workload, the first

    @property
    def arrivals(self) -> tuple[tuple[int, int], ...]:
        """Workloads and seeds, a pair for each run of an arm at a load."""
        return tuple(product(self.workloads, self.seeds))

    @property
    def trained_size(self) -> str:
        return f"64 V100, {self.jobs} jobs of {self._workloads}"

    @property
    def arrivals_size(self) -> str:
        return f"{self.trained_size}, {seeds_told(self.seeds)} of arrivals each"

    @property
    def stream_size(self) -> str:
        first, last = self.stream_measure
        return f"64 V100, Pollux' eight workloads in one stream, jobs {first:,}–{last - 1:,} measured"

    @property
    def hosts_size(self) -> str:
        first, last = self.hosts_measure
        return f"128 V100, 24 CPUs for eight, jobs {first:,}–{last - 1:,} measured, {seeds_told(self.hosts_seeds)}"

    @property
    def description(self) -> str:
        loads = ", ".join(f"{load:g}" for load in self.loads)
        sizes = (self.arrivals_size, f"{loads} jobs per hour", self.stream_size, self.hosts_size)
        return f"{'; '.join(sizes)}; about {self.takes} on one core"

    @property
    def _workloads(self) -> str:
        if len(self.workloads) == 1:
            return f"Pollux' workload {self.workloads[0]}"
        return f"each of {len(self.workloads)} of Pollux' workloads"


_SIZES = {
    "tiny": OwnClusters((6,), (0,), (10.0, 40.0), (0, 6), (4, 12), (0,), "seconds", jobs=8),
    "small": OwnClusters((6,), (0, 1, 2), (5.0, 10.0, 25.0, 40.0), (320, 480), (200, 400), (0, 1, 2), "4 minutes"),
    "medium": OwnClusters(
        POLLUX_WORKLOADS,
        (0,),
        (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0),
        (480, 640),
        (500, 1000),
        (0, 1, 2),
        "a quarter of an hour",
    ),
    "full": OwnClusters(
        POLLUX_WORKLOADS,
        (0, 1, 2),
        (2.5, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 60.0),
        (640, 800),
        (3000, 4000),
        (0, 1, 2),
        "an hour",
    ),
}


def own_clusters(scale: Scale) -> OwnClusters:
    return _SIZES[scale.name]
