"""Throughput tables: steps per second of each (job type, workers) on each accelerator type, consolidated or spread, alone or
co-located. The simulator uses them as the truth; estimators decide what a policy sees. This module knows no file format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import FairleadError, InputError, UnknownName, require
from fairlead.core.job import TIMED


class MissingRate(FairleadError):
    """The table has no rate of a job type with a number of workers."""


@dataclass(frozen=True)
class ThroughputTable:
    """Rates as columns. Row r is `keys[r]` = (job type, workers); axis 1 is `types`. A rate of 0 means: does not fit there.

    Row 0 is always the job type `TIMED`: one step a second everywhere, for any number of workers.
    `paired[r, q, t]` is the rate of r while it is co-located with q on type t; 0 where that was not measured.
    """

    types: tuple[str, ...]
    keys: tuple[tuple[str, int], ...]
    alone: Floats  # rows × types, workers on as few nodes as possible
    spread: Floats  # rows × types, workers on more nodes than necessary
    paired: Floats  # rows × rows × types
    source: str = ""
    sources: tuple[str, ...] = ()  # of each row, where rows differ; empty: `source` holds for all
    memory_gb: Floats | None = None  # by row: memory that a worker needs; None: no job ever runs out

    @classmethod
    def timed(cls, types: Sequence[str]) -> ThroughputTable:
        """The table of a trace that carries durations: every job does one step a second."""
        ones = np.ones((1, len(types)))
        return cls(tuple(types), ((TIMED, 1),), ones, ones, np.zeros((1, 1, len(types))), "durations")

    @cached_property
    def row_of(self) -> dict[tuple[str, int], int]:
        """Rows by (job type, workers)."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """All job types except TIMED."""
        return tuple(dict.fromkeys(kind for kind, _ in self.keys if kind != TIMED))

    def workers_of(self, kind: str) -> tuple[int, ...]:
        """The numbers of workers for which a job type has rates."""
        return tuple(workers for k, workers in self.keys if k == kind)

    def row(self, kind: str, workers: int) -> int:
        """The row of a job type with a number of workers; raises UnknownName or MissingRate."""
        if kind == TIMED:
            return 0
        found = self.row_of.get((kind, workers))
        if found is None:
            measured = self.workers_of(kind)
            if not measured:
                raise UnknownName("kind of job", kind, self.kinds)
            sizes = ", ".join(map(str, measured))
            raise MissingRate(f"no throughput of {kind!r} with {workers} workers; the table has {sizes} workers")
        return found

    def source_of(self, row: int) -> str:
        """Where a row's rates come from: a file, or a model."""
        return self.sources[row] if self.sources else self.source

    def for_types(self, names: Sequence[str]) -> ThroughputTable:
        """The same rates with the columns of a cluster's types, in its order."""
        if tuple(names) == self.types:
            return self
        position = {name: column for column, name in enumerate(self.types)}
        for name in names:
            if name not in position:
                raise UnknownName("GPU type in the throughput table", name, self.types)
        columns = [position[name] for name in names]
        alone, spread, paired = (np.ascontiguousarray(r[..., columns]) for r in (self.alone, self.spread, self.paired))
        return replace(self, types=tuple(names), alone=alone, spread=spread, paired=paired)


MAX_RATES = 100_000_000
"""Rows × rows × types: pairs are a dense array, which must fit into memory."""

MIN_RATE, MAX_RATE = 1e-9, 1e12
RATE_EXPECTED = f"a number of steps per second from 0 to {MAX_RATE:g}, where not 0 at least {MIN_RATE:g}"

Key: TypeAlias = tuple[str, int]


@dataclass
class TableDraft:
    """Rates by name, until all names are known and the columns can be made."""

    path: Path
    alone: dict[tuple[Key, str], float] = field(default_factory=dict)
    spread: dict[tuple[Key, str], float] = field(default_factory=dict)
    paired: dict[tuple[Key, Key, str], tuple[float, int | None]] = field(default_factory=dict)  # with the line
    sources: dict[Key, dict[str, None]] = field(default_factory=dict)

    def finish(self) -> ThroughputTable:
        """The table. Missing rates mean that a job type does not fit, except where spread rates are missing altogether."""
        keys: list[Key] = [(TIMED, 1), *self.sources]
        types = tuple(dict.fromkeys(type_name for _, type_name in (*self.alone, *self.spread)))
        require(len(keys) != 1, self.path, "at least one rate")
        if len(keys) ** 2 * len(types) > MAX_RATES:
            limit = math.isqrt(MAX_RATES // len(types))
            raise InputError(self.path, f"at most {limit:,} job types and gang sizes", field="kind", value=len(keys) - 1)
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
                    raise InputError(
                        self.path, "a pair of job types whose rates alone are listed too", line=line, field=name, value=member
                    )
            paired[row_of[key], row_of[partner], column_of[name]] = rate
        alone[0] = spread[0] = 1.0
        by_row = ("", *("; ".join(self.sources[key]) for key in keys[1:]))
        return ThroughputTable(types, tuple(keys), alone, spread, paired, *table_sources(by_row))


def table_sources(by_row: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The source of the table, and those of rows where they differ; row 0 has none."""
    distinct = tuple(dict.fromkeys(by_row[1:]))
    return ("; ".join(distinct), () if len(distinct) == 1 else ("", *by_row[1:]))


def parse_rate(value: object) -> float | None:
    """A rate; None where the value is no number, negative, or too small or too large to be simulated."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (isinstance(value, str) and "_" in value):
        return None
    try:
        rate = float(value)
    except (ValueError, OverflowError):
        return None
    return rate if rate == 0 or MIN_RATE <= rate <= MAX_RATE else None


MEASURED, GUESSED = "measured", "guessed"


class MeasuredRate(NamedTuple):
    """A rate that a cluster has measured."""

    kind: str
    workers: int
    type: str
    spread: bool  # on more nodes than a gang of this size needs
    steps_per_s: float


def draft_table(rates: Iterable[MeasuredRate], types: Sequence[str], source: Path) -> TableDraft:
    """A table of measured rates. Where only one of spread and consolidated was measured, it is used for both. Missing types get
    the mean of the others, and are marked as guessed."""
    draft = TableDraft(source)
    for one in rates:
        key: Key = (one.kind, one.workers)
        (draft.spread if one.spread else draft.alone)[key, one.type] = one.steps_per_s
        draft.sources.setdefault(key, {})[MEASURED] = None
    require(draft.sources, "rates", "a cluster with estimator 'measured' whose jobs have reported steps")
    for table, other in ((draft.alone, draft.spread), (draft.spread, draft.alone)):
        for place, rate in other.items():
            table.setdefault(place, rate)
    for key in draft.sources:
        for table in (draft.alone, draft.spread):
            measured = [rate for (of, _), rate in table.items() if of == key]
            for name in types:
                if (key, name) not in table:
                    table[key, name] = sum(measured) / len(measured)
                    draft.sources[key][GUESSED] = None
    return draft


@dataclass(frozen=True)
class MeasuredTraining:
    """One training alone on one accelerator."""

    kind: str
    steps_per_s: float
    utilization: float  # percent
    memory_gb: float


def colocation_table(
    type_name: str,
    trainings: Sequence[MeasuredTraining],
    slowdowns: Callable[[str, str], float],
    sizes: Sequence[int] = (1,),
    source: str = "",
) -> ThroughputTable:
    """A table of trainings that were measured alone and in pairs on one type of accelerator.

    A gang is as fast as its workers in sum, and interferes with a gang of its size as one worker does with one worker.
    `slowdowns(one, other)` is the slowdown of the first when it is co-located with the second."""
    rows = [(one, size) for one in trainings for size in sizes]
    slower = {(one.kind, two.kind): slowdowns(one.kind, two.kind) for one in trainings for two in trainings}
    alone = np.array([1.0, *(one.steps_per_s * size for one, size in rows)])[:, None]
    paired = np.zeros((len(rows) + 1, len(rows) + 1, 1))
    for at, (one, size) in enumerate(rows, 1):
        for other, (two, theirs) in enumerate(rows, 1):
            if size == theirs:
                paired[at, other, 0] = alone[at, 0] / slower[one.kind, two.kind]
    keys = ((TIMED, 1), *((one.kind, size) for one, size in rows))
    memory = np.array([0.0, *(one.memory_gb for one, _ in rows)])
    return ThroughputTable((type_name,), keys, alone, alone, paired, source, memory_gb=memory)
