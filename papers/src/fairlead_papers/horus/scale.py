"""How large Horus' studies are run. The test bed's are small in any case; what differs is the large simulation."""

from __future__ import annotations

from dataclasses import dataclass

PER_NODE, MONTH_PER_NODE = 4, 8
FEW, MORE, MANY = (0, 1, 2, 3, 4), tuple(range(5, 25)), tuple(range(5, 105))


@dataclass(frozen=True)
class Scale:
    name: str
    jobs: int
    accelerators: int
    seeds: tuple[int, ...]
    more_seeds: tuple[int, ...]
    month_jobs: int
    month_nodes: int
    month_seeds: tuple[int, ...]
    queues: tuple[int, ...]  # for the effect of k
    learners: tuple[str, ...] = ("linear", "lightgbm", "xgboost", "random-forest")

    @property
    def cluster(self) -> str:
        return f"{self.accelerators}xh200:{PER_NODE}"

    @property
    def month_cluster(self) -> str:
        return f"{self.month_nodes * MONTH_PER_NODE}xh200:{MONTH_PER_NODE}"

    @property
    def size(self) -> str:
        return f"{self.accelerators} H200, {self.jobs} jobs, {_told(self.seeds)}"

    @property
    def month_size(self) -> str:
        return f"{self.month_nodes} × {MONTH_PER_NODE} H200, {self.month_jobs} jobs, {_told(self.month_seeds)}"

    @property
    def description(self) -> str:
        return f"{self.name}: {self.size}; the large simulation on {self.month_size}"


def _told(seeds: tuple[int, ...]) -> str:
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", 12, 3, (0,), (1, 2), 24, 8, (0,), (1, 3), ("linear",)),
        Scale("small", 100, 12, FEW, MORE, 100, 32, (0, 1, 2), (1, 3, 5)),
        Scale("medium", 100, 12, FEW, MANY, 398, 128, (0, 1, 2), (1, 3, 4, 5)),
        Scale("full", 100, 12, FEW, MANY, 398, 128, FEW, (1, 2, 3, 4, 5)),
    )
}
