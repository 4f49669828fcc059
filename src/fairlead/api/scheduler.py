"""Schedulers, traces, clusters and tables from what users pass to the public API: names, paths, data frames or objects."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.config import Part, SchedulerConfig, read_cluster
from fairlead.config.registry import Registry, presets
from fairlead.config.schedulers import parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

TraceLike: TypeAlias = "str | Path | Trace | Generator | Iterable[Job] | Any"
ClusterLike: TypeAlias = "str | Path | Cluster"
SchedulerLike: TypeAlias = "str | Scheduler | SchedulerConfig | Any"
TableLike: TypeAlias = "str | Path | ThroughputTable | None"

_STAGES = ("admission", "estimator", "mechanism", "placement", "termination")


class Scheduler:
    """A scheduler composed of stages, each given by name, as `"name:parameter=value"`, or as an object of your own.

    Args:
        policy: A policy (`fairlead policies` lists them) or else a preset, or an object with a `select` or `allocate` method.
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
        if isinstance(policy, str) and policy in presets() and policy not in {one.name for one in registry.of("policy")}:
            base = SchedulerConfig.preset(policy)
            part = base.policy
            label = f"{policy}({', '.join(f'{k}={_shown(v)}' for k, v in parameters.items())})" if parameters else policy
        else:
            part, registry = _part("policy", policy, registry)
            label = ""
        part = Part(part.name, {**part.parameters, **parameters}, links=part.links)
        changes: dict[str, Any] = {"policy": part, "name": name or label}
        given = zip(_STAGES, (admission, estimator, mechanism, placement, termination), strict=True)
        for stage, value in given:
            if value is not None:
                changes[stage], registry = _part(stage, value, registry)
        if round_s is not None:
            changes["round_s"] = float(round_s)
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
    def _of(cls, config: SchedulerConfig) -> Scheduler:
        made = cls.__new__(cls)
        made.config, made.registry = config, Registry.installed()
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
    kind = value if isinstance(value, type) else type(value)
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
    parameters: dict[str, Any] = {}
    if kind is not value and dataclasses.is_dataclass(value):
        parameters = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
    if any(entry.name == name for entry in registry.of(stage)):
        name = f"custom-{name}"
    return Part(name, parameters), registry.plus(stage, name, kind)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_scheduler(value: SchedulerLike, round_s: float | None = None) -> Scheduler:
    """Return a scheduler by name, file, configuration or object, with rounds of another length where that is given."""
    if isinstance(value, SchedulerConfig):
        value = Scheduler._of(value)
    if isinstance(value, Scheduler):
        if round_s is None:
            return value
        changed = Scheduler._of(replace(value.config, round_s=float(round_s)))
        changed.registry = value.registry
        return changed
    if isinstance(value, str | Path) and Path(value).suffix in (".yaml", ".yml"):
        return to_scheduler(Scheduler.from_file(value), round_s)
    return Scheduler(value, round_s=round_s)


def to_cluster(value: ClusterLike) -> Cluster:
    """Return a cluster, or the one that a text or file describes."""
    return value if isinstance(value, Cluster) else read_cluster(str(value), accelerator_types())


def to_table(value: TableLike) -> ThroughputTable | None:
    """Return a throughput table, or that of a file."""
    return read_table(Path(value)) if isinstance(value, str | Path) else value


def to_trace(value: TraceLike, table: ThroughputTable | None, seed: int) -> Trace:
    """Return the jobs of a file, a data frame, a generator or a list."""
    if isinstance(value, Trace):
        return value
    if isinstance(value, Generator):
        return value.trace(seed)
    if isinstance(value, str | Path):
        return TraceFile(Path(value)).read(table)
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "to_arrow") or type(value).__name__ == "DataFrame":
        return _from_frame(value, table)
    jobs = tuple(value)
    if not all(isinstance(job, Job) for job in jobs):
        raise InputError("trace", "a path, a data frame, a Trace, a Generator or jobs", value=type(value).__name__)
    return Trace(tuple(sorted(jobs, key=lambda job: job.submitted_s)), "jobs")


def _from_frame(frame: Any, table: ThroughputTable | None) -> Trace:
    """Read a pandas, polars or pyarrow table whose columns are those of Fairlead's own trace format."""
    import pyarrow
    import pyarrow.parquet

    if isinstance(frame, pyarrow.Table):
        rows = frame
    elif hasattr(frame, "to_arrow"):
        rows = frame.to_arrow()
    elif hasattr(frame, "__arrow_c_stream__"):
        rows = pyarrow.table(frame)
    else:
        rows = pyarrow.Table.from_pandas(frame, preserve_index=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frame.parquet"
        pyarrow.parquet.write_table(rows, path)
        return TraceFile(path, "native").read(table)


def read_trace(path: str | Path, *, throughputs: TableLike = None, format: str | None = None) -> Trace:
    """Read a trace file.

    Args:
        path: A trace in any known format (`fairlead trace --help` lists them).
        throughputs: A throughput table or its file, for formats that count work in steps.
        format: The name of the format; default: recognised by its content.

    Returns:
        The jobs in the order of their submission.

    Raises:
        FairleadError: The file is wrong; the message names file, line and field.
    """
    return TraceFile(Path(path), format).read(to_table(throughputs))
