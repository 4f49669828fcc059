"""Which row of a table of throughputs a job is about: looked up by kind and workers, and kept. It knows no rates."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import JobColumns
from fairlead.core.snapshot import Names


class RateTable(Protocol):
    """What an estimation asks of a table; the columns are a cluster's types."""

    @property
    def keys(self) -> tuple[tuple[str, int], ...]: ...
    @property
    def alone(self) -> Floats: ...
    @property
    def spread(self) -> Floats: ...
    @property
    def paired(self) -> Floats: ...
    def row(self, kind: str, workers: int) -> int: ...


class Rows:
    """(kind, workers) → row of the table, through a small matrix that grows with what was seen. It is a cache: codes of kinds
    belong to a state, so it is begun anew for a state that names them otherwise."""

    def __init__(self, table: RateTable) -> None:
        self.table = table
        self._kinds: tuple[str, ...] = ()
        self._map: Ints = np.full((1, 1), -1)

    def of(self, jobs: JobColumns, names: Names) -> Ints:
        kind, workers = jobs.kind, jobs.workers
        if not len(kind):
            return kind
        kinds = names.kinds
        if self._kinds is not kinds:
            if kinds[: len(self._kinds)] != self._kinds:
                self._map = np.full((1, 1), -1)
            self._kinds = kinds
        known = self._map
        try:
            rows: Ints = known[kind, workers]
        except IndexError:
            shape = (int(max(kind.max() + 1, known.shape[0])), int(max(workers.max() + 1, known.shape[1])))
            larger = np.full(shape, -1)
            larger[: known.shape[0], : known.shape[1]] = known
            self._map = known = larger
            rows = known[kind, workers]
        if rows.item(rows.argmin()) < 0:
            for index in np.flatnonzero(rows < 0).tolist():
                k, w = int(kind[index]), int(workers[index])
                known[k, w] = self.table.row(kinds[k], w)
            rows = known[kind, workers]
        return rows
