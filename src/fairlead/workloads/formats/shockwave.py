"""Shockwave's `.trace`: Gavel's ten columns, with the way the batch size changes after the workers, and the duration before the
arrival."""

from __future__ import annotations

import math
from pathlib import Path

from fairlead.core.job import Job
from fairlead.workloads.formats.collect import JobList
from fairlead.workloads.formats.fields import BadField, named, positive, seconds, workers
from fairlead.workloads.formats.gavel import slo_multiple
from fairlead.workloads.formats.lines import split_lines
from fairlead.workloads.formats.recognise import usual_width
from fairlead.workloads.trace import OnBad, Trace

COLUMNS = 12
MODES = ("static", "accordion", "gns")


class Shockwave:
    name = "shockwave"
    summary = "Shockwave .trace: 12 columns parted by tabs, with the mode in which the batch size changes"

    def sniff(self, path: Path, head: str) -> bool:
        return usual_width(head, "\t") == COLUMNS

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        jobs = JobList(path, on_bad)
        for line, row in split_lines(path, "\t", on_bad):
            try:
                jobs.add(_job(row, f"job-{line - 1}"), line)
            except BadField as bad:
                on_bad(bad.at(path, line))
        return jobs.trace()


def _job(row: list[str], name: str) -> Job:
    if len(row) != COLUMNS:
        raise BadField("columns", len(row), f"{COLUMNS} columns parted by tabs")
    kind, command, _folder, _flag, _needs_data, steps, gang, mode, weight, slo, duration, arrival = row
    if mode not in MODES:
        raise BadField("mode", mode, f"one of {', '.join(MODES)}")
    multiple, run_time_s = slo_multiple(slo), positive("duration", duration, "seconds above 0")
    return Job(
        name,
        seconds("arrival_time", arrival),
        positive("total_steps", steps),
        named("job_type", kind, "a model and a batch size"),
        workers("scale_factor", gang),
        positive("priority_weight", weight),
        deadline_s=math.inf if multiple is None else multiple * run_time_s,
        mode=mode,
        command=command,
    )
