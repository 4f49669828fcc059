"""A trace: jobs in the order of their submission, and what is known about where they came from. It knows no file format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fairlead.core.errors import InputError
from fairlead.core.job import LEAST_WEIGHT, MOST_WEIGHT, Job
from fairlead.core.schedule import wrong_schedule
from fairlead.workloads.losses import LossCurve
from fairlead.workloads.nature import Nature

OnBad: TypeAlias = Callable[[InputError], None]
"""What a reader does with a bad line: raise it (the default), or note it and go on (`--skip-bad`)."""


LONGEST_S = 1e11
"""Three thousand years: beyond it a clock of 64 bits no longer tells milliseconds apart."""
MOST_STEPS = 1e15

_WEIGHT = f"a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
_WITHIN = f"seconds from 0 to {LONGEST_S:g}"
_STEPS = f"a number above 0, at most {MOST_STEPS:g}"
_POSITIVE = "a number above 0"
_AMOUNT = "a number from 0 on"


def raise_it(problem: InputError) -> None:
    raise problem


@dataclass(frozen=True)
class Trace:
    """Jobs ordered by (submission, order in the file). Second 0 is `origin`, where the source has a calendar."""

    jobs: tuple[Job, ...]
    name: str = "trace"
    origin: str | None = None  # ISO time of second 0
    skipped: tuple[InputError, ...] = ()
    losses: Mapping[str, LossCurve] = field(default_factory=dict)  # by the job's name; the simulated world's secret
    natures: Mapping[str, Nature] = field(default_factory=dict)  # likewise

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job],
        name: str = "trace",
        *,
        origin: str | None = None,
        skipped: Iterable[InputError] = (),
        losses: Mapping[str, LossCurve] | None = None,
        natures: Mapping[str, Nature] | None = None,
    ) -> Trace:
        ordered = tuple(sorted(jobs, key=lambda job: job.submitted_s))
        return cls(ordered, name, origin, tuple(skipped), losses or {}, natures or {})

    @property
    def span_s(self) -> float:
        """From the first submission to the last."""
        return self.jobs[-1].submitted_s - self.jobs[0].submitted_s if self.jobs else 0.0

    def with_jobs(self, jobs: Iterable[Job]) -> Trace:
        """Other jobs in its place. Numbers in `after` count the old ones: they stay only where those do."""
        ordered = tuple(sorted(jobs, key=lambda job: job.submitted_s))
        if any(job.after for job in ordered) and [job.name for job in ordered] != [job.name for job in self.jobs]:
            ordered = tuple(replace(job, after=()) for job in ordered)
        return replace(self, jobs=ordered)

    def __len__(self) -> int:
        return len(self.jobs)


def check_job(job: Job, source: object, line: int | None) -> InputError | None:
    """The first thing wrong with a job's numbers, whatever format they came from."""
    wrong = _wrong_field(job)
    if wrong is None:
        return None
    field, expected = wrong
    return InputError(source, expected, line=line, field=field, value=getattr(job, field))


def _wrong_field(job: Job) -> tuple[str, str] | None:
    """Its name, and what would be right."""
    if not 0 <= job.submitted_s <= LONGEST_S:
        return "submitted_s", _WITHIN
    if not 0 < job.steps <= MOST_STEPS:
        return "steps", _STEPS
    if not job.workers >= 1:
        return "workers", "a whole number of at least 1"
    if not LEAST_WEIGHT <= job.weight <= MOST_WEIGHT:
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
        return "retry_limit", "a whole number from 0 on"
    if not 0 <= job.min_run_s < math.inf:
        return "min_run_s", _AMOUNT
    if not job.most_slowdown >= 1:
        return "most_slowdown", "a number from 1 on"
    if job.schedule and (expected := wrong_schedule(job.schedule, job.mode)):
        return "schedule", expected
    return None
