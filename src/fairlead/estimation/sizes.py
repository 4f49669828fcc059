"""Rates at other numbers of workers, as a table has them. Made when somebody asks: most policies never resize a job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.job import TIMED
from fairlead.estimation.rows import RateTable


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
