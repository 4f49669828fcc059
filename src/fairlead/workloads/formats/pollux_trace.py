"""Pollux's workloads: which application, when, with how many replicas and which batch size."""

from __future__ import annotations

from pathlib import Path

from fairlead.core.job import Job, kind_of
from fairlead.workloads.formats.base import JobList, first_row_has
from fairlead.workloads.formats.text_fields import (
    BadField,
    check_width,
    columns,
    header_of,
    named,
    seconds,
    table_rows,
    whole,
    workers,
)
from fairlead.workloads.trace import OnBad, Trace

_NEEDED = ("name", "time", "application", "num_replicas", "batch_size")

ONE_TRAINING_RUN = 1.0
"""The file does not say how much work a job is: an application is trained until it is done. So the unit is one such run, and
rates for these kinds are runs a second."""


class PolluxTrace:
    name = "pollux"
    summary = "Pollux workload CSV: name, time, application, num_replicas, batch_size"

    def sniff(self, path: Path, head: str) -> bool:
        return first_row_has(head, _NEEDED)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        rows = table_rows(path, on_bad)
        top, names = header_of(rows, path)
        places = columns(names, _NEEDED, path, top)
        width = len(names)
        jobs = JobList(path, on_bad)
        for line, row in rows:
            try:
                check_width(row, width)
                jobs.add(_job([row[place] for place in places]), line)
            except BadField as bad:
                on_bad(bad.at(path, line))
        return jobs.trace()


def _job(row: list[str]) -> Job:
    name, time, application, replicas, batch = row
    batch_size = whole("batch_size", batch, "a whole number of at least 1")
    if batch_size < 1:
        raise BadField("batch_size", batch, "a whole number of at least 1")
    kind = kind_of(named("application", application), batch_size)
    gang = workers("num_replicas", replicas)
    return Job(named("name", name), seconds("time", time), ONE_TRAINING_RUN, kind, gang)
