"""The program layer: optima with their duals, changes that keep the basis, and failures that are told and never used."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp import program
from fairlead.policies.allocation.lp.program import Model, Program

INF = np.inf


def diet(upper: float = INF) -> Program:
    """max 3a + 2b  s.t.  a + b ≤ 4,  a + 3b ≤ 6,  0 ≤ a, b ≤ upper: 12 at a = 4."""
    rows, columns, values = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 1.0, 3.0])
    bounds = (np.array([3.0, 2.0]), np.zeros(2), np.full(2, upper), np.full(2, -INF), np.array([4.0, 6.0]))
    return Program("diet", Model(*bounds, (rows, columns, values)))


def test_an_optimum_has_values_duals_and_a_worth() -> None:
    found = diet().solve()
    assert found.objective == pytest.approx(12.0)
    assert found.values == pytest.approx([4.0, 0.0])
    assert found.duals == pytest.approx([3.0, 0.0])


def test_a_solver_that_another_thread_has_just_taken_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    class JustTaken(list[object]):
        """There was one when somebody looked."""

        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr("fairlead.policies.allocation.lp.program._IDLE", JustTaken())
    assert diet().solve().objective == pytest.approx(12.0)


def test_changes_reach_the_optimum_of_a_program_built_anew() -> None:
    rng = np.random.default_rng(0)
    kept = diet()
    for _ in range(30):
        cost, room, coefficient = rng.uniform(0.5, 4.0, 2), rng.uniform(1.0, 9.0, 2), float(rng.uniform(0.5, 3.0))
        kept.costs(np.arange(2), cost)
        kept.row_bounds(np.arange(2), np.full(2, -INF), room)
        kept.coefficient(1, 1, coefficient)
        entries = (np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 1.0, coefficient]))
        fresh = Program("fresh", Model(cost, np.zeros(2), np.full(2, INF), np.full(2, -INF), room, entries))
        assert kept.solve().objective == pytest.approx(fresh.solve().objective)
        assert kept.solve(primal=True).objective == pytest.approx(fresh.solve().objective)


def test_rows_and_columns_come_in_later() -> None:
    program = diet()
    rows = program.add_rows(np.array([-INF]), np.array([5.0]))
    columns = program.add_columns(
        np.array([10.0]), np.zeros(1), np.full(1, INF), (np.array([0, int(rows[0])]), np.zeros(2, int), np.ones(2))
    )
    assert (rows.tolist(), columns.tolist()) == ([2], [2])
    assert program.solve().objective == pytest.approx(40.0)


@pytest.mark.parametrize("what", ["infeasible", "unbounded"])
def test_what_has_no_optimum_is_told_and_not_used(what: str) -> None:
    program = diet()
    if what == "infeasible":
        program.row_bounds(np.array([0]), np.array([7.0]), np.array([INF]))
    else:
        program.row_bounds(np.arange(2), np.full(2, -INF), np.full(2, INF))
    with pytest.raises(SolverError, match=f"diet.*{what}") as caught:
        program.solve()
    assert what in caught.value.status


def test_it_recovers_from_a_failure() -> None:
    program = diet()
    program.row_bounds(np.array([0]), np.array([7.0]), np.array([INF]))
    with pytest.raises(SolverError):
        program.solve()
    program.row_bounds(np.array([0]), np.array([-INF]), np.array([4.0]))
    assert program.solve().objective == pytest.approx(12.0)


def test_a_model_that_cannot_be_is_refused() -> None:
    with pytest.raises(SolverError):
        diet().column_bounds(np.array([99]), np.zeros(1), np.ones(1))


def test_numbers_that_are_none_are_no_optimum() -> None:
    def solve() -> None:
        program = diet()
        program.costs(np.array([0]), np.array([np.nan]))
        program.solve()

    with pytest.raises(SolverError):
        solve()


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(SolverError("diet", "infeasible")))
    assert (error.what, error.status) == ("diet", "infeasible")


def test_an_option_that_the_solver_does_not_know_is_an_error_and_not_a_silent_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_IDLE", [])
    monkeypatch.setitem(program._OPTIONS, "no_such_option", 1)
    with pytest.raises(SolverError, match="no option no_such_option"):
        diet()
