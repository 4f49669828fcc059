"""Read a sweep from a small YAML file. Errors come with file, line, field and value, before anything runs.

schedulers: [las, tiresias, {preset: las, admission: {name: accept-up-to}}, mine.yaml]
over:
  load: [4, 6, 8]                   # jobs per hour
  admission.factor: [1.2, 1.5]      # of the schedulers that have it
seeds: 3                            # 0, 1 and 2; or a list
cluster: 32xv100:4
jobs: 300                           # generated; or a file: trace: jobs.csv
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.config.clusters import read_cluster
from fairlead.config.parameters import LARGEST_SEED
from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.config.workload_files import costs_from
from fairlead.config.yaml_source import Value, read_yaml
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, InputError, UnknownName, near_or_all
from fairlead.experiments.inputs import TraceFile, table_for
from fairlead.experiments.metric_columns import COLUMNS
from fairlead.experiments.metrics import measure_from
from fairlead.experiments.sweep.sweep_run import (
    OF_COSTS,
    PLAIN,
    Axis,
    Sweep,
    SweepInputs,
    SweepScheduler,
    axis_names,
    with_axis_value,
)
from fairlead.simulator.costs import Costs
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import GANG_SHARES

_JOBS = ("load", "jobs", "workers", "trace", "format", "skip_bad", "throughputs", "fill_workers", "measure")
_FIELDS = ("title", "schedulers", "over", "seeds", "cluster", *_JOBS, "costs", "metrics", "against")

MAX_RUNS = 100_000
MAX_JOBS = 1_000_000
MIN_LOAD, MAX_LOAD = 1e-6, 1e6
JOBS, LOAD, CLUSTER = 200, 6.0, "8xv100:4,16xp100:4,24xk80:4"
"""Defaults, as in `fairlead compare`."""


def read_sweep(path: Path | str) -> Sweep:
    """Read and check a sweep file."""
    value = read_yaml(path)
    fields = value.mapping(_FIELDS)
    folder = Path(path).parent
    registry = Registry.installed()
    arms = _arms(value, fields, folder, registry)
    axes = _axes(fields["over"]) if "over" in fields else ()
    if (combined := math.prod(len(axis.values) for axis in axes)) > MAX_RUNS:  # before they are listed
        raise fields["over"].error(f"at most {MAX_RUNS:,} runs, and these are {combined:,}")
    clusters = _clusters(fields, axes, folder)
    trace = _trace(fields, folder, axes)
    throughputs = folder / fields["throughputs"].text("a file") if "throughputs" in fields else None
    metrics = _metrics(fields["metrics"]) if "metrics" in fields else Sweep.metrics
    load = _load(fields["load"]) if "load" in fields else None if trace is not None else LOAD
    given = Sweep(
        fields["title"].text("a line") if "title" in fields else Path(path).stem,
        SweepInputs(throughputs, trace),
        tuple(arm for arm, _ in arms),
        axes,
        _seeds(fields["seeds"]) if "seeds" in fields else (0,),
        clusters,
        fields["cluster"].text("a cluster") if "cluster" in fields else CLUSTER,
        load,
        0 if trace is not None else _jobs(fields["jobs"]) if "jobs" in fields else JOBS,
        _workers(fields["workers"]) if "workers" in fields else "multiple",
        costs_from(fields["costs"]) if "costs" in fields else Costs(),
        _measure(fields["measure"]) if "measure" in fields else None,
        fields["fill_workers"].yes_or_no() if "fill_workers" in fields else False,
        metrics,
        _against(fields, axes),
    )
    _check_axes(given, axes, [data for _, data in arms], registry)
    random = trace is None or load is not None or any(axis.name == "load" for axis in axes)
    if len(given.seeds) > 1 and not random:
        raise fields["seeds"].error("one seed: a trace without a load is not random")
    if len(given.points()) * len(given.seeds) > MAX_RUNS:
        raise InputError(value.source, f"at most {MAX_RUNS:,} runs", field="over", value=len(given.points()) * len(given.seeds))
    _ = given.inputs.fingerprint  # reports unreadable files now
    _check_jobs(given, fields)
    return given


def _check_jobs(given: Sweep, fields: dict[str, Value]) -> None:
    """Check that the measured jobs exist, and have rates on every cluster."""
    trace, table = given.inputs.jobs(), given.inputs.given_table
    counts = [value.data for axis in given.axes if axis.name == "jobs" for value in axis.values] or [given.jobs]
    fewest = min(counts) if trace is None else len(trace)
    if given.measure is not None and given.measure[0] >= fewest:
        raise fields["measure"].error(f"a range within the {fewest:,} jobs of the trace")
    along = [value for axis in given.axes if axis.name == "cluster" for value in axis.values]
    said = {value.data: value for value in along or ([fields["cluster"]] if "cluster" in fields else [])}
    for name in said or (given.cluster,):
        try:
            if trace is None:
                given.inputs.table.for_types(given.clusters[name].type_names)
            else:
                table_for(trace, given.clusters[name], table, fill=given.fill_workers)
        except UnknownName as error:
            if name not in said:
                raise
            raise said[name].error(f"types that have rates ({near_or_all(error.name, error.known)})") from error


def _arms(value: Value, fields: dict[str, Value], folder: Path, registry: Registry) -> list[tuple[SweepScheduler, Value]]:
    if "schedulers" not in fields:
        raise InputError(
            value.source, "a list of presets or schedulers, as in 'schedulers: [las, tiresias]'", field="schedulers"
        )
    found: dict[str, tuple[SweepScheduler, Value]] = {}
    for entry in fields["schedulers"].items():
        config = _scheduler(entry, folder)
        config.build(None, registry)
        if config.label in found:
            raise entry.error("a scheduler with a unique name")
        found[config.label] = SweepScheduler(config.label, config.to_data()), entry
    if not found:
        raise fields["schedulers"].error("at least one scheduler")
    return list(found.values())


def _scheduler(entry: Value, folder: Path) -> SchedulerConfig:
    if isinstance(entry.data, dict):
        return SchedulerConfig.from_value(entry)
    name = entry.text("a preset, a scheduler file, or a scheduler")
    if name.endswith((".yaml", ".yml")):
        return SchedulerConfig.from_file(folder / name)
    return SchedulerConfig.from_value(Value({"preset": name}, entry.source, entry.field, entry.line, {}))


def _axes(over: Value) -> tuple[Axis, ...]:
    axes = []
    for name, values in over.mapping().items():
        given = tuple(values.items())
        if not given:
            raise values.error("at least one value")
        seen: list[Any] = []
        for one in given:
            if one.data in seen:
                raise one.error("each value only once")
            seen.append(one.data)
        axes.append(Axis(name, given))
    return tuple(axes)


def _check_axes(given: Sweep, axes: Sequence[Axis], entries: Sequence[Value], registry: Registry) -> None:
    """Every value is tried where it belongs, alone; then every combination."""
    data = [arm.data for arm in given.arms]
    for axis in axes:
        if axis.of_scheduler:
            _check_schedulers(given, axis, registry)
        elif axis.name not in PLAIN:
            wanted = f"something that can be varied ({near_or_all(axis.name, axis_names(data, registry))})"
            raise InputError(axis.values[0].source, wanted, line=axis.values[0].line, field=axis.name)
        for value in axis.values:
            if axis.name == "load":
                _load(value)
            elif axis.name == "jobs":
                _jobs(value)
                if given.inputs.trace_file is not None:
                    raise value.error("no number of jobs together with a trace")
            elif axis.name.startswith("costs."):
                field = axis.name.removeprefix("costs.")
                value.number("seconds, at least 0", above=field == OF_COSTS[-1])
    for point in given.points():
        try:
            SchedulerConfig.from_data(given.scheduler(point)).build(None, registry)
        except FairleadError as error:
            at = ", ".join(f"{axis.name} {given.value(point, index)}" for index, axis in enumerate(axes))
            entry = entries[point.arm]
            raise InputError(
                entry.source, f"stages that can be combined at {at} ({error})", line=entry.line, field="over"
            ) from error


def _check_schedulers(given: Sweep, axis: Axis, registry: Registry) -> None:
    # A parameter may belong to a part that another axis brings in.
    alone = [given.scheduler(point) for point in given.points()] if axis.part else [dict(arm.data) for arm in given.arms]
    for value in axis.values:
        tried = [with_axis_value(axis, value.data, data, registry) for data in alone]
        if all(data is None for data in tried):
            known = axis_names(alone, registry)
            wanted = f"a parameter that some scheduler's {axis.part} has ({near_or_all(axis.name, known)})"
            raise InputError(value.source, wanted, line=value.line, field=axis.name)
        for data in tried:
            if data is None:
                continue
            try:
                SchedulerConfig.from_data(data).build(None, registry)
            except InputError as error:
                raise InputError(value.source, error.expected, line=value.line, field=axis.name, value=value.data) from error
            except UnknownName as error:
                wanted = f"a known {error.what} ({near_or_all(error.name, error.known)})"
                raise InputError(value.source, wanted, line=value.line, field=axis.name, value=error.name) from error


def _clusters(fields: dict[str, Value], axes: Sequence[Axis], folder: Path) -> dict[str, Cluster]:
    wanted = [value for axis in axes if axis.name == "cluster" for value in axis.values]
    wanted += [fields["cluster"]] if "cluster" in fields else []
    found = {CLUSTER: read_cluster(CLUSTER, accelerator_types())}
    for value in wanted:
        text = value.text("a cluster, as in '8xv100:4,16xp100:4', or a cluster file")
        place = str(folder / text) if text.endswith((".yaml", ".yml")) else text
        try:
            found[text] = read_cluster(place, accelerator_types())
        except InputError as error:
            if error.line is not None or error.source != "cluster":
                raise
            raise value.error(error.expected) from error
    return found


def _trace(fields: dict[str, Value], folder: Path, axes: Sequence[Axis]) -> TraceFile | None:
    if "trace" not in fields:
        for name in ("format", "skip_bad"):
            if name in fields:
                raise fields[name].error("a trace as well")
        return None
    for name in ("jobs", "workers"):
        if name in fields:
            raise fields[name].error(f"no {name} together with a trace")
    form = fields["format"].text("a trace format") if "format" in fields else None
    return TraceFile(
        folder / fields["trace"].text("a trace file"), form, "skip_bad" in fields and fields["skip_bad"].yes_or_no()
    )


def _seeds(value: Value) -> tuple[int, ...]:
    if not isinstance(value.data, list):
        if (count := value.whole("a count of at least 1, or a list of seeds", 1)) > MAX_RUNS:
            raise value.error(f"at most {MAX_RUNS:,} seeds")
        return tuple(range(count))
    seeds = tuple(entry.whole("a whole number of at least 0", 0) for entry in value.items())
    if not seeds or len(set(seeds)) < len(seeds) or max(seeds) > LARGEST_SEED:
        raise value.error(f"at least one seed, each once, none above {LARGEST_SEED}")
    return seeds


def _load(value: Value) -> float:
    wanted = f"jobs per hour from {MIN_LOAD:f} to {MAX_LOAD:,.0f}"
    load = value.number(wanted, MIN_LOAD)
    if not load <= MAX_LOAD or math.isnan(load):
        raise value.error(wanted)
    return load


def _jobs(value: Value) -> int:
    wanted = f"a whole number from 1 to {MAX_JOBS:,}"
    count = value.whole(wanted, 1)
    if count > MAX_JOBS:
        raise value.error(wanted)
    return count


def _workers(value: Value) -> str:
    if value.data not in GANG_SHARES:
        raise value.error(" or ".join(GANG_SHARES))
    return str(value.data)


def _measure(value: Value) -> tuple[int, int]:
    wanted = "first:last by submission order, in quotes, as in '50:150'"
    try:
        return measure_from(value.text(wanted))
    except InputError as error:
        raise value.error(error.expected) from error


def _metrics(value: Value) -> tuple[str, ...]:
    known = [column.key for column in COLUMNS]
    names = []
    for entry in value.items():
        name = entry.text("the name of a metric")
        if name not in known:
            raise entry.error(f"a metric ({near_or_all(name, known)})")
        names.append(name)
    if not names:
        raise value.error("at least one metric")
    return tuple(dict.fromkeys(names))


def _against(fields: dict[str, Value], axes: Sequence[Axis]) -> str:
    """The horizontal axis of pictures: the one that the file names, else the first of numbers, else the first."""
    names = [axis.name for axis in axes]
    if "against" in fields:
        name = fields["against"].text("one of the axes")
        if name not in names:
            raise fields["against"].error(f"one of the axes under 'over' ({near_or_all(name, names)})")
        return name
    return next((axis.name for axis in axes if axis.numbers), names[0] if names else "")
