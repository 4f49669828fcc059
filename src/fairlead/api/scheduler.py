"""Schedulers, traces, clusters and tables from what users pass to the public API: names, paths, data frames or objects."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fairlead.config.clusters import read_cluster
from fairlead.config.registry import Registry, presets
from fairlead.config.schedulers import Part, SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, require
from fairlead.core.job import Job
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.formats.base import JobList
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace, raise_bad_line

ARGUMENTS = "arguments"

TraceLike: TypeAlias = "str | Path | Trace | Generator | Iterable[Job] | Any"
ClusterLike: TypeAlias = "str | Path | Cluster"
SchedulerLike: TypeAlias = "str | Scheduler | SchedulerConfig | Any"
TableLike: TypeAlias = "str | Path | ThroughputTable | None"

_METHODS = {"policy": ("select", "allocate"), "admission": ("admit",), "estimator": ("rates",), "mechanism": ("select",)}
_METHODS |= {"placement": ("place",), "termination": ("finished_early",)}
"""What an object needs to be a stage: one of these methods."""

T = TypeVar("T")


class Scheduler:
    """A scheduler composed of stages, each given by name, as `"name:parameter=value"`, or as an object of your own.

    Args:
        policy: A policy (`fairlead policies` lists them) or else a preset, or an object with a `select` or `allocate` method.
            Each run works on a copy of the object.
        admission: Admission stage; default: accept every job.
        estimator: Throughput estimator; default: the true throughputs.
        mechanism: Round mechanism for allocation policies.
        placement: Placement stage; default: consolidated.
        termination: Termination stage; default: a job ends at its last step.
        round_s: Round length in seconds; 0 decides at every event; None keeps the preset's or the default of 300.
        run_to_completion: Never preempt a running job.
        name: Label in tables and plots.
        parameters: Parameters of the policy, e.g. `space_sharing=True`.

    Raises:
        FairleadError: A name or a parameter is unknown; the message names near ones.

    Example:
        >>> import fairlead
        >>> fairlead.Scheduler("gavel", space_sharing=True).label
        'gavel(space_sharing=true)'
    """

    def __init__(
        self,
        policy: Any = "fifo",
        *,
        admission: Any = None,
        estimator: Any = None,
        mechanism: Any = None,
        placement: Any = None,
        termination: Any = None,
        round_s: float | None = None,
        run_to_completion: bool | None = None,
        name: str = "",
        **parameters: Any,
    ) -> None:
        registry = Registry.installed()
        base = SchedulerConfig()
        part, registry = _part("policy", policy, registry)
        label = ""
        if isinstance(policy, str) and part.name in presets() and part.name not in {one.name for one in registry.of("policy")}:
            base, label, parameters = SchedulerConfig.preset(part.name), part.name, {**part.parameters, **parameters}
            part = base.policy
            if parameters:
                label += f"({', '.join(f'{k}={_shown(v)}' for k, v in parameters.items())})"
        part = Part(part.name, {**part.parameters, **parameters}, links=part.links)
        changes: dict[str, Any] = {"policy": part, "name": name or label}
        for stage, value in zip(tuple(_METHODS)[1:], (admission, estimator, mechanism, placement, termination), strict=True):
            if value is not None:
                changes[stage], registry = _part(stage, value, registry)
        if round_s is not None:
            changes["round_s"] = round_s
        if run_to_completion is not None:
            changes["run_to_completion"] = run_to_completion
        self.config: SchedulerConfig = replace(base, **changes)
        self.registry: Registry = registry
        self.config.build(None, registry)

    @classmethod
    def from_file(cls, path: str | Path) -> Scheduler:
        """Read a scheduler file (YAML).

        Raises:
            FairleadError: The file is wrong; the message names file, line and field.
        """
        return cls._of(SchedulerConfig.from_file(path))

    @classmethod
    def _of(cls, config: SchedulerConfig, registry: Registry | None = None) -> Scheduler:
        made = cls.__new__(cls)
        made.config, made.registry = config, registry or Registry.installed()
        return made

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return self.config.label

    def to_yaml(self) -> str:
        """Return the scheduler as a scheduler file."""
        return self.config.to_yaml()

    def __repr__(self) -> str:
        return f"Scheduler({self.label!r})"


def _part(stage: str, value: Any, registry: Registry) -> tuple[Part, Registry]:
    """Turn a name or an object into a part, with the object's class registered under a name of its own."""
    if isinstance(value, Part):
        return value, registry
    if isinstance(value, str):
        return parse_part(value), registry
    if not any(callable(getattr(value, method, None)) for method in _METHODS[stage]):
        wanted = f"a name, or an object with a method {' or '.join(_METHODS[stage])}"
        raise InputError("scheduler", wanted, field=stage, value="None" if value is None else value)
    kind = value if isinstance(value, type) else type(value)
    name, parameters = kind.__name__, dict[str, Any]()  # the command line names the class of a file so too
    made: Callable[..., Any] = kind
    if any(entry.name == name for entry in registry.of(stage)):
        name = f"custom-{name}"
    if kind is not value and dataclasses.is_dataclass(value):
        given = {one: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
        parameters = {one.name: found for one, found in given.items() if repr(found) != repr(one.default)}
    elif kind is not value:
        made = partial(copy.deepcopy, value)
    return Part(name, parameters), registry.plus(stage, name, made)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_scheduler(value: SchedulerLike, round_s: float | None = None) -> Scheduler:
    """Return a scheduler by name, file, configuration or object, with rounds of another length where that is given."""
    if isinstance(value, SchedulerConfig):
        value = Scheduler._of(value)
    if isinstance(value, Scheduler):
        if round_s is None:
            return value
        return Scheduler._of(replace(value.config, round_s=round_s), value.registry)
    if is_file(value):
        return to_scheduler(Scheduler.from_file(value), round_s)
    return Scheduler(value, round_s=round_s)


def is_file(value: SchedulerLike) -> bool:
    """Return whether a scheduler is given as a scheduler file."""
    return isinstance(value, Path) or (isinstance(value, str) and Path(value).suffix in (".yaml", ".yml"))


def to_schedulers(values: Iterable[SchedulerLike], round_s: float | None = None) -> list[Scheduler]:
    """Return at least one scheduler."""
    if isinstance(values, str) or not isinstance(values, Iterable) or not (made := [to_scheduler(v, round_s) for v in values]):
        raise InputError(ARGUMENTS, "a list of at least one scheduler", field="schedulers", value=values)
    return made


def instance_or_default(name: str, value: T | None, kind: type[T]) -> T:
    """Return an argument, or the default of its class for None."""
    if value is not None and not isinstance(value, kind):
        raise InputError(ARGUMENTS, f"a fairlead.{kind.__name__}", field=name, value=value)
    return kind() if value is None else value


def to_cluster(value: ClusterLike) -> Cluster:
    """Return a cluster, or the one that a text or file describes."""
    found = value if isinstance(value, Cluster) else read_cluster(str(value), accelerator_types())
    require(found.size, ARGUMENTS, "a cluster with at least one GPU", "cluster", "empty")
    return found


def to_table(value: TableLike) -> ThroughputTable | None:
    """Return a throughput table, or that of a file."""
    if value is not None and not isinstance(value, str | Path | ThroughputTable):
        raise InputError(ARGUMENTS, "a ThroughputTable or the path of a file", field="throughputs", value=value)
    return read_table(Path(value)) if isinstance(value, str | Path) else value


def to_trace(value: TraceLike, table: ThroughputTable | None, seed: int, columns: Mapping[str, str] | None = None) -> Trace:
    """Return the jobs of a file, a data frame, a generator or a list; `columns` has own names of a table's columns."""
    own = {} if columns is None else columns
    if not isinstance(own, Mapping) or not all(isinstance(one, str) for pair in own.items() for one in pair):
        raise InputError(ARGUMENTS, "a mapping from your column names to native columns", field="columns", value=columns)
    if isinstance(value, Trace):
        _checked(value.jobs)
        return value
    if isinstance(value, Generator):
        return value.trace(seed)
    if isinstance(value, str | Path):
        return TraceFile(Path(value), columns=own).read(table)
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "to_arrow") or type(value).__name__ == "DataFrame":
        return _from_frame(value, table, own)
    jobs = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(job, Job) for job in jobs):
        wanted = "a path, a data frame, a Trace, a Generator or jobs"
        raise InputError(ARGUMENTS, wanted, field="trace", value=type(value).__name__)
    return _checked(jobs)


def _checked(jobs: Iterable[Job]) -> Trace:
    """A trace of jobs, each checked as a line of a trace file is."""
    with _located("trace", "job"):
        checked = JobList(Path("jobs"), raise_bad_line)
        for number, job in enumerate(jobs, start=1):
            checked.add(job, number)
        return checked.trace()


@contextmanager
def _located(source: str, unit: str) -> Iterator[None]:
    """Name an object and its row in errors, in place of a file and its line."""
    try:
        yield
    except InputError as error:
        place = source if error.line is None else f"{source}, {unit} {error.line}"
        raise InputError(place, error.expected, field=error.field, value=error.value) from None


def _from_frame(frame: Any, table: ThroughputTable | None, columns: Mapping[str, str]) -> Trace:
    """Read a pandas, polars or pyarrow table; `columns` has own names of the native format's columns."""
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder, _located("data frame", "row"):
        path = Path(folder) / "frame.parquet"
        try:
            rows = frame.to_arrow() if hasattr(frame, "to_arrow") else frame
            is_pandas = type(rows).__name__ == "DataFrame"
            rows = pyarrow.Table.from_pandas(rows, preserve_index=False) if is_pandas else pyarrow.table(rows)
            pyarrow.parquet.write_table(rows, path)
        except (ValueError, TypeError, AttributeError, NotImplementedError) as error:  # as Arrow's errors are
            raise InputError("data frame", f"columns of text or numbers ({str(error).splitlines()[0]})") from None
        return TraceFile(path, "native", columns=columns).read(table)


def read_trace(
    path: str | Path, *, throughputs: TableLike = None, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Trace:
    """Read a trace file.

    Args:
        path: A trace in any known format (`fairlead trace --help` lists them).
        throughputs: A throughput table or its file, for formats that count work in steps.
        format: The name of the format; default: recognised by its content.
        columns: Own column names of a CSV or Parquet file and the native columns, as in `{"submit": "submitted_s"}`.

    Returns:
        The jobs in the order of their submission.

    Raises:
        FairleadError: The file is wrong; the message names file, line and field.
    """
    return TraceFile(Path(path), format, columns=columns or {}).read(to_table(throughputs))
