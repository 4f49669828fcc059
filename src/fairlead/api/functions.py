"""The functions of the public API that simulate: `simulate`, `compare` and `resimulate`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from fairlead.api import scheduler as convert
from fairlead.api.run_results import ComparisonResult, Run
from fairlead.api.scheduler import ClusterLike, Scheduler, SchedulerLike, TableLike, TraceLike
from fairlead.config.parameters import LARGEST_SEED
from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.errors import require
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments import metrics
from fairlead.experiments import resimulate as recorded
from fairlead.experiments.compare import CaseOutcome, Comparison, Workload, checked_seeds, run_comparison
from fairlead.experiments.simulate import Faults, Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.generate import Generator


def simulate(
    trace: TraceLike,
    cluster: ClusterLike,
    policy: SchedulerLike = "fifo",
    *,
    round_s: float | None = None,
    throughputs: TableLike = None,
    columns: Mapping[str, str] | None = None,
    costs: Costs | None = None,
    faults: Faults | None = None,
    measure: tuple[int, int] | None = None,
    seed: int = 0,
    keep_events: bool = True,
    on_progress: Callable[[float], None] | None = None,
) -> Run:
    """Simulate one scheduler on one trace. The same arguments give the same events, byte for byte.

    Args:
        trace: A trace file in any known format, a pandas, polars or pyarrow table, jobs, a `Trace` or a `Generator`.
        cluster: Such as `"64xv100:8"` (64 GPUs of type v100, 8 per node), a cluster file, or a `Cluster`.
        policy: A policy or preset by name, a `Scheduler`, a scheduler file, or a policy object of your own.
        round_s: Round length in seconds; 0 decides at every event.
        throughputs: A throughput table or its file; default: the bundled catalogue, or the trace's durations.
        columns: Own column names of a CSV or Parquet file or a data frame, as in `{"submit": "submitted_s"}`.
        costs: Time to launch, restart and checkpoint a job.
        faults: Node outages.
        measure: Measure the jobs `first` to `end - 1` of a pair (first, end), by submission, and stop when they have ended.
        seed: Seed of everything random.
        keep_events: Keep all events for `run.events`, `run.rounds` and the Gantt chart.
        on_progress: Called with the fraction of jobs that have ended.

    Returns:
        The run, with `summary`, `jobs`, `rounds`, `events` and `report`.

    Raises:
        FairleadError: An input is wrong; the message says which, where, and what to do.

    Example:
        >>> import fairlead
        >>> jobs = [fairlead.Job(f"job-{n}", submitted_s=60.0 * n, steps=600.0, workers=2) for n in range(8)]
        >>> run = fairlead.simulate(jobs, cluster="4xv100:4", policy="las", round_s=300)
        >>> run.summary["finished"], run.summary["average_jct_s"]
        (8, 1890.0)
    """
    table = convert.to_table(throughputs)
    scheduler = convert.to_scheduler(policy, round_s)
    options = replace(metrics.DEFAULTS, measure=measure)
    whole: Any = seed
    good = isinstance(whole, Integral) and 0 <= int(whole) <= LARGEST_SEED
    require(good, convert.ARGUMENTS, f"a whole number from 0 to {LARGEST_SEED}", "seed", str(seed))
    jobs = convert.to_trace(trace, table, seed, columns)
    options.check_measure(len(jobs))
    costs, faults = convert.instance_or_default("costs", costs, Costs), convert.instance_or_default("faults", faults, Faults)
    given = Simulation(jobs, convert.to_cluster(cluster), scheduler.config, table, costs, faults, seed, measure)
    journal = MemoryJournal() if keep_events else None
    run = run_simulation(given, journal=journal, registry=scheduler.registry, gantt=keep_events, on_progress=on_progress)
    return Run(run.record, tuple(journal) if journal is not None else (), options)


def compare(
    trace: TraceLike,
    cluster: ClusterLike,
    schedulers: Sequence[SchedulerLike],
    *,
    seeds: Iterable[int] = (0,),
    loads: Sequence[float | None] = (None,),
    round_s: float | None = None,
    throughputs: TableLike = None,
    columns: Mapping[str, str] | None = None,
    costs: Costs | None = None,
    faults: Faults | None = None,
    measure: tuple[int, int] | None = None,
    processes: int | None = None,
    on: str | None = None,
    keep_records: bool = True,
) -> ComparisonResult:
    """Simulate several schedulers on the same jobs, for every load and seed, in parallel processes.

    Args:
        trace: As for `simulate`. A `Generator` draws new jobs for every seed. Another trace takes several seeds only with
            `loads`, which re-time it, or with random `faults`.
        cluster: As for `simulate`.
        schedulers: Names, scheduler files or `Scheduler` objects. Policy objects of your own run in this process.
        seeds: Seeds; intervals in the result are over these. With one seed, `differences` has intervals over windows of jobs.
        loads: Jobs per hour to which arrivals are re-timed; None keeps the trace's arrivals.
        round_s: Round length for all schedulers; None keeps each one's own.
        throughputs: As for `simulate`.
        columns: As for `simulate`.
        costs: As for `simulate`.
        faults: As for `simulate`.
        measure: As for `simulate`.
        processes: Number of processes; default: one per core.
        on: A Ray cluster that runs the simulations: "ray:auto", "ray:HOST:PORT", or "ray:local" for one on this machine. Policy
            objects of a script or notebook run there, too.
        keep_records: Keep the records of the first seeds, of at most 12 pairs of load and seed, for `result.report`.

    Returns:
        The runs, with `summary`, `differences`, `paired`, `runs` and `report`.

    Raises:
        FairleadError: An input is wrong.

    Example:
        >>> import fairlead
        >>> trace = fairlead.Generator(jobs=20, jobs_per_hour=30.0, durations=(600.0, 3600.0))
        >>> result = fairlead.compare(trace, "4xv100:4", ["fifo", "las"], seeds=range(2), processes=1)
        >>> result.paired("las", "fifo")["pairs"]
        2
    """
    table = convert.to_table(throughputs)
    made = convert.to_schedulers(schedulers, round_s)
    source = trace if isinstance(trace, Generator) else convert.to_trace(trace, table, 0, columns)
    options = replace(metrics.DEFAULTS, measure=measure)
    options.check_measure(source.jobs if isinstance(source, Generator) else len(source))
    configs, seeds = [one.config for one in made], checked_seeds(seeds)
    costs, faults = convert.instance_or_default("costs", costs, Costs), convert.instance_or_default("faults", faults, Faults)
    machine, rate = convert.to_cluster(cluster), source.jobs_per_hour if isinstance(source, Generator) else None
    loads = [rate if load is None else load for load in loads] if isinstance(loads, Iterable) else loads
    given = Comparison(Workload(source, table), machine, configs, loads, seeds, costs, faults, measure, options)
    wanted = "one seed; more seeds need loads or random faults, because a trace alone has no randomness"
    require(not given.repeats_runs, convert.ARGUMENTS, wanted, "seeds", list(seeds))
    return ComparisonResult.of(given, _run(given, made, processes, keep_records, on))


def _run(
    given: Comparison, made: Sequence[Scheduler], processes: int | None, keep_records: bool, on: str | None = None
) -> list[CaseOutcome]:
    """Run a comparison. Classes of a script do not travel, but on Ray: schedulers with one run in this process."""
    good = processes is None or (isinstance(processes, int) and processes >= 1)
    require(good, convert.ARGUMENTS, "a whole number of at least 1", "processes", processes)
    if any(one.registry is not Registry.installed() for one in made):
        given, processes = replace(given, registries=[one.registry for one in made]), processes if on else 1
    return run_comparison(given, processes=processes, on=on, keep_records=keep_records)


def resimulate(
    journal: str | Path,
    schedulers: Sequence[SchedulerLike] = ("fifo", "srtf", "max-min-fairness-perf"),
    *,
    processes: int | None = None,
    keep_records: bool = True,
) -> ComparisonResult:
    """Simulate a recorded run under other schedulers: the same jobs, cancellations and outages, with measured throughputs.

    Args:
        journal: A journal (`x.sqlite`, `x.jsonl`, `postgresql://…`), also of a running cluster, or an event log.
        schedulers: What to simulate. A policy, by name or as an object, replaces that of the recorded scheduler; a preset, a
            scheduler file or a `Scheduler` replaces it whole.
        processes: Number of processes; default: one per core.
        keep_records: Keep records for `result.report`.

    Returns:
        The runs. The first row is what was recorded; the second is a control: the same schedulers, switched at the same times,
        simulated. `control_errors` has the relative error of the control by metric. A `UserWarning` names errors above 10 %.

    Raises:
        FairleadError: The journal is damaged or has no jobs, or a scheduler is unknown.
    """
    run = recorded.RecordedRun.read(str(journal))
    require(run.world.trace.jobs, journal, "a journal with jobs in it")
    made = convert.to_schedulers(schedulers)
    whole = [isinstance(one, Scheduler | SchedulerConfig) or convert.is_file(one) for one in schedulers]
    configs = [
        one.config if is_whole or one.config.name else run.under(one.config.policy) for one, is_whole in zip(made, whole)
    ]
    given = recorded.resimulation(run, configs)
    outcomes = _run(given, [convert.to_scheduler(run.control), *made], processes, keep_records)
    summaries = recorded.comparison_rows(run, given, outcomes)
    check = recorded.ControlCheck.of(summaries[0][1], summaries[1][1])
    if check.warning:
        warnings.warn(check.warning, stacklevel=2)
    rows = [{"scheduler": label, "load": None, "seed": 0, **summary.to_dict()} for label, summary in summaries]
    kept = recorded.resimulation_records(run, given, outcomes) if keep_records else ()
    notes = (check.text, *filter(None, [check.warning]))
    return ComparisonResult(rows, kept, given.metrics, control_errors=check.errors, notes=notes)
