"""Fairlead's own traces: a table whose columns are the fields of a job, as CSV or as Parquet. `docs/traces.md` tells what may
stand in each column."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import ELASTIC, FORMER_FIELDS, TIMED, Job, batch_size_of
from fairlead.files import atomic_write
from fairlead.workloads import generate as adaptation
from fairlead.workloads.dynamics import EXPECTED, JobDynamics, LossCurve, Regimes, parsed, spelt
from fairlead.workloads.formats.base import JobList, first_row, full_lines
from fairlead.workloads.formats.text_fields import (
    MOST_WHOLE,
    PARQUET_MAGIC,
    BadField,
    check_names,
    check_width,
    header_of,
    moment,
    number,
    table_rows,
    unreadable,
    whole,
    workers,
)
from fairlead.workloads.trace import MOST_STEPS, OnBad, Trace, raise_it

# A job and the cells of its row in Fairlead's own tables, one the inverse of the other. It knows neither CSV nor Parquet: a
# cell is text, or what a typed table holds.

Cell: TypeAlias = object
"""Text in a CSV file; text, a number, a list or nothing in a Parquet file."""

DURATION = "duration_s"
"""The column that stands for `steps` of a job without a kind: seconds of run time on any type."""

LOSS_CURVE = "loss_curve"
"""The column of what is no part of a job: how its loss falls, which the simulated world alone knows."""

REGIMES = "regimes"
"""Likewise: how its batch size changes."""

SCHEDULE = "schedule"
"""How its owner has planned that, in the same words; a field of the job."""

DEFAULTS: Mapping[str, Any] = {column.name: column.default for column in fields(Job)}
COLUMNS = (*DEFAULTS, DURATION, LOSS_CURVE, REGIMES)
MODES = (*adaptation.MODES, ELASTIC)
WHOLE = ("workers", "priority", "retry_limit", "group_order")
TEXT = ("name", "kind", "user", "account", "allowed_types", "group", "mode", "command", "after", SCHEDULE, LOSS_CURVE, REGIMES)

_BETWEEN = "|"
_MAY_BE_ENDLESS = ("deadline_s", "time_limit_s", "max_slowdown")


def job_of(names: Sequence[str], cells: Sequence[Cell], position: int) -> tuple[Job, LossCurve | None, Regimes | None]:
    """The job of a row, and its loss curve and regimes where it has them. An empty cell stands for the field's default, and a
    job without a name is called by its position."""
    given = {name: _READ[name](name, cell) for name, cell in zip(names, cells) if cell is not None and cell != ""}
    given.setdefault("name", f"job-{position}")
    if "submitted_s" not in given:
        raise BadField("submitted_s", "", "seconds from 0 on")
    if DURATION in given:
        if "steps" in given or "kind" in given:
            raise BadField(DURATION, given[DURATION], "either seconds here, or steps and kind, not both")
        given["steps"] = given.pop(DURATION)
    elif "steps" not in given:
        raise BadField("steps", "", f"a number above 0 here or in {DURATION}")
    curve: LossCurve | None = given.pop(LOSS_CURVE, None)
    parts = given.pop(REGIMES, None)
    job = Job(**given)
    if parts is None:
        return job, curve, None
    if batch_size_of(job.kind) is None:
        raise BadField(REGIMES, spelt(parts), "nothing, for a job whose kind has no batch size")
    regimes = Regimes.of(job, parts)
    if not regimes.work(job.steps) <= MOST_STEPS:
        raise BadField(REGIMES, spelt(parts), f"shares that make at most {MOST_STEPS:g} steps")
    return job, curve, regimes


def cells_of(
    job: Job, names: Sequence[str], curve: LossCurve | None = None, job_dynamics: JobDynamics | None = None
) -> list[Any]:
    """The values of a job's row, with nothing where a default would be read. Numbers stay numbers."""
    values: list[Any] = []
    for name in names:
        if name == LOSS_CURVE:
            values.append(None if curve is None else _spelt(curve))
            continue
        if name == REGIMES:
            values.append(spelt(job_dynamics.parts) if isinstance(job_dynamics, Regimes) else None)
            continue
        value: Any = job.steps if name == DURATION else getattr(job, name)
        if name in ("allowed_types", "after"):
            value = _BETWEEN.join(map(str, value))
        elif name == SCHEDULE:
            value = spelt(value) if value else ""
        elif name in WHOLE:
            value = int(value)
        elif name not in TEXT:
            value = float(value)
        values.append(None if value in ("", math.inf) else value)
    return values


def _spelt(curve: LossCurve) -> str:
    return _BETWEEN.join(repr(float(number)) for number in (curve.start, curve.floor, curve.scale))


def columns_for(jobs: Sequence[Job], losses: Mapping[str, LossCurve], dynamics: Mapping[str, JobDynamics]) -> list[str]:
    """The columns that say something about these jobs."""
    timed = all(job.kind == TIMED for job in jobs)
    always = ["name", "submitted_s", *([DURATION] if timed else ["steps", "kind"]), "workers"]
    others = [name for name in DEFAULTS if name not in (*always, "steps", "kind")]
    told = [name for name in others if any(getattr(job, name) != DEFAULTS[name] for job in jobs)]
    secrets = [name for name, known in ((LOSS_CURVE, losses), (REGIMES, dynamics)) if any(job.name in known for job in jobs)]
    return [*always, *told, *secrets]


def _text(field: str, cell: Cell) -> str:
    if not isinstance(cell, str):
        raise BadField(field, cell, "text")
    return cell


def _number(field: str, cell: Cell) -> float:
    if isinstance(cell, str):
        return number(field, cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not math.isfinite(cell):
        raise BadField(field, cell, "a number")
    return float(cell)


def _number_or_endless(field: str, cell: Cell) -> float:
    endless = cell.strip().lower() == "inf" if isinstance(cell, str) else cell == math.inf
    return math.inf if endless else _number(field, cell)


def _whole(field: str, cell: Cell) -> int:
    if isinstance(cell, str):
        return whole(field, cell)
    value = _number(field, cell)
    if not value.is_integer() or abs(value) > MOST_WHOLE:
        raise BadField(field, cell, "a whole number")
    return int(value)


def _workers(field: str, cell: Cell) -> int:
    return workers(field, cell if isinstance(cell, str) else str(_whole(field, cell)))


def _mode(field: str, cell: Cell) -> str:
    if _text(field, cell) not in MODES:
        raise BadField(field, cell, f"{', '.join(MODES[:-1])} or {MODES[-1]}")
    return _text(field, cell)


def _types(field: str, cell: Cell) -> tuple[str, ...]:
    parts = cell.split(_BETWEEN) if isinstance(cell, str) else cell
    if not isinstance(parts, list) or not all(isinstance(part, str) and part for part in parts):
        raise BadField(field, cell, f"names of types with '{_BETWEEN}' between them")
    return tuple(parts)


def _numbers(field: str, cell: Cell) -> tuple[int, ...]:
    parts = cell.split(_BETWEEN) if isinstance(cell, str) else cell
    if not isinstance(parts, list):
        raise BadField(field, cell, f"numbers of jobs with '{_BETWEEN}' between them")
    return tuple(_whole(field, part) for part in parts)


def _curve(field: str, cell: Cell) -> LossCurve:
    parts = cell.split(_BETWEEN) if isinstance(cell, str) else cell
    if not isinstance(parts, list) or len(parts) != 3:
        raise BadField(field, cell, LossCurve(0.0, 0.0, 0.0).wrong)
    curve = LossCurve(*(_number(field, part) for part in parts))
    if curve.wrong:
        raise BadField(field, cell, curve.wrong)
    return curve


def _regimes(field: str, cell: Cell) -> tuple[tuple[int, float], ...]:
    if not isinstance(cell, str):
        raise BadField(field, cell, EXPECTED)
    try:
        return parsed(cell)
    except ValueError as wrong:
        raise BadField(field, cell, str(wrong)) from None


def _reader(name: str) -> Callable[[str, Cell], Any]:
    if name == "workers":
        return _workers
    if name == "mode":
        return _mode
    if name == "allowed_types":
        return _types
    if name == "after":
        return _numbers
    if name == LOSS_CURVE:
        return _curve
    if name in (REGIMES, SCHEDULE):
        return _regimes
    if name in WHOLE:
        return _whole
    if name in TEXT:
        return _text
    return _number_or_endless if name in _MAY_BE_ENDLESS else _number


_READ = {name: _reader(name) for name in COLUMNS}


ORIGIN_COMMENT = "# origin: "
ORIGIN_METADATA = b"fairlead.origin"


class NativeTrace:
    name = "native"
    summary = "Fairlead's own, CSV or Parquet: submitted_s, steps or duration_s, and any other field of a job"

    def sniff(self, path: Path, head: str) -> bool:
        if head.startswith(PARQUET_MAGIC.decode()):
            return True
        header = next((line for line in full_lines(head) if not line.startswith("#")), "")
        return "submitted_s" in first_row(header)

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        try:
            with path.open("rb") as file:
                parquet = file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        except OSError as why:
            raise unreadable(path, why) from None
        return _from_parquet(path, on_bad) if parquet else _from_csv(path, on_bad)


def _from_csv(path: Path, on_bad: OnBad) -> Trace:
    rows = table_rows(path, on_bad)
    origin: str | None = None
    for line, row in rows:
        if row[0].startswith("#"):
            comment = ",".join(row)
            if comment.startswith(ORIGIN_COMMENT):
                origin = checked_origin(comment[len(ORIGIN_COMMENT) :].strip(), path, line)
            continue
        rows = chain([(line, row)], rows)
        break
    top, names = header_of(rows, path)
    names = [FORMER_FIELDS.get(name, name) for name in names]
    _check_columns(names, path, top)
    jobs = JobList(path, on_bad)
    for line, row in rows:
        try:
            check_width(row, len(names))
            job, curve, regimes = job_of(names, row, line - top - 1)
            jobs.add(job, line, curve, regimes)
        except BadField as bad:
            on_bad(bad.at(path, line))
    return jobs.trace(origin=origin)


def _from_parquet(path: Path, on_bad: OnBad) -> Trace:
    """A row of the table counts as a line, from 1 on."""
    import pyarrow as pa  # a quarter of a second, and few need it
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        columns = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, ValueError) as why:
        first_line = (str(why).strip().splitlines() or ["damaged"])[0]
        raise InputError(path, f"a Parquet file that can be read ({first_line})") from None
    names = [FORMER_FIELDS.get(name, name) for name in table.column_names]
    _check_columns(names, path, None)
    told = (table.schema.metadata or {}).get(ORIGIN_METADATA)
    origin = None if told is None else checked_origin(told.decode("utf-8", errors="replace"), path, None)
    jobs = JobList(path, on_bad)
    for line, row in enumerate(zip(*columns), start=1):
        try:
            job, curve, regimes = job_of(names, row, line - 1)
            jobs.add(job, line, curve, regimes)
        except BadField as bad:
            on_bad(bad.at(path, line))
    return jobs.trace(origin=origin)


def _check_columns(names: Sequence[str], path: Path, line: int | None) -> None:
    check_names(names, path, line)
    for name in names:
        if name not in COLUMNS:
            raise InputError(path, f"a column of the native format ({near_or_all(name, COLUMNS)})", line=line, field=name)
    for needed in (("submitted_s",), ("steps", DURATION)):
        if not set(needed) & set(names):
            raise InputError(path, f"a column {' or '.join(needed)}", line=line, field=needed[0])


def checked_origin(text: str, path: Path, line: int | None) -> str:
    """The text itself, if it is a calendar time."""
    try:
        moment("origin", text)
    except BadField as bad:
        raise InputError(path, bad.expected, line=line, field="origin", value=text) from None
    return text


# Traces into files, in Fairlead's own format. What is written is what will be read: a job that would come back changed is
# refused, and a file is there whole or not at all.

LONGEST_TEXT = 1 << 15
"""Eight such texts in quotes still fit into a line."""

_PARQUET = (".parquet", ".pq")


def write_trace(trace: Trace, path: Path) -> None:
    """CSV or Parquet, by the path's suffix."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".csv", *_PARQUET):
        raise InputError(path, "a name that ends in .csv or .parquet", field="suffix", value=path.suffix)
    if trace.origin is not None:
        checked_origin(trace.origin, path, None)
    names = columns_for(trace.jobs, trace.losses, trace.dynamics)
    rows = _checked_rows(trace, names, path)
    write = _csv_bytes if suffix == ".csv" else _parquet_bytes
    _replace(path, write(names, rows, trace.origin))


def _checked_rows(trace: Trace, names: Sequence[str], path: Path) -> list[list[Any]]:
    rows: list[list[Any]] = []
    known = JobList(path, raise_it)
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
            expected = "regimes of its own batch size and steps: no other nature can be written"
            raise InputError(path, expected, line=line, field=REGIMES, value=job.name)
        known.add(job, line)
        rows.append(row)
    return rows


def _check_text(field: str, text: str) -> None:
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadField(field, ascii(text), "text that UTF-8 can hold") from None
    if "\0" in text:
        raise BadField(field, text, "text without NUL")
    if length > LONGEST_TEXT:
        raise BadField(field, text, f"at most {LONGEST_TEXT:,} bytes")


def _csv_bytes(names: Sequence[str], rows: Sequence[Sequence[Any]], origin: str | None) -> bytes:
    text = io.StringIO(newline="")
    if origin is not None:
        text.write(f"{ORIGIN_COMMENT}{origin}\n")
    plain = csv.writer(text, lineterminator="\n")
    # The csv module leaves a carriage return unquoted, and reads it back as the end of a row.
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(names)
    for row in rows:
        cells = ["" if cell is None else cell if isinstance(cell, str) else repr(cell) for cell in row]
        (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)
    return text.getvalue().encode("utf-8")


def _parquet_bytes(names: Sequence[str], rows: Sequence[Sequence[Any]], origin: str | None) -> bytes:
    import pyarrow as pa  # a quarter of a second, and few need it
    import pyarrow.parquet as pq

    types = {**dict.fromkeys(WHOLE, pa.int64()), **dict.fromkeys(TEXT, pa.string())}
    metadata = None if origin is None else {ORIGIN_METADATA: origin.encode("utf-8")}
    schema = pa.schema([(name, types.get(name, pa.float64())) for name in names], metadata=metadata)
    columns = [[row[place] for row in rows] for place in range(len(names))]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink)
    return bytes(sink.getvalue())


def _replace(path: Path, content: bytes) -> None:
    try:
        atomic_write(path, content)
    except OSError as why:
        raise InputError(path, f"a place that can be written to ({why.strerror or why})") from None
