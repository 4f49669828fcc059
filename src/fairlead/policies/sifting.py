"""Programs with many more columns than an optimum uses, such as one for each pair of classes. The solver is told of some; at
its prices the others are looked at, and those that would gain enter, until there are none. The optimum is that of all columns,
and so are its prices."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.program import Program, Solution

_AT_A_TIME = 96


class Sifted:
    """As a `Program`. The solver is told of the columns `first` at once; all others are 0 or above. Where the rows admit no
    solution in those that it knows, all enter."""

    def __init__(
        self,
        name: str,
        cost: Floats,
        lower: Floats,
        upper: Floats,
        row_lower: Floats,
        row_upper: Floats,
        entries: tuple[Ints, Ints, Floats],
        first: Bools,
        tolerance: float = 1e-7,
    ) -> None:
        self.name, self.tolerance = name, tolerance
        self._cost, self._lower, self._upper = cost.copy(), lower, upper
        self._entries = [entries]
        self._columns = first.nonzero()[0]  # those that the solver knows, in its order
        self._at = np.full(len(cost), -1, dtype=np.int64)  # and where each is there
        self._at[self._columns] = np.arange(len(self._columns))
        known = (self._cost[self._columns], lower[self._columns], upper[self._columns])
        self._program = Program(name, *known, row_lower, row_upper, self._known(entries), tolerance=tolerance)

    @property
    def rows(self) -> int:
        return self._program.rows

    def costs(self, columns: Ints, cost: Floats) -> None:
        self._cost[columns] = cost
        known = self._at[columns] >= 0
        self._program.costs(self._at[columns[known]], cost[known])

    def column_bounds(self, columns: Ints, lower: Floats, upper: Floats) -> None:
        """Of columns that were among the first."""
        self._program.column_bounds(self._at[columns], lower, upper)

    def row_bounds(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        self._program.row_bounds(rows, lower, upper)

    def add_rows(self, lower: Floats, upper: Floats, entries: tuple[Ints, Ints, Floats]) -> Ints:
        """The row numbers in `entries` count from the first of the new ones."""
        rows, columns, values = entries
        self._entries.append((rows + self._program.rows, columns, values))
        return self._program.add_rows(lower, upper, self._known(entries))

    def solve(self) -> Solution:
        while True:
            try:
                found = self._program.solve()
            except SolverError:
                if len(self._columns) == len(self._cost):
                    raise
                self._enter((self._at < 0).nonzero()[0])
                continue
            rows, columns, values = self._all()
            reduced = self._cost - np.bincount(columns, values * found.duals[rows], minlength=len(self._cost))
            outside = np.where(self._at < 0, reduced, -np.inf)
            gaining = (outside > self.tolerance).nonzero()[0]
            if not len(gaining):
                reduced[self._columns] = found.reduced
                everything = np.zeros(len(self._cost))
                everything[self._columns] = found.values
                return Solution(everything, reduced, found.duals, found.objective)
            if len(gaining) > _AT_A_TIME:
                gaining = np.sort(gaining[(-outside[gaining]).argsort(kind="stable")[:_AT_A_TIME]])
            self._enter(gaining)

    def _enter(self, new: Ints) -> None:
        self._at[new] = len(self._columns) + np.arange(len(new))
        self._columns = np.concatenate((self._columns, new))
        rows, columns, values = self._all()
        entering = np.zeros(len(self._cost), dtype=np.bool_)
        entering[new] = True
        mine = entering[columns]
        entries = (rows[mine], self._at[columns[mine]] - self._program.columns, values[mine])
        self._program.add_columns(self._cost[new], self._lower[new], self._upper[new], entries)

    def _known(self, entries: tuple[Ints, Ints, Floats]) -> tuple[Ints, Ints, Floats]:
        """Of columns that the solver knows."""
        rows, columns, values = entries
        at = self._at[columns]
        known = at >= 0
        return rows[known], at[known], values[known]

    def _all(self) -> tuple[Ints, Ints, Floats]:
        if len(self._entries) > 1:
            rows, columns, values = zip(*self._entries)
            self._entries = [(np.concatenate(rows), np.concatenate(columns), np.concatenate(values))]
        return self._entries[0]
