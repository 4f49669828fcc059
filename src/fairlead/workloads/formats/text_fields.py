"""Files of any format: lines with their numbers, rows of CSV and Parquet tables, and checked values of single fields. A wrong
field is a `BadField`, to which the caller adds the line; other problems of a file are an `InputError`."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError
from fairlead.files import atomic_write, is_stream
from fairlead.workloads.trace import OnBad

MAX_WORKERS = 1_000_000
"""A larger gang is a typing mistake."""

MAX_WHOLE = 2**53
"""Whole numbers beyond this are not exact as floats."""

FIRST_YEAR, LAST_YEAR = 1970, 2199

_A_TIME = f"a time such as 2020-06-09 18:41:01, from {FIRST_YEAR} to {LAST_YEAR}"
_WORKERS = f"a whole number from 1 to {MAX_WORKERS:,}"
_EPOCH = datetime(1970, 1, 1)


class BadField(ValueError):
    """One field of one line is wrong."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(field, value, expected)
        self.field, self.value, self.expected = field, value, expected

    def at(self, source: object, line: int) -> InputError:
        """The error with the place of the line."""
        return InputError(source, self.expected, line=line, field=self.field, value=self.value)


class LeftOut(BadField):
    """A correct line about a job that does not matter here, such as one without accelerators. It is listed and never raised to
    the caller."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(field, value, f"{expected}; this one is left out")


def parse_number(field: str, text: str, expected: str = "a number", least: float = -math.inf) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least) or "_" in text:
        raise BadField(field, text, expected)
    return value


def parse_seconds(field: str, text: str) -> float:
    """A point or a length of time, from 0 on."""
    return parse_number(field, text, "seconds, at least 0", 0.0)


def parse_positive(field: str, text: str, expected: str = "a number above 0") -> float:
    """A number above 0."""
    return parse_number(field, text, expected, math.ulp(0.0))


def parse_amount(field: str, text: str) -> float:
    """A number of at least 0."""
    return parse_number(field, text, "a number of at least 0", 0.0)


def parse_name(field: str, text: str, expected: str = "a name") -> str:
    """A text that must not be empty."""
    if not text.strip():
        raise BadField(field, text, expected)
    return text


def parse_whole(field: str, text: str, expected: str = "a whole number", least: int = -MAX_WHOLE, most: int = MAX_WHOLE) -> int:
    """A whole number; `4.0` is one, too."""
    value = parse_number(field, text, expected)
    if not value.is_integer() or not least <= value <= most:
        raise BadField(field, text, expected)
    return int(value)


def parse_workers(field: str, text: str) -> int:
    """The size of a gang."""
    if text == "1":  # most jobs of every public trace
        return 1
    return parse_whole(field, text, _WORKERS, 1, MAX_WORKERS)


def parse_accelerators(field: str, text: str) -> int:
    """Like `parse_workers`, with 0 for a job that needs none."""
    return parse_whole(field, text, f"a whole number from 0 to {MAX_WORKERS:,}", 0, MAX_WORKERS)


def parse_time(field: str, text: str) -> float:
    """A calendar time as seconds since 1970. A time without a zone is taken as UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadField(field, text, _A_TIME) from None
    if not FIRST_YEAR <= when.year <= LAST_YEAR:
        raise BadField(field, text, _A_TIME)
    if when.tzinfo is not None:
        return when.timestamp()
    return (when - _EPOCH).total_seconds()


def format_time(time_s: float) -> str:
    """The ISO time; the inverse of `parse_time`."""
    return (_EPOCH + timedelta(seconds=time_s)).isoformat()


LONGEST_LINE = 1 << 20
HEAD_BYTES = 1 << 16
PARQUET_MAGIC = b"PAR1"

_LONGEST_NAME = 100
_BLOCK = 1 << 18
_BOM = b"\xef\xbb\xbf"


def unreadable(path: Path, why: OSError) -> InputError:
    """The error for a path that cannot be opened."""
    reason = "it is a folder" if os.path.isdir(path) else why.strerror or str(why)
    return InputError(path, f"a file that can be read ({reason})")


def whole_file(path: Path) -> bytes:
    """All of a file that is read at once."""
    if is_stream(path):
        raise InputError(path, "a regular file")
    try:
        return path.read_bytes()
    except OSError as why:
        raise unreadable(path, why) from None


def parse_json(path: Path, text: bytes) -> Any:
    """The JSON value in a file that people write, in which each name of an object must be unique."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise InputError(path, "each name only once in an object", field="key", value=twice)
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as problem:
        raise InputError(path, f"JSON ({problem.msg}, column {problem.colno})", line=problem.lineno) from None
    except (ValueError, RecursionError) as problem:
        raise InputError(path, f"JSON that can be read ({type(problem).__name__})") from None


def head_of(path: Path) -> str:
    """The first lines of a file, to recognise its format by. Of a Parquet file, only its magic."""
    try:
        with path.open("rb") as file:
            start = file.read(HEAD_BYTES)
    except OSError as why:
        raise unreadable(path, why) from None
    if start.startswith(PARQUET_MAGIC):
        return PARQUET_MAGIC.decode()
    first_line = start.split(b"\n", 1)[0]
    if b"\0" in first_line or (len(first_line) < HEAD_BYTES and _why_no_text(first_line) is not None):
        raise InputError(path, "text in UTF-8, or a Parquet file; this is neither")
    # A character that is cut at the end of the head is no error, and bad bytes are reported with their line later.
    head = start.removeprefix(_BOM).decode("utf-8", errors="replace")
    if not head.strip():
        raise InputError(path, "a trace; the file is empty")
    return head


def plain_lines(path: Path, on_bad: OnBad) -> Iterator[str]:
    """Every line with its end. A line that is no text is given to `on_bad` and replaced by an empty one, so that line numbers
    stay right."""
    number = 0
    for block in _blocks_of_whole_lines(path):
        if _why_no_text(block) is None:  # three times faster than checking each line
            yield from io.StringIO(block.decode("utf-8"), newline="\n")
            number += block.count(b"\n")
            continue
        for raw in io.BytesIO(block):
            number += 1
            problem = _why_no_text(raw)
            if problem is None:
                yield raw.decode("utf-8")
            else:
                on_bad(InputError(path, problem, line=number))
                yield "\n"


def _why_no_text(raw: bytes) -> str | None:
    if len(raw) > LONGEST_LINE:
        return f"lines of at most {LONGEST_LINE:,} bytes"
    if b"\0" in raw:
        return "text; there is a NUL byte in this line"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return "text in UTF-8"
    return None


def _blocks_of_whole_lines(path: Path) -> Iterator[bytes]:
    """The file in blocks that end where a line ends. Of a line that is too long only the beginning is kept."""
    try:
        with path.open("rb") as file:
            file.seek(len(_BOM) if file.read(len(_BOM)) == _BOM else 0)
            while block := file.read(_BLOCK):
                if not block.endswith(b"\n"):
                    tail = file.readline(LONGEST_LINE + 1)
                    block += tail
                    while tail and not tail.endswith(b"\n"):
                        tail = file.readline(LONGEST_LINE + 1)
                yield block
    except OSError as why:
        raise unreadable(path, why) from None


def split_lines(path: Path, separator: str | None, on_bad: OnBad) -> Iterator[tuple[int, list[str]]]:
    """The number and the columns of every line that is not blank. Without a separator, columns are parted by white space."""
    for number, line in enumerate(plain_lines(path, on_bad), start=1):
        text = line.rstrip("\r\n")
        if text.strip():
            yield number, text.split(separator)


def table_rows(path: Path, on_bad: OnBad) -> Iterator[tuple[int, list[str]]]:
    """The number of its first line and the cells of every row that is not blank, by the rules of CSV."""
    reader = csv.reader(plain_lines(path, on_bad), strict=True)
    before = 0
    while True:
        try:
            for row in reader:
                if row:
                    yield before + 1, row
                before = reader.line_num
            return
        except csv.Error as why:
            swallowed = "" if reader.line_num <= before + 1 else f" up to line {reader.line_num}"
            on_bad(InputError(path, f"a row of cells{swallowed} ({why})", line=before + 1))
            before = reader.line_num


def header_of(rows: Iterator[tuple[int, list[str]]], path: Path) -> tuple[int, list[str]]:
    """The first row, which names the columns, and its line."""
    line, first = next(rows, (1, []))
    names = [cell.strip() for cell in first]
    if not any(names):
        raise InputError(path, "a header that names the columns; the file is empty")
    check_names(names, path, line)
    return line, names


def check_names(names: Sequence[str], path: Path, line: int | None) -> None:
    """Column names are part of messages, so they must be short and printable; and each must be unique."""
    for place, name in enumerate(names):
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise InputError(path, f"column names of at most {_LONGEST_NAME} letters", line=line, field="header", value=name)
        if name and name in names[:place]:
            raise InputError(path, "each column only once in the header", line=line, field=name)


def column_positions(names: Sequence[str], wanted: Iterable[str], path: Path, line: int) -> list[int]:
    """The positions of the wanted columns; one that is missing is an error."""
    missing = next((name for name in wanted if name not in names), None)
    if missing is not None:
        found = ", ".join(names[:20])
        raise InputError(path, f"a column of this name; the header has {found}", line=line, field=missing)
    return [names.index(name) for name in wanted]


def check_width(row: Sequence[object], width: int) -> None:
    """Check that a row has as many cells as the table has columns."""
    if len(row) != width:
        raise BadField("columns", len(row), f"{width} columns")


def parquet_rows(path: Path) -> tuple[list[str], Iterator[tuple[int, Sequence[Any]]], Mapping[bytes, bytes]]:
    """The column names, the rows with their numbers of at least 1, and the metadata of a Parquet file."""
    import pyarrow as pa  # slow to import, and rarely needed
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        columns = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, ValueError) as why:
        first_line = (str(why).strip().splitlines() or ["damaged"])[0]
        raise InputError(path, f"a Parquet file that can be read ({first_line})") from None
    return table.column_names, enumerate(zip(*columns), start=1), table.schema.metadata or {}


def write_table(
    path: Path,
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    types: Mapping[str, str] | None = None,
    *,
    comment: str = "",
    metadata: Mapping[bytes, bytes] | None = None,
) -> None:
    """Write a table completely or not at all: Parquet by the path's suffix, with these types and metadata, else CSV."""
    content = _parquet_bytes(names, rows, types, metadata) if is_parquet_name(path) else _csv_bytes(names, rows, comment)
    try:
        atomic_write(path, content)
    except OSError as why:
        raise InputError(path, f"a writable path ({why.strerror or why})") from None


def is_parquet_name(path: Path) -> bool:
    """Whether a file of this name is written as Parquet."""
    return path.suffix.lower() in (".parquet", ".pq")


def _csv_bytes(names: Sequence[str], rows: Sequence[Sequence[Any]], comment: str) -> bytes:
    text = io.StringIO(newline="")
    text.write(comment)
    plain = csv.writer(text, lineterminator="\n")
    # The csv module writes a carriage return without quotes, and reads it as the end of a row.
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(names)
    for row in rows:
        cells = ["" if cell is None else cell if isinstance(cell, str) else repr(cell) for cell in row]
        (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)
    return text.getvalue().encode("utf-8")


def _parquet_bytes(
    names: Sequence[str], rows: Sequence[Sequence[Any]], types: Mapping[str, str] | None, metadata: Mapping[bytes, bytes] | None
) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = None if types is None else pa.schema([(name, types[name]) for name in names], metadata=metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)}, schema=schema), sink)
    return bytes(sink.getvalue())
