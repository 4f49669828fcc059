"""One run of a sweep, as data: the inputs that its fingerprint is made of, and what comes of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import yaml

from fairlead.backends.costs import Costs
from fairlead.config import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.report.metrics import MetricOptions, summarize
from fairlead.study.inputs import TraceFile
from fairlead.study.reproduce.case import Answer
from fairlead.study.reproduce.world import World
from fairlead.study.simulate import Simulation, simulate
from fairlead.workloads.generate import Generator
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import retime_poisson

USERS = 12
"""Of generated jobs, as in `fairlead compare`."""


@dataclass(frozen=True)
class JobsAndRates(World):
    """What all runs of a sweep have in common: the rates, and the trace if there is one. Both count by what is in the files."""

    trace_file: TraceFile | None = None

    @property
    def mark(self) -> str:
        return self.rates_mark if self.trace_file is None else f"{self.rates_mark} {_digest(self.trace_file.path)}"

    @property
    def given_table(self) -> ThroughputTable | None:
        """The rates that a person gave; without any, jobs in seconds need none."""
        return None if self.throughputs is None else self.table

    def jobs(self) -> Trace | None:
        return None if self.trace_file is None else _trace(self.trace_file, self)


@dataclass(frozen=True)
class SweepRun:
    """A scheduler on a cluster at a load with a seed. `scheduler` is the text of a scheduler file without its name, so that
    runs that differ in nothing else are one."""

    scheduler: str
    cluster: Cluster
    load: float | None
    seed: int
    jobs: int = 0  # generated; 0: those of the trace
    workers: str = "multiple"
    costs: Costs = field(default_factory=Costs)
    measure: tuple[int, int] | None = None
    fill_workers: bool = False

    def run(self, world: World) -> Answer:
        assert isinstance(world, JobsAndRates)
        config = SchedulerConfig.from_data(yaml.safe_load(self.scheduler))
        given = Simulation(
            self._trace(world),
            self.cluster,
            config,
            world.given_table,
            self.costs,
            seed=self.seed,
            measure=self.measure,
            fill_workers=self.fill_workers,
        )
        return {"figures": summarize(simulate(given).record, MetricOptions(measure=self.measure)).to_dict()}

    def _trace(self, world: JobsAndRates) -> Trace:
        read = world.jobs()
        if read is not None:
            return read if self.load is None else retime_poisson(read, self.load, self.seed)
        made = Generator(self.jobs, self.load, table=world.table, workers=self.workers, users=USERS)
        return made.trace(self.seed)


@lru_cache(maxsize=2)
def _trace(file: TraceFile, world: JobsAndRates) -> Trace:
    return file.read(world.given_table)


@lru_cache(maxsize=2)
def _digest(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:16]
    except OSError as problem:
        raise InputError(path, f"a trace that can be read ({problem.strerror})") from None
