"""Single fields of a line: text in, a checked value out. A field that is wrong is a `BadField`, which says what was expected;
where the line stands is added by whoever reads lines. It knows no format."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from fairlead.core.errors import InputError

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
