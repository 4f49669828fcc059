"""Several schedulers × loads × seeds, in parallel processes, and what they come to with confidence intervals over seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.metrics import DEFAULTS, MetricOptions, Summary, interval, summarize
from fairlead.experiments.process_pool import ProcessPool
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Faults, Simulation, simulate
from fairlead.models.sensitivity import Sensitivity
from fairlead.simulator.backend import Other
from fairlead.simulator.costs import Costs
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import bound_to_hosts, retime_poisson


@dataclass(frozen=True)
class Workload:
    """Where the jobs of a comparison come from: a generator, a file, or a trace that is there. A load re-times each to so many
    jobs per hour."""

    source: Generator | TraceFile | Trace
    table: ThroughputTable | None = None
    hosts: Mapping[str, Sensitivity] = field(default_factory=dict)  # of models, or kinds, that depend on theirs

    def trace(self, load: float | None, seed: int) -> Trace:
        return bound_to_hosts(self._trace(load, seed), self.hosts) if self.hosts else self._trace(load, seed)

    def _trace(self, load: float | None, seed: int) -> Trace:
        if isinstance(self.source, Generator):
            generator = self.source if load is None else replace(self.source, jobs_per_hour=load)
            return generator.trace(seed)
        trace = self.source if isinstance(self.source, Trace) else self.source.read(self.table)
        return trace if load is None else retime_poisson(trace, load, seed)


@dataclass(frozen=True)
class Comparison:
    """What is compared with what. Every scheduler sees the same jobs at the same load and seed."""

    workload: Workload
    cluster: Cluster
    schedulers: Sequence[SchedulerConfig]
    loads: Sequence[float | None] = (None,)
    seeds: Sequence[int] = (0,)
    costs: Costs = field(default_factory=Costs)
    faults: Faults = field(default_factory=Faults)
    measure: tuple[int, int] | None = None
    metrics: MetricOptions = DEFAULTS
    fill_workers: bool = False
    others: Sequence[Other] = ()  # what else comes from outside, such as cancellations

    def cases(self) -> list[ComparisonCase]:
        return [
            ComparisonCase(index, load, seed)
            for load in self.loads
            for seed in self.seeds
            for index in range(len(self.schedulers))
        ]


@dataclass(frozen=True, order=True)
class ComparisonCase:
    """One run of a comparison: which scheduler (by position), at which load, with which seed."""

    scheduler: int
    load: float | None
    seed: int


@dataclass(frozen=True)
class CaseOutcome:
    case: ComparisonCase
    summary: Summary
    record: RunRecord | None = None


@dataclass(frozen=True)
class Aggregate:
    """A scheduler at a load over all seeds: mean and half the width of the 95 % interval of every figure."""

    label: str
    load: float | None
    seeds: int
    mean: dict[str, float | None]
    half_width: dict[str, float | None]


def compare(
    given: Comparison,
    *,
    processes: int | None = None,
    keep_records: bool = False,
    on_done: Callable[[CaseOutcome], None] | None = None,
) -> list[CaseOutcome]:
    """Run every case; in the order of `given.cases()`, whatever finishes first. Records are kept of the first seed only."""
    cases = given.cases()
    workers = min(processes or os.cpu_count() or 1, len(cases))
    if workers <= 1:
        done = []
        for case in cases:
            done.append(_run(given, case, keep_records))
            if on_done:
                on_done(done[-1])
        return done
    results: dict[ComparisonCase, CaseOutcome] = {}
    with ProcessPool(workers) as crew:
        for future in as_completed([crew.submit(_run, given, case, keep_records) for case in cases]):
            outcome = future.result()
            results[outcome.case] = outcome
            if on_done:
                on_done(outcome)
    return [results[case] for case in cases]


def aggregate(given: Comparison, outcomes: Iterable[CaseOutcome]) -> list[Aggregate]:
    """By load, then scheduler: each figure's mean over the seeds, and how sure it is."""
    by_arm: dict[tuple[float | None, int], list[Summary]] = {}
    for outcome in outcomes:
        by_arm.setdefault((outcome.case.load, outcome.case.scheduler), []).append(outcome.summary)
    result = []
    for (load, index), summaries in by_arm.items():
        mean, half = averaged([summary.to_dict() for summary in summaries])
        result.append(Aggregate(given.schedulers[index].label, load, len(summaries), mean, half))
    return result


def averaged(
    rows: Sequence[Mapping[str, float | int | None]],
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Of each figure, the mean over several runs and half the width of its 95 % interval; None where a run has none."""
    mean: dict[str, float | None] = {}
    half: dict[str, float | None] = {}
    for name in rows[0]:
        values = [float(value) for row in rows if (value := row[name]) is not None]
        if len(values) < len(rows):
            mean[name] = half[name] = None
            continue
        mean[name], width = interval(values)
        half[name] = width if np.isfinite(width) else None
    return mean, half


def _run(given: Comparison, case: ComparisonCase, keep_record: bool) -> CaseOutcome:
    trace = given.workload.trace(case.load, case.seed)
    keep = keep_record and case.seed == given.seeds[0]
    run = simulate(
        Simulation(
            trace,
            given.cluster,
            given.schedulers[case.scheduler],
            given.workload.table,
            given.costs,
            given.faults,
            case.seed,
            given.measure,
            given.fill_workers,
            others=given.others,
        ),
        gantt=keep,
    )
    return CaseOutcome(case, summarize(run.record, given.metrics), run.record if keep else None)
