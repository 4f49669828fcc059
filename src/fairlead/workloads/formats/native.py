"""Fairlead's own traces: a table whose columns are the fields of a job, as CSV or as Parquet. `docs/traces.md` tells what may
stand in each column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from fairlead.core.errors import InputError, near_or_all
from fairlead.workloads.formats.cells import COLUMNS, DURATION, job_of
from fairlead.workloads.formats.collect import JobList
from fairlead.workloads.formats.fields import BadField, moment
from fairlead.workloads.formats.lines import PARQUET_MAGIC, check_names, check_width, header_of, table_rows, unreadable
from fairlead.workloads.formats.recognise import first_row, full_lines
from fairlead.workloads.trace import OnBad, Trace

ORIGIN_COMMENT = "# origin: "
ORIGIN_METADATA = b"fairlead.origin"


class Native:
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
    names = list(table.column_names)
    _check_columns(names, path, None)
    told = (table.schema.metadata or {}).get(ORIGIN_METADATA)
    origin = None if told is None else checked_origin(told.decode("utf-8", errors="replace"), path, None)
    jobs = JobList(path, on_bad)
    for number, row in enumerate(zip(*columns), start=1):
        try:
            job, curve, regimes = job_of(names, row, number - 1)
            jobs.add(job, number, curve, regimes)
        except BadField as bad:
            on_bad(bad.at(path, number))
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
