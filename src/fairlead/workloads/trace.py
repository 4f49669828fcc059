"""A trace: jobs in the order of their submission, the check of a job's numbers, and statistics. This module knows no file
format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.errors import InputError
from fairlead.core.job import MAX_WEIGHT, MIN_WEIGHT, TIMED, Job, wrong_schedule
from fairlead.workloads.dynamics import JobDynamics, LossCurve

OnBad: TypeAlias = Callable[[InputError], None]
"""What a reader does with a bad line: raise it (the default), or note it and continue (`--skip-bad`)."""


MAX_TIME_S = 1e11
"""Three thousand years: beyond it a 64-bit float no longer resolves milliseconds."""
MAX_STEPS = 1e15

_WEIGHT = f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
_WITHIN = f"seconds from 0 to {MAX_TIME_S:g}"
_STEPS = f"a number above 0, at most {MAX_STEPS:g}"
_POSITIVE = "a number above 0"
_AMOUNT = "a number of at least 0"


def raise_bad_line(problem: InputError) -> None:
    """Raise the error of a bad line."""
    raise problem


@dataclass(frozen=True)
class Trace:
    """Jobs ordered by (submission, order in the file). Second 0 is `origin`, where the source has calendar times."""

    jobs: tuple[Job, ...]
    name: str = "trace"
    origin: str | None = None  # ISO time of second 0
    skipped: tuple[InputError, ...] = ()
    losses: Mapping[str, LossCurve] = field(default_factory=dict)  # by job name; known to the simulator only
    dynamics: Mapping[str, JobDynamics] = field(default_factory=dict)  # likewise
    unread: tuple[str, ...] = ()  # columns of the file that have no meaning here

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job],
        name: str = "trace",
        *,
        origin: str | None = None,
        skipped: Iterable[InputError] = (),
        losses: Mapping[str, LossCurve] | None = None,
        dynamics: Mapping[str, JobDynamics] | None = None,
        unread: Iterable[str] = (),
    ) -> Trace:
        """A trace of jobs in any order."""
        ordered = tuple(sorted(jobs, key=lambda job: job.submitted_s))
        return cls(ordered, name, origin, tuple(skipped), losses or {}, dynamics or {}, tuple(unread))

    @property
    def span_s(self) -> float:
        """Seconds from the first submission to the last."""
        return self.jobs[-1].submitted_s - self.jobs[0].submitted_s if self.jobs else 0.0

    def with_jobs(self, jobs: Iterable[Job]) -> Trace:
        """The trace with other jobs. Numbers in `after` count the old jobs, so they are kept only where those are the same."""
        ordered = tuple(sorted(jobs, key=lambda job: job.submitted_s))
        if any(job.after for job in ordered) and [job.name for job in ordered] != [job.name for job in self.jobs]:
            ordered = tuple(replace(job, after=()) for job in ordered)
        return replace(self, jobs=ordered)

    def __len__(self) -> int:
        return len(self.jobs)


def check_job(job: Job, source: object, line: int | None) -> InputError | None:
    """The error of the first wrong number of a job; None where all are right."""
    try:
        wrong = _wrong_field(job)
    except TypeError:  # one of them is no number
        numbers = [one for one in fields(job) if isinstance(one.default, int | float)]
        wrong = next((one.name, "a number") for one in numbers if not isinstance(getattr(job, one.name), Real))
    if wrong is None:
        return None
    field, expected = wrong
    return InputError(source, expected, line=line, field=field, value=getattr(job, field))


def _wrong_field(job: Job) -> tuple[str, str] | None:
    """The name of the field, and what was expected."""
    if not 0 <= job.submitted_s <= MAX_TIME_S:
        return "submitted_s", _WITHIN
    if not 0 < job.steps <= MAX_STEPS:
        return "steps", _STEPS
    if not job.workers >= 1 or job.workers % 1:
        return "workers", "a whole number of at least 1"
    if not MIN_WEIGHT <= job.weight <= MAX_WEIGHT:
        return "weight", _WEIGHT
    if not job.deadline_s > 0:
        return "deadline_s", _POSITIVE
    if not 0 <= job.memory_gb < math.inf:
        return "memory_gb", _AMOUNT
    if not 0 <= job.cpus < math.inf:
        return "cpus", _AMOUNT
    if not 0 <= job.host_memory_gb < math.inf:
        return "host_memory_gb", _AMOUNT
    if not job.time_limit_s > 0:
        return "time_limit_s", _POSITIVE
    if not job.retry_limit >= 0:
        return "retry_limit", "a whole number of at least 0"
    if not 0 <= job.min_run_s < math.inf:
        return "min_run_s", _AMOUNT
    if not job.max_slowdown >= 1:
        return "max_slowdown", "a number of at least 1"
    if job.schedule and (expected := wrong_schedule(job.schedule, job.mode)):
        return "schedule", expected
    return None


QUANTILES = {"min": 0, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True)
class TraceStats:
    """Statistics of a trace; None where the trace does not determine a value. Durations are of jobs whose work is given in
    seconds; the run time of other jobs depends on where they run."""

    name: str
    origin: str | None
    jobs: int
    skipped: int
    users: int
    accounts: int
    kinds: Mapping[str, int]  # jobs of each job type except TIMED, the most frequent first
    timed_jobs: int
    span_s: float  # from the first submission to the last
    jobs_per_hour: float | None
    workers: Mapping[int, int]  # jobs of each gang size
    duration_s: Mapping[str, float] | None
    steps: Mapping[str, float] | None
    accelerator_hours: float | None  # None unless all jobs are timed
    accelerators: int | None
    offered_load: float | None  # requested accelerator time / accelerator time during the span

    def to_dict(self) -> dict[str, Any]:
        """Plain values with text keys, for JSON."""
        plain = asdict(self)
        plain["workers"] = {str(size): count for size, count in self.workers.items()}
        return plain


def trace_stats(trace: Trace, accelerators: int | None = None) -> TraceStats:
    """The statistics; the load needs the number of accelerators."""
    if accelerators is not None and accelerators < 1:
        raise InputError("trace stats", "a whole number of at least 1", field="accelerators", value=accelerators)
    jobs, span_s = trace.jobs, trace.span_s
    timed = [job for job in jobs if job.kind == TIMED]
    all_timed = len(timed) == len(jobs)
    accelerator_s = sum(job.steps * job.workers for job in timed)
    has_load = all_timed and accelerators is not None and span_s > 0
    return TraceStats(
        name=trace.name,
        origin=trace.origin,
        jobs=len(jobs),
        skipped=len(trace.skipped),
        users=len({job.user for job in jobs} - {""}),
        accounts=len({job.account for job in jobs} - {""}),
        kinds=dict(Counter(job.kind for job in jobs if job.kind != TIMED).most_common()),
        timed_jobs=len(timed),
        span_s=span_s,
        jobs_per_hour=(len(jobs) - 1) / span_s * 3600 if span_s > 0 else None,
        workers=dict(sorted(Counter(job.workers for job in jobs).items())),
        duration_s=_quantiles([job.steps for job in timed]),
        steps=_quantiles([job.steps for job in jobs if job.kind != TIMED]),
        accelerator_hours=accelerator_s / 3600 if all_timed else None,
        accelerators=accelerators,
        offered_load=accelerator_s / (accelerators * span_s) if has_load and accelerators is not None else None,
    )


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(np.asarray(values, dtype=np.float64), list(QUANTILES.values()))
    return {"mean": float(np.mean(values)), **dict(zip(QUANTILES, found.tolist()))}
