"""True throughputs: steps per second of each (kind, workers) on each type, consolidated or spread, alone or in company.
They drive the simulator; what a policy may know of them is estimation's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import FairleadError, UnknownName
from fairlead.core.job import TIMED


class MissingRate(FairleadError):
    """The table has no entry for a kind at a number of workers."""


@dataclass(frozen=True)
class ThroughputTable:
    """Rates as columns. Row r is `keys[r]` = (kind, workers); axis 1 is `types`. A rate of 0 means: does not fit there.

    Row 0 is always the kind `TIMED`: one step a second everywhere, for any number of workers.
    `paired[r, q, t]` is the rate of r while it shares its accelerators of type t with q; 0 where that was not measured.
    """

    types: tuple[str, ...]
    keys: tuple[tuple[str, int], ...]
    alone: Floats  # rows × types, workers on as few nodes as possible
    spread: Floats  # rows × types, workers on more nodes than necessary
    paired: Floats  # rows × rows × types
    source: str = ""
    sources: tuple[str, ...] = ()  # of each row, where rows differ; empty: `source` holds for all
    memory_gb: Floats | None = None  # by row: what a worker really needs of its accelerator. None: nobody ever runs out

    @classmethod
    def timed(cls, types: Sequence[str]) -> ThroughputTable:
        """The table of a trace that carries durations: every job does one step a second."""
        ones = np.ones((1, len(types)))
        return cls(tuple(types), ((TIMED, 1),), ones, ones, np.zeros((1, 1, len(types))), "durations")

    @cached_property
    def row_of(self) -> dict[tuple[str, int], int]:
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for kind, _ in self.keys if kind != TIMED))

    def workers_of(self, kind: str) -> tuple[int, ...]:
        """The numbers of workers a kind was measured with."""
        return tuple(workers for k, workers in self.keys if k == kind)

    def row(self, kind: str, workers: int) -> int:
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
                raise UnknownName("accelerator type in the throughput table", name, self.types)
        columns = [position[name] for name in names]
        return ThroughputTable(
            tuple(names),
            self.keys,
            np.ascontiguousarray(self.alone[:, columns]),
            np.ascontiguousarray(self.spread[:, columns]),
            np.ascontiguousarray(self.paired[:, :, columns]),
            self.source,
            self.sources,
            self.memory_gb,
        )
