"""The Standard Workload Format of the Parallel Workloads Archive (version 2.2): 18 numbers a line, −1 for what is not known,
comments behind a semicolon."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.core.job import Job
from fairlead.workloads.formats.base import JobList, full_lines, timed_job
from fairlead.workloads.formats.text_fields import BadField, calendar, number, plain_lines, seconds, workers
from fairlead.workloads.trace import OnBad, Trace

COLUMNS = 18

_START = re.compile(r";\s*UnixStartTime:\s*(\d{1,10})\b")
_UNKNOWN = -1


class SwfTrace:
    name = "swf"
    summary = "Standard Workload Format: 18 numbers a line, comments behind ';'"

    def sniff(self, path: Path, head: str) -> bool:
        lines = list(full_lines(head))
        if path.suffix.lower() == ".swf" or any(_START.match(line) for line in lines):
            return True
        jobs = [line.split() for line in lines if not line.startswith(";")]
        return bool(jobs) and len(jobs[0]) == COLUMNS and all(_is_number(cell) for cell in jobs[0])

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        jobs, origin = JobList(path, on_bad), None
        for line, text in enumerate(plain_lines(path, on_bad), start=1):
            row = text.split()
            if not row:
                continue
            if row[0].startswith(";"):
                start = _START.match(text.strip())
                origin = calendar(float(start[1])) if start else origin
                continue
            try:
                jobs.add(_job(row), line)
            except BadField as bad:
                on_bad(bad.at(path, line))
        return jobs.trace(origin=origin)


def _job(row: list[str]) -> Job:
    if len(row) != COLUMNS:
        raise BadField("columns", len(row), f"{COLUMNS} columns parted by spaces")
    run_time_s = number("run_time", row[3], "seconds above 0")
    if run_time_s <= 0:
        raise BadField("run_time", row[3], "seconds above 0; this job never ran, or how long is not known")
    allocated = number("allocated_processors", row[4], "a number of processors, or -1") != _UNKNOWN
    return timed_job(
        row[0],
        seconds("submit_time", row[1]),
        run_time_s,
        workers("allocated_processors", row[4]) if allocated else workers("requested_processors", row[7]),
        _known(row[11]),
        _known(row[12]),
    )


def _known(cell: str) -> str:
    """The number of a user or a group; -1 stands for none."""
    return "" if cell == "-1" else cell


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?\d+(\.\d*)?", cell) is not None
