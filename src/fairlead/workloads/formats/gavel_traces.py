"""The tab-separated traces of Gavel and Shockwave, one job a line, and the regimes file of Shockwave's traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from fairlead.core.errors import InputError
from fairlead.core.job import Job, batch_size_of
from fairlead.workloads.dynamics import MAX_BATCH_SIZE, JobDynamics, Regimes
from fairlead.workloads.formats.base import JobList, usual_width
from fairlead.workloads.formats.text_fields import (
    BadField,
    parse_json,
    parse_name,
    parse_number,
    parse_positive,
    parse_seconds,
    parse_workers,
    split_lines,
    whole_file,
)
from fairlead.workloads.trace import MAX_STEPS, OnBad, Trace

GAVEL_COLUMNS, OLDER_GAVEL_COLUMNS, SHOCKWAVE_COLUMNS = 10, 7, 12
SHOCKWAVE_MODES = ("static", "accordion", "gns")
_SLO = "-1 for none, or a multiple of the run time"

RunTime: TypeAlias = Callable[[str, int, float], float]
"""(job type, workers, steps) → seconds alone on the reference type."""


class _TabTrace:
    """A job a line, recognised by the number of columns between tabs that most lines have."""

    widths: ClassVar[tuple[int, ...]]

    def sniff(self, path: Path, head: str) -> bool:
        """Whether most lines have this many columns."""
        return usual_width(head, "\t") in self.widths

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace."""
        return JobList(path, on_bad).read(split_lines(path, "\t", on_bad), self._job).trace()

    def _job(self, line: int, row: list[str]) -> Job:
        raise NotImplementedError


@dataclass(frozen=True)
class GavelTrace(_TabTrace):
    """Gavel's `.trace`: ten columns, or the seven of its older traces.

    An SLO is a multiple of the job's run time. The file does not have the run time; `run_time` computes it."""

    run_time: RunTime | None = None

    name = "gavel"
    summary = "Gavel .trace: 10 (older: 7) columns separated by tabs, with job types and steps"
    widths = (GAVEL_COLUMNS, OLDER_GAVEL_COLUMNS)

    def _job(self, line: int, row: list[str]) -> Job:
        if len(row) == OLDER_GAVEL_COLUMNS:
            kind, command, _flag, _needs_data, steps, arrival, workers = row
            weight, slo = "1", "-1"
        elif len(row) == GAVEL_COLUMNS:
            kind, command, _folder, _flag, _needs_data, steps, workers, weight, slo, arrival = row
        else:
            expected = f"{GAVEL_COLUMNS} columns separated by tabs (older traces: {OLDER_GAVEL_COLUMNS})"
            raise BadField("columns", len(row), expected)
        job = _job(line, kind, command, steps, workers, weight, arrival)
        multiple = _slo_multiple(slo)
        if multiple is None:
            return job
        if self.run_time is None:
            raise BadField("SLO", slo, "-1 for none: an SLO needs a run time, which only a throughput table has")
        return replace(job, deadline_s=multiple * self.run_time(kind, job.workers, job.steps))


class ShockwaveTrace(_TabTrace):
    """Shockwave's `.trace`: Gavel's ten columns, with the batch size mode after the workers and the duration before the
    arrival."""

    name = "shockwave"
    summary = "Shockwave .trace: 12 columns separated by tabs, with the batch-size mode"
    widths = (SHOCKWAVE_COLUMNS,)

    def _job(self, line: int, row: list[str]) -> Job:
        if len(row) != SHOCKWAVE_COLUMNS:
            raise BadField("columns", len(row), f"{SHOCKWAVE_COLUMNS} columns separated by tabs")
        kind, command, _folder, _flag, _needs_data, steps, workers, mode, weight, slo, duration, arrival = row
        if mode not in SHOCKWAVE_MODES:
            raise BadField("mode", mode, f"one of {', '.join(SHOCKWAVE_MODES)}")
        multiple, run_time_s = _slo_multiple(slo), parse_positive("duration", duration, "seconds above 0")
        job = _job(line, kind, command, steps, workers, weight, arrival)
        return replace(job, deadline_s=math.inf if multiple is None else multiple * run_time_s, mode=mode)


def _job(line: int, kind: str, command: str, steps: str, workers: str, weight: str, arrival: str) -> Job:
    total, size = parse_positive("total_steps", steps), parse_workers("scale_factor", workers)
    return Job(
        f"job-{line - 1}",
        parse_seconds("arrival_time", arrival),
        total,
        parse_name("job_type", kind, "a model and a batch size"),
        size,
        parse_positive("priority_weight", weight),
        command=command,
    )


def _slo_multiple(text: str) -> float | None:
    """The multiple of its run time that a job may take; below 0 is no SLO."""
    multiple = parse_number("SLO", text, _SLO)
    if multiple == 0:
        raise BadField("SLO", text, _SLO)
    return multiple if multiple > 0 else None


# A regimes file is a JSON list with an object for each job; job N is the trace's `job-N`, and other keys are ignored:
#
# {"job": 3, "job_type": "LM (batch size 10)", "samples_per_epoch": 59675,
#  "regimes": [{"batch_size": 10, "epochs": 11}, {"batch_size": 20, "epochs": 12}]}

_LIST = "a list of objects with 'job' and 'regimes'"
_MAX_EPOCHS = 10**9


def with_regimes(trace: Trace, path: Path) -> Trace:
    """Give the jobs of a trace the regimes of a file. Their steps become those of whole epochs: epochs × samples per epoch /
    batch size."""
    entries = parse_json(path, whole_file(path))
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise InputError(path, _LIST)
    place = {job.name: index for index, job in enumerate(trace.jobs)}
    jobs, dynamics = list(trace.jobs), dict[str, JobDynamics](trace.dynamics)
    entry_of: dict[int, int] = {}
    for entry, record in enumerate(entries, start=1):
        at = place.get(f"job-{_whole(path, entry, record, 'job', 0)}")
        if at is None:
            raise InputError(path, f"the number of a job of {trace.name}", line=entry, field="job", value=record["job"])
        if (before := entry_of.setdefault(at, entry)) != entry:
            raise InputError(
                path, f"each job only once; entry {before} has it too", line=entry, field="job", value=record["job"]
            )
        job = jobs[at]
        size = batch_size_of(job.kind)
        if size is None or record.get("job_type", job.kind) != job.kind:
            expected = f"{job.kind!r} with a batch size, as job {job.name!r} of {trace.name} is"
            raise InputError(path, expected, line=entry, field="job_type", value=record.get("job_type"))
        parts = _parts(path, entry, record)
        epochs = sum(count for _, count in parts)
        steps = epochs * _whole(path, entry, record, "samples_per_epoch", 1) / size
        if not steps <= MAX_STEPS:
            raise InputError(path, f"epochs that make at most {MAX_STEPS:g} steps", line=entry, field="regimes", value=epochs)
        jobs[at] = job = replace(job, steps=steps)
        dynamics[job.name] = Regimes.of(job, [(size, count / epochs) for size, count in parts])
    return replace(trace, jobs=tuple(jobs), dynamics=dynamics)


def _parts(path: Path, entry: int, record: Mapping[str, Any]) -> list[tuple[int, int]]:
    regimes = record.get("regimes")
    if not isinstance(regimes, list) or not regimes or not all(isinstance(each, dict) for each in regimes):
        expected = "a list of objects with 'batch_size' and 'epochs'"
        raise InputError(path, expected, line=entry, field="regimes", value=regimes)
    return [(_whole(path, entry, r, "batch_size", 1, MAX_BATCH_SIZE), _whole(path, entry, r, "epochs", 1)) for r in regimes]


def _whole(path: Path, entry: int, record: Mapping[str, Any], field: str, low: int, high: int = _MAX_EPOCHS) -> int:
    value = record.get(field)
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high and value == int(value)
    if not good:
        raise InputError(path, f"a whole number from {low} to {high:,}", line=entry, field=field, value=value)
    return int(value)  # type: ignore[arg-type]
