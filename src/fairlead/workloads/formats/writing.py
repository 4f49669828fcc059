"""Traces into files, in Fairlead's own format. What is written is what will be read: a job that would come back changed is
refused, and a file is there whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.whole import write_whole
from fairlead.workloads.formats.cells import REGIMES, TEXT, WHOLE, cells_of, columns_for, job_of
from fairlead.workloads.formats.collect import JobList
from fairlead.workloads.formats.fields import BadField
from fairlead.workloads.formats.native import ORIGIN_COMMENT, ORIGIN_METADATA, checked_origin
from fairlead.workloads.trace import Trace, raise_it

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
    names = columns_for(trace.jobs, trace.losses, trace.natures)
    rows = _checked_rows(trace, names, path)
    write = _csv_bytes if suffix == ".csv" else _parquet_bytes
    _replace(path, write(names, rows, trace.origin))


def _checked_rows(trace: Trace, names: Sequence[str], path: Path) -> list[list[Any]]:
    rows: list[list[Any]] = []
    known = JobList(path, raise_it)
    for number, job in enumerate(trace.jobs, start=1):
        nature = trace.natures.get(job.name)
        row = cells_of(job, names, trace.losses.get(job.name), nature)
        try:
            for name, cell in zip(names, row):
                if isinstance(cell, str):
                    _check_text(name, cell)
            again, _, regimes = job_of(names, row, -1)
        except BadField as bad:
            raise bad.at(path, number) from None
        if again != job:
            lost = next(f.name for f in fields(Job) if getattr(again, f.name) != getattr(job, f.name))
            raise InputError(path, "a value that can be written", line=number, field=lost, value=getattr(job, lost))
        if regimes != nature:
            expected = "regimes of its own batch size and steps: no other nature can be written"
            raise InputError(path, expected, line=number, field=REGIMES, value=job.name)
        known.add(job, number)
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
        write_whole(path, content)
    except OSError as why:
        raise InputError(path, f"a place that can be written to ({why.strerror or why})") from None
