"""The inputs of experiments: a trace, a cluster and the true rates, checked before anything runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from fairlead.config.registry import Registry
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, near_or_all, require
from fairlead.core.job import TIMED, Job, kind_of, model_of
from fairlead.files import is_stream
from fairlead.prediction.step_prediction import job_prediction
from fairlead.workloads.applications import application_table, read_applications, with_applications
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.dynamics import JobDynamics, Regimes, RunConditions, run_time_s
from fairlead.workloads.formats import BUILT_IN, Format, read_trace_file, read_trace_skipping_bad
from fairlead.workloads.formats.gavel_traces import GavelTrace, RunTime, with_regimes
from fairlead.workloads.formats.native_trace import NativeTrace
from fairlead.workloads.table_files import fill_workers, read_throughputs
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import MAX_TIME_S, Trace

REFERENCE_TYPE = "v100"
"""SLOs in Gavel's traces are multiples of the run time on this type (Gavel §7.1)."""


_ORDER = {name: place for place, name in enumerate(BUILT_IN)}


@dataclass(frozen=True)
class TraceFile:
    """Where a trace comes from and how to read it."""

    path: Path
    format: str | None = None
    skip_bad: bool = False
    regimes: Path | None = None  # how batch sizes of its jobs change
    applications: Path | None = None  # measured applications that its jobs train
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # own names of columns, and the native ones

    def read(self, table: ThroughputTable | None = None) -> Trace:
        if is_stream(self.path):
            raise InputError(self.path, "a regular file")
        formats, name = known_formats(table), self.format
        if self.columns:
            require(name in (None, NativeTrace.name), "--columns", "the native format, or none, as --format", "format", name)
            formats, name = {NativeTrace.name: NativeTrace(self.columns, job_prediction)}, NativeTrace.name
        if self.skip_bad:
            trace = read_trace_skipping_bad(self.path, name, formats)
        else:
            trace = read_trace_file(self.path, name, formats=formats)
        if self.applications is not None:
            trace = with_applications(trace, read_applications(self.applications))
        return trace if self.regimes is None else with_regimes(trace, self.regimes)


def known_formats(table: ThroughputTable | None = None) -> Mapping[str, Format]:
    """All trace formats, built-in and third-party; the more specific ones come first."""
    formats: dict[str, Format] = {}
    for entry in sorted(Registry.installed().of("format"), key=lambda entry: _ORDER.get(entry.name, len(_ORDER))):
        made = NativeTrace(check_prediction=job_prediction) if entry.name == NativeTrace.name else entry.load()()
        formats[entry.name] = GavelTrace(_run_time(table)) if isinstance(made, GavelTrace) and table is not None else made
    return formats


def read_table(path: Path | None) -> ThroughputTable | None:
    """The table of a file; None without one."""
    return None if path is None else read_throughputs(path)


def table_for(trace: Trace, cluster: Cluster, table: ThroughputTable | None, *, fill: bool = False) -> ThroughputTable:
    """The true rates for a trace on a cluster: the given table, or that of the applications that jobs train, or the bundled
    catalogue where jobs have kinds.

    Every job's (kind, workers) is looked up here, so that a run cannot stop half-way for a missing rate; the same at batch
    sizes that it will have or that its owner has planned. `fill` models gang sizes that the table lacks from those it has.
    """
    if table is None and trace.dynamics:
        table = application_table(trace, cluster)
    if table is None:
        timed = all(job.kind == TIMED for job in trace.jobs)
        table = ThroughputTable.timed(cluster.type_names) if timed else catalogue()
    needed = dict.fromkeys((job.kind, job.workers) for job in trace.jobs if job.kind != TIMED)
    later = [one for job in trace.jobs for one in _later(job, trace.dynamics.get(job.name))]
    if fill:
        table = fill_workers(table, (*needed, *((kind, job.workers) for job, _, kind in later if kind in table.kinds)))
    for kind, workers in needed:
        if (kind, workers) not in table.row_of:
            _explain_missing(trace, table, kind, workers)
    timed = len(table.keys) == 1  # durations alone run anywhere
    table = ThroughputTable.timed(cluster.type_names) if timed else table.for_types(cluster.type_names)
    for one in later:
        _check_later(trace, table, *one)
    _check_lengths(trace, table)
    return table


def _check_lengths(trace: Trace, table: ThroughputTable) -> None:
    """Check that every job ends, or reaches its time limit, within the longest time that the clock can count rounds for."""
    fastest: dict[tuple[str, int], float] = {}
    for job in trace.jobs:
        key = (job.kind, job.workers)
        if key not in fastest:
            fastest[key] = float(table.alone[table.row(*key)].max())
        job_dynamics = trace.dynamics.get(job.name)
        work = job.steps if job_dynamics is None else job_dynamics.work(job.steps)
        if work > MAX_TIME_S * fastest[key] > 0 and job.time_limit_s > MAX_TIME_S:
            expected = f"work for at most {MAX_TIME_S:g} seconds on its fastest type, or a time limit"
            raise InputError(f"{trace.name}, job {job.name!r}", expected, field="steps", value=job.steps)


def check_host_profiles(source: object, names: Iterable[str], jobs: Iterable[Job], table: ThroughputTable | None) -> None:
    """Check that each name in a hosts file is a job type of these jobs or of the table, or the model of one."""
    kinds = (*(job.kind for job in jobs if job.kind != TIMED), *(table or catalogue()).kinds)
    known = dict.fromkeys(name for kind in kinds for name in (model_of(kind), kind))
    for name in names:
        if name not in known:
            raise InputError(source, f"a model or job type in the trace or the table ({near_or_all(name, known)})", field=name)


def used_rates(jobs: Iterable[Job], table: ThroughputTable) -> dict[str, tuple[float, ...]]:
    """The rates that a run uses, by "kind|workers", for its journal."""
    rates: dict[str, tuple[float, ...]] = {}
    for kind, workers in dict.fromkeys((job.kind, job.workers) for job in jobs):
        rates[f"{kind}|{workers}"] = tuple(table.alone[table.row(kind, workers)].tolist())
    return rates


def rates_with_dynamics(trace: Trace, table: ThroughputTable, cluster: Cluster) -> dict[str, tuple[float, ...]]:
    """Of jobs that have a nature, by "kind|workers|name": the steps they declared over the time they take alone, on as few
    nodes as possible."""
    rates: dict[str, tuple[float, ...]] = {}
    for job in trace.jobs if trace.dynamics else ():
        if (job_dynamics := trace.dynamics.get(job.name)) is not None:
            each = [
                job.steps / run_time_s(job_dynamics, job.steps, _alone(job, t, table, cluster))
                for t in range(len(cluster.types))
            ]
            rates[f"{job.kind}|{job.workers}|{job.name}"] = tuple(each)
    return rates


def _alone(job: Job, type_: int, table: ThroughputTable, cluster: Cluster) -> RunConditions:
    """The conditions on an empty cluster, before the first step."""
    largest = int(cluster.largest_node_of_type[type_])
    nodes, rest = divmod(job.workers, largest)

    def rate(size: int) -> float:
        row = table.row_of.get((kind_of(model_of(job.kind), size), job.workers))
        return 0.0 if row is None else float(table.alone[row, type_])

    per_node = (*[largest] * nodes, *([rest] if rest else []))
    own = float(table.alone[table.row(job.kind, job.workers), type_])
    mine = cluster.node_type == type_
    cpus, memory = (float((there / cluster.node_size)[mine].min()) for there in (cluster.node_cpus, cluster.node_memory_gb))
    return RunConditions(0.0, cluster.type_names[type_], job.workers, per_node, 0, rate, own, cpus, memory)


def _later(job: Job, job_dynamics: JobDynamics | None) -> Iterator[tuple[Job, str, str]]:
    """What a job will be, and what its owner says that it will be: the job, the field that says so, and a kind. Seconds are
    the same at any batch size."""
    for size in job_dynamics.batch_sizes if isinstance(job_dynamics, Regimes) else ():
        yield job, "regimes", kind_of(model_of(job.kind), size)
    for size in dict.fromkeys(size for size, _ in job.schedule) if job.kind != TIMED else ():
        yield job, "schedule", kind_of(model_of(job.kind), size)


def _check_later(trace: Trace, table: ThroughputTable, job: Job, field: str, kind: str) -> None:
    """Check that a job can run, at every batch size that it will have, wherever it can at its first."""
    first = table.alone[table.row(job.kind, job.workers)] > 0
    row = table.row_of.get((kind, job.workers))
    if row is None or (first & (table.alone[row] <= 0)).any():
        expected = f"batch sizes at which {model_of(job.kind)!r} with {job.workers} workers has a throughput"
        raise InputError(f"{trace.name}, job {job.name!r}", expected, field=field, value=kind)


def _run_time(table: ThroughputTable) -> RunTime:
    def seconds(kind: str, workers: int, steps: float) -> float:
        column = table.types.index(REFERENCE_TYPE) if REFERENCE_TYPE in table.types else 0
        rate = float(table.alone[table.row(kind, workers), column])
        return steps / rate if rate > 0 else float("inf")

    return seconds


def _explain_missing(trace: Trace, table: ThroughputTable, kind: str, workers: int) -> None:
    job = next(job for job in trace.jobs if (job.kind, job.workers) == (kind, workers))
    where = f"{trace.name}, job {job.name!r}"
    sizes = table.workers_of(kind)
    if not sizes:
        raise InputError(
            where, f"a job type in the throughput table ({near_or_all(kind, table.kinds)})", field="kind", value=kind
        )
    listed = ", ".join(map(str, sizes))
    mend = f"a gang size that the throughput table has for {kind!r} ({listed}), or --fill-workers to model the others"
    raise InputError(where, mend, field="workers", value=workers)


class DataMissing(InputError):
    """Published data is not at hand."""


@dataclass(frozen=True)
class ExperimentInputs:
    """What the cases of an experiment share, apart from their settings. `throughputs` is a file, or None for the bundled
    catalogue."""

    throughputs: Path | None = None

    @property
    def table(self) -> ThroughputTable:
        return catalogue() if self.throughputs is None else _table(self.throughputs)

    @property
    def fingerprint(self) -> str:
        """Identifies the inputs by content, whatever the files are called."""
        return "catalogue" if self.throughputs is None else _table_digest(self.throughputs)

    @property
    def rates_note(self) -> str:
        """Where the rates come from, for reports."""
        if self.throughputs is None:
            return "rates: the bundled catalogue, which is modelled, not Gavel's measurements"
        return f"rates: {self.throughputs.name}"


_table = lru_cache(maxsize=4)(read_throughputs)


@lru_cache(maxsize=4)
def _table_digest(path: Path) -> str:
    return content_digest(path, "throughput table")


def content_digest(path: Path, what: str) -> str:
    """The digest of a regular file; `what` is for the error message."""
    if is_stream(path):
        raise InputError(path, f"a {what} in a regular file")
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as problem:
        raise InputError(path, f"a {what} that can be read ({problem.strerror})") from None
