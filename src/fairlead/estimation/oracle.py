"""Estimates that are true: a table of throughputs, looked up by kind and workers, and by the batch size that a job runs with
now where it has reported another. Where the table comes from is not its business."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.adapted import Adapted
from fairlead.estimation.batches import TableBatches
from fairlead.estimation.rows import RateTable, Rows
from fairlead.estimation.sizes import TableSizes


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
        if view.adaptations.looks:
            if not self._adapted:
                self._adapted.append(Adapted(table))
            return self._adapted[0].rates(view, rows)
        if not self._kept:  # what follows from the table alone
            plain = Rates(rows, table.alone, table.spread, table.paired)
            best, mask, ranked = table.alone.max(axis=1), plain.runs_on, plain.wishes
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
