"""A table of throughputs for jobs that run at another batch size than their kind says: the rate of their model at the size that
they reported last, in steps of the declared size,

    rate = table(model at the present batch size) · present / declared.

Of a size that the table does not have nothing is known: the kind's own rate stands. What comes next is not known either."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairlead.core.adaptation import BATCH_SIZE, Look
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.job import batch_size_of, kind_of, model_of
from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.batches import TableBatches
from fairlead.estimation.rows import RateTable
from fairlead.estimation.sizes import TableSizes


class Adapted:
    """The table's rows, and behind them one for each look that occurred, in that order. It is a cache of both."""

    def __init__(self, table: RateTable) -> None:
        self._table, self._batches = table, TableBatches(table)
        self._of: tuple[Any, ...] = ()
        self._rates: dict[str, Any] = {}

    def rates(self, view: Snapshot, rows: Ints) -> Rates:
        """`rows` are those of the jobs as they were declared."""
        looks, jobs = view.adaptations.looks, view.jobs
        if self._of != (known := (view.names.kinds, tuple(looks))):
            self._of, self._rates = known, self._extended(*known)
        rows, sizes = rows.copy(), jobs.metric(BATCH_SIZE)
        for at in (~np.isnan(sizes)).nonzero()[0].tolist():
            look = looks.get((int(jobs.kind[at]), int(jobs.workers[at]), int(sizes[at])))
            if look is not None:
                rows[at] = len(self._table.keys) + look
        return Rates(rows, **self._rates)

    def _extended(self, kinds: tuple[str, ...], looks: tuple[Look, ...]) -> dict[str, Any]:
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
        derived = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.wishes}
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
