"""Sweeps: schedulers × the values of each axis × seeds. Each run is a case of the experiment engine."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fairlead.config.registry import GROUPS, Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.config.yaml_source import Value
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.experiments.cases import Answer, CaseFailed, CaseStore, run_cases
from fairlead.experiments.compare import mean_and_half_width
from fairlead.experiments.inputs import ExperimentInputs, TraceFile
from fairlead.experiments.metrics import MetricOptions, summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import retime_poisson

PARTS = tuple(what for what in GROUPS if what not in ("format", "driver"))
OF_SCHEDULER = ("rounds", "run_to_completion", "first_step_s")
OF_COSTS = ("launch_s", "restart_s", "checkpoint_s", "checkpoint_every_s")
PLAIN = ("load", "cluster", "jobs", *OF_SCHEDULER, *PARTS, *(f"costs.{name}" for name in OF_COSTS))


@dataclass(frozen=True)
class Axis:
    """A name, such as `load` or `admission.factor`, and the values it goes through, with their lines."""

    name: str
    values: tuple[Value, ...]

    @property
    def part(self) -> str:
        """The part that it is a parameter of, or empty."""
        part, dot, _ = self.name.partition(".")
        return part if dot and part in PARTS else ""

    @property
    def of_scheduler(self) -> bool:
        return bool(self.part) or self.name in (*PARTS, *OF_SCHEDULER)

    @property
    def numbers(self) -> bool:
        return all(isinstance(v.data, (int, float)) and not isinstance(v.data, bool) for v in self.values)


def with_axis_value(axis: Axis, value: Any, scheduler: Mapping[str, Any], registry: Registry) -> dict[str, Any] | None:
    """A scheduler's data with the value; None where its part has no such parameter."""
    if not axis.part:
        return {**scheduler, axis.name: value}
    parameter = axis.name.partition(".")[2]
    old = scheduler[axis.part]
    several = isinstance(old, list)
    changed = [_with(axis.part, part, parameter, value, registry) for part in (old if several else [old])]
    if all(part is None for part in changed):
        return None
    whole = [new if new is not None else part for new, part in zip(changed, old if several else [old])]
    return {**scheduler, axis.part: whole if several else whole[0]}


def parameters_of(what: str, part: Any, registry: Registry) -> list[str]:
    """The names of the parameters of a part."""
    found = registry.load(what, _mapping(part)["name"])
    if dataclasses.is_dataclass(found):
        return [field.name for field in dataclasses.fields(found) if field.init and field.name != "table"]
    return [name for name in inspect.signature(found).parameters if name != "table"]


def format_axis_value(value: Any) -> str:
    """A value for tables."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float, Mapping)):
        return str(value)
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key}={format_axis_value(item)}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')}({rest})" if rest else str(value.get("name", ""))
    return f"{value:g}"


def axis_names(schedulers: Sequence[Mapping[str, Any]], registry: Registry) -> list[str]:
    """All possible names of axes for these schedulers."""
    names = dict.fromkeys(PLAIN)
    for scheduler in schedulers:
        for what in PARTS:
            given = scheduler[what] if isinstance(scheduler[what], list) else [scheduler[what]]
            names |= dict.fromkeys(f"{what}.{name}" for part in given for name in parameters_of(what, part, registry))
    return list(names)


def _with(what: str, part: Any, parameter: str, value: Any, registry: Registry) -> dict[str, Any] | None:
    return {**_mapping(part), parameter: value} if parameter in parameters_of(what, part, registry) else None


def _mapping(part: Any) -> dict[str, Any]:
    return dict(part) if isinstance(part, Mapping) else {"name": part}


@dataclass(frozen=True)
class SweepInputs(ExperimentInputs):
    """What all runs of a sweep share: the rates, and the trace if there is one."""

    trace_file: TraceFile | None = None

    @property
    def fingerprint(self) -> str:
        rates = super().fingerprint
        return rates if self.trace_file is None else f"{rates} {_digest(self.trace_file.path)}"

    @property
    def given_table(self) -> ThroughputTable | None:
        """The given rates, or None: jobs in seconds need none."""
        return None if self.throughputs is None else self.table

    def jobs(self) -> Trace | None:
        return None if self.trace_file is None else _trace(self.trace_file, self)


@dataclass(frozen=True)
class SweepRun:
    """A scheduler on a cluster at a load with a seed. `scheduler` is the text of a scheduler file without its name, which makes
    no difference."""

    scheduler: str
    cluster: Cluster
    load: float | None
    seed: int
    jobs: int = 0  # generated; 0: those of the trace
    workers: str = "multiple"
    costs: Costs = field(default_factory=Costs)
    measure: tuple[int, int] | None = None
    fill_workers: bool = False

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, SweepInputs)
        config = SchedulerConfig.from_data(yaml.safe_load(self.scheduler))
        given = Simulation(
            self._trace(inputs),
            self.cluster,
            config,
            inputs.given_table,
            self.costs,
            seed=self.seed,
            measure=self.measure,
            fill_workers=self.fill_workers,
        )
        return {"figures": summarize(run_simulation(given).record, MetricOptions(measure=self.measure)).to_dict()}

    def _trace(self, inputs: SweepInputs) -> Trace:
        read = inputs.jobs()
        if read is not None:
            return read if self.load is None else retime_poisson(read, self.load, self.seed)
        return Generator(self.jobs, self.load, table=inputs.table, workers=self.workers).trace(self.seed)


@lru_cache(maxsize=2)
def _trace(file: TraceFile, inputs: SweepInputs) -> Trace:
    return file.read(inputs.given_table)


@lru_cache(maxsize=2)
def _digest(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:16]
    except OSError as problem:
        raise InputError(path, f"a trace that can be read ({problem.strerror})") from None


@dataclass(frozen=True)
class SweepScheduler:
    """A scheduler of a sweep."""

    label: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file describes it."""

    title: str
    inputs: SweepInputs
    arms: tuple[SweepScheduler, ...]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    clusters: Mapping[str, Cluster]  # by their text in the file
    cluster: str
    load: float | None
    jobs: int = 0
    workers: str = "multiple"
    costs: Costs = field(default_factory=Costs)
    measure: tuple[int, int] | None = None
    fill_workers: bool = False
    metrics: tuple[str, ...] = ("average_jct_s", "average_responsiveness_s", "utilization", "average_ftf")
    against: str = ""  # the axis that pictures go along

    def points(self) -> list[Point]:
        """Every scheduler at every combination of values; a scheduler without the parameter occurs once."""
        every = itertools.product(*(range(len(axis.values)) for axis in self.axes))
        return list(dict.fromkeys(self._settled(Point(arm, at))[0] for at in every for arm in range(len(self.arms))))

    def value(self, point: Point, axis: int) -> Any:
        """A point's value on an axis; None where the axis does not apply to its scheduler."""
        at = point.at[axis]
        return None if at is None else self.axes[axis].values[at].data

    def scheduler(self, point: Point) -> dict[str, Any]:
        """The scheduler's data with the point's values, without a name."""
        return self._settled(point)[1]

    def _settled(self, point: Point) -> tuple[Point, dict[str, Any]]:
        data: dict[str, Any] = dict(self.arms[point.arm].data)
        at = list(point.at)
        for axis in sorted(range(len(self.axes)), key=lambda axis: bool(self.axes[axis].part)):  # parts, then parameters
            if self.axes[axis].of_scheduler and at[axis] is not None:
                changed = with_axis_value(self.axes[axis], self.value(point, axis), data, Registry.installed())
                at[axis] = None if changed is None else at[axis]
                data = changed or data
        return Point(point.arm, tuple(at)), {name: data[name] for name in sorted(data) if name != "name"}

    def run(self, point: Point, seed: int) -> SweepRun:
        given = {axis.name: self.value(point, index) for index, axis in enumerate(self.axes)}
        costs: dict[str, Any] = {
            name.removeprefix("costs."): float(value) for name, value in given.items() if name.startswith("costs.")
        }
        load = given.get("load", self.load)
        return SweepRun(
            yaml.safe_dump(self.scheduler(point)),
            self.clusters[given.get("cluster", self.cluster)],
            None if load is None else float(load),
            seed,
            given.get("jobs", self.jobs),
            self.workers,
            replace(self.costs, **costs),
            self.measure,
            self.fill_workers,
        )


@dataclass(frozen=True)
class Point:
    """A scheduler by position, and the position of its value on each axis that applies to it."""

    arm: int
    at: tuple[int | None, ...]


@dataclass(frozen=True)
class PointResult:
    """The figures of a point over all seeds; `failed` is the reason where there are none."""

    point: Point
    mean: dict[str, float | None]
    half_width: dict[str, float | None]
    failed: str = ""


@dataclass(frozen=True)
class SweepResult:
    """The results of a sweep."""

    sweep: Sweep
    results: list[PointResult]
    ran: int  # runs that were not in the store
    kept: int


def run_sweep(
    given: Sweep,
    folder: Path,
    *,
    processes: int | None = None,
    on: str | None = None,
    on_done: Callable[[bool], None] | None = None,
) -> SweepResult:
    """Run what the folder lacks; `on_done` is called after each run with whether it had to run. `on` is a Ray cluster that runs
    them, as in `ray:auto`."""
    done = {True: 0, False: 0}

    def note(new: bool) -> None:
        done[new] += 1
        if on_done:
            on_done(new)

    runs = {point: [given.run(point, seed) for seed in given.seeds] for point in given.points()}
    every = (run for of_point in runs.values() for run in of_point)
    answers = run_cases(every, CaseStore(folder / "cases", given.inputs), processes=processes, on=on, on_done=note)
    results = []
    for point, of_point in runs.items():
        try:
            results.append(PointResult(point, *mean_and_half_width([answers.of(run)["figures"] for run in of_point])))
        except CaseFailed as problem:
            results.append(PointResult(point, {}, {}, str(problem)))
    return SweepResult(given, results, done[True], done[False])
