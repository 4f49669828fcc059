"""Options that several commands share, each with the sentence that `--help` prints."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fairlead.cli.output import JsonOption as JsonOption
from fairlead.cli.output import note
from fairlead.config import Part, SchedulerConfig, read_cluster, read_costs
from fairlead.config.schedulers import (
    EVENT_DRIVEN,
    FIRST_STEP_S,
    LONGEST_ROUND_S,
    SHORTEST_ROUND_S,
    parse_chain,
    parse_part,
    simulated_with,
)
from fairlead.core.cluster import AcceleratorType, Cluster
from fairlead.core.errors import InputError, near_names
from fairlead.core.job import TIMED
from fairlead.estimators.colocated_rates import ColocationEstimator
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.metrics import MetricOptions, measure_from
from fairlead.experiments.simulate import Faults
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import GENERATOR, Generator
from fairlead.workloads.trace import MAX_TIME_S, Trace

DEFAULT_CLUSTER = "8xv100:4,16xp100:4,24xk80:4"

TRACE = typer.Option("--trace", help="A trace file. Without it, jobs are generated from the bundled catalogue.")
TraceOption: TypeAlias = Annotated[Path | None, TRACE]
FormatOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--format", help="The trace's format ('fairlead policies format' lists them); else recognised by its look."),
]
RegimesOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--regimes", help="How the batch sizes of the trace's jobs change: a JSON file, as Shockwave's traces have."),
]
HostsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--hosts", help="How fast models are with so many CPUs and so much host memory for a worker: a YAML file."),
]
ApplicationsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--applications", help="A folder of measured applications, as Pollux' simulator has them, for its traces."),
]
SkipBadOption: TypeAlias = Annotated[
    bool, typer.Option("--skip-bad", help="Leave bad lines of the trace out, count and list them, and go on.")
]
ThroughputsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--throughputs", help="Steps per second by kind and type: a native table (CSV, Parquet) or Gavel's JSON."),
]
FillWorkersOption: TypeAlias = Annotated[
    bool, typer.Option("--fill-workers", help="Model gang sizes that the throughput table lacks from those it has.")
]
ClusterOption: TypeAlias = Annotated[
    str,
    typer.Option("--cluster", help="accelerators×type:per-node, as in '8xv100:4,16xp100:4', or a cluster file in YAML."),
]
PresetOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="A scheduler that ships with Fairlead ('fairlead presets' lists them); other options replace its parts.",
    ),
]
RoundOption: TypeAlias = Annotated[float | None, typer.Option("--round", help="Length of a round in seconds. [default: 300]")]
EventDrivenOption: TypeAlias = Annotated[
    bool, typer.Option("--event-driven", help="No rounds: decide at every arrival and completion.")
]
LaunchCostOption: TypeAlias = Annotated[
    float, typer.Option("--launch-cost", help="Seconds that a job's first start takes before it makes progress.", min=0)
]
RestartCostOption: TypeAlias = Annotated[
    float, typer.Option("--restart-cost", help="Seconds that every later start takes.", min=0)
]
CheckpointCostOption: TypeAlias = Annotated[
    float, typer.Option("--checkpoint-cost", help="Seconds that saving a checkpoint takes.", min=0)
]
CheckpointEveryOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--checkpoint-every", help="Seconds between checkpoints while running; default: only when suspended."),
]
CostsOption: TypeAlias = Annotated[
    Path | None, typer.Option("--costs", help="A YAML file of these costs, with others for some kinds, in their place.")
]
MtbfOption: TypeAlias = Annotated[
    float, typer.Option("--mtbf", help="Mean seconds until a node fails; 0: nodes do not fail.", min=0)
]
MttrOption: TypeAlias = Annotated[float, typer.Option("--mttr", help="Mean seconds until a failed node is back.", min=0)]
OutageOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--outage",
        metavar="NODE:FROM:TO",
        help="A node that is gone for a while, as node:from:to in seconds ('3:3600:7200'); repeatable.",
    ),
]
MeasureOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--measure", help="Only these jobs by submission order, as in 50:150; the run stops when they have ended."),
]
AdmissionOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--admission",
        help="Admission, as in 'accept-up-to:factor=1.5', or several with commas between them. [default: accept-all]",
    ),
]
TerminationOption: TypeAlias = Annotated[
    str | None, typer.Option("--termination", help="Who is done early, as in 'by-loss:threshold=0.002'. [default: by-steps]")
]
PlacementOption: TypeAlias = Annotated[
    str | None, typer.Option("--placement", help="Placement, as in 'tiresias:threshold=0.3'. [default: consolidated]")
]
MechanismOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--mechanism", help="What realises shares of time, as in 'gavel-rounds:least_interval_s=1920'. [default: gavel-rounds]"
    ),
]
EstimatorOption: TypeAlias = Annotated[
    str | None, typer.Option("--estimator", help="What a policy may know of throughputs. [default: oracle]")
]
RunToCompletionOption: TypeAlias = Annotated[bool, typer.Option("--run-to-completion", help="Never suspend a job that runs.")]
MakespanFromOption: TypeAlias = Annotated[
    str, typer.Option("--makespan-from", help="Makespan counts from 'first-submission' or from 'zero'.")
]
JctFromOption: TypeAlias = Annotated[
    str, typer.Option("--jct-from", help="Completion time counts from 'submission' or from 'first-start'.")
]
ContentionOption: TypeAlias = Annotated[
    str, typer.Option("--contention", help="Finish-time fairness: 'average' or 'static' contention, or 'demand'.")
]
UnfairAboveOption: TypeAlias = Annotated[
    float, typer.Option("--unfair-above", help="A job is unfairly treated where its finish-time fairness exceeds this.")
]
SeedOption: TypeAlias = Annotated[int, typer.Option("--seed", help="Seed of all that is random.", min=0)]
JobsOption: TypeAlias = Annotated[int, typer.Option("--jobs", help="How many jobs to generate.", min=1)]
ProcessesOption: TypeAlias = Annotated[
    int | None, typer.Option("--processes", help="Parallel processes. [default: all cores]", min=1)
]
LoadOption: TypeAlias = Annotated[float | None, typer.Option("--load", help="Jobs per hour of a generated workload.")]
EventsOption: TypeAlias = Annotated[
    Path | None, typer.Option("--events", help="Write the event log (JSON lines) to this file.")
]
ReportOption: TypeAlias = Annotated[Path | None, typer.Option("--report", help="Write an HTML report to this file.")]
PngOption: TypeAlias = Annotated[Path | None, typer.Option("--png", help="Write the plots as PNG files into this folder.")]
WorkersOption: TypeAlias = Annotated[
    str, typer.Option("--workers", help="Generated gangs: 'single', or 'multiple' (70 % 1, 10 % 2, 15 % 4, 5 % 8).")
]


def cluster_of(text: str) -> Cluster:
    return read_cluster(text, accelerator_types())


def tell_strange_types(cluster: Cluster, trace: Trace) -> None:
    """Jobs that carry durations run on a type of any name, and so would on one that is misspelt. Of others, the table of rates
    tells which it knows."""
    known = [device.name for device in accelerator_types()]
    for kind in cluster.types if all(job.kind == TIMED for job in trace.jobs) else ():
        if kind == AcceleratorType(kind.name) and (near := near_names(kind.name, known)):
            note(
                f"no accelerators of type {kind.name!r} are known, near: {', '.join(map(repr, near))};"
                " jobs that carry durations take as long there as anywhere"
            )


def tell_lacking_predictions(schedulers: Iterable[SchedulerConfig], cluster: Cluster, kinds: Collection[str]) -> None:
    """Of whom nothing is predicted runs as if it could not share: with the presets that live on predictions and come without
    any, or where what was predicted is of others."""
    told: dict[str, list[str]] = {}
    for scheduler in schedulers:
        estimator = scheduler.build(None).estimator
        if not isinstance(estimator, ColocationEstimator):
            continue
        if why := estimator.colocation_model().coverage_gaps(kinds, cluster.types):
            told.setdefault(why, []).append(scheduler.label)
    for why, labels in told.items():
        note(f"{', '.join(labels)}: {why}; docs/sharing.md says how")


def tell_unseen(scheduler: SchedulerConfig) -> None:
    """On a real cluster nobody shares before it was seen what its kind takes, unless somebody says it beforehand."""
    part = scheduler.estimator
    given = any(part.parameters.get(name) for name in ("usage", "uses", "profiles"))
    if part.name in ("monitored", "watched") and not given:
        seen = "shares before an agent has seen by NVML what its kind takes (agents of played accelerators never do)"
        mend = "--estimator 'monitored:usage={KIND: [PERCENT, GB]}' says it beforehand, docs/sharing.md more"
        note(f"{scheduler.label}: nothing is predicted of any job, so nobody {seen}; {mend}")


def tell_left_alone(costs: Costs, schedulers: Iterable[SchedulerConfig]) -> None:
    """What is not as the scheduler says by itself: without it, a run would end in nothing."""
    named = {scheduler.round_s for scheduler in schedulers if simulated_with(costs, scheduler) != scheduler}
    for round_s in sorted(named):
        apart = f"rounds of {round_s:g} s" if round_s else "decisions at every event"
        start = f"a start may take {costs.longest_start_s:g} s"
        note(f"{apart}, and {start}: who starts is left alone until its first step, {FIRST_STEP_S:g} s at most (first_step_s)")


def costs_of(launch: float, restart: float, checkpoint: float, every: float | None, file: Path | None) -> Costs:
    if file is not None:
        if launch or restart or checkpoint or every is not None:
            raise InputError("--costs", "either a file of costs or single cost options", field="costs", value=str(file))
        return read_costs(file)
    if every is not None and not every > 0:
        raise InputError("--checkpoint-every", "seconds above 0", field="checkpoint-every", value=every)
    for name, value in (("launch-cost", launch), ("restart-cost", restart), ("checkpoint-cost", checkpoint)):
        if not value <= LONGEST_ROUND_S:
            raise InputError(f"--{name}", f"at most {LONGEST_ROUND_S:g} seconds", field=name, value=value)
    return Costs(launch, restart, checkpoint, math.inf if every is None else every)


def faults_of(outages: Sequence[str] | None, mtbf: float, mttr: float, cluster: Cluster) -> Faults:
    given = []
    for text in outages or ():
        try:
            node, start, end = text.split(":")
            outage = Outage(int(node), float(start), float(end) if end else math.inf)
        except ValueError:
            raise InputError("--outage", "node:from:to, as in '3:3600:7200'", field="outage", value=text) from None
        long = max(outage.start_s, outage.end_s if outage.end_s < math.inf else 0.0) > MAX_TIME_S
        if not 0 <= outage.node < len(cluster.nodes) or not 0 <= outage.start_s < outage.end_s or long:
            wanted = f"a node from 0 to {len(cluster.nodes) - 1} and from < to, at most {MAX_TIME_S:g} s"
            raise InputError("--outage", wanted, field="outage", value=text)
        given.append(outage)
    if not mtbf < math.inf:
        raise InputError("--mtbf", "a finite number of seconds; 0: nodes do not fail", field="mtbf", value=mtbf)
    if mtbf > 0 and not 0 < mttr < math.inf:
        raise InputError("--mttr", "a finite number of seconds above 0 where --mtbf is given", field="mttr", value=mttr)
    return Faults(tuple(given), mtbf, mttr)


def metrics_of(measure: str | None, makespan: str, jct: str, contention: str, unfair: float) -> MetricOptions:
    return MetricOptions(None if measure is None else measure_from(measure), makespan, jct, contention, unfair)  # type: ignore[arg-type]


def check_measure(metrics: MetricOptions, jobs: int) -> None:
    if metrics.measure is not None and metrics.measure[0] >= jobs:
        wanted = f"a range within the {jobs:,} jobs that there are"
        raise InputError("--measure", wanted, field="measure", value=":".join(map(str, metrics.measure)))


def scheduler_from(policy: str | None, config: Path | None, preset: str | None) -> SchedulerConfig:
    """The scheduler of a file, a preset, a policy alone, or a preset with another policy."""
    if config is not None and preset is not None:
        raise InputError("command line", "either --config FILE or --preset NAME", field="preset", value=preset)
    if config is not None and policy is not None:
        raise InputError("command line", "either --policy NAME or --config FILE", field="policy", value=policy)
    if config is not None:
        return SchedulerConfig.from_file(config)
    if preset is not None:
        base = SchedulerConfig.preset(preset)
        return base if policy is None else replace(base, policy=parse_part(policy), name="")
    if policy is None:
        raise InputError("command line", "--policy NAME, --preset NAME or --config FILE", field="policy")
    return SchedulerConfig(parse_part(policy))


def override(
    base: SchedulerConfig,
    round_s: float | None,
    event_driven: bool,
    admission: str | None,
    placement: str | None,
    run_to_completion: bool,
    mechanism: str | None = None,
    estimator: str | None = None,
    termination: str | None = None,
) -> SchedulerConfig:
    """A scheduler with what the command line says instead of what its file says."""
    if event_driven and round_s is not None:
        raise InputError("--round", "either --round or --event-driven", field="round", value=round_s)
    if round_s is not None and not SHORTEST_ROUND_S <= round_s <= LONGEST_ROUND_S:
        wanted = f"{SHORTEST_ROUND_S:g} to {LONGEST_ROUND_S:g} seconds (or --event-driven)"
        raise InputError("--round", wanted, field="round", value=round_s)
    said = {"estimator": estimator, "mechanism": mechanism, "placement": placement, "termination": termination}
    parts: dict[str, Part] = {what: parse_part(text) for what, text in said.items() if text}
    if admission:
        parts["admission"] = parse_chain(admission)
    length = 0.0 if event_driven else base.round_s if round_s is None else round_s
    made = replace(base, **parts, round_s=length, run_to_completion=base.run_to_completion or run_to_completion)  # type: ignore[arg-type]
    told = in_words(varied(base, made))
    return replace(made, name=f"{base.name}({told})") if base.name and told else made


def varied(base: SchedulerConfig, made: SchedulerConfig) -> dict[str, str]:
    """What a scheduler has otherwise than the one that it was made of."""
    parts = ("estimator", "mechanism", "placement", "termination", "admission")
    said = {what: str(getattr(made, what)) for what in parts if getattr(made, what) != getattr(base, what)}
    if made.round_s != base.round_s:
        said["rounds"] = f"{made.round_s:g}" if made.round_s else EVENT_DRIVEN
    return said


def in_words(said: Mapping[str, str]) -> str:
    return ", ".join(f"{what}={value}" for what, value in said.items())


def generator_of(jobs: int, load: float | None, workers: str) -> Generator:
    with told_by_option():
        return Generator(jobs=jobs, jobs_per_hour=load, workers=workers, users=12)


@contextmanager
def told_by_option() -> Iterator[None]:
    """Who types options has never heard of a generator's fields: what it refuses is told by the option that says it."""
    try:
        yield
    except InputError as problem:
        if problem.source != GENERATOR or problem.field is None:
            raise
        option = {"jobs_per_hour": "load"}.get(problem.field, problem.field.replace("_", "-"))
        raise InputError(f"--{option}", problem.expected, field=option, value=problem.value) from None


def trace_file(
    path: Path | None, format: str | None, skip_bad: bool, regimes: Path | None, applications: Path | None = None
) -> TraceFile | None:
    """The trace that the command line names, or none."""
    for name, beside in (("regimes", regimes), ("applications", applications)):
        if path is None and beside is not None:
            raise InputError(f"--{name}", "--trace FILE to go with it", field=name, value=str(beside))
    return None if path is None else TraceFile(path, format, skip_bad, regimes, applications)


def tell_skipped(trace: Trace, *, quiet: bool) -> None:
    """Nothing is dropped silently: how many lines were left out, and which."""
    if trace.skipped and not quiet:
        note(f"lines left out of {trace.name}: {len(trace.skipped):,}")
        for problem in trace.skipped[:10]:
            note(f"  {problem}")
        if len(trace.skipped) > 10:
            note(f"  … and {len(trace.skipped) - 10} more (fairlead trace check lists all)")


def split(text: str) -> list[str]:
    """Names separated by commas, without breaking up lists in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
