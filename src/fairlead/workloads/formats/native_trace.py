"""Fairlead's own traces: a table whose columns are the fields of a job, as CSV or Parquet.
`docs/reference/trace-formats.md` describes the columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import ELASTIC, FORMER_FIELDS, MAX_ACCOUNT_LEVELS, TIMED, Job, batch_size_of, is_account
from fairlead.workloads.dynamics import (
    LOSS_CURVE_EXPECTED,
    REGIMES_EXPECTED,
    JobDynamics,
    LossCurve,
    Regimes,
    format_regimes,
    parse_regimes,
)
from fairlead.workloads.formats.base import JobList, first_row, full_lines
from fairlead.workloads.formats.own_columns import proposed_columns, with_native_names
from fairlead.workloads.formats.text_fields import (
    PARQUET_MAGIC,
    BadField,
    check_names,
    check_width,
    header_of,
    is_parquet_name,
    parquet_rows,
    parse_number,
    parse_time,
    parse_whole,
    parse_workers,
    table_rows,
    unreadable,
    write_table,
)
from fairlead.workloads.generate import MODES
from fairlead.workloads.trace import MAX_STEPS, OnBad, Trace, raise_bad_line

Cell: TypeAlias = object
"""Text in a CSV file; text, a number, a list or nothing in a Parquet file."""

DURATION = "duration_s"
"""The column that replaces `steps` for a job without a type: seconds of run time on any accelerator."""

LOSS_CURVE = "loss_curve"
"""How the loss of a job falls. This is no field of the job: only the simulator knows it."""

REGIMES = "regimes"
"""How the batch size of a job changes; known only to the simulator, too."""

SCHEDULE = "schedule"
"""The batch sizes that the user has declared, in the same notation; a field of the job."""

DEFAULTS: Mapping[str, Any] = {column.name: column.default for column in fields(Job)}
EXTRA_COLUMNS: Mapping[str, str] = {
    DURATION: "Run time in seconds on any GPU type, in place of `steps` and `kind`.",
    LOSS_CURVE: "Loss of the job over its steps in a simulation: `start|floor|scale`.",
    REGIMES: "Batch sizes of the job in a simulation, with their shares of the steps: `32@0.3|256@0.7`.",
}
"""Columns that are no fields of a job, and what each means."""
COLUMNS = (*DEFAULTS, *EXTRA_COLUMNS)
ALL_MODES = (*MODES, ELASTIC)
WHOLE = ("workers", "priority", "retry_limit", "group_order")
_NAMES = ("name", "kind", "user", "account", "allowed_types", "group", "mode")
TEXT = (*_NAMES, "command", "after", "prediction", SCHEDULE, LOSS_CURVE, REGIMES)

_SEPARATOR = "|"
_MAY_BE_INFINITE = ("deadline_s", "time_limit_s", "max_slowdown")


def job_of(names: Sequence[str], cells: Sequence[Cell], position: int) -> tuple[Job, LossCurve | None, Regimes | None]:
    """The job of a row, and its loss curve and regimes where it has them. An empty cell is the field's default, and a job
    without a name is named by its position."""
    given = {name: _READ[name](name, cell) for name, cell in zip(names, cells) if cell is not None and cell != ""}
    given.setdefault("name", f"job-{position}")
    if "submitted_s" not in given:
        raise BadField("submitted_s", "", "seconds, at least 0")
    if DURATION in given:
        if "steps" in given or "kind" in given:
            raise BadField(DURATION, given[DURATION], "either seconds here, or steps and kind, not both")
        given["steps"] = given.pop(DURATION)
    elif "steps" not in given:
        raise BadField("steps", "", f"a number above 0 here or in {DURATION}")
    curve: LossCurve | None = given.pop(LOSS_CURVE, None)
    parts = given.pop(REGIMES, None)
    job = Job(**given)
    if not is_account(job.account):
        raise BadField("account", job.account, f"at most {MAX_ACCOUNT_LEVELS} levels, none empty, as in research/vision")
    if parts is None:
        return job, curve, None
    if batch_size_of(job.kind) is None:
        raise BadField(REGIMES, format_regimes(parts), "nothing, for a job whose kind has no batch size")
    regimes = Regimes.of(job, parts)
    if not regimes.work(job.steps) <= MAX_STEPS:
        raise BadField(REGIMES, format_regimes(parts), f"shares that make at most {MAX_STEPS:g} steps")
    return job, curve, regimes


def cells_of(
    job: Job, names: Sequence[str], curve: LossCurve | None = None, job_dynamics: JobDynamics | None = None
) -> list[Any]:
    """The values of a job's row, with None for defaults. Numbers stay numbers."""
    hidden = {
        LOSS_CURVE: curve and _SEPARATOR.join(repr(float(number)) for number in (curve.start, curve.floor, curve.scale)),
        REGIMES: format_regimes(job_dynamics.parts) if isinstance(job_dynamics, Regimes) else None,
    }
    values: list[Any] = []
    for name in names:
        value: Any = hidden[name] if name in hidden else job.steps if name == DURATION else getattr(job, name)
        if name in ("allowed_types", "after"):
            value = _SEPARATOR.join(map(str, value))
        elif name == SCHEDULE:
            value = format_regimes(value) if value else ""
        elif name in WHOLE:
            value = int(value)
        elif name not in TEXT:
            value = float(value)
        values.append(None if value in ("", math.inf) else value)
    return values


def _columns_for(jobs: Sequence[Job], losses: Mapping[str, LossCurve], dynamics: Mapping[str, JobDynamics]) -> list[str]:
    """The columns that are not empty for these jobs."""
    timed = all(job.kind == TIMED for job in jobs)
    always = ["name", "submitted_s", *([DURATION] if timed else ["steps", "kind"]), "workers"]
    others = [name for name in DEFAULTS if name not in (*always, "steps", "kind")]
    used = [name for name in others if any(getattr(job, name) != DEFAULTS[name] for job in jobs)]
    hidden = [name for name, known in ((LOSS_CURVE, losses), (REGIMES, dynamics)) if any(job.name in known for job in jobs)]
    return [*always, *used, *hidden]


def _text(field: str, cell: Cell) -> str:
    if not isinstance(cell, str):
        raise BadField(field, cell, "text")
    return cell


def _number(field: str, cell: Cell) -> float:
    if isinstance(cell, str):
        return parse_number(field, cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not math.isfinite(cell):
        raise BadField(field, cell, "a number")
    return float(cell)


def _number_or_infinity(field: str, cell: Cell) -> float:
    infinite = cell.strip().lower() == "inf" if isinstance(cell, str) else cell == math.inf
    return math.inf if infinite else _number(field, cell)


def _whole(field: str, cell: Cell) -> int:
    return parse_whole(field, cell if isinstance(cell, str) else repr(_number(field, cell)))


def _workers(field: str, cell: Cell) -> int:
    return parse_workers(field, cell if isinstance(cell, str) else str(_whole(field, cell)))


def _mode(field: str, cell: Cell) -> str:
    if _text(field, cell) not in ALL_MODES:
        raise BadField(field, cell, f"{', '.join(ALL_MODES[:-1])} or {ALL_MODES[-1]}")
    return _text(field, cell)


def _parts(field: str, cell: Cell, expected: str) -> list[Any]:
    parts = cell.split(_SEPARATOR) if isinstance(cell, str) else cell
    if not isinstance(parts, list):
        raise BadField(field, cell, expected)
    return parts


def _types(field: str, cell: Cell) -> tuple[str, ...]:
    expected = f"names of types, with '{_SEPARATOR}' between them"
    parts = _parts(field, cell, expected)
    if not all(isinstance(part, str) and part for part in parts):
        raise BadField(field, cell, expected)
    return tuple(parts)


def _numbers(field: str, cell: Cell) -> tuple[int, ...]:
    parts = _parts(field, cell, f"numbers of jobs with '{_SEPARATOR}' between them")
    return tuple(_whole(field, part) for part in parts)


def _curve(field: str, cell: Cell) -> LossCurve:
    parts = _parts(field, cell, LOSS_CURVE_EXPECTED)
    if len(parts) != 3 or not (curve := LossCurve(*(_number(field, part) for part in parts))).valid:
        raise BadField(field, cell, LOSS_CURVE_EXPECTED)
    return curve


def _regimes(field: str, cell: Cell) -> tuple[tuple[int, float], ...]:
    if not isinstance(cell, str):
        raise BadField(field, cell, REGIMES_EXPECTED)
    try:
        return parse_regimes(cell)
    except ValueError as wrong:
        raise BadField(field, cell, str(wrong)) from None


_READ: Mapping[str, Callable[[str, Cell], Any]] = {
    **dict.fromkeys(COLUMNS, _number),
    **dict.fromkeys(_MAY_BE_INFINITE, _number_or_infinity),
    **dict.fromkeys(TEXT, _text),
    **dict.fromkeys(WHOLE, _whole),
    "workers": _workers,
    "mode": _mode,
    "allowed_types": _types,
    "after": _numbers,
    LOSS_CURVE: _curve,
    **dict.fromkeys((REGIMES, SCHEDULE), _regimes),
}


ORIGIN_COMMENT = "# origin: "
ORIGIN_METADATA = b"fairlead.origin"


PredictionCheck = Callable[[str], object] | None


class NativeTrace:
    """Fairlead's own format.

    Args:
        columns: Names of columns in the file, and the native columns that they are. Where it is given, columns that it does
            not name and the format does not know are not read.
        check_prediction: Raises an InputError for a prediction that is wrong. Default: predictions are not checked.
    """

    def __init__(self, columns: Mapping[str, str] | None = None, check_prediction: PredictionCheck = None) -> None:
        self._columns, self._check_prediction = dict(columns or {}), check_prediction

    name = "native"
    summary = "Fairlead's own, CSV or Parquet: submitted_s, steps or duration_s, and any other field of a job"

    def sniff(self, path: Path, head: str) -> bool:
        """Whether it is a Parquet file, or a CSV file with a column `submitted_s`."""
        if head.startswith(PARQUET_MAGIC.decode()):
            return True
        header = next((line for line in full_lines(head) if not line.startswith("#")), "")
        return "submitted_s" in first_row(header)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace, with former column names, too."""
        try:
            with path.open("rb") as file:
                parquet = file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        except OSError as why:
            raise unreadable(path, why) from None
        return (_from_parquet if parquet else _from_csv)(path, on_bad, self._columns, self._check_prediction)


def _from_csv(path: Path, on_bad: OnBad, columns: Mapping[str, str], check: PredictionCheck) -> Trace:
    rows = table_rows(path, on_bad)
    origin: str | None = None
    for line, row in rows:
        if row[0].startswith("#"):
            comment = ",".join(row)
            if comment.startswith(ORIGIN_COMMENT):
                origin = _checked_origin(comment[len(ORIGIN_COMMENT) :].strip(), path, line)
            continue
        rows = chain([(line, row)], rows)
        break
    header_line, names = header_of(rows, path)
    return _jobs(path, on_bad, names, rows, header_line, columns, check).trace(origin=origin)


def _from_parquet(path: Path, on_bad: OnBad, columns: Mapping[str, str], check: PredictionCheck) -> Trace:
    """A row of the table counts as a line, from 1 on."""
    names, rows, metadata = parquet_rows(path)
    written = metadata.get(ORIGIN_METADATA)
    origin = None if written is None else _checked_origin(written.decode("utf-8", errors="replace"), path, None)
    return _jobs(path, on_bad, names, rows, None, columns, check).trace(origin=origin)


def _jobs(
    path: Path,
    on_bad: OnBad,
    header: Iterable[str],
    rows: Iterable[tuple[int, Sequence[Cell]]],
    header_line: int | None,
    columns: Mapping[str, str],
    check: PredictionCheck = None,
) -> JobList:
    given = names = [FORMER_FIELDS.get(name, name) for name in header]
    if columns:
        names = with_native_names(names, columns, COLUMNS, path, header_line)
    read = [place for place, name in enumerate(names) if name or not columns]
    wanted, whole = [names[place] for place in read], len(read) == len(names)
    _check_columns(wanted, path, header_line)
    jobs = JobList(path, on_bad, unread=[own for own, name in zip(given, names) if columns and not name])
    for line, row in rows:
        try:
            check_width(row, len(names))
            cells = row if whole else [row[place] for place in read]
            if columns:
                cells = [_calendar_seconds(cell) if name == "submitted_s" else cell for name, cell in zip(wanted, cells)]
            job, curve, regimes = job_of(wanted, cells, line - (header_line or 0) - 1)
            if job.prediction and check is not None:
                _check_prediction(job.prediction, check)
            jobs.add(job, line, curve, regimes)
        except BadField as bad:
            on_bad(bad.at(path, line))
    return jobs.rebased() if columns else jobs


def _check_prediction(text: str, check: Callable[[str], object]) -> None:
    try:
        check(text)
    except InputError as bad:
        field = "prediction" if bad.field in (None, "prediction") else f"prediction.{bad.field}"
        raise BadField(field, bad.value, bad.expected) from None


def _calendar_seconds(cell: Cell) -> Cell:
    """Seconds since 1970 where the cell has a calendar time; any other cell as it is."""
    text = cell.isoformat() if isinstance(cell, datetime) else cell
    return parse_time("submitted_s", text) if isinstance(text, str) and re.match(r"\s*\d{4}-\d", text) else text


def _check_columns(names: Sequence[str], path: Path, line: int | None) -> None:
    check_names(names, path, line)
    for name in names:
        if name not in COLUMNS:
            wanted = f"a column of the native format ({near_or_all(name, COLUMNS)}){proposed_columns(names)}"
            raise InputError(path, wanted, line=line, field=name)
    for needed in (("submitted_s",), ("steps", DURATION)):
        if not set(needed) & set(names):
            raise InputError(path, f"a column {' or '.join(needed)}{proposed_columns(names)}", line=line, field=needed[0])


def _checked_origin(text: str, path: Path, line: int | None) -> str:
    """The text itself, if it is a calendar time."""
    try:
        parse_time("origin", text)
    except BadField as bad:
        raise InputError(path, bad.expected, line=line, field="origin", value=text) from None
    return text


MAX_TEXT_BYTES = 1 << 15
"""Eight such texts in quotes still fit into a line."""


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace as CSV or Parquet, by the path's suffix. A job that would be read back changed is an error, and a file is
    written completely or not at all."""
    path = Path(path)
    if path.suffix.lower() != ".csv" and not is_parquet_name(path):
        raise InputError(path, "a name that ends in .csv or .parquet", field="suffix", value=path.suffix)
    origin = None if trace.origin is None else _checked_origin(trace.origin, path, None)
    names = _columns_for(trace.jobs, trace.losses, trace.dynamics)
    types = {name: "int64" if name in WHOLE else "string" if name in TEXT else "float64" for name in names}
    write_table(
        path,
        names,
        _checked_rows(trace, names, path),
        types,
        comment="" if origin is None else f"{ORIGIN_COMMENT}{origin}\n",
        metadata=None if origin is None else {ORIGIN_METADATA: origin.encode("utf-8")},
    )


def _checked_rows(trace: Trace, names: Sequence[str], path: Path) -> list[list[Any]]:
    rows: list[list[Any]] = []
    known = JobList(path, raise_bad_line)
    for line, job in enumerate(trace.jobs, start=1):
        job_dynamics = trace.dynamics.get(job.name)
        row = cells_of(job, names, trace.losses.get(job.name), job_dynamics)
        try:
            for name, cell in zip(names, row):
                if isinstance(cell, str):
                    _check_text(name, cell)
            again, _, regimes = job_of(names, row, -1)
        except BadField as bad:
            raise bad.at(path, line) from None
        if again != job:
            lost = next(f.name for f in fields(Job) if getattr(again, f.name) != getattr(job, f.name))
            raise InputError(path, "a value that can be written", line=line, field=lost, value=getattr(job, lost))
        if regimes != job_dynamics:
            expected = "regimes of its own batch size and steps: no other dynamics can be written"
            raise InputError(path, expected, line=line, field=REGIMES, value=job.name)
        known.add(job, line)
        rows.append(row)
    return rows


def _check_text(field: str, text: str) -> None:
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadField(field, ascii(text), "text that UTF-8 can encode") from None
    if "\0" in text:
        raise BadField(field, text, "text without NUL")
    if length > MAX_TEXT_BYTES:
        raise BadField(field, text, f"at most {MAX_TEXT_BYTES:,} bytes")
