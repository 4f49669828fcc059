"""Single fields of a line: text in, a checked value out. A field that is wrong is a `BadField`, which says what was expected;
where the line stands is added by whoever reads lines. It knows no format."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.files import is_stream
from fairlead.workloads.trace import OnBad

MOST_WORKERS = 1_000_000
"""A larger gang is a typing mistake, not a job."""

MOST_WHOLE = 2**53
"""Whole numbers beyond this are not exact as floats, and no count of anything comes near."""

FIRST_YEAR, LAST_YEAR = 1970, 2199

_A_TIME = f"a time such as 2020-06-09 18:41:01, from {FIRST_YEAR} to {LAST_YEAR}"
_FROM_0_ON = "seconds from 0 on"
_AN_AMOUNT = "a number from 0 on"
_WORKERS = f"a whole number from 1 to {MOST_WORKERS:,}"
_ACCELERATORS = f"a whole number from 0 to {MOST_WORKERS:,}"
_EPOCH = datetime(1970, 1, 1)


class BadField(ValueError):
    """One field of one line is wrong."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(field, value, expected)
        self.field, self.value, self.expected = field, value, expected

    def at(self, source: object, line: int) -> InputError:
        return InputError(source, self.expected, line=line, field=self.field, value=self.value)


class LeftOut(BadField):
    """A line that is in order, about a job that a scheduler of accelerators has nothing to do with. It is listed, never raised
    to the reader's caller."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(field, value, f"{expected}; this one is left out")


def number(field: str, text: str, expected: str = "a number") -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise BadField(field, text, expected) from None
    if not math.isfinite(value) or "_" in text:
        raise BadField(field, text, expected)
    return value


def seconds(field: str, text: str) -> float:
    """A point or a length of time, from 0 on."""
    value = number(field, text, _FROM_0_ON)
    if value < 0:
        raise BadField(field, text, _FROM_0_ON)
    return value


def positive(field: str, text: str, expected: str = "a number above 0") -> float:
    value = number(field, text, expected)
    if value <= 0:
        raise BadField(field, text, expected)
    return value


def amount(field: str, text: str) -> float:
    value = number(field, text, _AN_AMOUNT)
    if value < 0:
        raise BadField(field, text, _AN_AMOUNT)
    return value


def named(field: str, text: str, expected: str = "a name") -> str:
    """A text that must not be empty."""
    if not text.strip():
        raise BadField(field, text, expected)
    return text


def whole(field: str, text: str, expected: str = "a whole number") -> int:
    """A whole number; `4.0` is one, as many tables write their counts so."""
    value = number(field, text, expected)
    if not value.is_integer() or abs(value) > MOST_WHOLE:
        raise BadField(field, text, expected)
    return int(value)


def workers(field: str, text: str) -> int:
    """The size of a gang."""
    if text == "1":  # most jobs of every public trace
        return 1
    value = whole(field, text, _WORKERS)
    if not 1 <= value <= MOST_WORKERS:
        raise BadField(field, text, _WORKERS)
    return value


def accelerators(field: str, text: str) -> int:
    """Like `workers`, but 0 is an answer: a job that needs none."""
    value = whole(field, text, _ACCELERATORS)
    if not 0 <= value <= MOST_WORKERS:
        raise BadField(field, text, _ACCELERATORS)
    return value


def moment(field: str, text: str) -> float:
    """A calendar time as seconds since 1970. Without a zone it is taken as it stands, so that differences are right."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadField(field, text, _A_TIME) from None
    if not FIRST_YEAR <= when.year <= LAST_YEAR:
        raise BadField(field, text, _A_TIME)
    if when.tzinfo is not None:
        return when.timestamp()
    return (when - _EPOCH).total_seconds()


def calendar(moment_s: float) -> str:
    """The ISO time of a moment; the inverse of `moment`."""
    return (_EPOCH + timedelta(seconds=moment_s)).isoformat()


# Lines of a text file, with their numbers: plain ones and the rows of a delimited table. Whatever a file can hold (bytes that
# are no text, a line without end, a broken quote) becomes an `InputError`. It knows no format.

LONGEST_LINE = 1 << 20
HEAD_BYTES = 1 << 16
PARQUET_MAGIC = b"PAR1"

_LONGEST_NAME = 100
_BLOCK = 1 << 18
_BOM = b"\xef\xbb\xbf"


def unreadable(path: Path, why: OSError) -> InputError:
    """The error for a path that cannot be opened."""
    reason = "a folder stands there" if os.path.isdir(path) else why.strerror or str(why)
    return InputError(path, f"a file that can be read ({reason})")


def whole_file(path: Path) -> bytes:
    """All of a file that is read at once."""
    if is_stream(path):
        raise InputError(path, "a regular file")
    try:
        return path.read_bytes()
    except OSError as why:
        raise unreadable(path, why) from None


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
    # A character cut in two at the end of the head is no fault of the file, and bad bytes are reported with their line later.
    head = start.removeprefix(_BOM).decode("utf-8", errors="replace")
    if not head.strip():
        raise InputError(path, "a trace; the file is empty")
    return head


def plain_lines(path: Path, on_bad: OnBad) -> Iterator[str]:
    """Every line with its end. A line that is no text is given to `on_bad`, and an empty one takes its place, so that the
    count of lines stays right."""
    number = 0
    for block in _blocks_of_whole_lines(path):
        if _why_no_text(block) is None:  # one look at a block of good lines costs a third of a look at each
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
    """The number and the columns of every line that is not blank. Without a separator, columns part at white space."""
    for number, line in enumerate(plain_lines(path, on_bad), start=1):
        text = line.rstrip("\r\n")
        if text.strip():
            yield number, text.split(separator)


def table_rows(path: Path, on_bad: OnBad, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The number of its first line and the cells of every row that is not blank, by the rules of CSV."""
    reader = csv.reader(plain_lines(path, on_bad), delimiter=delimiter, strict=True)
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
    """Column names go into messages, so they have to fit into a line of text; and each may stand there once."""
    for place, name in enumerate(names):
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise InputError(path, f"column names of at most {_LONGEST_NAME} letters", line=line, field="header", value=name)
        if name and name in names[:place]:
            raise InputError(path, "each column once in the header", line=line, field=name)


def columns(names: Sequence[str], wanted: Iterable[str], path: Path, line: int) -> list[int]:
    """Where the wanted columns stand; one that is missing is an error."""
    missing = next((name for name in wanted if name not in names), None)
    if missing is not None:
        found = ", ".join(names[:20])
        raise InputError(path, f"a column of this name; the header has {found}", line=line, field=missing)
    return [names.index(name) for name in wanted]


def optional_columns(names: Sequence[str], wanted: Iterable[str]) -> list[int | None]:
    return [names.index(name) if name in names else None for name in wanted]


def check_width(row: Sequence[str], width: int) -> None:
    """A row with more or fewer cells than the table has columns cannot be told apart from a shifted one."""
    if len(row) != width:
        raise BadField("columns", len(row), f"{width} columns")
