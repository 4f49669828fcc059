"""Shockwave's `.trace`: Gavel's ten columns, with the way the batch size changes after the workers, and the duration before the
arrival."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError
from fairlead.core.job import Job, batch_size_of
from fairlead.workloads.dynamics import LARGEST, JobDynamics, Regimes
from fairlead.workloads.formats.base import JobList, usual_width
from fairlead.workloads.formats.gavel_trace import slo_multiple
from fairlead.workloads.formats.text_fields import BadField, named, positive, seconds, split_lines, whole_file, workers
from fairlead.workloads.trace import MOST_STEPS, OnBad, Trace

COLUMNS = 12
MODES = ("static", "accordion", "gns")


class ShockwaveTrace:
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


# Regimes beside a trace: a JSON list with an object for each job, as Shockwave's traces have them.
#
# {"job": 3, "job_type": "LM (batch size 10)", "samples_per_epoch": 59675,
# "regimes": [{"batch_size": 10, "epochs": 11}, {"batch_size": 20, "epochs": 12}]}
#
# Job N is the one called `job-N` in the trace. What else an object says is passed over. It knows no trace format.

_LIST = "a list of objects with 'job' and 'regimes'"
_MOST_EPOCHS = 10**9


def with_regimes(trace: Trace, path: Path) -> Trace:
    """The trace, whose jobs have the regimes of a file. Their steps are then those of whole epochs: epochs × samples of an
    epoch / batch size."""
    raw = whole_file(path)
    try:
        told = json.loads(raw)
    except ValueError as why:
        raise InputError(path, f"JSON ({why})") from None
    except RecursionError:
        raise InputError(path, _LIST + ", not lists in lists without end") from None
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise InputError(path, _LIST)
    place = {job.name: index for index, job in enumerate(trace.jobs)}
    jobs, dynamics = list(trace.jobs), dict[str, JobDynamics](trace.dynamics)
    entry_of: dict[int, int] = {}
    for entry, each in enumerate(told, start=1):
        at = place.get(f"job-{_whole(path, entry, each, 'job', 0)}")
        if at is None:
            raise InputError(path, f"the number of a job of {trace.name}", line=entry, field="job", value=each["job"])
        if (before := entry_of.setdefault(at, entry)) != entry:
            raise InputError(path, f"each job once; entry {before} has it too", line=entry, field="job", value=each["job"])
        job = jobs[at]
        size = batch_size_of(job.kind)
        if size is None or each.get("job_type", job.kind) != job.kind:
            expected = f"{job.kind!r} with a batch size, as job {job.name!r} of {trace.name} is"
            raise InputError(path, expected, line=entry, field="job_type", value=each.get("job_type"))
        parts = _parts(path, entry, each)
        epochs = sum(count for _, count in parts)
        steps = epochs * _whole(path, entry, each, "samples_per_epoch", 1) / size
        if not steps <= MOST_STEPS:
            raise InputError(path, f"epochs that make at most {MOST_STEPS:g} steps", line=entry, field="regimes", value=epochs)
        jobs[at] = job = replace(job, steps=steps)
        dynamics[job.name] = Regimes.of(job, [(size, count / epochs) for size, count in parts])
    return replace(trace, jobs=tuple(jobs), dynamics=dynamics)


def _parts(path: Path, entry: int, told: Mapping[str, Any]) -> list[tuple[int, int]]:
    regimes = told.get("regimes")
    if not isinstance(regimes, list) or not regimes or not all(isinstance(each, dict) for each in regimes):
        expected = "a list of objects with 'batch_size' and 'epochs'"
        raise InputError(path, expected, line=entry, field="regimes", value=regimes)
    return [(_whole(path, entry, r, "batch_size", 1, LARGEST), _whole(path, entry, r, "epochs", 1)) for r in regimes]


def _whole(path: Path, entry: int, told: Mapping[str, Any], field: str, least: int, most: int = _MOST_EPOCHS) -> int:
    value = told.get(field)
    good = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most and value == int(value)
    if not good:
        raise InputError(path, f"a whole number from {least} to {most:,}", line=entry, field=field, value=value)
    return int(value)  # type: ignore[arg-type]
