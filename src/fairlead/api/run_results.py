"""What the public API returns: runs and comparisons as tables, reports and notebook views."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fairlead.core.errors import FairleadError
from fairlead.core.events import Event, RoundPlanned
from fairlead.core.job import Phase
from fairlead.experiments import metrics
from fairlead.experiments.compare import CaseOutcome, Comparison
from fairlead.experiments.differences import (
    DIFFERENCE_METRICS,
    KEYS,
    Differences,
    PairedDifference,
    WindowMeans,
    paired_differences,
    paired_values,
)
from fairlead.experiments.run_record import RunRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.reporting.html import PageSource


class _Tabular:
    """A result whose main table also comes as a data frame."""

    _main: ClassVar[str]

    def to_pandas(self) -> Any:
        """Return the main table, `jobs` of a run or `runs` of a comparison, as a pandas DataFrame (needs pandas)."""
        return getattr(self, self._main).to_pandas()

    def to_polars(self) -> Any:
        """Return the main table, `jobs` of a run or `runs` of a comparison, as a polars DataFrame (needs polars)."""
        import polars

        return polars.from_arrow(getattr(self, self._main))


@dataclass(frozen=True)
class Run(_Tabular):
    """A simulation that has run.

    Attributes:
        record: What the reports are made of.
        events: Every event of the run, in order; empty if `keep_events=False`.
    """

    _main = "jobs"
    record: RunRecord
    events: Sequence[Event] = ()
    options: metrics.MetricOptions = metrics.DEFAULTS

    @cached_property
    def summary(self) -> dict[str, float | int | None]:
        """Metrics of the run by name, e.g. `average_jct_s`, `makespan_s`, `utilization`, `worst_ftf`."""
        return metrics.summarize(self.record, self.options).to_dict()

    @cached_property
    def jobs(self) -> pa.Table:
        """A `pyarrow.Table` with one row per job; it has names, times, phase, GPU seconds and ρ."""
        return job_table(self.record, self.options)

    @cached_property
    def rounds(self) -> pa.Table:
        """A `pyarrow.Table` with one row per decision: time, jobs running and waiting, GPUs in use, launches, suspensions."""
        return round_table(self.record, self.events)

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write `jobs.parquet` and `rounds.parquet` into a folder.

        Returns:
            The files written.
        """
        return _write_tables(Path(folder), {"jobs": self.jobs, "rounds": self.rounds})

    def report(self, path: str | Path) -> Path:
        """Write an HTML report: tables, distributions, utilization, queue, and a Gantt chart to zoom."""
        from fairlead.reporting.html import write_report

        with _writing(path):
            return write_report(
                [self.record], Path(path), self.options, title=f"{self.record.scheduler} on {self.record.trace}"
            )

    def __repr__(self) -> str:
        return f"Run({self.record.scheduler!r} on {self.record.trace!r}, {len(self.record.jobs)} jobs)"

    def _repr_html_(self) -> str:
        title = f"{self.record.scheduler} on {self.record.trace}, {self.record.cluster}"
        return _html_table(title, ("metric", "value"), [(name, _number(value)) for name, value in self.summary.items()])


@dataclass(frozen=True)
class ComparisonResult(_Tabular):
    """Schedulers on the same jobs, for every load and seed.

    Attributes:
        rows: One mapping per run: scheduler, load, seed, and every metric.
        records: Records of the first seeds, for reports; `record_keys` has the load and seed of each.
        windows: Of each row, for comparisons of one seed: means over windows of the jobs, by metric.
        control_errors: Of `resimulate`: the relative error of the control by metric; None where the recorded value is 0.
        notes: What reports say above the tables.
    """

    _main = "runs"
    rows: Sequence[Mapping[str, Any]]
    records: Sequence[RunRecord] = field(default=(), repr=False)
    options: metrics.MetricOptions = metrics.DEFAULTS
    control_errors: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    windows: Sequence[WindowMeans] = field(default=(), repr=False)
    record_keys: Sequence[tuple[float | None, int]] = ()

    @classmethod
    def of(cls, given: Comparison, outcomes: Sequence[CaseOutcome]) -> ComparisonResult:
        """The result of a comparison that has run."""
        kept = [
            (replace(one.record, scheduler=given.schedulers[one.case.scheduler].label), one.case)
            for one in outcomes
            if one.record
        ]
        return cls(
            [one.row(given) for one in outcomes],
            [record for record, _ in kept],
            given.metrics,
            windows=[one.windows for one in outcomes],
            record_keys=[(case.load, case.seed) for _, case in kept],
        )

    @property
    def schedulers(self) -> list[str]:
        """The labels of the schedulers, in the order given."""
        return list(dict.fromkeys(str(row["scheduler"]) for row in self.rows))

    @cached_property
    def runs(self) -> pa.Table:
        """One row per run: scheduler, load, seed and metrics. A `pyarrow.Table`."""
        import pyarrow

        return pyarrow.Table.from_pylist([dict(row) for row in self.rows])

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One row per scheduler and load: the mean of each metric over the seeds, and the half width of its 95 % interval
        under `<metric>_ci95`; `worst_ftf_max` is the ρ of the job treated worst in any seed."""
        groups: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault((row["scheduler"], row["load"]), []).append(row)
        return [self._mean(scheduler, load, rows) for (scheduler, load), rows in groups.items()]

    def _mean(self, scheduler: str, load: float | None, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {"scheduler": scheduler, "load": load, "seeds": len(rows)}
        for name in rows[0]:
            if name in KEYS:
                continue
            values = [row[name] for row in rows]
            mean, half = (math.nan, math.nan) if None in values else metrics.interval([float(v) for v in values])
            result[name], result[f"{name}_ci95"] = mean, half
        worst = [row["worst_ftf"] for row in rows if row.get("worst_ftf") is not None]
        return {**result, "worst_ftf_max": max(worst, default=math.nan)}

    def paired(self, first: str, second: str, metric: str = "average_jct_s") -> dict[str, Any]:
        """Compare two schedulers run by run: the same jobs, load and seed under both.

        Args:
            first: Label of a scheduler, or its name without parameters.
            second: Label of the scheduler it is compared with.
            metric: Name of a metric in `summary`.

        Returns:
            `difference` (mean of first − second) with `difference_ci95`, `ratio` (mean of first / second) with `ratio_ci95`,
            `pairs` (number of pairs) and `differences` (one per pair).

        Raises:
            FairleadError: A label or the metric is unknown, or no pair has a value.
        """
        pairs = paired_values(self.rows, first, second, metric)
        found = PairedDifference.of(pairs)
        return {
            "metric": metric,
            "pairs": found.pairs,
            "difference": found.difference,
            "difference_ci95": found.half_width,
            "ratio": found.ratio,
            "ratio_ci95": found.ratio_half_width,
            "differences": [a - b for a, b in pairs],
        }

    def differences(self, baseline: str | None = None, metrics: Sequence[str] = DIFFERENCE_METRICS) -> Differences:
        """Compare every scheduler with a baseline, with 95 % intervals of the paired differences.

        The pairs are runs of the same seed; with one seed, windows of the jobs by submission. `method` says which.

        Args:
            baseline: Label of a scheduler, or its name without parameters; default: the first.
            metrics: Names of metrics in `summary`.

        Returns:
            An object with `baseline`, `method` and `rows`, one for each other scheduler and load. A row has `scheduler`, `load`
            and `metrics`: by name, `pairs`, `difference`, `half_width` of its interval, `ratio`, `ratio_half_width` and
            `significant` (the interval excludes 0). Windows have no makespan, utilization or quantiles: these are left out.
            Without rows, `why_none` says why. `to_dict()` gives all of it as plain data.

        Raises:
            FairleadError: The label or a metric is unknown.
        """
        return paired_differences(self.rows, metrics, baseline, self.windows)

    def to_parquet(self, folder: str | Path) -> list[Path]:
        """Write `runs.parquet`, and `jobs-<scheduler>.parquet` for every run of which records were kept. Where the runs have
        several loads or seeds, the file name has both: `jobs-<scheduler>-load-<load>-seed-<seed>.parquet`."""
        tables, several = {"runs": self.runs}, len({(row["load"], row["seed"]) for row in self.rows}) > 1
        for record, (load, seed) in zip(self.records, self.record_keys or [(None, 0)] * len(self.records)):
            label = re.sub(r"[^\w.-]+", "-", record.scheduler).strip("-")
            if several:
                label += f"-load-{'as-is' if load is None else f'{load:g}'}-seed-{seed}"
            tables[f"jobs-{label}"] = job_table(record, self.options)
        return _write_tables(Path(folder), tables)

    def report(
        self,
        path: str | Path,
        *,
        title: str = "Schedulers compared",
        baseline: str | None = None,
        source: PageSource | None = None,
    ) -> Path:
        """Write an HTML report: means over the seeds, paired differences, and the runs side by side, by load and seed.

        Args:
            path: The file to write.
            title: Title of the page.
            baseline: Label of the scheduler to which differences are shown; default: the first.
            source: What the page says it was made by; default: the version and the date.

        Raises:
            FairleadError: No records were kept, or the file cannot be written.
        """
        from fairlead.reporting.comparison_page import comparison_sections, runs_by_name
        from fairlead.reporting.html import write_report

        if not self.records:
            raise FairleadError("no records were kept: pass keep_records=True to compare")
        seeds, keys = list(dict.fromkeys(row["seed"] for row in self.rows)), self.record_keys or [(None, 0)] * len(self.records)
        found = self.differences(baseline)
        sections, notes = (
            comparison_sections(self.summary, seeds, found, len(set(keys))),
            [*self.notes, *filter(None, [found.why_none])],
        )
        runs = runs_by_name(self.records, keys)
        with _writing(path):
            return write_report(runs, Path(path), self.options, title, notes=notes, source=source, sections=sections)

    def __repr__(self) -> str:
        return f"ComparisonResult({', '.join(self.schedulers)}; {len(self.rows)} runs)"

    def _repr_html_(self) -> str:
        shown = ("average_jct_s", "p99_jct_s", "makespan_s", "utilization", "worst_ftf", "preemptions")
        names = [name for name in shown if self.rows and name in self.rows[0]]
        rows = [
            (row["scheduler"], *(f"{_number(row[n])} ± {_number(row[f'{n}_ci95'])}" for n in names)) for row in self.summary
        ]
        return _html_table(f"{len(self.rows)} runs", ("scheduler", *names), rows)


def job_table(record: RunRecord, options: metrics.MetricOptions = metrics.DEFAULTS) -> pa.Table:
    """Return one row per job of a run: names, times, phase, GPU seconds, preemptions and ρ."""
    import pyarrow

    jobs = record.jobs
    columns: dict[str, Any] = {}
    singular = {"names": "name", "kinds": "kind", "users": "user", "accounts": "account"}
    for one in dataclasses.fields(jobs):
        value = getattr(jobs, one.name)
        name = singular.get(one.name, one.name)
        columns[name] = [Phase(int(p)).name.lower() for p in value] if name == "phase" else _cells(value)
    columns["jct_s"] = _cells(np.where(jobs.phase == Phase.FINISHED, jobs.ended_s - jobs.submitted_s, np.nan))
    columns["wait_s"] = _cells(jobs.first_started_s - jobs.submitted_s)
    columns["rho"] = _cells(metrics.finish_time_fairness(record, options.contention))
    return pyarrow.table(columns)


def round_table(record: RunRecord, events: Iterable[Event]) -> pa.Table:
    """Return one row per decision of a run: time, jobs running and waiting, GPUs in use, launches and suspensions."""
    import pyarrow

    plans = [event.plan for event in events if isinstance(event, RoundPlanned)]
    times = np.array([plan.time for plan in plans], dtype=np.float64)
    jobs, held = record.jobs, record.device_intervals
    came = np.sort(jobs.submitted_s[jobs.phase != Phase.REFUSED])
    left = np.sort(jobs.ended_s[~np.isnan(jobs.ended_s) & (jobs.phase != Phase.REFUSED)])
    inside = np.searchsorted(came, times, "right") - np.searchsorted(left, times, "right")
    running = np.zeros(len(times), dtype=np.int64)
    in_use = np.zeros(len(times), dtype=np.int64)
    if held is not None and len(held.job):
        spans = np.unique(np.column_stack((held.job, held.start_s, held.end_s)), axis=0)
        running = _count_at(spans[:, 1], spans[:, 2], times)
        gpus = metrics.disjoint(held.accelerator, held.start_s, held.end_s)
        in_use = _count_at(gpus.start_s, gpus.end_s, times)
    return pyarrow.table(
        {
            "time_s": times,
            "running": running,
            "waiting": np.maximum(inside - running, 0),
            "gpus_in_use": in_use,
            "launched": np.array([len(plan.launches.jobs) for plan in plans], dtype=np.int64),
            "suspended": np.array([len(plan.suspended) for plan in plans], dtype=np.int64),
        }
    )


def _count_at(starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> Any:
    """How many half-open intervals contain each time."""
    return np.searchsorted(np.sort(starts), times, "right") - np.searchsorted(np.sort(ends), times, "right")


def _cells(values: Any) -> Any:
    """A column for Arrow: NaN becomes null."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return list(values) if not isinstance(values, np.ndarray) else values
    import pyarrow

    return pyarrow.array(values, mask=np.isnan(values))


def _write_tables(folder: Path, tables: Mapping[str, pa.Table]) -> list[Path]:
    import pyarrow.parquet

    written = []
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            written.append(folder / f"{name}.parquet")
            pyarrow.parquet.write_table(table, written[-1])
    return written


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise FairleadError(f"{str(path)!r} cannot be written ({problem.strerror or problem}); use another path") from problem


def _number(value: float | int | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(str(one))}</th>" for one in headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
