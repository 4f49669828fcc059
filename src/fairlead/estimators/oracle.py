"""Estimates that are true: a table of throughputs, looked up by kind and workers, and by the batch size that a job runs with
now where it has reported another. Where the table comes from is not its business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.job import BATCH_SIZE, TIMED, JobSignature, batch_size_of, kind_of, model_of
from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import RateTable, Rows

# Rates at other batch sizes, as a table has them, in steps of the declared size: rate = table(size) · size / declared. Made
# when somebody asks: most policies foresee no change.


class TableBatches:
    """A batch size counts where the model runs at it wherever it does at its declared size."""

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


# Rates at other numbers of workers, as a table has them. Made when somebody asks: most policies never resize a job.


class TableSizes:
    """A job whose work is given in seconds has one size: nobody knows how long it would take with another. Where classes are
    not the table's rows, `like` and `times` say which row each is like, and how many times as fast."""

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


# A table of throughputs for jobs that run at another batch size than their kind says: the rate of their model at the size
# that
# they reported last, in steps of the declared size,
#
# rate = table(model at the present batch size) · present / declared.
#
# Of a size that the table does not have nothing is known: the kind's own rate stands. What comes next is not known either.


class Adapted:
    """The table's rows, and behind them one for each look that occurred, in that order. It is a cache of both."""

    def __init__(self, table: RateTable) -> None:
        self._table, self._batches = table, TableBatches(table)
        self._of: tuple[Any, ...] = ()
        self._rates: dict[str, Any] = {}

    def rates(self, view: Snapshot, rows: Ints) -> Rates:
        """`rows` are those of the jobs as they were declared."""
        looks, jobs = view.adaptations.signatures, view.jobs
        if self._of != (known := (view.names.kinds, tuple(looks))):
            self._of, self._rates = known, self._extended(*known)
        rows, sizes = rows.copy(), jobs.metric(BATCH_SIZE)
        for at in (~np.isnan(sizes)).nonzero()[0].tolist():
            look = looks.get((int(jobs.kind[at]), int(jobs.workers[at]), int(sizes[at])))
            if look is not None:
                rows[at] = len(self._table.keys) + look
        return Rates(rows, **self._rates)

    def _extended(self, kinds: tuple[str, ...], looks: tuple[JobSignature, ...]) -> dict[str, Any]:
        table = self._table
        like, factor = list(range(len(table.keys))), [1.0] * len(table.keys)
        for code, workers, size in looks:
            row, times = self._look(kinds[code], workers, size)
            like.append(row)
            factor.append(times)
        at, times_all = np.array(like), np.array(factor)[:, None]
        alone: Floats = table.alone[at] * times_all
        spread: Floats = table.spread[at] * times_all
        paired: Floats = table.paired[np.ix_(at, at)] * times_all[:, :, None]
        plain = Rates(at, alone, spread, paired)
        derived = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.preferred_types}
        sizes = TableSizes(table, at, times_all[:, 0])
        return {
            "alone": alone,
            "spread": spread,
            "paired": paired,
            "other_sizes": sizes,
            "other_batches": self._batches,
            **derived,
        }

    def _look(self, kind: str, workers: int, size: int) -> tuple[int, float]:
        """The row that has its rate, and how many declared steps one of its steps is."""
        try:
            return self._table.row(kind_of(model_of(kind), size), workers), size / (batch_size_of(kind) or size)
        except FairleadError:
            return self._table.row(kind, workers), 1.0


@dataclass(frozen=True)
class Oracle:
    """Every throughput is known exactly."""

    table: RateTable
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _rows: list[Rows] = field(default_factory=list, init=False, repr=False, compare=False)
    _adapted: list[Adapted] = field(default_factory=list, init=False, repr=False, compare=False)

    def rates(self, view: Snapshot) -> Rates:
        table = self.table
        if not self._rows:
            self._rows.append(Rows(table))
        rows = self._rows[0].of(view.jobs, view.names)
        if view.adaptations.signatures:
            if not self._adapted:
                self._adapted.append(Adapted(table))
            return self._adapted[0].rates(view, rows)
        if not self._kept:  # what follows from the table alone
            plain = Rates(rows, table.alone, table.spread, table.paired)
            best, mask, ranked = table.alone.max(axis=1), plain.runs_on, plain.preferred_types
            kept = Rates(
                *(rows, table.alone, table.spread, table.paired),
                best=best,
                mask=mask,
                ranked=ranked,
                other_sizes=TableSizes(table),
                other_batches=TableBatches(table),
            )
            self._kept.update(kept.__dict__)
        rates = object.__new__(Rates)  # as `dataclasses.replace`, whose cost a round would feel
        rates.__dict__.update(self._kept, row=rows)
        return rates
