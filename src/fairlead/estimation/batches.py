"""Rates at other batch sizes, as a table has them, in steps of the declared size: rate = table(size) · size / declared. Made
when somebody asks: most policies foresee no change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from fairlead.core.cluster import Floats
from fairlead.core.job import batch_size_of, model_of
from fairlead.estimation.rows import RateTable


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
