"""Programs with many more columns than an optimum uses, such as one for each pair of classes. The solver is told of some; at
its prices the others are looked at, and those that would gain enter, until there are none. The optimum is that of all columns,
and so are its prices."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.programs.program import Entries, Model, Program, Solution

_AT_A_TIME = 96


class Sifted:
    """As a `Program`. The solver is told of the columns `first` at once; all others are 0 or above. Where the rows admit no
    solution in those that it knows, all enter."""

    def __init__(self, name: str, model: Model, first: Bools, tolerance: float = 1e-7) -> None:
        self.name, self.tolerance = name, tolerance
        self._cost, self._lower, self._upper = model.cost.copy(), model.lower, model.upper
        self._columns = first.nonzero()[0]  # those that the solver knows, in its order
        self._at = np.full(len(model.cost), -1, dtype=np.int64)  # and where each is there
        self._at[self._columns] = np.arange(len(self._columns))
        self._outside: list[Entries] = []  # of columns that it does not know
        cost, lower, upper = (column[self._columns] for column in (model.cost, model.lower, model.upper))
        inside = Model(cost, lower, upper, model.row_lower, model.row_upper, self._parted(model.entries, 0))
        self._program = Program(name, inside, tolerance=tolerance)

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

    def add_rows(self, lower: Floats, upper: Floats, entries: Entries) -> Ints:
        """The row numbers in `entries` count from the first of the new ones."""
        return self._program.add_rows(lower, upper, self._parted(entries, self._program.rows))

    def solve(self) -> Solution:
        while True:
            try:
                found = self._program.solve()
            except SolverError:
                if len(self._columns) == len(self._cost):
                    raise
                self._enter((self._at < 0).nonzero()[0])
                continue
            rows, columns, values = self._all_outside()
            reduced = self._cost - np.bincount(columns, values * found.duals[rows], minlength=len(self._cost))
            reduced[self._columns] = found.reduced
            gaining = ((reduced > self.tolerance) & (self._at < 0)).nonzero()[0]
            if not len(gaining):
                everything = np.zeros(len(self._cost))
                everything[self._columns] = found.values
                return Solution(everything, reduced, found.duals, found.objective)
            if len(gaining) > _AT_A_TIME:
                gaining = np.sort(gaining[(-reduced[gaining]).argsort(kind="stable")[:_AT_A_TIME]])
            self._enter(gaining)

    def _enter(self, new: Ints) -> None:
        self._at[new] = len(self._columns) + np.arange(len(new))
        self._columns = np.concatenate((self._columns, new))
        entries, self._outside = self._all_outside(), []
        rows, columns, values = self._parted(entries, 0)
        entering = (rows, columns - self._program.columns, values)
        self._program.add_columns(self._cost[new], self._lower[new], self._upper[new], entering)

    def _parted(self, entries: Entries, first: int) -> Entries:
        """Of columns that the solver knows, by its own numbers; the others are kept. Rows count from `first`."""
        rows, columns, values = entries
        at = self._at[columns]
        known, other = (at >= 0).nonzero()[0], (at < 0).nonzero()[0]
        self._outside.append((rows[other] + first, columns[other], values[other]))
        return rows[known], at[known], values[known]

    def _all_outside(self) -> Entries:
        if len(self._outside) > 1:
            rows, columns, values = zip(*self._outside)
            self._outside = [(np.concatenate(rows), np.concatenate(columns), np.concatenate(values))]
        return self._outside[0]
