"""The figures by which schedulers are compared, from the record of a run. Definitions that differ between papers are
options with stated defaults (docs/metrics.md). It knows columns of outcomes, not policies, and prints none."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import InputError
from fairlead.core.job import Phase
from fairlead.report.confidence import interval
from fairlead.report.fairness import Contention, finish_time_fairness, last_seen_s
from fairlead.report.occupancy import disjoint
from fairlead.report.record import JobOutcomes, RunRecord

__all__ = ["DEFAULTS", "MetricOptions", "Summary", "interval", "measure_from", "measured_rows", "summarize"]

MakespanFrom = Literal["first-submission", "zero"]
JctFrom = Literal["submission", "first-start"]


@dataclass(frozen=True)
class MetricOptions:
    """Which of the published definitions to use. The defaults are those most papers share."""

    measure: tuple[int, int] | None = None  # jobs by submission order, half-open; Gavel §7.1 measures a steady state so
    makespan_from: MakespanFrom = "first-submission"  # Shockwave §8; "zero" is what Gavel's simulator prints
    jct_from: JctFrom = "submission"  # Gavel, Tiresias, Blox §4.2; "first-start" leaves out the first wait
    contention: Contention = "average"  # Shockwave's paper; "static" is its artifact, "demand" counts accelerators
    unfair_above: float = 1.05  # Shockwave's artifact also reports 1.05; its paper's §8.2 says 1.0

    def __post_init__(self) -> None:
        for name, choices in (("makespan_from", MakespanFrom), ("jct_from", JctFrom), ("contention", Contention)):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise InputError("metric options", " or ".join(get_args(choices)), field=name, value=value)
        if not 0 < self.unfair_above < math.inf:
            raise InputError("metric options", "a finite number above 0", field="unfair_above", value=self.unfair_above)
        if self.measure is not None and not 0 <= self.measure[0] < self.measure[1]:
            raise InputError("metric options", "first < last, from 0 on", field="measure", value=self.measure)


DEFAULTS = MetricOptions()


def measure_from(text: str) -> tuple[int, int]:
    """`"50:150"` as in a slice: jobs 50 to 149 by submission order. Either side may be left out."""
    first, colon, last = (part.strip() for part in text.partition(":"))
    if not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal():
        raise InputError("--measure", "first:last by submission order, as in '50:150'", field="measure", value=text)
    begin, end = int(first or 0), int(last) if last else sys.maxsize
    if not begin < end:
        raise InputError("--measure", "first:last, and first < last, as in '50:150'", field="measure", value=text)
    return begin, end


@dataclass(frozen=True)
class Summary:
    """One run in numbers. Job figures are over the measured jobs, cluster figures over the run; unknown is NaN."""

    jobs: int
    finished: int
    failed: int
    refused: int
    cancelled: int
    unfinished: int
    average_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    average_responsiveness_s: float
    average_queueing_s: float
    utilization: float
    average_ftf: float
    worst_ftf: float
    unfair_fraction: float
    deadline_misses: int
    cost: float
    preemptions: int
    moves: int
    restarts: int
    facts: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, float | int | None]:
        """For JSON: what is not a number is None, and the run's own facts stand behind the metrics."""
        metrics = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "facts"}
        return {name: _plain(value) for name, value in {**metrics, **self.facts, **metrics}.items()}


def summarize(record: RunRecord, options: MetricOptions = DEFAULTS) -> Summary:
    """All metrics of a run. Only finished jobs count in averages over completion; a run without any has NaN there."""
    jobs, rows = record.jobs, measured_rows(record, options)
    done = rows & (jobs.phase == Phase.FINISHED)
    jct = completion_times(jobs, options)[done]
    queueing = jct - jobs.run_s[done]
    responsiveness = (jobs.first_started_s - jobs.submitted_s)[done]
    ftf = finish_time_fairness(record, options.contention)[done]
    ftf = ftf[np.isfinite(ftf)]
    return Summary(
        jobs=int(np.count_nonzero(rows)),
        finished=len(jct),
        failed=_count(rows, jobs, Phase.FAILED),
        refused=_count(rows, jobs, Phase.REFUSED),
        cancelled=_count(rows, jobs, Phase.CANCELLED),
        unfinished=int(np.count_nonzero(rows & (jobs.phase <= Phase.RUNNING))),
        average_jct_s=_mean(jct),
        median_jct_s=_quantile(jct, 0.5),
        p99_jct_s=_quantile(jct, 0.99),
        makespan_s=_makespan(jobs, rows, done, options),
        average_responsiveness_s=_mean(responsiveness),
        average_queueing_s=_mean(queueing),
        utilization=_utilization(record),
        average_ftf=_mean(ftf),
        worst_ftf=float(ftf.max()) if len(ftf) else math.nan,
        unfair_fraction=float(np.mean(ftf > options.unfair_above)) if len(ftf) else math.nan,
        deadline_misses=int(np.count_nonzero(rows & _missed(record))),
        cost=_cost(record),
        preemptions=int(jobs.preemptions[rows].sum()),
        moves=int(jobs.moves[rows].sum()),
        restarts=int(jobs.restarts[rows].sum()),
        facts=dict(record.facts),
    )


def measured_rows(record: RunRecord, options: MetricOptions) -> Bools:
    """The jobs that job figures are taken over."""
    rows = np.zeros(len(record.jobs), dtype=np.bool_)
    first, last = options.measure or (0, len(rows))
    rows[first : min(last, len(rows))] = True
    return rows


def completion_times(jobs: JobOutcomes, options: MetricOptions) -> Floats:
    """JCT of each job that finished; NaN for the others."""
    origin = jobs.submitted_s if options.jct_from == "submission" else jobs.first_started_s
    return np.where(jobs.phase == Phase.FINISHED, jobs.ended_s - origin, np.nan)


def _makespan(jobs: JobOutcomes, rows: Bools, done: Bools, options: MetricOptions) -> float:
    if not done.any():
        return math.nan
    origin = float(jobs.submitted_s[rows].min()) if options.makespan_from == "first-submission" else 0.0
    return float(jobs.ended_s[done].max()) - origin


def _utilization(record: RunRecord) -> float:
    """Accelerator-seconds held between the first submission and the last end, of those there were."""
    jobs = record.jobs
    ended = jobs.ended_s[np.isfinite(jobs.ended_s)]
    if not len(jobs) or not record.cluster.size:
        return math.nan
    start = float(jobs.submitted_s.min())
    end = float(ended.max()) if len(ended) else last_seen_s(record)
    if end <= start:
        return math.nan
    held = _busy_by_type(record, start, end)
    held = record.service_by_type if held is None else held
    total = float(np.nansum(jobs.accelerator_s)) if held is None else float(held.sum())
    return total / (record.cluster.size * (end - start))


def _cost(record: RunRecord) -> float:
    """Accelerator-hours held, at the price of their type; a shared accelerator's count once."""
    prices = np.array([t.price_per_hour for t in record.cluster.types])
    held = _busy_by_type(record, -math.inf, math.inf)
    held = record.service_by_type if held is None else held
    if held is not None:
        return float(held @ prices) / 3600
    one_price = len(prices) > 0 and bool(np.all(prices == prices[0]))
    return float(np.nansum(record.jobs.accelerator_s)) * float(prices[0]) / 3600 if one_price else math.nan


def _busy_by_type(record: RunRecord, low_s: float, high_s: float) -> Floats | None:
    stretches, cluster = record.stretches, record.cluster
    if stretches is None:
        return None
    busy = disjoint(stretches.accelerator, stretches.start_s, stretches.end_s).clipped(low_s, high_s)
    seconds = np.bincount(cluster.type_of[busy.key], busy.end_s - busy.start_s, minlength=len(cluster.types))
    return seconds.astype(np.float64)


def _missed(record: RunRecord) -> Bools:
    """Jobs with a deadline that did not finish by it. A cancelled job was given up by its owner, not missed."""
    jobs = record.jobs
    bound = jobs.submitted_s + jobs.deadline_s
    late = np.where(jobs.phase == Phase.FINISHED, jobs.ended_s > bound + 1e-6, False)
    never = np.isfinite(bound) & np.isin(jobs.phase, (Phase.FAILED, Phase.REFUSED))
    overdue = (jobs.phase <= Phase.RUNNING) & (bound < last_seen_s(record))
    return np.asarray(late | never | overdue, dtype=np.bool_)


def _count(rows: Bools, jobs: JobOutcomes, phase: Phase) -> int:
    return int(np.count_nonzero(rows & (jobs.phase == phase)))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else math.nan


def _plain(value: float | int) -> float | int | None:
    return value if isinstance(value, int) or math.isfinite(value) else None
