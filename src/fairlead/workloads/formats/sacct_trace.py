"""Slurm's accounting as `sacct -P` prints it: a header, and a line for each job and job step, with `|` between columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.workloads.formats.base import JobList, first_row, timed_job
from fairlead.workloads.formats.text_fields import (
    MAX_WORKERS,
    BadField,
    LeftOut,
    check_width,
    header_of,
    parse_name,
    parse_seconds,
    parse_time,
    split_lines,
)
from fairlead.workloads.trace import OnBad, Trace

_EXAMPLE = "resources such as cpu=8,gres/gpu:a100=2,mem=64G"
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP]?)")
_IN_GB = {"K": 2.0**-20, "": 2.0**-10, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}
_UNTYPED = "gres/gpu"


@dataclass(frozen=True)
class _Resources:
    """The trackable resources of a whole job."""

    accelerators: int = 0
    types: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_gb: float = 0.0


def _resources(field: str, text: str) -> _Resources:
    """Parse trackable resources such as `cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1`. The count without a type includes
    those with a type; where it is missing, they are summed."""
    untyped: int | None = None
    typed: dict[str, int] = {}
    cpus = memory_gb = 0.0
    for part in text.split(",") if text else ():
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise BadField(field, text, _EXAMPLE)
        if key == _UNTYPED:
            untyped = _count(field, text, value)
        elif key.startswith(_UNTYPED + ":"):
            typed[key[len(_UNTYPED) + 1 :].lower()] = _count(field, text, value)
        elif key == "cpu":
            cpus = float(_count(field, text, value))
        elif key == "mem":
            memory_gb = _memory_gb(field, text, value)
    total = sum(typed.values()) if untyped is None else untyped
    return _Resources(total, tuple(kind for kind, count in typed.items() if count), cpus, memory_gb)


def _count(field: str, text: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,7}", value) or int(value) > MAX_WORKERS:
        raise BadField(field, text, f"whole numbers from 0 to {MAX_WORKERS:,} in {_EXAMPLE}")
    return int(value)


def _memory_gb(field: str, text: str, value: str) -> float:
    match = _MEMORY.fullmatch(value.upper().rstrip("NC"))
    if match is None:
        raise BadField(field, text, _EXAMPLE)
    return float(match[1]) * _IN_GB[match[2]]


_NOT_ENDED = ("PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING", "REQUEUE_HOLD", "CONFIGURING", "COMPLETING")
_NO_LIMIT = ("", "UNLIMITED", "PARTITION_LIMIT", "INVALID")
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,2})(?:\.\d+)?")


class SacctTrace:
    """Job steps (`123.batch`) are parts of their jobs. Jobs without GPUs, jobs that never ran and jobs that have not
    ended are listed as left out."""

    name = "sacct"
    summary = "Slurm sacct -P: JobID|User|Account|Submit|ElapsedRaw|ReqTRES|AllocTRES|State|Timelimit|…"

    def sniff(self, path: Path, head: str) -> bool:
        """Whether the header has a job's number and time of submission."""
        cells = {cell.lower() for cell in first_row(head, "|")}
        return "submit" in cells and bool({"jobid", "jobidraw"} & cells)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; second 0 is the first submission."""
        rows = split_lines(path, "|", on_bad)
        header_line, names = header_of(rows, path)
        table = _Table.of(names, path, header_line)
        return JobList(path, on_bad).read(rows, table.job, rebase=True).trace(dated=True)


@dataclass(frozen=True)
class _Table:
    """The columns of one file. Slurm's names do not depend on the case, and the user chose which columns there are."""

    names: tuple[str, ...]  # in lower case
    written: Mapping[str, str]  # as the header has them

    @classmethod
    def of(cls, header: list[str], path: Path, line: int) -> _Table:
        table = cls(tuple(name.lower() for name in header), {name.lower(): name for name in header})
        for alternatives in (("JobID", "JobIDRaw"), ("Submit",), ("AllocTRES", "ReqTRES"), ("ElapsedRaw", "Elapsed", "End")):
            if not any(name.lower() in table.names for name in alternatives):
                expected = f"a column {' or '.join(alternatives)} (sacct --format=…)"
                raise InputError(path, expected, line=line, field=alternatives[0])
        if "start" not in table.names and not {"elapsedraw", "elapsed"} & set(table.names):
            raise InputError(path, "a column ElapsedRaw or Elapsed, or both Start and End", line=line, field="Start")
        return table

    @property
    def id(self) -> str:
        return "jobid" if "jobid" in self.names else "jobidraw"

    def job(self, line: int, row: list[str]) -> Job | None:
        """The job of a row; None for a job step."""
        check_width(row, len(self.names))
        cells = dict(zip(self.names, row))
        if "." in cells[self.id]:
            return None
        name = parse_name(self.written[self.id], cells[self.id], "the number of a job")
        state = cells.get("state", "").split(" ")[0].upper()
        if state in _NOT_ENDED:
            raise LeftOut("State", cells["state"], "a job that has ended")
        requested, given = self._resources(cells, "reqtres"), self._resources(cells, "alloctres")
        held = given if given is not None and given.accelerators else requested
        if held is None or held.accelerators == 0:
            column = "alloctres" if given is not None else "reqtres"
            raise LeftOut(self.written[column], cells[column], "a job with gres/gpu")
        duration_s = self._duration_s(cells)
        limit_s = _limit_s(cells.get("timelimit", ""))
        return timed_job(
            name,
            parse_time("Submit", cells["submit"]),
            duration_s,
            held.accelerators,
            user=cells.get("user", ""),
            account=cells.get("account", ""),
            allowed_types=(requested or held).types,
            cpus=held.cpus / held.accelerators,
            host_memory_gb=held.memory_gb / held.accelerators,
            # A job that used up its limit would not finish within it again.
            time_limit_s=limit_s if limit_s > duration_s else math.inf,
        )

    def _resources(self, cells: Mapping[str, str], column: str) -> _Resources | None:
        return _resources(self.written[column], cells[column]) if column in cells else None

    def _duration_s(self, cells: Mapping[str, str]) -> float:
        if "elapsedraw" in cells:
            field, duration_s = "ElapsedRaw", parse_seconds("ElapsedRaw", cells["elapsedraw"])
        elif "elapsed" in cells:
            field, duration_s = "Elapsed", _clock_s("Elapsed", cells["elapsed"])
        else:
            field = "Start"
            if cells["start"] in ("Unknown", "None", ""):
                raise LeftOut("Start", cells["start"], "a job that ran")
            duration_s = parse_time("End", cells["end"]) - parse_time("Start", cells["start"])
            if duration_s < 0:
                raise BadField("End", cells["end"], "a time after Start")
        if duration_s == 0:
            raise LeftOut(field, cells[field.lower()], "a job that ran")
        return duration_s


def _clock_s(field: str, text: str) -> float:
    """[days-][hours:]minutes:seconds."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise BadField(field, text, "a time such as 1-06:30:00")
    days, hours, minutes, secs = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + secs)


def _limit_s(text: str) -> float:
    return math.inf if text.upper() in _NO_LIMIT else _clock_s("Timelimit", text)
