"""Gavel's `.trace`: one job a line, ten columns parted by tabs; and the seven columns of its older traces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fairlead.core.job import Job
from fairlead.workloads.formats.base import JobList, usual_width
from fairlead.workloads.formats.text_fields import BadField, named, number, positive, seconds, split_lines, workers
from fairlead.workloads.trace import OnBad, Trace

COLUMNS = 10
OLDER_COLUMNS = 7

RunTime: TypeAlias = Callable[[str, int, float], float]
"""The seconds that a kind takes, with so many workers and so many steps, alone on the reference type."""


@dataclass(frozen=True)
class GavelTrace:
    """An SLO in the file is a multiple of the job's run time, which the file does not tell; `run_time` does."""

    run_time: RunTime | None = None

    name = "gavel"
    summary = "Gavel .trace: 10 (older: 7) columns parted by tabs, kinds and steps"

    def sniff(self, path: Path, head: str) -> bool:
        return usual_width(head, "\t") in (COLUMNS, OLDER_COLUMNS)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        jobs = JobList(path, on_bad)
        for line, row in split_lines(path, "\t", on_bad):
            try:
                jobs.add(self._job(row, f"job-{line - 1}"), line)
            except BadField as bad:
                on_bad(bad.at(path, line))
        return jobs.trace()

    def _job(self, row: list[str], name: str) -> Job:
        if len(row) == OLDER_COLUMNS:
            kind, command, _flag, _needs_data, steps, arrival, gang = row
            weight, slo = "1", "-1"
        elif len(row) == COLUMNS:
            kind, command, _folder, _flag, _needs_data, steps, gang, weight, slo, arrival = row
        else:
            raise BadField("columns", len(row), f"{COLUMNS} columns parted by tabs (older traces: {OLDER_COLUMNS})")
        total, size = positive("total_steps", steps), workers("scale_factor", gang)
        return Job(
            name,
            seconds("arrival_time", arrival),
            total,
            named("job_type", kind, "a model and a batch size"),
            size,
            positive("priority_weight", weight),
            deadline_s=self._deadline_s(slo, kind, size, total),
            command=command,
        )

    def _deadline_s(self, slo: str, kind: str, size: int, steps: float) -> float:
        multiple = slo_multiple(slo)
        if multiple is None:
            return math.inf
        if self.run_time is None:
            raise BadField("SLO", slo, "-1 for none: an SLO multiplies a run time that only a throughput table tells")
        return multiple * self.run_time(kind, size, steps)


def slo_multiple(text: str) -> float | None:
    """How many times its run time a job may take; below 0 stands for no SLO."""
    multiple = number("SLO", text, "-1 for none, or a multiple of the run time")
    if multiple == 0:
        raise BadField("SLO", text, "-1 for none, or a multiple of the run time")
    return multiple if multiple > 0 else None
