"""How large a reproduction of Shockwave is: its traces of 120 to 900 jobs on 32 to 256 accelerators, and generated jobs on as
many as the scale can afford, at the paper's contention of nearly four jobs for each accelerator."""

from __future__ import annotations

from dataclasses import dataclass

TRACES = {120: 32, 220: 64, 460: 128, 900: 256}
"""The public traces: jobs, and the accelerators they are for."""

CONTENTION = 3.75
"""Jobs for each accelerator, of the trace of 120."""


def accelerators_for(jobs: int) -> int:
    """Those of the trace, or as many as give the same contention."""
    return TRACES.get(jobs) or round(jobs / CONTENTION)


def jobs_on(accelerators: int) -> int:
    """The 50 jobs of Figure 8 on its 14 accelerators, and as many for each of fewer."""
    return round(50 * accelerators / 14)


@dataclass(frozen=True)
class Scale:
    name: str
    physical: int  # jobs of Figure 7's trace
    large: tuple[int, ...]  # jobs of Figure 9's traces
    accelerators: int  # for generated jobs
    seeds: tuple[int, ...]
    noises: tuple[float, ...]  # of forecasts, in Figure 13
    foreseen: int  # jobs whose regimes are forecast, in Figure 5
    fewer: int = 14  # accelerators, in Figures 8 and 16
    every: int = 1  # one in so many of Pollux' jobs, on so many fewer accelerators, in Figures 11 and 17
    workloads: tuple[int, ...] = (6,)
    active: tuple[int, ...] = (500, 1000, 2000)  # jobs of windows, in Figure 12
    planned_on: int = 256  # accelerators, there
    windows: int = 10  # of each number of jobs
    cuts: tuple[int, ...] = (0, 4, 6, 8)  # levels of searches cut short, there

    @property
    def jobs(self) -> int:
        return round(self.accelerators * CONTENTION)

    @property
    def size(self) -> str:
        seeds = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.jobs} generated jobs on {self.accelerators} GPUs, {seeds}"

    @property
    def description(self) -> str:
        small, *large = (f"{jobs} on {accelerators_for(jobs)}" for jobs in (self.physical, *self.large))
        return f"{self.name}: traces of {small} GPUs and {', '.join(large)}; {self.size}"


SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", 15, (15,), 4, (0,), (0.0, 1.0), 20, 3, 16, active=(60,), planned_on=32, windows=2, cuts=(6,)),
        Scale("small", 120, (220,), 16, (0, 1, 2), (0.0, 0.4, 1.0), 200),
        Scale("medium", 120, (220, 460), 32, (0, 1, 2), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 200),
        Scale("full", 120, (220, 460, 900), 64, (0, 1, 2, 3, 4), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 200, workloads=(1, 3, 6)),
    )
}
