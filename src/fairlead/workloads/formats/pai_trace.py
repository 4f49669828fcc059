"""Alibaba's PAI trace of 2020: a table of jobs, and in the same folder a table of their tasks. The public files have no header;
files with one are read, too."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.workloads.formats.base import JobList, Row, first_row, timed_job
from fairlead.workloads.formats.text_fields import (
    MAX_WORKERS,
    BadField,
    LeftOut,
    check_width,
    parse_amount,
    parse_name,
    parse_seconds,
    table_rows,
)
from fairlead.workloads.trace import OnBad, Trace

JOB_TABLE, TASK_TABLE = "pai_job_table", "pai_task_table"
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_STATUSES = ("Terminated", "Failed", "Running", "Waiting")
_ANY_TYPE = ("", "misc", "cpu")


class PaiTrace:
    """The path is the table of jobs, or the folder of both tables. Jobs without GPUs, jobs that never ran and jobs that
    have not ended are listed as left out."""

    name = "pai"
    summary = "Alibaba PAI 2020: pai_job_table.csv with pai_task_table.csv in the same folder, or that folder"

    def sniff(self, path: Path, head: str) -> bool:
        """Whether the names of files, the header or the first row are of this format."""
        if os.path.isdir(path):
            return os.path.isfile(path / f"{JOB_TABLE}.csv")
        row = first_row(head)
        return (
            path.name.startswith((JOB_TABLE, TASK_TABLE))
            or row == list(JOB_COLUMNS)
            or (len(row) == len(JOB_COLUMNS) and row[3] in _STATUSES)
        )

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; second 0 is the first submission."""
        jobs, tasks = _tables(path)
        demands = _demands(tasks, on_bad)
        rows = _rows(jobs, JOB_COLUMNS, on_bad)
        return JobList(jobs, on_bad).read(rows, lambda _, row: _job(row, demands), rebase=True).trace()


@dataclass
class _TaskDemand:
    """What the tasks of one job request together, and when the first with accelerators began and the last ended."""

    percent_of_accelerators: float = 0.0
    percent_of_cpus: float = 0.0
    memory_gb: float = 0.0
    begun_s: float = math.inf
    ended_s: float = -math.inf
    types: dict[str, None] = field(default_factory=dict)
    complete: bool = True  # none of its lines was bad


def _tables(path: Path) -> tuple[Path, Path]:
    if os.path.isdir(path):
        jobs, tasks = path / f"{JOB_TABLE}.csv", path / f"{TASK_TABLE}.csv"
    elif path.name.startswith(TASK_TABLE):
        jobs, tasks = path.with_name(path.name.replace(TASK_TABLE, JOB_TABLE, 1)), path
    elif path.name.startswith(JOB_TABLE):
        jobs, tasks = path, path.with_name(path.name.replace(JOB_TABLE, TASK_TABLE, 1))
    else:
        jobs, tasks = path, path.with_name(f"{TASK_TABLE}.csv")
    for table in (jobs, tasks):
        if not os.path.isfile(table):
            raise InputError(table, f"this file in the same folder as the other table ({JOB_TABLE}.csv and {TASK_TABLE}.csv)")
    return jobs, tasks


def _rows(path: Path, header: Sequence[str], on_bad: OnBad) -> Iterator[Row]:
    """The rows after the header, if there is one."""
    for line, row in table_rows(path, on_bad):
        if line == 1 and row[0].strip() == header[0]:
            if [cell.strip() for cell in row] != list(header):
                raise InputError(path, f"the columns {', '.join(header)}", line=1, field="header", value=",".join(row))
            continue
        yield line, row


def _demands(path: Path, on_bad: OnBad) -> dict[str, _TaskDemand]:
    demands: dict[str, _TaskDemand] = {}
    for line, row in _rows(path, TASK_COLUMNS, on_bad):
        demand = demands.setdefault(row[0], _TaskDemand())
        try:
            check_width(row, len(TASK_COLUMNS))
            _add_task(demand, row)
        except BadField as bad:
            demand.complete = False
            on_bad(bad.at(path, line))
    return demands


def _add_task(demand: _TaskDemand, row: Sequence[str]) -> None:
    _job, _task, instances, _status, start, end, cpus, memory, accelerators, type_name = row
    times = _requested("inst_num", instances)
    demand.percent_of_cpus += times * _requested("plan_cpu", cpus)
    demand.memory_gb += times * _requested("plan_mem", memory)
    percent = times * _requested("plan_gpu", accelerators)
    if percent == 0:
        return
    demand.percent_of_accelerators += percent
    if start and end:
        demand.begun_s = min(demand.begun_s, parse_seconds("start_time", start))
        demand.ended_s = max(demand.ended_s, parse_seconds("end_time", end))
    if type_name.lower() not in _ANY_TYPE:
        demand.types[type_name.lower()] = None


def _job(row: Sequence[str], demands: dict[str, _TaskDemand]) -> Job:
    check_width(row, len(JOB_COLUMNS))
    name, _id, user, status, start, end = row
    parse_name("job_name", name)
    if status not in _STATUSES:
        raise BadField("status", status, f"one of {', '.join(_STATUSES)}")
    submitted_s = parse_seconds("start_time", start)
    demand = demands.get(name)
    if demand is None or not demand.complete:
        raise LeftOut("job_name", name, f"a job whose tasks are all in {TASK_TABLE}")
    if demand.percent_of_accelerators == 0:
        raise LeftOut("job_name", name, "a job with a task of plan_gpu above 0")
    if status in ("Running", "Waiting") or not end:
        raise LeftOut("status", status, "a job that has ended")
    ended_s = parse_seconds("end_time", end)
    if ended_s < submitted_s:
        raise BadField("end_time", end, "a time after start_time")
    began = demand.begun_s < demand.ended_s
    duration_s = demand.ended_s - demand.begun_s if began else ended_s - submitted_s
    if duration_s == 0:
        raise LeftOut("end_time", end, "a job that ran")
    # Slightly less, so that 3 × 33.333… percent are one accelerator and not two.
    workers = max(1, math.ceil(demand.percent_of_accelerators / 100 - 1e-6))
    if workers > MAX_WORKERS:
        raise BadField("job_name", name, f"at most {MAX_WORKERS:,} GPUs")
    return timed_job(
        name,
        submitted_s,
        duration_s,
        workers,
        user=user,
        allowed_types=tuple(demand.types),
        cpus=demand.percent_of_cpus / 100 / workers,
        host_memory_gb=demand.memory_gb / workers,
    )


def _requested(field: str, text: str) -> float:
    """An empty cell requests nothing."""
    return parse_amount(field, text) if text else 0.0
