"""What an event can say: each value of its kind, and within what there is. A damaged journal is told where it is read, before
its values become part of a state. Knows JSON's values, not events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from fairlead.core.cluster import Floats, Ints

T = TypeVar("T")

MAX_INTEGER = 2**53
_LARGEST = 1e30  # of seconds, steps and rates: far above what there is, and products of them are still finite
_MAX_COLUMN = 10_000_000
_POSITIVE = ("steps", "weight")
_TYPE_NAMES = {str: "text", int: "a whole number", bool: "true or false", dict: "a mapping"}


def typed(kind: type[T], name: str, value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r:.60}, not {_TYPE_NAMES[kind]}")
    return value


def integer(name: str, value: Any, lower: int, upper: int) -> int:
    if not lower <= typed(int, name, value) <= upper:
        raise ValueError(f"{name} is {value}, not from {lower:,} to {upper:,}")
    return int(value)


def amount(name: str, value: Any) -> float:
    """Of what a job or a node says of itself: never below 0, and work and weight there are."""
    number = float(value)
    if not number >= 0 or (name in _POSITIVE and not 0 < number < math.inf):
        raise ValueError(f"{name} is {number:g}, not {'a finite number above 0' if name in _POSITIVE else '0 or more'}")
    return number


def finite(name: str, value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {number:g}, not a finite number from 0 on")
    return number


def ints(record: object) -> Ints:
    if isinstance(record, dict):
        return np.full(integer("n", record["n"], 0, _MAX_COLUMN), record["all"], dtype=np.int64)
    return np.array(record, dtype=np.int64)


def floats(record: object) -> Floats:
    if isinstance(record, dict):
        return np.full(integer("n", record["n"], 0, _MAX_COLUMN), record["all"], dtype=np.float64)
    return np.array(record, dtype=np.float64)


def indices(name: str, record: object, upper: int = MAX_INTEGER) -> Ints:
    """A column of what goes by indices from 0 on."""
    values = ints(record)
    if len(values) and not (values.item(values.argmin()) >= 0 and values.item(values.argmax()) <= upper):
        raise ValueError(f"{name}: {values[(values < 0) | (values > upper)][0]} is not from 0 to {upper:,}")
    return values


def amounts(name: str, record: object, jobs: Ints, upper: float = _LARGEST) -> Floats:
    """A column of what is never below 0: one for each of these jobs."""
    values = floats(record)
    if len(values) != len(jobs):
        raise ValueError(f"{name}: there are {len(values)} for {len(jobs)} jobs")
    if len(values):  # by the places of the lower and the largest, a third of what `min` and `max` take; NaN is either
        lower = values.item(values.argmin())
        largest = lower if isinstance(record, dict) else values.item(values.argmax())
        if not (lower >= 0 and largest <= upper):
            wrong = largest if lower >= 0 else lower
            raise ValueError(f"{name} is {wrong:g}, not from 0 to {upper:g}")
    return values


def time_of(record: Mapping[str, Any]) -> float:
    """When it was told."""
    second = float(record["time"])
    if not 0 <= second <= _LARGEST:
        raise ValueError(f"time is {second:g}, not from 0 to {_LARGEST:g}")
    return second
