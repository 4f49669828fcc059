"""Slurm's accounting as `sacct -P` prints it: a header, and a line per job and job step, parted by bars."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.workloads.formats.base import Submission, first_row, from_the_earliest
from fairlead.workloads.formats.text_fields import (
    MOST_WORKERS,
    BadField,
    LeftOut,
    check_width,
    header_of,
    moment,
    named,
    seconds,
    split_lines,
)
from fairlead.workloads.trace import OnBad, Trace

# Slurm's trackable resources, as in `billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1`: what a scheduler for
# accelerators wants to know of them.

_EXAMPLE = "resources such as cpu=8,gres/gpu:a100=2,mem=64G"
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP]?)")
_IN_GB = {"K": 2.0**-20, "": 2.0**-10, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}
_UNTYPED = "gres/gpu"


@dataclass(frozen=True)
class Resources:
    """Of a whole job."""

    accelerators: int = 0
    types: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_gb: float = 0.0


def resources(field: str, text: str) -> Resources:
    """What the text grants. The count without a type includes those with one; where it is missing, they are summed."""
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
    return Resources(total, tuple(kind for kind, count in typed.items() if count), cpus, memory_gb)


def _count(field: str, text: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,7}", value) or int(value) > MOST_WORKERS:
        raise BadField(field, text, f"whole numbers from 0 to {MOST_WORKERS:,} in {_EXAMPLE}")
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
    """Job steps (`123.batch`) are parts of their jobs. Jobs without accelerators, those that never ran and those that have not
    ended are outside of the question: they are listed as left out."""

    name = "sacct"
    summary = "Slurm sacct -P: JobID|User|Account|Submit|ElapsedRaw|ReqTRES|AllocTRES|State|Timelimit|…"

    def sniff(self, path: Path, head: str) -> bool:
        cells = {cell.lower() for cell in first_row(head, "|")}
        return "submit" in cells and bool({"jobid", "jobidraw"} & cells)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        rows = split_lines(path, "|", on_bad)
        top, names = header_of(rows, path)
        table = _Table.of(names, path, top)
        submissions: list[Submission] = []
        left_out: list[InputError] = []
        for line, row in rows:
            try:
                check_width(row, len(names))
                cells = dict(zip(table.names, row))
                if "." in cells[table.id]:
                    continue
                submissions.append(table.submission(line, cells))
            except LeftOut as why:
                left_out.append(why.at(path, line))
            except BadField as bad:
                on_bad(bad.at(path, line))
        return from_the_earliest(submissions, path, on_bad, left_out=left_out)


@dataclass(frozen=True)
class _Table:
    """The columns of one file. Slurm's names are the same in any case, and the user chose which are there."""

    names: tuple[str, ...]  # in lower case
    written: Mapping[str, str]  # as the header has them

    @classmethod
    def of(cls, header: list[str], path: Path, line: int) -> _Table:
        table = cls(tuple(name.lower() for name in header), {name.lower(): name for name in header})
        for alternatives in (
            ("JobID", "JobIDRaw"),
            ("Submit",),
            ("AllocTRES", "ReqTRES"),
            ("ElapsedRaw", "Elapsed", "End"),
        ):
            if not any(name.lower() in table.names for name in alternatives):
                expected = f"a column {' or '.join(alternatives)} (sacct --format=…)"
                raise InputError(path, expected, line=line, field=alternatives[0])
        if "start" not in table.names and not {"elapsedraw", "elapsed"} & set(table.names):
            raise InputError(path, "a column ElapsedRaw or Elapsed, or both Start and End", line=line, field="Start")
        return table

    @property
    def id(self) -> str:
        return "jobid" if "jobid" in self.names else "jobidraw"

    def submission(self, line: int, cells: Mapping[str, str]) -> Submission:
        name = named(self.written[self.id], cells[self.id], "the number of a job")
        state = cells.get("state", "").split(" ")[0].upper()
        if state in _NOT_ENDED:
            raise LeftOut("State", cells["state"], "a job that has ended")
        asked, given = self._resources(cells, "reqtres"), self._resources(cells, "alloctres")
        held = given if given is not None and given.accelerators else asked
        if held is None or held.accelerators == 0:
            column = "alloctres" if given is not None else "reqtres"
            raise LeftOut(self.written[column], cells[column], "a job with gres/gpu")
        duration_s = self._duration_s(cells)
        limit_s = _limit_s(cells.get("timelimit", ""))
        return Submission(
            line,
            moment("Submit", cells["submit"]),
            name,
            duration_s,
            held.accelerators,
            cells.get("user", ""),
            cells.get("account", ""),
            (asked or held).types,
            held.cpus / held.accelerators,
            held.memory_gb / held.accelerators,
            # A job that used up its limit would not finish within it again.
            limit_s if limit_s > duration_s else math.inf,
        )

    def _resources(self, cells: Mapping[str, str], column: str) -> Resources | None:
        return resources(self.written[column], cells[column]) if column in cells else None

    def _duration_s(self, cells: Mapping[str, str]) -> float:
        if "elapsedraw" in cells:
            field, duration_s = "ElapsedRaw", seconds("ElapsedRaw", cells["elapsedraw"])
        elif "elapsed" in cells:
            field, duration_s = "Elapsed", _clock_s("Elapsed", cells["elapsed"])
        else:
            field = "Start"
            if cells["start"] in ("Unknown", "None", ""):
                raise LeftOut("Start", cells["start"], "a job that ran")
            duration_s = moment("End", cells["end"]) - moment("Start", cells["start"])
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
