"""Options that several commands share, in groups, with the sentence that `--help` prints for each.

A group is a dataclass whose fields are options; `option_groups` lets a command take one as a single parameter. A group turns
its options into the value that experiments take. It runs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer
from typer.models import OptionInfo

from fairlead.cli.output import JsonOption as JsonOption
from fairlead.cli.output import note, option_error
from fairlead.config.clusters import read_cluster
from fairlead.config.registry import Registry
from fairlead.config.schedulers import (
    EVENT_DRIVEN,
    FIRST_STEP_S,
    LONGEST_ROUND_S,
    SHORTEST_ROUND_S,
    Part,
    SchedulerConfig,
    parse_chain,
    parse_part,
    simulated_with,
    split_outside_brackets,
)
from fairlead.config.workload_files import read_costs, read_hosts
from fairlead.core.cluster import AcceleratorType, Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.estimators.colocated_rates import ColocationModel
from fairlead.experiments.inputs import TraceFile, check_host_profiles, read_table
from fairlead.experiments.metrics import MetricOptions, measure_from
from fairlead.experiments.simulate import Faults
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage
from fairlead.workloads.catalogue import accelerator_types, misspelt_types
from fairlead.workloads.formats.own_columns import parse_columns
from fairlead.workloads.generate import GENERATOR, USERS, Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import with_host_sensitivity

DEFAULT_CLUSTER = "8xv100:4,16xp100:4,24xk80:4"

SCHEDULER, CLUSTER, WORKLOAD, METRICS, OUTPUT = "Scheduler", "Cluster", "Workload", "Metrics", "Output"
"""Panels of options in the help of a command."""

FORMAT = typer.Option(None, help="Format of the trace ('fairlead policies format' lists them). [default: detected]")
COLUMNS = typer.Option(
    None, help="Your column names in a CSV or Parquet trace and their native names, as in 'submit=submitted_s,gpus=workers'."
)
REGIMES = typer.Option(None, help="How the batch sizes of the trace's jobs change: a JSON file, as in Shockwave's traces.")
SKIP_BAD = typer.Option(False, "--skip-bad", help="Skip bad lines of the trace, and report how many were skipped and which.")
THROUGHPUTS = typer.Option(None, help="Steps per second by job type and GPU type: CSV, Parquet, or Gavel's JSON.")
_CLUSTER = "GPUs × type : GPUs per node, as in '8xv100:4,16xp100:4', or a cluster file in YAML."
ClusterOption: TypeAlias = Annotated[str, typer.Option("--cluster", help=_CLUSTER, rich_help_panel=CLUSTER)]
_PRESET = "A scheduler that ships with Fairlead ('fairlead presets' lists them); other options replace its parts."
PRESET = typer.Option(None, help=_PRESET, rich_help_panel=SCHEDULER)
ROUND = typer.Option(None, help="Length of a round in seconds. [default: 300]")
MEASURE = typer.Option(
    None, help="Measure only these jobs, by submission order, as in 50:150; stop when they have ended.", rich_help_panel=METRICS
)
ADMISSION = typer.Option(
    None, help="Admission, as in 'accept-up-to:factor=1.5'; separate several with commas. [default: accept-all]"
)
PLACEMENT = typer.Option(None, help="Placement, as in 'tiresias:threshold=0.3'. [default: consolidated]")
SEED = typer.Option(0, help="Seed of the random numbers.", min=0, rich_help_panel=WORKLOAD)
JobsOption: TypeAlias = Annotated[int, typer.Option("--jobs", help="How many jobs to generate.", min=1)]
ON = typer.Option(None, "--on", help="Run on a Ray cluster: ray:auto, ray:HOST:PORT, or ray:local. [default: this machine]")
PROCESSES = typer.Option(None, help="Parallel processes. [default: all cores]", min=1)
LOAD = typer.Option(6.0, help="Jobs per hour of a generated workload.", rich_help_panel=WORKLOAD)
EVENTS = typer.Option(None, help="Write the event log (JSON lines) to this file.", rich_help_panel=OUTPUT)
OUT = typer.Option(None, "--out", help="Write Parquet tables of jobs and rounds into this folder.", rich_help_panel=OUTPUT)
REPORT = typer.Option(None, help="Write an HTML report to this file.", rich_help_panel=OUTPUT)
PNG = typer.Option(None, help="Write the plots as PNG files into this folder.", rich_help_panel=OUTPUT)
WorkersOption: TypeAlias = Annotated[
    str, typer.Option("--workers", help="Generated gangs: 'single', or 'multiple' (70 % 1, 10 % 2, 15 % 4, 5 % 8).")
]
UsersOption: TypeAlias = Annotated[int, typer.Option("--users", help="Users of generated jobs; 0: jobs have no user.", min=0)]


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of the dataclasses among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        fields = dataclasses.fields(groups[one.name]) if one.name in groups else ()
        types = get_type_hints(groups[one.name], include_extras=True) if fields else {}
        panel = getattr(groups.get(one.name), "panel", None)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_in_panel(field.default, panel),
                annotation=_in_panel(types[field.name], panel),
            )
            for field in fields
        ] or [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        filled = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**given, **filled)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _in_panel(given: Any, panel: str | None) -> Any:
    """Return an option, or an annotation with an option, that stands in a panel of the help."""
    if isinstance(given, OptionInfo):
        moved = copy(given)
        moved.rich_help_panel = given.rich_help_panel or panel
        return moved
    if any(isinstance(each, OptionInfo) for each in getattr(given, "__metadata__", ())):
        return Annotated[given.__origin__, *(_in_panel(each, panel) for each in given.__metadata__)]
    return given


class OptionGroup:
    """Base of groups of options: a group that is made without `option_groups` has the defaults of options not given."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, OptionInfo):
                object.__setattr__(self, name, value.default)


@dataclass(frozen=True)
class SchedulerOptions(OptionGroup):
    """Parts of a scheduler that replace those of its file, preset or policy."""

    panel = SCHEDULER
    round: float | None = ROUND
    event_driven: bool = typer.Option(False, "--event-driven", help="No rounds: decide at every arrival and completion.")
    admission: str | None = ADMISSION
    placement: str | None = PLACEMENT
    mechanism: str | None = typer.Option(
        None, help="Round mechanism of allocation policies, as in 'gavel-rounds:lease_s=360'. [default: gavel-rounds]"
    )
    estimator: str | None = typer.Option(None, help="Throughput estimator that policies use. [default: oracle]")
    termination: str | None = typer.Option(
        None, help="When jobs end early, as in 'by-loss:threshold=0.002'. [default: by-steps]"
    )
    run_to_completion: bool = typer.Option(False, "--run-to-completion", help="Never suspend a running job.")

    def apply(self, base: SchedulerConfig) -> SchedulerConfig:
        """Return a scheduler with the parts of the command line in place of its own, and a name that says so."""
        if self.event_driven and self.round is not None:
            raise option_error("round", "either --round or --event-driven", self.round)
        if self.round is not None and not SHORTEST_ROUND_S <= self.round <= LONGEST_ROUND_S:
            wanted = f"{SHORTEST_ROUND_S:g} to {LONGEST_ROUND_S:g} seconds (or --event-driven)"
            raise option_error("round", wanted, self.round)
        names = ("estimator", "mechanism", "placement", "termination")
        parts: dict[str, Part] = {name: parse_part(text) for name in names if (text := getattr(self, name))}
        if self.admission:
            parts["admission"] = parse_chain(self.admission)
        round_s = 0.0 if self.event_driven else base.round_s if self.round is None else self.round
        to_completion = base.run_to_completion or self.run_to_completion
        made = replace(base, **parts, round_s=round_s, run_to_completion=to_completion)  # type: ignore[arg-type]
        changes = in_words(changed_parts(base, made))
        return replace(made, name=f"{base.name}({changes})") if base.name and changes else made


def changed_parts(base: SchedulerConfig, made: SchedulerConfig) -> dict[str, str]:
    """Return what a scheduler has in place of the parts of the scheduler that it was made from."""
    names = ("estimator", "mechanism", "placement", "termination", "admission")
    changes = {name: str(getattr(made, name)) for name in names if getattr(made, name) != getattr(base, name)}
    if made.round_s != base.round_s:
        changes["rounds"] = f"{made.round_s:g}" if made.round_s else EVENT_DRIVEN
    return changes


def in_words(changes: Mapping[str, str]) -> str:
    """Return changed parts as `placement=spread, rounds=60`."""
    return ", ".join(f"{name}={value}" for name, value in changes.items())


def scheduler_from(policy: str | None, config: Path | None, preset: str | None) -> SchedulerConfig:
    """Return the scheduler of a file, of a preset, of a policy, or of a preset with another policy."""
    if config is not None and preset is not None:
        raise option_error("preset", "either --config FILE or --preset NAME", preset)
    if config is not None and policy is not None:
        raise option_error("policy", "either --policy NAME or --config FILE", policy)
    if config is not None:
        return SchedulerConfig.from_file(config)
    if preset is not None:
        base = SchedulerConfig.preset(preset)
        return base if policy is None else replace(base, policy=parse_part(policy), name="")
    if policy is None:
        raise InputError("command line", "--policy NAME, --preset NAME or --config FILE")
    return SchedulerConfig(parse_part(policy))


@dataclass(frozen=True)
class WorkloadOptions:
    """Where jobs and their throughputs come from: a trace, or the generator."""

    panel = WORKLOAD
    trace: Path | None = typer.Option(None, help="A trace file. [default: jobs are generated from the bundled catalogue]")
    format: str | None = FORMAT
    columns: str | None = COLUMNS
    regimes: Path | None = REGIMES
    hosts: Path | None = typer.Option(None, help="Speed of models by CPUs and host memory per worker: a YAML file.")
    applications: Path | None = typer.Option(
        None, help="A folder of measured applications, as in Pollux' simulator, for its traces."
    )
    skip_bad: bool = SKIP_BAD
    throughputs: Path | None = THROUGHPUTS
    fill_workers: bool = typer.Option(
        False, "--fill-workers", help="Model gang sizes that the throughput table lacks from those it has."
    )
    jobs: JobsOption = 200
    workers: WorkersOption = "multiple"
    users: UsersOption = USERS

    @property
    def inputs(self) -> list[Path | None]:
        """The files that are read."""
        return [self.trace, self.throughputs, self.regimes, self.hosts]

    def file(self, load: float | None = LOAD.default) -> TraceFile | None:
        """Return the trace file, or None where jobs are generated. Raises `InputError`: an option is for the other case."""
        if self.trace is None:
            for name, value in (("regimes", self.regimes), ("applications", self.applications), ("columns", self.columns)):
                if value is not None:
                    raise option_error(name, "--trace FILE together with this option", str(value))
            return None
        for name, given in {"jobs": self.jobs, "workers": self.workers, "users": self.users, "load": load}.items():
            if given != (LOAD.default if name == "load" else getattr(WorkloadOptions, name)):
                raise option_error(name, "no --trace together with this option, which is for generated jobs", given)
        columns = parse_columns(self.columns) if self.columns is not None else {}
        return TraceFile(self.trace, self.format, self.skip_bad, self.regimes, self.applications, columns)

    def table(self) -> ThroughputTable | None:
        """Return the throughput table, or None for the bundled one."""
        return read_table(self.throughputs)

    def generator(self, load: float | None) -> Generator:
        """Return the generator of jobs."""
        with errors_by_option():
            return Generator(jobs=self.jobs, jobs_per_hour=load, workers=self.workers, users=self.users)

    def read(self, load: float | None, seed: int, table: ThroughputTable | None) -> Trace:
        """Return the jobs of the trace, or generated ones."""
        file = self.file(load)
        trace = self.generator(load).trace(seed) if file is None else file.read(table)
        if self.hosts is None:
            return trace
        hosts = read_hosts(self.hosts)
        check_host_profiles(self.hosts, hosts, trace.jobs, table)
        return with_host_sensitivity(trace, hosts)


@dataclass(frozen=True)
class CostOptions:
    """What starts and checkpoints of jobs take."""

    panel = "Costs of starts and checkpoints"
    launch_cost: float = typer.Option(0.0, help="Seconds that a job's first start takes before it makes progress.", min=0)
    restart_cost: float = typer.Option(0.0, help="Seconds that every later start takes.", min=0)
    checkpoint_cost: float = typer.Option(0.0, help="Seconds that saving a checkpoint takes.", min=0)
    checkpoint_every: float | None = typer.Option(
        None, help="Seconds between checkpoints of a running job. [default: only when suspended]"
    )
    costs: Path | None = typer.Option(None, help="A YAML file of these costs, by job type, in place of single options.")

    def read(self) -> Costs:
        """Return the costs of the file or of the single options."""
        every = self.checkpoint_every
        if self.costs is not None:
            if every is not None or any((self.launch_cost, self.restart_cost, self.checkpoint_cost)):
                raise option_error("costs", "either a file of costs or single cost options", str(self.costs))
            return read_costs(self.costs)
        with errors_by_option():
            return Costs(self.launch_cost, self.restart_cost, self.checkpoint_cost, math.inf if every is None else every)


@dataclass(frozen=True)
class FaultOptions:
    """When nodes fail."""

    panel = CLUSTER
    outage: list[str] | None = typer.Option(
        None,
        metavar="NODE:FROM:TO",
        help="A node that is down for a while, as node:from:to in seconds ('3:3600:7200'); repeatable.",
    )
    mtbf: float = typer.Option(0.0, help="Mean time between failures of a node in seconds; 0: nodes do not fail.", min=0)
    mttr: float = typer.Option(3600.0, help="Mean time to repair of a node in seconds.", min=0)

    def read(self, cluster: Cluster) -> Faults:
        """Return the faults, checked against a cluster."""
        outages = []
        for text in self.outage or ():
            try:
                node, start, end = text.split(":")
                outages.append(Outage(int(node), float(start), float(end) if end else math.inf))
                Faults(outages[-1:]).check_nodes(len(cluster.nodes))
            except ValueError:
                raise option_error("outage", "node:from:to, as in '3:3600:7200'", text) from None
            except InputError as problem:
                raise option_error("outage", f"node:from:to with {problem.expected}", text) from None
        with errors_by_option():
            return Faults(tuple(outages), self.mtbf, self.mttr)


@dataclass(frozen=True)
class DefinitionOptions(OptionGroup):
    """Which of the published definitions metrics follow."""

    panel = METRICS
    makespan_from: str = typer.Option("first-submission", help="Makespan counts from 'first-submission' or from 'zero'.")
    jct_from: str = typer.Option("submission", help="Completion time counts from 'submission' or from 'first-start'.")
    contention: str = typer.Option("average", help="Finish-time fairness: 'average', 'static' or 'demand' contention.")
    unfair_above: float = typer.Option(1.05, help="A job is treated unfairly where its finish-time fairness exceeds this.")

    def read(self, measure: str | None = None) -> MetricOptions:
        """Return the definitions, for all jobs or for those of `--measure`."""
        window = None if measure is None else measure_from(measure)
        return MetricOptions(window, self.makespan_from, self.jct_from, self.contention, self.unfair_above)  # type: ignore[arg-type]


def check_measure(metrics: MetricOptions, jobs: int) -> None:
    """Raise InputError where `--measure` begins behind the last job."""
    with errors_by_option():
        metrics.check_measure(jobs)


def cluster_of(text: str) -> Cluster:
    """Return the cluster of `--cluster`, with the GPU types of the catalogue."""
    with errors_by_option():
        return read_cluster(text, accelerator_types())


def live_cluster_of(text: str) -> Cluster:
    """Return the cluster of `--cluster` for real nodes: fewer GPUs than one node has are a mistake there."""
    for part in text.split(","):
        if (found := re.fullmatch(r"\s*(\d+)x([^:]+):(\d+)\s*", part)) and int(found[1]) < int(found[3]):
            wanted = f"all GPUs of a type before the 'x', as in {found[3]}x{found[2]}:{found[3]} for one node"
            raise InputError("--cluster", wanted, field="cluster", value=part)
    return cluster_of(text)


_OPTIONS = {"jobs_per_hour": "load", "launch_s": "launch-cost", "restart_s": "restart-cost", "checkpoint_s": "checkpoint-cost"}
_OPTIONS |= {"checkpoint_every_s": "checkpoint-every", "mean_up_s": "mtbf", "mean_down_s": "mttr"}


@contextmanager
def errors_by_option() -> Iterator[None]:
    """Name the option in errors about a value that is made of options, in place of its field."""
    try:
        yield
    except InputError as problem:
        if problem.source not in (GENERATOR, "cluster", "compare", "costs", "faults", "metric options") or not problem.field:
            raise
        option = _OPTIONS.get(problem.field, problem.field.replace("_", "-"))
        raise InputError(f"--{option}", problem.expected, field=option, value=problem.value) from None


def split_names(text: str) -> list[str]:
    """Return names that are separated by commas; commas in brackets are part of a name's parameters."""
    return [part.strip() for part in split_outside_brackets(text, ",") if part.strip()]


def parse_numbers(option: str, text: str) -> list[float]:
    """Return numbers that are separated by commas."""
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [math.nan]
    if any(map(math.isnan, found)):
        raise InputError(option, "numbers separated by commas", field=option.strip("-"), value=text)
    return found


def note_unknown_types(cluster: Cluster, trace: Trace) -> None:
    """Name GPU types that may be misspelt. Jobs that carry durations run on a type of any name; other jobs have a table."""
    timed = all(job.kind == TIMED for job in trace.jobs)
    for remark in misspelt_types(kind.name for kind in cluster.types if timed and kind == AcceleratorType(kind.name)):
        note(f"{remark} Jobs with durations run equally fast on every type.")
    for remark in misspelt_types((name for job in trace.jobs for name in job.allowed_types), cluster.type_names):
        note(f"allowed_types: {remark}")


def note_missing_predictions(
    schedulers: Iterable[SchedulerConfig], cluster: Cluster, kinds: Collection[str], registry: Registry
) -> None:
    """Name schedulers that co-locate by predictions and lack predictions for these jobs, which then never share a GPU."""
    by_reason: dict[str, list[str]] = {}
    for scheduler in schedulers:
        estimator = scheduler.build(None, registry).estimator
        if isinstance(estimator, ColocationModel) and (why := estimator.coverage_gaps(kinds, cluster.types)):
            by_reason.setdefault(why, []).append(scheduler.label)
    for why, labels in by_reason.items():
        note(f"{', '.join(labels)}: {why}; see docs/guides/gpu-sharing.md")


def note_unmonitored(scheduler: SchedulerConfig) -> None:
    """Say when jobs of a real cluster begin to share GPUs, where nothing is predicted of them."""
    part = scheduler.estimator
    given = any(part.parameters.get(name) for name in ("usage", "uses", "profiles"))
    if part.name in ("monitored", "watched") and not given:
        note(
            f"{scheduler.label}: no job is predicted, so no job shares a GPU before an agent has measured its job type through"
            " NVML (agents with simulated GPUs never do); submit jobs with --predict, or give predictions with"
            " --estimator 'monitored:usage={KIND: [PERCENT, GB]}', see docs/guides/gpu-sharing.md"
        )


def note_protected_starts(costs: Costs, schedulers: Iterable[SchedulerConfig]) -> None:
    """Say where starting jobs are protected though the scheduler does not ask for it: without it no job would progress."""
    named = {scheduler.round_s for scheduler in schedulers if simulated_with(costs, scheduler) != scheduler}
    for round_s in sorted(named):
        rounds = f"rounds of {round_s:g} s" if round_s else "decisions at every event"
        note(
            f"{rounds}, and a start may take {costs.longest_start_s:g} s: a starting job is not preempted before its first"
            f" step, for at most {FIRST_STEP_S:g} s (first_step_s)"
        )


def note_skipped(trace: Trace, *, quiet: bool) -> None:
    """Say how many lines of a trace were skipped, and list the first ones."""
    if trace.skipped and not quiet:
        note(f"lines skipped in {trace.name}: {len(trace.skipped):,}")
        for problem in trace.skipped[:10]:
            note(f"  {problem}")
        if len(trace.skipped) > 10:
            note(f"  … and {len(trace.skipped) - 10} more (fairlead trace check lists all)")
