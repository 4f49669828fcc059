"""The figures by which schedulers are compared, from the record of a run. Definitions that differ between papers are
options with stated defaults (docs/reference/result-metrics.md). It knows columns of outcomes, not policies, and prints none."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import NormalDist, fmean, stdev
from typing import Literal, TypeAlias, get_args

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError, require
from fairlead.core.job import Phase
from fairlead.experiments.run_record import JobOutcomes, RunRecord
from fairlead.files import finite_or_none

# Finish-time fairness: ρ = JCT / (exclusive run time × N), N = max(1, contention). The contention is jobs in the system per
# accelerator (Shockwave, NSDI'23, appendix): over the job's own life, as in the paper, or over the trace, as in its artifact.

Contention: TypeAlias = Literal["average", "static", "demand"]


def finish_time_fairness(record: RunRecord, contention: Contention = "average") -> Floats:
    """ρ of each job; NaN where the job did not finish or its exclusive run time is not known."""
    jobs = record.jobs
    jct: Floats = np.where(jobs.phase == Phase.FINISHED, jobs.ended_s - jobs.submitted_s, np.nan)
    fair = jobs.exclusive_s * contention_factor(record, contention)
    rho = np.full(len(jobs), np.nan)
    np.divide(jct, fair, out=rho, where=fair > 0)
    return rho


def contention_factor(record: RunRecord, contention: Contention = "average") -> Floats:
    """N of each job: by how much an equal share stretches its exclusive run time, at least 1."""
    jobs, size = record.jobs, max(record.cluster.size, 1)
    if contention == "static":
        entered = int(np.count_nonzero(jobs.phase != Phase.REFUSED))
        return np.full(len(jobs), max(1.0, entered / size))
    asked = jobs.workers.astype(np.float64) if contention == "demand" else np.ones(len(jobs))
    return np.maximum(1.0, average_while_present(jobs, asked, last_seen_s(record)) / size)


def last_seen_s(record: RunRecord) -> float:
    """The last moment in the record: jobs that have not ended are assumed to be present until then."""
    jobs = record.jobs
    seen = [jobs.submitted_s, jobs.first_started_s, jobs.ended_s]
    if record.device_intervals is not None:
        seen.append(record.device_intervals.end_s)
    known = [float(np.nanmax(times)) for times in seen if np.isfinite(times).any()]
    return max(known, default=0.0)


def present(jobs: JobOutcomes, last_s: float) -> tuple[Floats, Floats]:
    """The start and end of each job's stay in the system; empty for a refused job."""
    left = np.where(np.isnan(jobs.ended_s), last_s, jobs.ended_s)
    left = np.where(jobs.phase == Phase.REFUSED, jobs.submitted_s, left)
    return jobs.submitted_s, np.maximum(left, jobs.submitted_s)


def average_while_present(jobs: JobOutcomes, amount: Floats, last_s: float) -> Floats:
    """For each job the average, over its stay, of the amounts of all jobs present: one sort and one running integral.

    Every stay begins and ends at a moment of the sorted sequence, so the difference of the integral there is exact.
    """
    count = len(jobs)
    came, left = present(jobs, last_s)
    moments = np.concatenate((came, left))
    order = np.argsort(moments, kind="stable")
    level = np.cumsum(np.concatenate((amount, -amount))[order])
    pieces = level[:-1] * np.diff(moments[order])
    integral = np.empty(2 * count)
    integral[order] = np.concatenate(([0.0], np.cumsum(pieces)))[: 2 * count]
    stay = left - came
    average = amount.copy()
    np.divide(integral[count:] - integral[:count], stay, out=average, where=stay > 0)
    return average


_LARGE = 1_000  # degrees of freedom from which the normal quantile with one correction is good to six digits


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The mean and the half width of its confidence interval (Student's t). One value has no width: NaN."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    known = [float(v) for v in values if math.isfinite(v)]
    if not known:
        return math.nan, math.nan
    if len(known) == 1:
        return known[0], math.nan
    return fmean(known), student_t(len(known) - 1, level) * stdev(known) / math.sqrt(len(known))


def student_t(freedom: int, level: float) -> float:
    """The t that a variable of Student's distribution stays within, on both sides, with probability `level`."""
    if freedom > _LARGE:
        z = NormalDist().inv_cdf((1 + level) / 2)
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, math.pi / 2  # the angle of t = √freedom · tan θ, in which the probability is a finite sum
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| ≤ √ν tan θ) for whole ν: a sum of powers of cos θ, with a term for the angle itself where ν is odd."""
    cosine = math.cos(angle)
    odd = freedom % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


@dataclass(frozen=True)
class Intervals:
    """Intervals that do not overlap within a key, ordered by key and start."""

    key: Ints
    start_s: Floats
    end_s: Floats

    def clipped(self, low_s: float, high_s: float) -> Intervals:
        return Intervals(self.key, np.clip(self.start_s, low_s, high_s), np.clip(self.end_s, low_s, high_s))

    def total_s(self) -> float:
        return float((self.end_s - self.start_s).sum())


def disjoint(key: Ints, start_s: Floats, end_s: Floats) -> Intervals:
    """The union of the intervals of each key."""
    if len(key) == 0:
        return Intervals(key, start_s, end_s)
    order = _by_key_and_start(key, start_s)
    key, start_s, end_s = key[order], start_s[order], end_s[order]
    same = key[1:] == key[:-1]
    if not np.any(same & (start_s[1:] < end_s[:-1])):
        return Intervals(key, start_s, end_s)  # the common case: no interval overlaps
    # Ranks instead of times: adding a key's offset to a rank is exact, adding it to a float is not.
    times, rank = np.unique(np.concatenate((start_s, end_s)), return_inverse=True)
    offset = key * (len(times) + 1)
    begin, finish = rank[: len(key)] + offset, rank[len(key) :] + offset
    reached = np.maximum.accumulate(finish)
    first = np.flatnonzero(np.concatenate(([True], (begin[1:] > reached[:-1]) | ~same)))
    return Intervals(key[first], start_s[first], np.maximum.reduceat(end_s, first))


def _by_key_and_start(key: Ints, start_s: Floats) -> Ints:
    if np.any(start_s[1:] < start_s[:-1]):
        return np.lexsort((start_s, key))
    # Already in order of start: a stable sort by key keeps that, and on two-byte keys numpy's is a linear radix sort.
    narrow = key.astype(np.uint16) if key.min() >= 0 and key.max() < 2**16 else key
    return np.argsort(narrow, kind="stable")


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
        try:
            first, end = (0, 1) if self.measure is None else map(operator.index, self.measure)
        except (TypeError, ValueError):
            first = end = 0
        require(0 <= first < end, "metric options", "a pair (first, end), 0 <= first < end", "measure", self.measure)

    def check_measure(self, jobs: int) -> None:
        """Raise InputError where the measured jobs begin behind the last of so many jobs."""
        if self.measure is not None and self.measure[0] >= jobs:
            wanted = f"a range within the {jobs:,} jobs of this workload"
            raise InputError("metric options", wanted, field="measure", value=self.measure)


DEFAULTS = MetricOptions()


def measure_from(text: str) -> tuple[int, int]:
    """`"50:150"` as in a slice: jobs 50 to 149 by submission order. Either side may be left out."""
    first, colon, last = (part.strip() for part in text.partition(":"))
    if not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal():
        raise InputError("--measure", "first:last by submission order, as in '50:150'", field="measure", value=text)
    begin, end = int(first or 0), int(last) if last else sys.maxsize
    require(begin < end, "--measure", "first:last, and first < last, as in '50:150'", "measure", text)
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
        """The metrics for JSON, then facts of the run; values that are not numbers are None."""
        metrics = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "facts"}
        return {name: finite_or_none(value) for name, value in {**metrics, **self.facts, **metrics}.items()}


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
    """Accelerator-seconds held between the first submission and the last end, of those there were. Where jobs had not ended
    when the run was stopped, until then."""
    jobs = record.jobs
    ended = jobs.ended_s[np.isfinite(jobs.ended_s)]
    if not len(jobs) or not record.cluster.size:
        return math.nan
    start = float(jobs.submitted_s.min())
    end = max(float(ended.max()) if len(ended) else last_seen_s(record), record.facts.get("until_s", -math.inf))
    if end <= start:
        return math.nan
    held = _busy_by_type(record, start, end)
    held = record.service_by_type if held is None else held
    total = float(np.nansum(jobs.accelerator_s)) if held is None else float(held.sum())
    return total / (record.cluster.size * (end - start))


def _cost(record: RunRecord) -> float:
    """Accelerator-hours held, at the price of their type at that time; a shared accelerator's count once."""
    if record.cluster.price_changes_s:
        return _cost_at_changing_prices(record)
    prices = np.array([t.price_per_hour for t in record.cluster.types])
    held = _busy_by_type(record, -math.inf, math.inf)
    held = record.service_by_type if held is None else held
    if held is not None:
        return float(held @ prices) / 3600
    one_price = len(prices) > 0 and bool(np.all(prices == prices[0]))
    return float(np.nansum(record.jobs.accelerator_s)) * float(prices[0]) / 3600 if one_price else math.nan


def _cost_at_changing_prices(record: RunRecord) -> float:
    device_intervals, cluster = record.device_intervals, record.cluster
    if device_intervals is None:
        return math.nan
    busy = disjoint(device_intervals.accelerator, device_intervals.start_s, device_intervals.end_s)
    cost = 0.0
    for code in range(len(cluster.types)):
        mine = cluster.type_of[busy.key] == code
        cost += float((cluster.cost_until(code, busy.end_s[mine]) - cluster.cost_until(code, busy.start_s[mine])).sum())
    return cost


def _busy_by_type(record: RunRecord, low_s: float, high_s: float) -> Floats | None:
    device_intervals, cluster = record.device_intervals, record.cluster
    if device_intervals is None:
        return None
    busy = disjoint(device_intervals.accelerator, device_intervals.start_s, device_intervals.end_s).clipped(low_s, high_s)
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
