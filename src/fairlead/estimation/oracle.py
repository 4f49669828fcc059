"""Estimates that are true: a table of throughputs, looked up by kind and workers. Where it comes from is not its business."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot


class RateTable(Protocol):
    """What the oracle asks of a table; the columns are a cluster's types."""

    @property
    def alone(self) -> Floats: ...
    @property
    def spread(self) -> Floats: ...
    @property
    def paired(self) -> Floats: ...
    def row(self, kind: str, workers: int) -> int: ...


@dataclass(frozen=True)
class Oracle:
    """Every throughput is known exactly."""

    table: RateTable
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _kinds: list[tuple[str, ...]] = field(default_factory=lambda: [()], init=False, repr=False, compare=False)
    _map: list[Ints] = field(default_factory=lambda: [np.full((1, 1), -1)], init=False, repr=False, compare=False)

    def rates(self, view: Snapshot) -> Rates:
        jobs, table = view.jobs, self.table
        rows = self._lookup(jobs.kind, jobs.workers, view)
        if not self._kept:  # what follows from the table alone
            plain = Rates(rows, table.alone, table.spread, table.paired)
            kept = Rates(
                rows, table.alone, table.spread, table.paired, None, table.alone.max(axis=1), plain.runs_on, plain.wishes
            )
            self._kept.update(kept.__dict__)
        rates = object.__new__(Rates)  # as `dataclasses.replace`, whose cost a round would feel
        rates.__dict__.update(self._kept, row=rows)
        return rates

    def _lookup(self, kind: Ints, workers: Ints, view: Snapshot) -> Ints:
        """(kind, workers) → row of the table, through a small matrix that grows with what was seen. It is a cache: codes of
        kinds belong to a state, so it is begun anew for a state that names them otherwise."""
        if not len(kind):
            return kind
        kinds = view.names.kinds
        if self._kinds[0] is not kinds:
            if kinds[: len(self._kinds[0])] != self._kinds[0]:
                self._map[0] = np.full((1, 1), -1)
            self._kinds[0] = kinds
        known = self._map[0]
        try:
            rows = known[kind, workers]
        except IndexError:
            shape = (int(max(kind.max() + 1, known.shape[0])), int(max(workers.max() + 1, known.shape[1])))
            larger = np.full(shape, -1)
            larger[: known.shape[0], : known.shape[1]] = known
            self._map[0] = known = larger
            rows = known[kind, workers]
        if rows.item(rows.argmin()) < 0:
            for index in np.flatnonzero(rows < 0).tolist():
                k, w = int(kind[index]), int(workers[index])
                known[k, w] = self.table.row(view.names.kinds[k], w)
            rows = known[kind, workers]
        return rows
