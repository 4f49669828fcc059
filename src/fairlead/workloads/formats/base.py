"""Jobs on their way from lines to a trace: checked, named once, put in order, and set against second 0. Every reader ends
here. It knows no format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING, field, fields, make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.core.errors import InputError
from fairlead.core.job import TIMED, Job
from fairlead.workloads.dynamics import JobDynamics, LossCurve
from fairlead.workloads.formats.text_fields import calendar
from fairlead.workloads.trace import OnBad, Trace, check_job

# Jobs by the hundred thousand. Filling a frozen dataclass goes through `object.__setattr__` for every field and takes four
# times as long as filling one that is not frozen, which is half the time it takes to read a large log. So a twin of `Job`
# that
# may be written to is filled, and then declared to be a `Job`, which Python allows because both have the same slots.


def _twin() -> Any:
    columns: list[Any] = []
    for column in fields(Job):
        if column.default is MISSING:
            columns.append((column.name, column.type))
        else:
            columns.append((column.name, column.type, field(default=column.default)))
    return make_dataclass("_Writable", columns, slots=True)


_Writable = _twin()


def timed_job(
    name: str,
    submitted_s: float,
    duration_s: float,
    workers: int,
    user: str = "",
    account: str = "",
    allowed_types: tuple[str, ...] = (),
    cpus: float = 0.0,
    host_memory_gb: float = 0.0,
    time_limit_s: float = math.inf,
) -> Job:
    """The job whose work is given in seconds."""
    job = _Writable(
        name,
        submitted_s,
        duration_s,
        TIMED,
        workers,
        user=user,
        account=account,
        allowed_types=allowed_types,
        cpus=cpus,
        host_memory_gb=host_memory_gb,
        time_limit_s=time_limit_s,
    )
    job.__class__ = Job
    return job  # type: ignore[no-any-return]


class JobList:
    """Jobs of one file. A job whose numbers cannot be, or whose name is taken, is given to `on_bad` and left out."""

    def __init__(self, path: Path, on_bad: OnBad) -> None:
        self._path, self._on_bad = path, on_bad
        self._jobs: list[Job] = []
        self._line_of: dict[str, int] = {}
        self._losses: dict[str, LossCurve] = {}
        self._dynamics: dict[str, JobDynamics] = {}

    def add(self, job: Job, line: int, curve: LossCurve | None = None, job_dynamics: JobDynamics | None = None) -> None:
        problem = check_job(job, self._path, line)
        if problem is None:
            first = self._line_of.setdefault(job.name, line)
            if first == line:
                self._jobs.append(job)
                if curve is not None:
                    self._losses[job.name] = curve
                if job_dynamics is not None:
                    self._dynamics[job.name] = job_dynamics
                return
            expected = f"a name of its own; line {first} has the same"
            problem = InputError(self._path, expected, line=line, field="name", value=job.name)
        self._on_bad(problem)

    def trace(self, *, origin: str | None = None, left_out: Iterable[InputError] = ()) -> Trace:
        trace = Trace.of(
            self._jobs,
            self._path.stem,
            origin=origin,
            skipped=left_out,
            losses=self._losses,
            dynamics=self._dynamics,
        )
        for number, job in enumerate(trace.jobs):
            if job.after and not all(0 <= other < number for other in job.after):
                expected = f"places of earlier jobs, 0 to {number - 1}" if number else "nothing: it is the first"
                raise InputError(self._path, expected, line=self._line_of[job.name], field="after", value=job.after)
        return trace


class Submission(NamedTuple):
    """A job of an accounting log: its run time is known, and when it was submitted, but not yet where second 0 lies."""

    line: int
    moment_s: float
    name: str
    duration_s: float
    workers: int
    user: str = ""
    account: str = ""
    allowed_types: tuple[str, ...] = ()
    cpus: float = 0.0
    host_memory_gb: float = 0.0
    time_limit_s: float = math.inf


def from_the_earliest(
    submissions: Sequence[Submission],
    path: Path,
    on_bad: OnBad,
    *,
    left_out: Iterable[InputError] = (),
    dated: bool = True,
) -> Trace:
    """The trace whose second 0 is the earliest submission; `dated` says whether moments are calendar times."""
    earliest = min((submission.moment_s for submission in submissions), default=0.0)
    jobs = JobList(path, on_bad)
    for line, moment_s, name, duration_s, workers, user, account, types, cpus, memory_gb, limit_s in submissions:
        since_s = moment_s - earliest
        jobs.add(timed_job(name, since_s, duration_s, workers, user, account, types, cpus, memory_gb, limit_s), line)
    return jobs.trace(origin=calendar(earliest) if dated and submissions else None, left_out=left_out)


# What the head of a file looks like, for formats to recognise themselves by. It knows no format.


def full_lines(head: str, at_most: int = 50) -> Iterator[str]:
    """The first lines that are not blank. The last one is left out if it may have been cut off."""
    lines = head.splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith("\n"):
        lines.pop()
    shown = (line.strip("\r\n") for line in lines)
    for _, line in zip(range(at_most), (line for line in shown if line.strip())):
        yield line


def first_row(head: str, delimiter: str = ",") -> list[str]:
    """The cells of the first line, as a header would have them."""
    return [cell.strip().strip('"') for cell in next(full_lines(head), "").split(delimiter)]


def first_row_has(head: str, names: Collection[str], delimiter: str = ",") -> bool:
    cells = set(first_row(head, delimiter))
    return all(name in cells for name in names)


def usual_width(head: str, separator: str | None) -> int:
    """The number of columns that most lines have, so that one broken line hides nothing."""
    widths = Counter(len(line.split(separator)) for line in full_lines(head))
    return widths.most_common(1)[0][0] if widths else 0
