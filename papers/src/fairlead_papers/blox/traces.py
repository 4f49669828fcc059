"""The jobs of Blox' studies. The paper's durations are not published whole, so every study has two kinds: those of Microsoft's
Philly cluster, drawn from all of its jobs, and those of Gavel's generator. Rates are the catalogue's, with 10 Gb/s between
nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.experiments.inputs import ExperimentInputs, TraceFile
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.dynamics import JobDynamics
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import (
    daily_spike,
    keep_workers,
    retime_poisson,
    short_bursts,
    with_loss_curves,
    with_random_kinds,
)
from fairlead_papers.public_data import public_file

TEN_GBPS = 1.25  # in GB/s
GANGS = (1, 2, 4, 8)
SPIKE_HOUR = 9
POLLUX_WORKLOADS = (1, 2, 3, 4, 5, 6, 7, 8)

PHILLY = "philly/philly.csv"
SIXTY, THEIRS = "tiresias/60_job.csv", "../expected/tiresias/60_job.json"

KINDS = tuple(
    f"{model} (batch size {size})"
    for model, size in (
        ("LM", 10), ("LM", 40), ("Transformer", 32), ("ResNet-18", 32), ("ResNet-50", 16),
        ("Transformer", 64), ("ResNet-18", 64), ("ResNet-18", 16),
    )
)  # fmt: skip
"""Figure 11's eight workloads: kinds that lose at least a third of their speed on four nodes at 10 Gb/s."""

SKEWED = KINDS[:5]
"""Those of them that the look of a model gives away."""


@dataclass(frozen=True)
class Workload:
    """Jobs that come by a Poisson process, and what comes on top. `load` is in jobs per hour of the cluster at hand; as many
    jobs again as have come with the last measured one keep coming behind it."""

    durations: str
    load: float
    measure: tuple[int, int]
    spike: int = 0  # jobs more in one hour of each day
    bursts: bool = False  # short jobs at twice the load, two hours in four
    losses: bool = False
    sensitive: int | None = None  # of Figure 11's eight models; None: all kinds of the catalogue, as they are


@dataclass(frozen=True)
class PublicTraces(ExperimentInputs):
    """`data` is a folder with the public traces, or None."""

    data: Path | None = None

    @property
    def table(self) -> ThroughputTable:
        return catalogue(TEN_GBPS)

    @property
    def fingerprint(self) -> str:
        if self.data is None:
            return "10 Gb/s"
        sixty = [_digest(path) for path in (self.data / SIXTY, self.data / THEIRS) if path.is_file()]
        philly, pollux = _digest(public_file(self.data, PHILLY)), _digest_of_folder(self.data / "pollux")
        return " ".join(filter(None, ["10 Gb/s", philly, pollux, *sixty]))

    @property
    def rates_note(self) -> str:
        rates = "rates: the bundled catalogue, which is modelled, at 10 Gb/s between nodes"
        return rates if self.data is not None else f"{rates}; Philly's durations are not here: generated ones alone"

    def table_with(self, sensitive: int | None) -> ThroughputTable:
        """The rates, with so many of Figure 11's models as sensitive as they are, and the others not at all."""
        if sensitive is None:
            return self.table
        spread = self.table.spread.copy()
        rows = [row for row, (kind, _) in enumerate(self.table.keys) if kind in KINDS[sensitive:]]
        spread[rows] = self.table.alone[rows]
        return replace(self.table, spread=spread)

    def jobs(self, asked: Workload, seed: int) -> Trace:
        table, count = self.table, 2 * asked.measure[1]
        if asked.durations == "philly":
            trace = retime_poisson(self._drawn(count, seed), asked.load, seed)
        else:
            trace = Generator(count, asked.load, table=table, workers="multiple", users=0).trace(seed)
        if asked.spike:
            trace = daily_spike(trace, asked.spike, SPIKE_HOUR, seed)
        if asked.bursts:
            trace = short_bursts(trace, asked.load, seed)
        trace = with_random_kinds(trace, table, None if asked.sensitive is None else KINDS, seed, "v100")
        return with_loss_curves(trace, seed) if asked.losses else trace

    def sixty_jobs(self) -> Trace:
        return TraceFile(public_file(self.data, SIXTY), "tiresias").read()

    def pollux_jobs(self, workload: int) -> Trace:
        """One of Pollux' eight workloads of 160 jobs, which train the applications that its authors measured."""
        return _pollux(public_file(self.data, f"pollux/workloads/workload-{workload}.csv"))

    def all_pollux_jobs(self) -> Trace:
        """The eight one after the other, all submitted at second 0."""
        jobs, dynamics = list[Job](), dict[str, JobDynamics]()
        for workload in POLLUX_WORKLOADS:
            trace = self.pollux_jobs(workload)
            dynamics |= {f"{workload}/{name}": job_dynamics for name, job_dynamics in trace.dynamics.items()}
            jobs += [replace(job, name=f"{workload}/{job.name}", submitted_s=0.0) for job in trace.jobs]
        return Trace.of(jobs, "pollux", dynamics=dynamics)

    def published(self, schedule: str) -> Mapping[str, Any]:
        """What Tiresias' own simulator made of them on two nodes of four."""
        try:
            told = orjson.loads(public_file(self.data, THEIRS).read_bytes())
            return next(one for one in told if (one["config"], one["schedule"]) == ("60_job_n2g4_count", schedule))
        except (orjson.JSONDecodeError, StopIteration, TypeError, KeyError):
            raise InputError("60_job.json", f"results of Tiresias' simulator for {schedule}") from None

    def _drawn(self, count: int, seed: int) -> Trace:
        """Durations and gangs together, with replacement: at any load and seed the same mix, in no order of the calendar."""
        known = _philly(public_file(self.data, PHILLY))
        chosen = stream(seed, "philly").integers(len(known), size=count).tolist()
        jobs = [replace(known.jobs[one], name=f"job-{place}", submitted_s=0.0) for place, one in enumerate(chosen)]
        return Trace.of(jobs, "philly")


@lru_cache(maxsize=2)
def _philly(path: Path) -> Trace:
    return keep_workers(TraceFile(path, "philly", skip_bad=True).read(), GANGS)


@lru_cache(maxsize=8)
def _pollux(path: Path) -> Trace:
    return TraceFile(path, "pollux", applications=path.parents[1]).read()


@lru_cache(maxsize=4)
def _digest_of_folder(folder: Path) -> str:
    """Of all tables in it; nothing where it is absent."""
    tables = sorted(folder.glob("*/*.csv"))
    told = "".join(f"{table.relative_to(folder)} {_digest(table)}\n" for table in tables)
    return hashlib.sha256(told.encode()).hexdigest()[:16] if tables else ""


@lru_cache(maxsize=4)
def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as problem:
        raise InputError(path, f"a trace as CSV ({problem.strerror})") from None
