"""The narrow way from the true throughputs to what an estimation knows. A profiler times what it is asked to time and tells
nothing else; who wants to know a rate has to have it measured. Whether a job (or two together) starts at all is found without
timing: it is a question of memory, answered in a second."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED
from fairlead.core.rng import stream
from fairlead.estimation.rows import RateTable


@dataclass(frozen=True)
class Profiler:
    """Timed runs on accelerators set aside; each is off by a relative error with standard deviation `noise`."""

    table: RateTable = field(repr=False)
    noise: float = 0.0
    seed: int = 0

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        return self.table.keys

    @property
    def types(self) -> int:
        return int(self.table.alone.shape[1])

    # Without timing.

    def fits(self) -> Bools:
        """Rows × types: where a job starts."""
        return self.table.alone > 0

    def fit_together(self) -> Bools:
        """Rows × rows × types: where two start on the same accelerators."""
        both = self.table.paired > 0
        return both & both.transpose(1, 0, 2)

    # Where an estimator is told that rates alone are known, since single jobs were timed before.

    def known_alone(self) -> tuple[Floats, Floats]:
        """Rows × types, on as few nodes as possible and spread."""
        return self.table.alone, self.table.spread

    # With timing.

    def alone(self, row: int, type_: int) -> float:
        return self._timed(float(self.table.alone[row, type_]), "alone", row, type_)

    def beside(self, row: int, mate: int, type_: int) -> tuple[float, float]:
        """The rates of both; 0 where they do not start together."""
        mine, its = float(self.table.paired[row, mate, type_]), float(self.table.paired[mate, row, type_])
        return self._timed(mine, "beside", row, mate, type_), self._timed(its, "beside", mate, row, type_)

    def in_full(self, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Everything about some jobs, alone, spread and beside each other: what is measured once, beforehand, of reference
        jobs. rows × types, the same, rows × rows × types."""
        table = self.table
        return table.alone[rows], table.spread[rows], table.paired[np.ix_(rows, rows)]

    def _timed(self, true: float, *what: str | int) -> float:
        if not self.noise or true <= 0:
            return true
        return true * off(self.noise, stream(self.seed, "profiler", *what))


def off(noise: float, rng: np.random.Generator) -> float:
    """The factor by which one measurement is off."""
    return max(0.1, 1.0 + noise * float(rng.standard_normal()))


def check_references(where: str, chosen: tuple[str, ...] | float | None) -> None:
    """What can be said of them without a table."""
    if isinstance(chosen, (int, float)) and not 0 < chosen <= 1:
        raise InputError(where, "a part above 0 and up to 1, or names of kinds", field="references", value=chosen)
    if chosen == ():
        raise InputError(where, "at least one kind", field="references", value="[]")


def reference_rows(keys: tuple[tuple[str, int], ...], chosen: tuple[str, ...] | float | None, seed: int, where: str) -> Ints:
    """The rows of the reference jobs: of all kinds, of those named, or of a part of them drawn at random."""
    kinds = list(dict.fromkeys(kind for kind, _ in keys if kind != TIMED))
    if isinstance(chosen, tuple):
        unknown = [kind for kind in chosen if kind not in kinds]
        if unknown:
            raise InputError(where, "kinds that the throughput table has", field="references", value=unknown[0])
        kinds = [kind for kind in kinds if kind in chosen]
    elif chosen is not None:
        drawn = stream(seed, "references").permutation(len(kinds))[: int(np.ceil(chosen * len(kinds)))]
        kinds = [kinds[index] for index in sorted(drawn.tolist())]
    taken = set(kinds)
    return np.array([row for row, (kind, _) in enumerate(keys) if kind in taken], dtype=np.int64)
