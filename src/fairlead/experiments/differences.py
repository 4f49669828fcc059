"""Paired differences between schedulers, with 95 % confidence intervals.

Two schedulers of a comparison get the same jobs, so their results are paired. Over several seeds, the pairs are the runs of one
seed. With one seed (a fixed trace), the pairs are windows: equal parts of the jobs, in the order of their submission. In both
cases the interval is Student's t of the differences. Windows are long, so that neighbouring ones hardly depend on each other
(the method of batch means); they give intervals for means over jobs only."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import FairleadError, InputError, require
from fairlead.core.job import Phase
from fairlead.experiments.metrics import MetricOptions, completion_times, finish_time_fairness, interval, measured_rows
from fairlead.experiments.run_record import RunRecord

WINDOWS = 10
MIN_WINDOWS, MIN_JOBS_PER_WINDOW = 3, 10

_TIMES = ("average_jct_s", "p99_jct_s", "makespan_s", "average_responsiveness_s")
DIFFERENCE_METRICS = (*_TIMES, "utilization", "average_ftf", "worst_ftf")
"""The metrics that are compared by default; windows give some of them."""

KEYS = ("scheduler", "load", "seed")
"""The columns of a comparison's rows that are no metrics."""

WindowMeans: TypeAlias = Mapping[str, Sequence[float]]
"""Of one run: a metric's mean in each window."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of first − second and of first / second over pairs, with the half widths of their 95 % intervals; NaN where
    there is one pair."""

    pairs: int
    difference: float
    half_width: float
    ratio: float
    ratio_half_width: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], *, of_one: bool = False) -> PairedDifference:
        """From pairs of values: first, second. With `of_one`, the intervals are those of one further pair, and not of the mean
        (prediction intervals)."""
        difference, half_width = interval([first - second for first, second in pairs])
        ratio, ratio_half_width = interval([first / second for first, second in pairs if second])
        wider = math.sqrt(len(pairs) + 1) if of_one else 1.0
        return cls(len(pairs), difference, wider * half_width, ratio, wider * ratio_half_width)

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return abs(self.difference) > self.half_width


@dataclass(frozen=True)
class Difference:
    """A scheduler less the baseline at one load, by metric."""

    scheduler: str
    load: float | None
    metrics: Mapping[str, PairedDifference]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: by metric the difference, the ends of its interval, and the ratio to the baseline."""
        found = {
            name: {
                "difference": one.difference,
                "low": one.difference - one.half_width,
                "high": one.difference + one.half_width,
                "ratio": one.ratio,
                "pairs": one.pairs,
            }
            for name, one in self.metrics.items()
        }
        return {"scheduler": self.scheduler, "load": self.load, "metrics": found}


@dataclass(frozen=True)
class Differences:
    """The differences of all schedulers to the baseline, and the method of their intervals, in words; or why there are none."""

    baseline: str
    method: str
    rows: Sequence[Difference]
    why_none: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"baseline": self.baseline, "method": self.method, "results": [row.to_dict() for row in self.rows]}


def paired_differences(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], baseline: str | None = None, windows: Sequence[WindowMeans] = ()
) -> Differences:
    """Compare every scheduler of a comparison with one of them, the first by default, at each load.

    Args:
        rows: The runs, by load, seed and scheduler.
        metrics: Names of metrics; one without a value in some run is left out there.
        windows: Of each row, for comparisons of one seed; without them these have no differences.

    Raises:
        InputError: No scheduler has the label `baseline`, or no run has one of the metrics.
    """
    labels = list(dict.fromkeys(str(row["scheduler"]) for row in rows))
    baseline = find_label(labels, baseline)
    for name in metrics:
        _check_metric(rows, name)
    seeds, jobs = len({row["seed"] for row in rows}), int(rows[0].get("jobs") or 0)
    method = f"paired by seed, Student's t over {seeds} seeds"
    if seeds == 1:
        parts = max((len(values) for one in windows for values in one.values()), default=0)
        method = f"paired by window, Student's t over {parts} windows of the jobs by submission"
        rows = [_window(row, means, part) for row, means in zip(rows, windows) for part in range(parts)]
    found = []
    for load in dict.fromkeys(row["load"] for row in rows):
        here = [row for row in rows if row["load"] == load]
        for label in (label for label in labels if label != baseline):
            pairs = {name: _pairs(here, label, baseline, name) for name in metrics}
            compared = {name: PairedDifference.of(both) for name, both in pairs.items() if both}
            found += [Difference(label, load, compared)] if compared else []
    few, least = jobs < MIN_WINDOWS * MIN_JOBS_PER_WINDOW, f"{MIN_WINDOWS} windows of {MIN_JOBS_PER_WINDOW} jobs"
    why = f"{jobs} job{'s' * (jobs != 1)} are too few for {least}" if few else "in some window no job finished"
    why = f"no differences: {why}; use several seeds with generated jobs, or loads and seeds with a trace"
    return Differences(baseline, method if found else "", found, why if len(labels) > 1 and not found and seeds == 1 else "")


def find_label(labels: Sequence[str], wanted: str | None, field: str = "baseline") -> str:
    """Return the label that is meant: the whole of one, or its name without parameters where no other has it; None: the first.
    Raises InputError where none or several have this name."""
    named = [label for label in labels if label == wanted] or [one for one in labels if re.split(r"\(| \+ ", one)[0] == wanted]
    if wanted is not None and len(named) != 1:
        raise InputError("compare", f"one of {', '.join(labels)}", field=field, value=wanted)
    return labels[0] if wanted is None else named[0]


def _check_metric(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    known = dict.fromkeys(name for row in rows for name in row if name not in KEYS)
    require(metric in known, "compare", f"one of {', '.join(known)}", "metric", metric)


def _window(row: Mapping[str, Any], means: WindowMeans, part: int) -> dict[str, Any]:
    """One window of a run, as a row; the window takes the place of the seed."""
    values = {name: each[part] for name, each in means.items() if part < len(each)}
    return {"scheduler": row["scheduler"], "load": row["load"], "seed": part, **values}


def _pairs(rows: Sequence[Mapping[str, Any]], first: str, second: str, metric: str) -> list[tuple[float, float]]:
    """The values of a metric in the rows of two schedulers with the same load and seed."""
    sides: list[dict[tuple[Any, Any], float]] = [
        {
            (row["load"], row["seed"]): float(row[metric])
            for row in rows
            if row["scheduler"] == label and row.get(metric) is not None
        }
        for label in (first, second)
    ]
    return [(sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]


def paired_values(rows: Sequence[Mapping[str, Any]], first: str, second: str, metric: str) -> list[tuple[float, float]]:
    """The values of a metric in the runs of two schedulers with the same load and seed.

    Raises:
        InputError: A label or the metric is unknown.
        FairleadError: No pair has a value.
    """
    labels = list(dict.fromkeys(str(row["scheduler"]) for row in rows))
    first, second = (find_label(labels, label, "scheduler") for label in (first, second))
    _check_metric([row for row in rows if row["scheduler"] in (first, second)], metric)
    pairs = _pairs(rows, first, second, metric)
    if not pairs:
        raise FairleadError(f"no pair of runs of {first!r} and {second!r} has a value for {metric}")
    return pairs


def window_means(record: RunRecord, options: MetricOptions) -> dict[str, tuple[float, ...]]:
    """The means of a run's metrics over its finished jobs in each window; empty where there are too few jobs for that."""
    jobs = record.jobs
    rows = np.flatnonzero(measured_rows(record, options))
    rows = rows[np.argsort(jobs.submitted_s[rows], kind="stable")]
    count = min(WINDOWS, len(rows) // MIN_JOBS_PER_WINDOW)
    if count < MIN_WINDOWS:
        return {}
    jct, ftf = completion_times(jobs, options), finish_time_fairness(record, options.contention)
    done = jobs.phase == Phase.FINISHED
    by_job = {
        "average_jct_s": jct,
        "average_responsiveness_s": np.where(done, jobs.first_started_s - jobs.submitted_s, np.nan),
        "average_queueing_s": jct - jobs.run_s,
        "average_ftf": ftf,
        "unfair_fraction": np.where(np.isfinite(ftf), (ftf > options.unfair_above).astype(float), np.nan),
    }
    found = {name: tuple(_mean(values[part]) for part in np.array_split(rows, count)) for name, values in by_job.items()}
    return {name: means for name, means in found.items() if np.isfinite(means).all()}


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
