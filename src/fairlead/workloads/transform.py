"""Transformations of traces: other arrival times, other job types, more or fewer jobs, losses, host sensitivity and request
rates. Every function is pure and draws from random streams of its own. This module reads no files and knows no scheduler."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

import numpy as np

from fairlead.core.errors import InputError, UnknownName, require
from fairlead.core.events import MetricsReported
from fairlead.core.job import TIMED, Job, model_of
from fairlead.core.rng import stream
from fairlead.core.routes import REPORTED
from fairlead.models.sensitivity import Sensitivity
from fairlead.workloads.dynamics import JobDynamics, LossCurve, RunConditions, Speed
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

DAY_S, HOUR_S = 86_400.0, 3_600.0
SHORTEST_BURST_JOB_S, LONGEST_BURST_JOB_S = 600.0, 3_600.0


def retime_poisson(trace: Trace, jobs_per_hour: float, seed: int) -> Trace:
    """The same jobs in the same order, the first at second 0 and the others at exponential intervals, without a calendar."""
    _above_0("retime_poisson", "jobs_per_hour", jobs_per_hour)
    gaps = stream(seed, "retime").exponential(HOUR_S / jobs_per_hour, len(trace))
    times = (np.cumsum(gaps) - gaps[:1]).round(3)
    jobs = [replace(job, submitted_s=at) for job, at in zip(trace.jobs, times.tolist())]
    return replace(trace, jobs=tuple(jobs), origin=None)


def with_random_kinds(
    trace: Trace, table: ThroughputTable, kinds: Sequence[str] | None, seed: int, reference_type: str
) -> Trace:
    """Give each job one of the job types that run with its number of workers, all equally likely, with as many steps as take
    its run time on the reference type (Blox §4). Without a list, all job types of the table are used."""
    if reference_type not in table.types:
        raise UnknownName("GPU type", reference_type, table.types)
    unknown = next((kind for kind in kinds or () if kind not in table.kinds), None)
    if unknown is not None:
        raise UnknownName("kind of job", unknown, table.kinds)
    on = table.types.index(reference_type)
    rates = {key: float(table.alone[row, on]) for row, key in enumerate(table.keys)}
    wanted = table.kinds if kinds is None else tuple(kinds)
    choices = {n: [k for k in wanted if rates.get((k, n), 0.0) > 0] for n in {job.workers for job in trace.jobs}}
    draws = stream(seed, "kinds").random(len(trace)).tolist()
    jobs: list[Job] = []
    for job, draw in zip(trace.jobs, draws):
        fitting = choices[job.workers]
        if not fitting:
            sizes = sorted({workers for kind, workers in rates if kind in wanted and rates[kind, workers] > 0})
            expected = f"a number of workers that a kind has on {reference_type}: {', '.join(map(str, sizes))}"
            raise InputError(f"{trace.name}, job {job.name!r}", expected, field="workers", value=job.workers)
        kind = fitting[int(draw * len(fitting))]
        run_time_s = job.steps / _rate(job, rates, trace)
        jobs.append(replace(job, kind=kind, steps=run_time_s * rates[kind, job.workers], schedule=()))
    return replace(trace, jobs=tuple(jobs), dynamics={})  # dynamics and schedules belong to the old job types


def daily_spike(trace: Trace, jobs: int, hour: int, seed: int) -> Trace:
    """Add jobs at uniformly random times within one hour of each day (Blox §5.1: 16 jobs). They are copies of jobs of the
    trace. Days and hours count from second 0."""
    require(jobs >= 0, "daily_spike", "a whole number of at least 0", "jobs", jobs)
    require(0 <= hour <= 23, "daily_spike", "an hour from 0 to 23", "hour", hour)
    rng, names = stream(seed, "spike"), _new_names(trace, "spike")
    extra: list[Job] = []
    for start_s in _windows(hour * HOUR_S, DAY_S, trace):
        times = start_s + np.sort(rng.uniform(0.0, HOUR_S, jobs))
        models = rng.integers(len(trace), size=jobs)
        for at, model in zip(times.tolist(), models.tolist()):
            copy = replace(trace.jobs[model], name=next(names), submitted_s=at, group="", group_order=0, schedule=())
            extra.append(copy)
    return trace.with_jobs((*trace.jobs, *extra))


def short_bursts(
    trace: Trace, jobs_per_hour: float, seed: int, factor: float = 2.0, on_s: float = 2 * HOUR_S, every_s: float = 4 * HOUR_S
) -> Trace:
    """Add short jobs for two hours after every four hours, at twice the usual load (Blox §5.2): Poisson arrivals, uniform run
    times between ten minutes and an hour, workers and users of random jobs of the trace. Their work is given in seconds, so
    draw job types, if any, afterwards."""
    for field, value in (("jobs_per_hour", jobs_per_hour), ("factor", factor), ("on_s", on_s), ("every_s", every_s)):
        _above_0("short_bursts", field, value)
    require(on_s <= every_s, "short_bursts", f"at most every_s, {every_s:g}", "on_s", on_s)
    rng, names = stream(seed, "bursts"), _new_names(trace, "burst")
    extra: list[Job] = []
    for start_s in _windows(every_s, every_s, trace):
        count = int(rng.poisson(factor * jobs_per_hour * on_s / HOUR_S))
        times = start_s + np.sort(rng.uniform(0.0, on_s, count))  # given their number, Poisson arrivals are uniform
        lengths = rng.uniform(SHORTEST_BURST_JOB_S, LONGEST_BURST_JOB_S, count)
        models = rng.integers(len(trace), size=count)
        for at, length_s, model in zip(times.tolist(), lengths.tolist(), models.tolist()):
            like = trace.jobs[model]
            extra.append(Job(next(names), at, length_s, TIMED, like.workers, user=like.user, account=like.account))
    return trace.with_jobs((*trace.jobs, *extra))


def with_loss_curves(trace: Trace, seed: int, converging: float = 0.75, at: float = 0.4, within: float = 0.001) -> Trace:
    """Give every job a loss curve that falls to a tenth. A random share `converging` of the jobs comes within `within` of its
    lowest loss after a share `at` of its steps, the others with their last step (Blox §5.3 and Fig. 16)."""
    for field, value in (("converging", converging), ("at", at), ("within", within)):
        if not (0 <= value <= 1 if field == "converging" else 0 < value < 1):
            expected = "a share from 0 to 1" if field == "converging" else "a share above 0 and below 1"
            raise InputError("with_loss_curves", expected, field=field, value=value)
    rng = stream(seed, "losses")
    early = (rng.random(len(trace)) < converging).tolist()
    floors = rng.uniform(0.1, 1.0, len(trace)).tolist()
    losses = {
        job.name: LossCurve.converging(at if soon else 1.0, floor, 10.0 * floor, within)
        for job, soon, floor in zip(trace.jobs, early, floors)
    }
    return replace(trace, losses=losses)


def thin(trace: Trace, keep: float, seed: int) -> Trace:
    """Keep each job with the given probability. With the same seed, jobs kept at a low one are kept at every higher one."""
    require(0 < keep <= 1, "thin", "a share above 0 and at most 1", "keep", keep)
    draws = stream(seed, "thin").random(len(trace)).tolist()
    return replace(trace, jobs=tuple(job for job, draw in zip(trace.jobs, draws) if draw < keep))


def keep_workers(trace: Trace, sizes: Collection[int]) -> Trace:
    """Keep the jobs whose gangs have one of these sizes."""
    return replace(trace, jobs=tuple(job for job in trace.jobs if job.workers in sizes))


def scale_time(trace: Trace, factor: float) -> Trace:
    """Multiply submission times by a factor: below 1 the load grows, above 1 it falls. Jobs keep their length."""
    _above_0("scale_time", "factor", factor)
    return replace(trace, jobs=tuple(replace(job, submitted_s=job.submitted_s * factor) for job in trace.jobs))


def slice_jobs(trace: Trace, first: int, last: int) -> Trace:
    """Jobs `first` to before `last`, in the order of submission from 0 on. The first one is at second 0."""
    if not 0 <= first <= last:
        raise InputError("slice_jobs", "0 ≤ first ≤ last", field="first", value=f"{first}:{last}")
    jobs = trace.jobs[first:last]
    return _rebased(trace, jobs, jobs[0].submitted_s if jobs else 0.0)


def slice_time(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The jobs submitted from `start_s` until before `end_s`. Second 0 is `start_s`."""
    if not 0 <= start_s <= end_s:
        raise InputError("slice_time", "0 ≤ start_s ≤ end_s", field="start_s", value=f"{start_s:g}:{end_s:g}")
    return _rebased(trace, [job for job in trace.jobs if start_s <= job.submitted_s < end_s], start_s)


def _rebased(trace: Trace, jobs: Sequence[Job], start_s: float) -> Trace:
    origin = None if trace.origin is None else _later(trace.origin, start_s)
    moved = tuple(replace(job, submitted_s=job.submitted_s - start_s) for job in jobs)
    return replace(trace, jobs=moved, origin=origin)


def _later(origin: str, by_s: float) -> str:
    try:
        return (datetime.fromisoformat(origin) + timedelta(seconds=by_s)).isoformat()
    except (ValueError, OverflowError):
        raise InputError("trace", "a calendar time in ISO form", field="origin", value=origin) from None


def _rate(job: Job, rates: dict[tuple[str, int], float], trace: Trace) -> float:
    """Steps per second on the reference type."""
    if job.kind == TIMED:
        return 1.0
    rate = rates.get((job.kind, job.workers), 0.0)
    if rate <= 0:
        expected = f"a kind with a rate for {job.workers} workers, to know how long it runs"
        raise InputError(f"{trace.name}, job {job.name!r}", expected, field="kind", value=job.kind)
    return rate


def _windows(first_s: float, every_s: float, trace: Trace) -> Iterator[float]:
    """The starts of windows up to the last submission of the trace."""
    last_s = trace.jobs[-1].submitted_s if trace.jobs else -math.inf
    start_s = first_s
    while start_s <= last_s:
        yield start_s
        start_s += every_s


def _new_names(trace: Trace, prefix: str) -> Iterator[str]:
    taken = {job.name for job in trace.jobs}
    return (name for number in count() if (name := f"{prefix}-{number}") not in taken)


def _above_0(source: str, field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(source, "a number above 0", field=field, value=value)


@dataclass(frozen=True)
class HostSensitiveDynamics(JobDynamics):
    """A job whose speed is the table's, times a factor by the CPUs and host memory of each worker."""

    sensitivity: Sensitivity

    def speed(self, conditions: RunConditions) -> Speed:
        """The table's rate times the factor."""
        return Speed(conditions.rate * self.sensitivity.speed(conditions.cpus, conditions.host_memory_gb))


def with_host_sensitivity(trace: Trace, sensitivities: Mapping[str, Sensitivity]) -> Trace:
    """Give jobs the host sensitivity of their job type or model. A job that has other dynamics keeps them."""
    dynamics = dict(trace.dynamics)
    for job in trace.jobs:
        sensitivity = sensitivities.get(job.kind) or sensitivities.get(model_of(job.kind))
        if sensitivity is not None:
            dynamics.setdefault(job.name, HostSensitiveDynamics(sensitivity))
    return replace(trace, dynamics=dynamics)


def rate_reports(trace: Trace, rates: Mapping[str, Sequence[tuple[float, float]]]) -> list[MetricsReported]:
    """The reports of sessions on their request rates, as (from second, requests per second). A job reports its first rate when
    it is submitted."""
    found = []
    number_of = {job.name: number for number, job in enumerate(trace.jobs)}
    for name, parts in rates.items():
        number = number_of[name]
        begin = trace.jobs[number].submitted_s
        first = [(begin, rate) for second, rate in parts if second <= begin][-1:]
        for second, rate in [*first, *(part for part in parts if part[0] > begin)]:
            found.append(MetricsReported(second, REPORTED, np.array([number]), np.array([rate])))
    return sorted(found, key=lambda event: event.time)
