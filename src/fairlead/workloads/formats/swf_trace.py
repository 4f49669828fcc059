"""The Standard Workload Format of the Parallel Workloads Archive (version 2.2): 18 numbers a line, −1 for unknown values,
comments after a semicolon."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.core.job import Job
from fairlead.workloads.formats.base import JobList, full_lines, timed_job
from fairlead.workloads.formats.text_fields import (
    BadField,
    format_time,
    parse_number,
    parse_seconds,
    parse_workers,
    split_lines,
)
from fairlead.workloads.trace import OnBad, Trace

SWF_COLUMNS = 18

_START = re.compile(r";\s*UnixStartTime:\s*(\d{1,10})\b")
_UNKNOWN = -1


class SwfTrace:
    """Jobs with their run time, processors, user and group."""

    name = "swf"
    summary = "Standard Workload Format: 18 numbers a line, comments behind ';'"

    def sniff(self, path: Path, head: str) -> bool:
        """Whether the name, a comment or the first job is of this format."""
        lines = list(full_lines(head))
        if path.suffix.lower() == ".swf" or any(_START.match(line) for line in lines):
            return True
        jobs = [line.split() for line in lines if not line.startswith(";")]
        return bool(jobs) and len(jobs[0]) == SWF_COLUMNS and all(map(_is_number, jobs[0]))

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; a comment has the calendar time of second 0."""
        origin: str | None = None

        def job_of(line: int, row: list[str]) -> Job | None:
            nonlocal origin
            if not row[0].startswith(";"):
                return _job(row)
            if start := _START.match(" ".join(row)):
                origin = format_time(float(start[1]))
            return None

        jobs = JobList(path, on_bad).read(split_lines(path, None, on_bad), job_of)
        return jobs.trace(origin=origin)


def _job(row: list[str]) -> Job:
    if len(row) != SWF_COLUMNS:
        raise BadField("columns", len(row), f"{SWF_COLUMNS} columns separated by spaces")
    run_time_s = parse_number("run_time", row[3], "seconds above 0")
    if run_time_s <= 0:
        raise BadField("run_time", row[3], "seconds above 0; this job never ran, or its run time is unknown")
    allocated = parse_number("allocated_processors", row[4], "a number of processors, or -1") != _UNKNOWN
    user, group = ("" if cell == "-1" else cell for cell in row[11:13])
    return timed_job(
        row[0],
        parse_seconds("submit_time", row[1]),
        run_time_s,
        parse_workers("allocated_processors", row[4]) if allocated else parse_workers("requested_processors", row[7]),
        user=user,
        account=group,
    )


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?\d+(\.\d*)?", cell) is not None
