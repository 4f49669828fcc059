"""The estimator `oracle`: exact throughputs from a table, by kind and workers, and by the batch size that a job has reported
last. It does not know where the table comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.job import BATCH_SIZE, TIMED, JobSignature, batch_size_of, kind_of, model_of
from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import RateTable, TableRows, rate_columns


class TableBatches:
    """Rates at other batch sizes, in steps of the declared size: rate = table(size) · size / declared. A size counts if the
    model runs at it on all types of its declared size. They are computed on demand, as few policies need them."""

    def __init__(self, table: RateTable) -> None:
        self._table = table
        self._known: dict[tuple[str, int], Mapping[int, Floats]] = {}

    @cached_property
    def _rows(self) -> Mapping[tuple[str, int], Mapping[int, int]]:
        """By model and workers: batch size → row, ascending."""
        found: dict[tuple[str, int], dict[int, int]] = {}
        for row, (kind, workers) in enumerate(self._table.keys):
            if (size := batch_size_of(kind)) is not None:
                found.setdefault((model_of(kind), workers), {})[size] = row
        return {key: dict(sorted(sizes.items())) for key, sizes in found.items()}

    def of(self, kind: str, workers: int) -> Mapping[int, Floats]:
        known = self._known.get((kind, workers))
        if known is None:
            known = self._known[kind, workers] = self._made(kind, workers)
        return known

    def _made(self, kind: str, workers: int) -> Mapping[int, Floats]:
        declared, alone = batch_size_of(kind), self._table.alone
        rows = self._rows.get((model_of(kind), workers), {})
        if declared is None or declared not in rows:
            return {}
        runs = alone[rows[declared]] > 0
        return {size: alone[row] * (size / declared) for size, row in rows.items() if (alone[row][runs] > 0).all()}


class TableSizes:
    """Rates at other numbers of workers, computed on demand. A job whose work is given in seconds has one size. Where classes
    are not the table's rows, `like` has the row of each class, and `times` its relative speed."""

    def __init__(self, table: RateTable, like: Ints | None = None, times: Floats | None = None) -> None:
        self._table, self._like, self._times = table, like, times
        self._at: dict[int, Floats] = {}

    @cached_property
    def _row(self) -> dict[tuple[str, int], int]:
        return {key: row for row, key in enumerate(self._table.keys) if key[0] != TIMED}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({workers for _, workers in self._row}))

    def at(self, workers: Sequence[int]) -> Floats:
        return np.stack([self._with(count) for count in workers])

    def _with(self, workers: int) -> Floats:
        known = self._at.get(workers)
        if known is None:
            alone = np.concatenate((self._table.alone, np.zeros((1, self._table.alone.shape[1]))))
            known = alone[[self._row.get((kind, workers), -1) for kind, _ in self._table.keys]]
            if self._like is not None and self._times is not None:
                known = known[self._like] * self._times[:, None]
            self._at[workers] = known
        return known


class AdaptedRates:
    """Rates of jobs that run at another batch size than their kind's: those of their model at the size reported last, in steps
    of the declared size,

        rate = table(model at the present batch size) · present / declared,

    or the kind's own where the table does not have that size. Classes are the table's rows, then one for each job signature."""

    def __init__(self, table: RateTable) -> None:
        self._table, self._batches = table, TableBatches(table)
        self._of: tuple[Any, ...] = ()
        self._columns: dict[str, Any] = {}

    def rates(self, view: Snapshot, rows: Ints) -> Rates:
        """`rows` are those of the jobs as declared."""
        signatures, jobs = view.adaptations.signatures, view.jobs
        if self._of != (of := (view.names.kinds, tuple(signatures))):
            self._of, self._columns = of, self._extended(*of)
        rows, sizes = rows.copy(), jobs.metric(BATCH_SIZE)
        for at in (~np.isnan(sizes)).nonzero()[0].tolist():
            position = signatures.get((int(jobs.kind[at]), int(jobs.workers[at]), int(sizes[at])))
            if position is not None:
                rows[at] = len(self._table.keys) + position
        return Rates(rows, **self._columns)

    def _extended(self, kinds: tuple[str, ...], signatures: tuple[JobSignature, ...]) -> dict[str, Any]:
        table = self._table
        found = [self._row_and_factor(kinds[code], workers, size) for code, workers, size in signatures]
        like = np.array([*range(len(table.keys)), *(row for row, _ in found)])
        times = np.array([*[1.0] * len(table.keys), *(factor for _, factor in found)])
        paired: Floats = table.paired[np.ix_(like, like)] * times[:, None, None]
        columns = rate_columns(table.alone[like] * times[:, None], table.spread[like] * times[:, None], paired)
        return {**columns, "other_sizes": TableSizes(table, like, times), "other_batches": self._batches}

    def _row_and_factor(self, kind: str, workers: int, size: int) -> tuple[int, float]:
        """The row with the rate at a batch size, and the declared steps per step."""
        try:
            return self._table.row(kind_of(model_of(kind), size), workers), size / (batch_size_of(kind) or size)
        except FairleadError:
            return self._table.row(kind, workers), 1.0


@dataclass(frozen=True)
class Oracle:
    """Every throughput is known exactly."""

    table: RateTable

    @cached_property
    def _rows(self) -> TableRows:
        return TableRows(self.table)

    @cached_property
    def _adapted(self) -> AdaptedRates:
        return AdaptedRates(self.table)

    @cached_property
    def _columns(self) -> dict[str, Any]:
        table = self.table
        columns = rate_columns(table.alone, table.spread, table.paired)
        return {**columns, "other_sizes": TableSizes(table), "other_batches": TableBatches(table)}

    def rates(self, view: Snapshot) -> Rates:
        rows = self._rows.of(view.jobs, view.names)
        return self._adapted.rates(view, rows) if view.adaptations.signatures else Rates(rows, **self._columns)
