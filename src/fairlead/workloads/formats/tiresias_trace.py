"""Tiresias' job tables: submission, duration and GPUs of each job, in seconds from the start."""

from __future__ import annotations

from pathlib import Path

from fairlead.workloads.formats.base import JobList, first_row_has, timed_job
from fairlead.workloads.formats.text_fields import (
    BadField,
    check_width,
    columns,
    header_of,
    named,
    positive,
    seconds,
    table_rows,
    workers,
)
from fairlead.workloads.trace import OnBad, Trace

_NEEDED = ("job_id", "num_gpu", "submit_time", "duration")


class TiresiasTrace:
    name = "tiresias"
    summary = "Tiresias CSV: job_id, num_gpu, submit_time, iterations, model_name, duration, interval"

    def sniff(self, path: Path, head: str) -> bool:
        return first_row_has(head, _NEEDED)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        rows = table_rows(path, on_bad)
        top, names = header_of(rows, path)
        id_at, gpus_at, submit_at, duration_at = columns(names, _NEEDED, path, top)
        width = len(names)
        jobs = JobList(path, on_bad)
        for line, row in rows:
            try:
                check_width(row, width)
                job = timed_job(
                    named("job_id", row[id_at]),
                    seconds("submit_time", row[submit_at]),
                    positive("duration", row[duration_at], "seconds above 0"),
                    workers("num_gpu", row[gpus_at]),
                )
                jobs.add(job, line)
            except BadField as bad:
                on_bad(bad.at(path, line))
        return jobs.trace()
