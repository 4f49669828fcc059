"""Microsoft's Philly trace as one table: when, how long, on how many GPUs, in which virtual cluster."""

from __future__ import annotations

from pathlib import Path

from fairlead.workloads.formats.base import Submission, first_row_has, from_the_earliest
from fairlead.workloads.formats.text_fields import (
    BadField,
    check_width,
    columns,
    header_of,
    moment,
    optional_columns,
    positive,
    table_rows,
    workers,
)
from fairlead.workloads.trace import OnBad, Trace

_NEEDED = ("timestamp", "duration", "num_gpus")


class PhillyTrace:
    name = "philly"
    summary = "Philly CSV: timestamp, duration, num_gpus, gpu_time, cluster"

    def sniff(self, path: Path, head: str) -> bool:
        return first_row_has(head, _NEEDED)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        rows = table_rows(path, on_bad)
        top, names = header_of(rows, path)
        when_at, duration_at, gpus_at = columns(names, _NEEDED, path, top)
        (cluster_at,) = optional_columns(names, ("cluster",))
        width = len(names)
        submissions: list[Submission] = []
        for line, row in rows:
            try:
                check_width(row, width)
                submissions.append(
                    Submission(
                        line,
                        moment("timestamp", row[when_at]),
                        f"job-{line - top - 1}",
                        positive("duration", row[duration_at], "seconds above 0"),
                        workers("num_gpus", row[gpus_at]),
                        "",
                        "" if cluster_at is None else row[cluster_at],
                    )
                )
            except BadField as bad:
                on_bad(bad.at(path, line))
        return from_the_earliest(submissions, path, on_bad)
