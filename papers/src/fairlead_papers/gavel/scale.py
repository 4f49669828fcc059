"""How large a reproduction is: sizes of clusters, jobs and sweeps, as data. Loads of the paper are for 36 accelerators of each
type; on a smaller cluster they shrink with it, so that the load per accelerator is the paper's."""

from __future__ import annotations

from dataclasses import dataclass, replace

TYPES = ("v100", "p100", "k80")
PER_NODE = 4
PAPER_PER_TYPE = 36


@dataclass(frozen=True)
class Scale:
    """`measure` are jobs by submission; arrivals go on until the last of them has ended."""

    name: str
    per_type: int
    measure: tuple[int, int]
    seeds: tuple[int, ...]
    load_shares: tuple[float, ...]  # of the load at which the paper's claims are made, for Figures 9 and 10
    other_shares: tuple[float, ...]  # the same for the other studies over loads
    static_jobs: int  # all there at the start, for makespans
    cost_jobs: int
    few_measure: tuple[int, int]  # on the 12 accelerators of Figure 16
    active_jobs: tuple[int, ...]  # at which policies are timed
    rounds_s: tuple[float, ...]
    orders: int  # of kinds, drawn for the entities of Figure 12

    @property
    def cluster(self) -> str:
        return cluster_of(self.per_type)

    def load(self, paper: float) -> float:
        """Jobs per hour here that load an accelerator as the paper's do there."""
        return paper * self.per_type / PAPER_PER_TYPE

    def loads(self, paper: float) -> tuple[float, ...]:
        return tuple(round(paper * share, 6) for share in self.load_shares)

    def few_loads(self, paper: float) -> tuple[float, ...]:
        return tuple(round(paper * share, 6) for share in self.other_shares)

    def at_high_load(self) -> Scale:
        """Without the loads below and above the one that the paper's claims are about."""
        return replace(self, load_shares=(1.0,), other_shares=(1.0,))

    def with_seeds(self, count: int) -> Scale:
        return replace(self, seeds=tuple(range(count)))

    def hours(self, paper: float) -> tuple[float, float]:
        """From when to when, on average, the measured jobs come at a load of the paper's."""
        first, last = self.measure
        return first / self.load(paper), last / self.load(paper)

    @property
    def size(self) -> str:
        first, last = self.measure
        seeds = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.per_type} of each type, jobs {first:,}–{last - 1:,} measured, {seeds}"

    @property
    def description(self) -> str:
        shares, others = (", ".join(f"{100 * share:.0f}" for share in some) for some in (self.load_shares, self.other_shares))
        return (
            f"{self.name}: {self.size}; loads at {shares} % (Figures 9, 10) and {others} % (the others) of the paper's high"
            f" load per GPU; makespan of"
            f" {self.static_jobs:,} jobs; cost of {self.cost_jobs:,} jobs; policies timed up to {self.active_jobs[-1]:,} jobs"
        )


def cluster_of(per_type: int) -> str:
    return ",".join(f"{per_type}x{name}:{PER_NODE}" for name in TYPES)


SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", 8, (2, 6), (0,), (1.0,), (1.0,), 8, 6, (1, 4), (6, 12), (360.0, 720.0), 1),
        Scale("small", 12, (300, 500), (0,), (0.5, 0.75, 1.0), (0.5, 1.0), 200, 170, (100, 200), (32, 128, 512, 2048),
              (180.0, 360.0, 720.0, 1440.0), 5),
        Scale("medium", 36, (1000, 1500), (0,), (0.25, 0.5, 0.75, 0.9, 1.0), (0.5, 0.75, 1.0), 600, 500, (300, 500),
              (32, 128, 512, 2048), (180.0, 360.0, 720.0, 1440.0), 20),
        Scale("full", 36, (4000, 5000), (0, 1, 2), (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1), (0.2, 0.4, 0.6, 0.8, 1.0), 1000, 500,
              (1000, 1500), (32, 64, 128, 256, 512, 1024, 2048), (45.0, 180.0, 360.0, 720.0, 1440.0), 50),
    )
}  # fmt: skip
