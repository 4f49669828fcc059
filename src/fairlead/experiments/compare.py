"""Compare schedulers × loads × seeds, with confidence intervals."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from fairlead.config.parameters import LARGEST_SEED
from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, check_number
from fairlead.core.events import SchedulerSwitched
from fairlead.experiments.cases import run_in_processes
from fairlead.experiments.differences import WindowMeans, window_means
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.metrics import DEFAULTS, MetricOptions, Summary, interval, summarize
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Faults, Simulation, run_simulation
from fairlead.files import finite_or_none
from fairlead.models.sensitivity import Sensitivity
from fairlead.simulator.backend import Other
from fairlead.simulator.costs import Costs
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import retime_poisson, with_host_sensitivity

MAX_SEEDS = 100_000
MAX_KEPT = 12
"""Pairs of load and seed whose runs a report can show one by one."""
MIN_LOAD, MAX_LOAD = 1e-6, 1e6


def checked_seeds(seeds: Iterable[Any]) -> tuple[int, ...]:
    """Return seeds. Raises InputError unless they are whole numbers of at least 0, each once, and at least one."""
    try:
        found = tuple(map(operator.index, islice(seeds, MAX_SEEDS + 1)))
    except TypeError:
        found = ()
    if not found or min(found) < 0 or len(set(found)) < len(found) or len(found) > MAX_SEEDS or max(found) > LARGEST_SEED:
        wanted = f"one to {MAX_SEEDS:,} whole numbers of at least 0, each once"
        raise InputError("compare", wanted, field="seeds", value=seeds)
    return found


@dataclass(frozen=True)
class Workload:
    """The source of jobs: a generator, a file or a trace. A load re-times it to this many jobs per hour."""

    source: Generator | TraceFile | Trace
    table: ThroughputTable | None = None
    hosts: Mapping[str, Sensitivity] = field(default_factory=dict)  # by model or job type

    def trace(self, load: float | None, seed: int) -> Trace:
        return with_host_sensitivity(self._trace(load, seed), self.hosts) if self.hosts else self._trace(load, seed)

    def _trace(self, load: float | None, seed: int) -> Trace:
        if isinstance(self.source, Generator):
            generator = self.source if load is None else replace(self.source, jobs_per_hour=load)
            return generator.trace(seed)
        trace = self.source if isinstance(self.source, Trace) else self.source.read(self.table)
        return trace if load is None else retime_poisson(trace, load, seed)


@dataclass(frozen=True)
class Comparison:
    """A comparison. Every scheduler gets the same jobs at the same load and seed."""

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
    others: Sequence[Other] = ()  # further exogenous events, such as cancellations
    registries: Sequence[Registry] = ()  # of each scheduler; empty: all have the installed parts
    switches: Mapping[int, Sequence[SchedulerSwitched]] = field(
        default_factory=dict
    )  # by scheduler, from its switch on another
    until_s: float = math.inf  # runs end at this second at the latest

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", checked_seeds(self.seeds))
        object.__setattr__(self, "loads", tuple(self.loads) if isinstance(self.loads, Iterable) else ())
        if not self.loads or len(set(self.loads)) < len(self.loads):
            raise InputError("compare", "at least one load, each once", field="loads", value=self.loads)
        for load in self.loads:
            if load is not None:
                check_number("compare", "loads", load, f"numbers from {MIN_LOAD:f} to {MAX_LOAD:,.0f}", MIN_LOAD, MAX_LOAD)
        for label, count in Counter(one.label for one in self.schedulers).items():
            if count > 1:  # rows and curves are named by labels
                mend = (
                    "each scheduler only once, or another name for one of them (`name: …` in its file, name=… of a Scheduler)"
                )
                raise InputError("schedulers", mend, field="scheduler", value=label)

    @property
    def repeats_runs(self) -> bool:
        """Whether there are several seeds, and all give the same runs."""
        fixed = not isinstance(self.workload.source, Generator) and set(self.loads) == {None} and not self.faults.mean_up_s
        return fixed and len(self.seeds) > 1

    @property
    def kept_seeds(self) -> Sequence[int]:
        """The first seeds, whose records are kept for reports: of at most `MAX_KEPT` pairs of load and seed."""
        return self.seeds[: max(1, MAX_KEPT // len(self.loads))]

    def cases(self, keep_records: bool = False) -> list[ComparisonCase]:
        """By load, then seed, then scheduler; `keep_records` applies to `kept_seeds`."""
        kept = set(self.kept_seeds) if keep_records else ()
        return [
            ComparisonCase(index, load, seed, seed in kept)
            for load in self.loads
            for seed in self.seeds
            for index in range(len(self.schedulers))
        ]


@dataclass(frozen=True)
class ComparisonCase:
    """One run of a comparison: a scheduler by position, a load and a seed."""

    scheduler: int
    load: float | None
    seed: int
    keep_record: bool = False

    def run(self, given: Comparison) -> CaseOutcome:
        """Simulate it."""
        trace, table = given.workload.trace(self.load, self.seed), given.workload.table
        scheduler, faults, fill = given.schedulers[self.scheduler], given.faults, given.fill_workers
        simulation = Simulation(
            trace,
            given.cluster,
            scheduler,
            table,
            given.costs,
            faults,
            self.seed,
            given.measure,
            fill,
            others=[*given.others, *given.switches.get(self.scheduler, ())],
            until_s=given.until_s,
        )
        registry = given.registries[self.scheduler] if given.registries else None
        record = run_simulation(simulation, registry=registry, gantt=self.keep_record).record
        windows = window_means(record, given.metrics) if len(given.seeds) == 1 else {}
        return CaseOutcome(self, summarize(record, given.metrics), record if self.keep_record else None, windows)


@dataclass(frozen=True)
class CaseOutcome:
    """The result of a case, with its record where it was kept."""

    case: ComparisonCase
    summary: Summary
    record: RunRecord | None = None
    windows: WindowMeans = field(default_factory=dict)  # of comparisons of one seed

    def row(self, given: Comparison) -> dict[str, Any]:
        """The scheduler's label, the load, the seed and every metric."""
        case, label = self.case, given.schedulers[self.case.scheduler].label
        return {"scheduler": label, "load": case.load, "seed": case.seed, **self.summary.to_dict()}


def run_comparison(
    given: Comparison,
    *,
    processes: int | None = None,
    on: str | None = None,
    keep_records: bool = False,
    on_done: Callable[[CaseOutcome], None] | None = None,
) -> list[CaseOutcome]:
    """Run every case; returns outcomes in the order of `given.cases()`. Records are kept of `given.kept_seeds`. `on` is a Ray
    cluster that runs them, as in `ray:auto`."""
    cases = given.cases(keep_records)
    outcomes: dict[int, CaseOutcome] = {}

    def note(position: int, outcome: CaseOutcome) -> None:
        outcomes[position] = outcome
        if on_done:
            on_done(outcome)

    run_in_processes(ComparisonCase.run, cases, given, processes, note, on)
    return [outcomes[position] for position in range(len(cases))]


def mean_and_half_width(
    rows: Sequence[Mapping[str, float | int | None]],
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Mean of each figure over runs, and half the width of its 95 % interval; None where a run lacks it."""
    mean: dict[str, float | None] = {}
    half: dict[str, float | None] = {}
    for name in rows[0]:
        values = [float(value) for row in rows if (value := row[name]) is not None]
        if len(values) < len(rows):
            mean[name] = half[name] = None
            continue
        mean[name], width = interval(values)
        half[name] = finite_or_none(width)
    return mean, half
