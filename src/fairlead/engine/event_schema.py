"""What an event can say: each value of its kind, and within what there is. A damaged journal is told where it is read, before
its numbers have become part of a state. Knows JSON's values, not events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from fairlead.core.cluster import Floats, Ints

T = TypeVar("T")

MOST_WHOLE = 2**53
_LARGEST = 1e30  # of seconds, steps and rates: far above what there is, and products of them are still numbers
_MOST_IN_COLUMN = 10_000_000
_MUST_BE = ("steps", "weight")
_IN_WORDS = {str: "text", int: "a whole number", bool: "true or false", dict: "a mapping"}


def of_sort(sort: type[T], name: str, value: Any) -> T:
    if type(value) is not sort:
        raise TypeError(f"{name} is {value!r:.60}, not {_IN_WORDS[sort]}")
    return value


def whole(name: str, value: Any, least: int, most: int) -> int:
    if not least <= of_sort(int, name, value) <= most:
        raise ValueError(f"{name} is {value}, not from {least:,} to {most:,}")
    return int(value)


def amount(name: str, value: Any) -> float:
    """Of what a job or a node says of itself: never below 0, and work and weight there are."""
    number = float(value)
    if not number >= 0 or (name in _MUST_BE and not 0 < number < math.inf):
        raise ValueError(f"{name} is {number:g}, not {'a finite number above 0' if name in _MUST_BE else '0 or more'}")
    return number


def share(name: str, value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {number:g}, not a finite number from 0 on")
    return number


def ints(record: object) -> Ints:
    if isinstance(record, dict):
        return np.full(whole("n", record["n"], 0, _MOST_IN_COLUMN), record["all"], dtype=np.int64)
    return np.array(record, dtype=np.int64)


def floats(record: object) -> Floats:
    if isinstance(record, dict):
        return np.full(whole("n", record["n"], 0, _MOST_IN_COLUMN), record["all"], dtype=np.float64)
    return np.array(record, dtype=np.float64)


def numbers(name: str, record: object, most: int = MOST_WHOLE) -> Ints:
    """A column of what goes by numbers from 0 on."""
    values = ints(record)
    if len(values) and not (values.item(values.argmin()) >= 0 and values.item(values.argmax()) <= most):
        raise ValueError(f"{name}: {values[(values < 0) | (values > most)][0]} is not from 0 to {most:,}")
    return values


def amounts(name: str, record: object, jobs: Ints, most: float = _LARGEST) -> Floats:
    """A column of what is never below 0: one for each of these jobs."""
    values = floats(record)
    if len(values) != len(jobs):
        raise ValueError(f"{name}: there are {len(values)} for {len(jobs)} jobs")
    if len(values):  # by the places of the least and the largest, a third of what `min` and `max` take; NaN is either
        least = values.item(values.argmin())
        largest = least if isinstance(record, dict) else values.item(values.argmax())
        if not (least >= 0 and largest <= most):
            wrong = largest if least >= 0 else least
            raise ValueError(f"{name} is {wrong:g}, not from 0 to {most:g}")
    return values


def second_of(record: Mapping[str, Any]) -> float:
    """When it was told."""
    second = float(record["t"])
    if not 0 <= second <= _LARGEST:
        raise ValueError(f"t is {second:g}, not from 0 to {_LARGEST:g}")
    return second
