"""How large a reproduction of Blox is. The paper has 128 accelerators and measures jobs 3,000 to 3,999; a smaller cluster gets
as much smaller a load, so that accelerators are as loaded. The window of the small scale comes earlier than the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAPER_ACCELERATORS = 128
PER_NODE = 4
HIGH = 8.0
"""Jobs per hour at which the paper's claims about admission and placement are made (§4.3, §5.1)."""

DURATIONS = ("philly", "gavel")
SHOWN = {"philly": "Philly", "gavel": "Gavel"}
WORK_H = {"philly": 10.32, "gavel": 31.86}
"""Accelerator-hours of a job, on average: of the Philly jobs with gangs of 1, 2, 4 and 8, and of Gavel's generator."""


@dataclass(frozen=True)
class Choosing:
    """Where the scheduler is chosen anew (Figures 14, 15, 20 and 21): `shares` are loads as shares of capacity."""

    accelerators: int
    measure: tuple[int, int]
    shares: tuple[float, ...]

    @property
    def size(self) -> str:
        return f"{self.accelerators} V100, jobs {self.measure[0]:,}–{self.measure[1] - 1:,}"


@dataclass(frozen=True)
class Scale:
    """`loads` are the paper's jobs per hour; `shares` are loads too, as shares of what the cluster can carry."""

    name: str
    accelerators: int
    measure: tuple[int, int]
    seeds: tuple[int, ...]
    loads: tuple[float, ...]
    shares: tuple[float, ...]
    sensitive: tuple[int, ...]  # models of eight, in Figure 11
    choosing: Mapping[str, Choosing]  # by durations
    choosing_seeds: tuple[int, ...]
    takes: str = ""  # on one core

    @property
    def cluster(self) -> str:
        return cluster_of(self.accelerators)

    def load(self, paper: float) -> float:
        """Jobs per hour here that load an accelerator as the paper's do there."""
        return paper * self.accelerators / PAPER_ACCELERATORS

    def points(self, durations: str, loads: tuple[float, ...] = (HIGH,)) -> tuple[float, ...]:
        """In the paper's jobs per hour: these, and those that keep shares of the cluster busy."""
        return tuple(sorted({*loads, *(at_share(durations, share) for share in self.shares)}))

    @property
    def size(self) -> str:
        first, last = self.measure
        return f"{self.accelerators} V100, jobs {first:,}–{last - 1:,} measured, {seeds_told(self.seeds)}"

    @property
    def choosing_size(self) -> str:
        sizes = {f"{one.size} with {SHOWN[durations]} durations" for durations, one in self.choosing.items()}
        return f"{' and '.join(sorted(sizes))}, {seeds_told(self.choosing_seeds)}"

    @property
    def description(self) -> str:
        loads = ", ".join(f"{load:g}" for load in self.loads)
        shares = "".join(f", {100 * share:.0f} % of capacity" for share in self.shares)
        chosen = f"the synthesizer on {self.choosing_size}"
        takes = f"; {self.takes}" if self.takes else ""
        return f"{self.name}: {self.size}; loads of {loads} jobs per hour (per 128){shares}; {chosen}{takes}"


def seeds_told(seeds: tuple[int, ...]) -> str:
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


def cluster_of(accelerators: int) -> str:
    return f"{accelerators}xv100:{PER_NODE}"


def share_of(durations: str, load: float) -> float:
    """The part of the paper's cluster that so many jobs per hour keep busy."""
    return load * WORK_H[durations] / PAPER_ACCELERATORS


def at_share(durations: str, share: float) -> float:
    return round(share * PAPER_ACCELERATORS / WORK_H[durations], 4)


def load_told(durations: str, load: float) -> str:
    return f"{SHOWN[durations]} durations, {load:.3g} jobs/hr ({100 * share_of(durations, load):.0f} % of capacity)"


def _choosing(philly: Choosing, gavel: Choosing) -> dict[str, Choosing]:
    return {"philly": philly, "gavel": gavel}


# Where the synthesizer is tried, Philly's loads are higher: the work of its few long jobs is not there yet in the window.
SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", 16, (4, 10), (0,), (2.0, 8.0), (), (5, 8),
              _choosing(Choosing(8, (3, 9), (1.2,)), Choosing(8, (3, 9), (1.2,))), (0,)),
        Scale("small", 32, (225, 300), (0, 1, 2), (2.0, 8.0), (0.9,), (5, 8),
              _choosing(Choosing(16, (150, 200), (4.0,)), Choosing(16, (10, 40), (1.2,))), (0, 1, 2, 3, 4),
              "about 18 minutes on one core"),
        Scale("medium", 64, (1500, 2000), (0, 1, 2), (1.0, 3.0, 5.0, 7.0, 8.0), (0.9, 1.2), (5, 6, 7, 8),
              _choosing(Choosing(32, (400, 500), (2.0,)), Choosing(32, (200, 300), (0.9, 1.2))), (0, 1, 2, 3, 4),
              "about seven hours on one core, extrapolated from a few cases"),
        Scale("full", 128, (3000, 4000), (0, 1, 2), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0), (0.5, 0.7, 0.9, 1.0, 1.2),
              (5, 6, 7, 8), _choosing(Choosing(128, (3000, 4000), (1.2, 1.5)), Choosing(128, (3000, 4000), (0.9, 1.2))),
              (0, 1, 2, 3, 4), "days on one core, most of them for the synthesizer; not run yet"),
    )
}  # fmt: skip
