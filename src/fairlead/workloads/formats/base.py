"""Shared by trace formats: jobs of a file, checked and in order, columns of a table with a header, and how the head of a
file looks. This module knows no format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, fields, make_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.core.errors import InputError
from fairlead.core.job import TIMED, Job
from fairlead.workloads.dynamics import JobDynamics, LossCurve
from fairlead.workloads.formats.text_fields import (
    BadField,
    LeftOut,
    check_width,
    column_positions,
    format_time,
    header_of,
    table_rows,
)
from fairlead.workloads.trace import OnBad, Trace, check_job

Row: TypeAlias = tuple[int, list[str]]
"""The number of a line, and its cells."""

# Filling a frozen dataclass calls `object.__setattr__` for every field, which is half of the time to read a large log. So an
# unfrozen copy of `Job` is filled, and then declared to be a `Job`, which Python allows because both have the same slots.
_UnfrozenJob: Any = make_dataclass(
    "_UnfrozenJob", [(one.name, one.type, field(default=one.default)) for one in fields(Job)], slots=True
)


def timed_job(
    name: str,
    submitted_s: float,
    duration_s: float,
    workers: int,
    *,
    user: str = "",
    account: str = "",
    allowed_types: tuple[str, ...] = (),
    cpus: float = 0.0,
    host_memory_gb: float = 0.0,
    time_limit_s: float = math.inf,
) -> Job:
    """A job whose work is given in seconds."""
    job = _UnfrozenJob(
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
    """The jobs of one file. A job with an impossible number or a name that is taken is given to `on_bad` and left out."""

    def __init__(self, path: Path, on_bad: OnBad, unread: Sequence[str] = ()) -> None:
        self._path, self._on_bad, self._unread = path, on_bad, unread
        self._jobs: list[Job] = []
        self._line_of: dict[str, int] = {}
        self._losses: dict[str, LossCurve] = {}
        self._dynamics: dict[str, JobDynamics] = {}
        self._left_out: list[InputError] = []
        self._earliest_s: float | None = None

    def read(self, rows: Iterable[Row], job_of: Callable[[int, list[str]], Job | None], *, rebase: bool = False) -> JobList:
        """Add the job that `job_of` makes of each line and its cells; None is no job.

        With `rebase`, times of submission are of any origin, and second 0 becomes the earliest of them."""
        found = self._parsed(rows, job_of)
        if rebase:
            jobs = list(found)
            self._start_at_earliest([job for _, job in jobs])
            found = iter(jobs)
        for line, job in found:
            self.add(job, line)
        return self

    def _start_at_earliest(self, jobs: Sequence[Job]) -> None:
        self._earliest_s = min((job.submitted_s for job in jobs), default=None)
        for job in jobs:
            object.__setattr__(job, "submitted_s", job.submitted_s - (self._earliest_s or 0.0))

    def rebased(self) -> JobList:
        """Make the earliest submission second 0: the file's times may have any origin."""
        self._start_at_earliest(self._jobs)
        return self

    def _parsed(self, rows: Iterable[Row], job_of: Callable[[int, list[str]], Job | None]) -> Iterator[tuple[int, Job]]:
        for line, row in rows:
            try:
                job = job_of(line, row)
            except LeftOut as why:
                self._left_out.append(why.at(self._path, line))
            except BadField as bad:
                self._on_bad(bad.at(self._path, line))
            else:
                if job is not None:
                    yield line, job

    def add(self, job: Job, line: int, curve: LossCurve | None = None, job_dynamics: JobDynamics | None = None) -> None:
        """Check and add one job."""
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

    def trace(self, *, origin: str | None = None, dated: bool = False) -> Trace:
        """The trace. With `dated`, the earliest submission is a calendar time, and the trace's origin."""
        if dated and self._earliest_s is not None:
            origin = format_time(self._earliest_s)
        trace = Trace.of(
            self._jobs,
            self._path.stem,
            origin=origin,
            skipped=self._left_out,
            losses=self._losses,
            dynamics=self._dynamics,
            unread=self._unread,
        )
        for number, job in enumerate(trace.jobs):
            if job.after and not all(0 <= other < number for other in job.after):
                expected = f"numbers of earlier jobs, 0 to {number - 1}" if number else "nothing: it is the first job"
                raise InputError(self._path, expected, line=self._line_of[job.name], field="after", value=job.after)
        return trace


class CsvTable:
    """The rows of a CSV file with a header, by the columns that a format reads."""

    def __init__(self, path: Path, on_bad: OnBad, needed: Sequence[str], optional: Sequence[str] = ()) -> None:
        self.rows = table_rows(path, on_bad)
        self._header_line, self._names = header_of(self.rows, path)
        self._positions: list[int | None] = [*column_positions(self._names, needed, path, self._header_line)]
        self._positions += [self._names.index(name) if name in self._names else None for name in optional]

    def cells(self, row: Sequence[str]) -> list[str]:
        """The needed cells and then the optional ones; a column that is missing has empty cells."""
        check_width(row, len(self._names))
        return ["" if at is None else row[at] for at in self._positions]

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self._names

    def job_name(self, line: int) -> str:
        """The name of a job that has none."""
        return f"job-{line - self._header_line - 1}"


# Helpers with which formats recognise the head of a file.


def full_lines(head: str) -> Iterator[str]:
    """The first lines that are not blank. The last one is left out if it may have been cut off."""
    lines = head.splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith("\n"):
        lines.pop()
    shown = (line.strip("\r\n") for line in lines)
    return islice((line for line in shown if line.strip()), 50)


def first_row(head: str, delimiter: str = ",") -> list[str]:
    """The cells of the first line, as a header would have them."""
    return [cell.strip().strip('"') for cell in next(full_lines(head), "").split(delimiter)]


def usual_width(head: str, separator: str | None) -> int:
    """The number of columns that most lines have, so that one broken line does not matter."""
    widths = Counter(len(line.split(separator)) for line in full_lines(head))
    return widths.most_common(1)[0][0] if widths else 0
