"""Linear programs as data, solved by HiGHS and kept, so that a small change costs a few pivots. This is the only module that
knows the solver: its options, its status words, and the check that an answer is an optimum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import highspy
import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError

TOLERANCE = 1e-6
"""A solution that violates a row, or a dual its sign, by more than this (as the solver measures it) is not used."""

_PRIMAL_SIMPLEX, _ANY_SIMPLEX = 4, 0
_UNSCALED, _SCALED = 0, 2  # 2: the solver's default
_AGAIN = ((_UNSCALED, _ANY_SIMPLEX), (_SCALED, _PRIMAL_SIMPLEX), (_UNSCALED, _PRIMAL_SIMPLEX))
"""Scaling and strategy of further attempts from an empty basis, where a solve ends without an optimum."""
_OPTIONS: dict[str, Any] = {"output_flag": False, "threads": 1, "presolve": "off", "solver": "simplex"}

_MISSES = ("max_primal_infeasibility", "max_dual_infeasibility")

_IDLE: list[Any] = []
"""Solvers of programs that are gone, without a model: making one takes as long as solving a small program."""


Entries: TypeAlias = tuple[Ints, Ints, Floats]
"""Rows, columns and values of a matrix."""


@dataclass(frozen=True)
class Model:
    """max cost·x subject to lower ≤ x ≤ upper and row_lower ≤ A x ≤ row_upper; `entries` are the entries of A."""

    cost: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats
    entries: Entries


@dataclass(frozen=True)
class Solution:
    """An optimum: values of columns and the objective; with prices, also reduced costs and the rows' duals."""

    values: Floats
    reduced: Floats
    duals: Floats
    objective: float


class Program:
    """A model in the solver. Every change keeps the last basis, from which the next solve continues."""

    def __init__(self, name: str, model: Model, tolerance: float = 1e-7) -> None:
        """`tolerance` is how far the solver may miss a bound or an optimality condition, at least 1e-10."""
        self.name = name
        self.columns, self.rows = len(model.cost), len(model.row_lower)
        try:
            self._highs = _IDLE.pop()
        except IndexError:  # none, or another thread was first
            self._highs = _solver()
        for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self._highs.setOptionValue(option, tolerance)
        self._must(_pass_model(self._highs, model))

    def __del__(self) -> None:
        highs = self.__dict__.get("_highs")
        if highs is not None:
            highs.clearModel()
            _IDLE.append(highs)

    # Changes.

    def costs(self, columns: Ints, cost: Floats) -> None:
        self._must(self._highs.changeColsCost(len(columns), columns.astype(np.int32), cost))

    def column_bounds(self, columns: Ints, lower: Floats, upper: Floats) -> None:
        self._must(self._highs.changeColsBounds(len(columns), columns.astype(np.int32), lower, upper))

    def row_bounds(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        self._must(self._highs.changeRowsBounds(len(rows), rows.astype(np.int32), lower, upper))

    def start_at(self, columns: Bools, rows: Bools) -> None:
        """Start the next solve at the basis of these columns and rows."""
        basis = highspy.HighsBasis()
        status = (highspy.HighsBasisStatus.kLower, highspy.HighsBasisStatus.kBasic)
        above = (highspy.HighsBasisStatus.kUpper, highspy.HighsBasisStatus.kBasic)
        basis.col_status = [status[one] for one in columns.tolist()]
        basis.row_status = [above[one] for one in rows.tolist()]
        self._must(self._highs.setBasis(basis))

    def coefficient(self, row: int, column: int, value: float) -> None:
        self._must(self._highs.changeCoeff(row, column, value))

    def add_rows(self, lower: Floats, upper: Floats, entries: Entries | None = None) -> Ints:
        """Add rows, empty without `entries`; row numbers in these count from the first new row."""
        none = np.zeros(0, dtype=np.int64)
        count = len(lower)
        rows, columns, values = (none, none, np.zeros(0)) if entries is None else entries
        starts, index, value = _columnwise((columns, rows, values), count)  # the same by rows
        self._must(self._highs.addRows(count, lower, upper, len(value), starts[:-1], index, value))
        self.rows += count
        return np.arange(self.rows - count, self.rows)

    def add_columns(self, cost: Floats, lower: Floats, upper: Floats, entries: Entries) -> Ints:
        """Add columns; column numbers in `entries` count from the first new column."""
        starts, index, value = _columnwise(entries, len(cost))
        self._must(self._highs.addCols(len(cost), cost, lower, upper, len(value), starts[:-1], index, value))
        self.columns += len(cost)
        return np.arange(self.columns - len(cost), self.columns)

    # Answers.

    def solve(self, *, primal: bool = False, prices: bool = True) -> Solution:
        """The optimum, or a `SolverError`. `primal` suits where the last point is still feasible; no `prices`: faster."""
        highs = self._highs
        highs.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX if primal else _ANY_SIMPLEX)
        highs.run()
        worst = self._off()
        for scaling, strategy in _AGAIN:  # rarely: a lost basis, or a scaled model's answer that is none of the model itself
            if worst <= TOLERANCE:
                break
            highs.clearSolver()
            highs.setOptionValue("simplex_scale_strategy", scaling)
            highs.setOptionValue("simplex_strategy", strategy)
            highs.run()
            highs.setOptionValue("simplex_scale_strategy", _SCALED)
            worst = self._off()
        status = highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(self.name, highs.modelStatusToString(status).lower())
        objective = highs.getObjectiveValue()
        if not worst <= TOLERANCE or not math.isfinite(objective):
            raise SolverError(self.name, f"optimal, but constraints are violated by {worst:g}")
        found = highs.getSolution()
        values, none = np.array(found.col_value), np.zeros(0)
        reduced, duals = (np.array(found.col_dual), np.array(found.row_dual)) if prices else (none, none)
        return Solution(values, reduced, duals, float(objective))

    def _off(self) -> float:
        """The largest violation of a bound or an optimality condition by the last answer; infinity without an answer."""
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return math.inf
        # By name: reading all of the solver's information takes ten times as long.
        return float(max(self._highs.getInfoValue(name)[1] for name in _MISSES))

    def _must(self, status: Any) -> None:
        if status == highspy.HighsStatus.kError:
            raise SolverError(self.name, "an invalid model")


@dataclass(frozen=True)
class MixedSolution:
    """The best point found by a search, and an upper bound; both are equal where the search finished."""

    values: Floats
    bound: float


def solve_mip(name: str, model: Model, whole: Bools, *, nodes: int, gap: float) -> MixedSolution | None:
    """Solve with integers in the columns `whole`, up to a `gap` or number of `nodes`; None where no point was found."""
    settings = {"output_flag": False, "threads": 1, "mip_max_nodes": nodes, "mip_abs_gap": gap, "mip_rel_gap": 0.0}
    highs = _solver(settings)
    if _pass_model(highs, model, whole) == highspy.HighsStatus.kError:
        raise SolverError(name, "an invalid model")
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kSolutionLimit):
        raise SolverError(name, highs.modelStatusToString(status).lower())
    info = highs.getInfo()
    if not math.isfinite(info.objective_function_value) or info.primal_solution_status != 2:
        return None
    return MixedSolution(np.array(highs.getSolution().col_value), float(info.mip_dual_bound))


def _solver(settings: Mapping[str, Any] = _OPTIONS) -> Any:
    """A solver with these settings; an unknown option is an error, since versions differ."""
    highs = highspy.Highs()
    for option, setting in settings.items():
        if highs.setOptionValue(option, setting) != highspy.HighsStatus.kOk:
            raise SolverError("the solver", f"this version has no option {option}")
    return highs


def _pass_model(highs: Any, model: Model, whole: Bools | None = None) -> Any:
    """Pass the model to the solver as arrays, and return its status; building it object by object takes four times as long."""
    starts, index, value = _columnwise(model.entries, len(model.cost))
    size = (len(model.cost), len(model.row_lower), len(value))
    by_column, maximise = int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMaximize)
    bounds = (model.lower, model.upper, model.row_lower, model.row_upper)
    kinds = np.zeros(size[0], dtype=np.int32) if whole is None else whole.astype(np.int32)
    return highs.passModel(*size, by_column, maximise, 0.0, model.cost, *bounds, starts, index, value, kinds)


def _columnwise(entries: Entries, columns: int) -> tuple[Any, Any, Floats]:
    rows, cols, values = entries
    order = cols.argsort(kind="stable")
    starts = np.zeros(columns + 1, dtype=np.int32)
    np.cumsum(np.bincount(cols, minlength=columns), out=starts[1:])
    return starts, rows[order].astype(np.int32), np.asarray(values, dtype=np.float64)[order]


_AT_A_TIME = 96


class ColumnGeneration:
    """A `Program` that starts with the columns `first`. Others enter as they would gain at its prices, or all where the rows
    are infeasible without them."""

    def __init__(self, name: str, model: Model, first: Bools, tolerance: float = 1e-7) -> None:
        self.name, self.tolerance = name, tolerance
        self._cost, self._lower, self._upper = model.cost.copy(), model.lower, model.upper
        self._columns = first.nonzero()[0]  # columns that the solver knows, in its order
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
        """Change bounds of columns that were among the first."""
        self._program.column_bounds(self._at[columns], lower, upper)

    def row_bounds(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        self._program.row_bounds(rows, lower, upper)

    def add_rows(self, lower: Floats, upper: Floats, entries: Entries) -> Ints:
        """Add rows; row numbers in `entries` count from the first new row."""
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
        """The entries of columns in the solver, by its own numbers; the others are kept. Rows count from `first`."""
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
