"""A program that is told of its columns by and by, against the same program told of all at once."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.program import ColumnGeneration, Model, Program

COLUMNS, ROWS = 400, 12


def a_program(seed, kind, *more):
    """Random, bounded, and with rows that only some of the columns keep."""
    rng = np.random.default_rng(seed)
    rows, columns = (rng.random((ROWS - 1, COLUMNS)) < 0.3).nonzero()
    values = rng.uniform(0.1, 1.0, len(rows))
    cost, above = rng.uniform(0.5, 2.0, COLUMNS), np.full(COLUMNS, np.inf)
    rows, columns = np.append(rows + 1, np.zeros(COLUMNS, dtype=np.int64)), np.append(columns, np.arange(COLUMNS))
    values = np.append(values, np.full(COLUMNS, 0.05))
    bounds = (np.zeros(COLUMNS), above, np.full(ROWS, -np.inf), rng.uniform(5.0, 9.0, ROWS))
    return kind("test", Model(cost, *bounds, (rows, columns, values)), *more, tolerance=1e-10)


def assert_same(found, expected):
    assert found.objective == pytest.approx(expected.objective, rel=1e-9)
    assert found.values == pytest.approx(expected.values, abs=1e-7)
    assert found.duals == pytest.approx(expected.duals, abs=1e-7)
    assert found.reduced == pytest.approx(expected.reduced, abs=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_and_its_prices_are_those_of_all_columns_after_any_change(seed):
    first = np.arange(COLUMNS) < 20
    whole, some = a_program(seed, Program), a_program(seed, ColumnGeneration, first)
    assert_same(some.solve(), whole.solve())
    rng = np.random.default_rng(100 + seed)
    used = rng.permutation(COLUMNS)[:60]
    entries = (rng.integers(0, 2, 60), used, rng.uniform(0.5, 1.0, 60))
    cost, rows = rng.uniform(0.5, 2.0, COLUMNS), np.arange(3)
    for program in (whole, some):
        program.add_rows(np.full(2, -np.inf), np.full(2, 1.5), entries)
    assert_same(some.solve(), whole.solve())
    for program in (whole, some):
        program.costs(np.arange(COLUMNS), cost)
        program.row_bounds(rows, np.full(3, -np.inf), np.full(3, 4.0))
        program.column_bounds(rows, np.zeros(3), np.ones(3))
    assert_same(some.solve(), whole.solve())
    assert len(some._columns) < COLUMNS


def test_rows_that_the_first_columns_cannot_keep_let_all_enter():
    def made(kind, *more):
        program = a_program(3, kind, *more)
        program.add_rows(np.array([2.0]), np.array([np.inf]), (np.zeros(1, dtype=np.int64), np.array([390]), np.ones(1)))
        return program

    assert_same(made(ColumnGeneration, np.arange(COLUMNS) < 20).solve(), made(Program).solve())


def test_rows_that_nobody_can_keep_are_an_error():
    program = a_program(3, ColumnGeneration, np.arange(COLUMNS) < 20)
    program.add_rows(np.array([1e6]), np.array([np.inf]), (np.zeros(1, dtype=np.int64), np.array([390]), np.ones(1)))
    with pytest.raises(SolverError):
        program.solve()
