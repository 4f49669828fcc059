"""A throughput table in the making, whatever file it comes from: rates by name, until all names are known and the columns
can be laid out. It knows what a rate may be and what a missing one means, and no file format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.workloads.profiles import ThroughputTable

MOST_RATES = 100_000_000
"""Rows × rows × types: the pairs are dense, and beyond this they would fill a machine's memory."""

LEAST, MOST = 1e-9, 1e12
RATE = f"a number of steps per second from 0 to {MOST:g}, where not 0 at least {LEAST:g}"

Key: TypeAlias = tuple[str, int]


@dataclass
class Draft:
    """A table in the making: rates by name, until all names are known."""

    path: Path
    alone: dict[tuple[Key, str], float] = field(default_factory=dict)
    spread: dict[tuple[Key, str], float] = field(default_factory=dict)
    paired: dict[tuple[Key, Key, str], tuple[float, int | None]] = field(default_factory=dict)  # with the line
    sources: dict[Key, dict[str, None]] = field(default_factory=dict)

    def finish(self) -> ThroughputTable:
        keys: list[Key] = [(TIMED, 1), *self.sources]
        types = tuple(dict.fromkeys(type_name for _, type_name in (*self.alone, *self.spread)))
        if len(keys) == 1:
            raise InputError(self.path, "at least one rate")
        if len(keys) ** 2 * len(types) > MOST_RATES:
            most = math.isqrt(MOST_RATES // len(types))
            raise InputError(self.path, f"at most {most:,} kinds and gang sizes", field="kind", value=len(keys) - 1)
        row_of, column_of = {key: r for r, key in enumerate(keys)}, {name: c for c, name in enumerate(types)}
        alone, paired = np.zeros((len(keys), len(types))), np.zeros((len(keys), len(keys), len(types)))
        for (key, name), rate in self.alone.items():
            alone[row_of[key], column_of[name]] = rate
        with_spread = {name for _, name in self.spread}
        listed = np.array([name in with_spread for name in types])
        single = np.array([workers == 1 for _, workers in keys])
        spread = np.where(single[:, None] | ~listed, alone, 0.0)
        for (key, name), rate in self.spread.items():
            spread[row_of[key], column_of[name]] = rate
        for (key, partner, name), (rate, line) in self.paired.items():
            for member in (key, partner):
                if (member, name) not in self.alone:
                    raise InputError(self.path, "a pair whose rates alone are listed", line=line, field=name, value=member)
            paired[row_of[key], row_of[partner], column_of[name]] = rate
        alone[0] = spread[0] = 1.0
        by_row = ("", *("; ".join(self.sources[key]) for key in keys[1:]))
        return ThroughputTable(types, tuple(keys), alone, spread, paired, *provenance(by_row))


def provenance(by_row: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The table's source, and the rows' where they differ; row 0 is nobody's."""
    distinct = tuple(dict.fromkeys(by_row[1:]))
    return ("; ".join(distinct), () if len(distinct) == 1 else ("", *by_row[1:]))


def rate_of(value: object) -> float | None:
    """A rate, or None where the value is none: not a number, negative, so little that no time is enough, or so much that what
    a simulation writes of it could not be read back."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (isinstance(value, str) and "_" in value):
        return None
    try:
        rate = float(value)
    except (ValueError, OverflowError):
        return None
    return rate if rate == 0 or LEAST <= rate <= MOST else None
