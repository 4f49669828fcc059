"""Prices that are walked to by hand, against those of the solver."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.policies.allocation.lp import dual_simplex_walk as walking
from fairlead.policies.allocation.lp.demands import Demands, no_prices
from fairlead.policies.allocation.lp.dual_simplex_walk import FREE, HELD, Corner, Walking, fails, solved, walked
from fairlead.policies.allocation.lp.job_classes import classes_of
from fairlead.policies.allocation.lp.levels import Paces
from fairlead.policies.allocation.lp.program import Program
from policies.per_job import moment


def paces_of(demands, seed):
    rng = np.random.default_rng(seed)
    soonest = rng.uniform(0.5, 20.0, len(demands.of))
    unit, spent = rng.uniform(1.0, 30.0, len(soonest)), rng.uniform(0.0, 10.0, len(soonest))
    paces = Paces(demands.fastest * soonest, unit, spent, soonest, 1e-5 * demands.fastest)
    alone = (spent + soonest) / unit
    return paces, float(alone.min()), float(alone.max())


def every_start(types):
    """No prices, and all on one type each."""
    yield no_prices(types)
    for kind in range(types):
        near = no_prices(types)
        near[0, 0, kind] = 1.0
        yield near


@pytest.mark.parametrize("seed", range(40))
def test_from_any_prices_it_comes_to_the_level_of_the_solver(seed):
    made = moment(seed)
    classes = classes_of(made.view)
    plain = Demands("test", classes, made.capacity)
    paces, lowest, highest = paces_of(plain, seed)
    expected, _, fitted = plain.least_level(paces, lowest, highest)
    for near in every_start(len(made.capacity)):
        demands = Walking("test", classes, made.capacity, near)
        level, grid, fit = demands.least_level(paces, lowest, highest)
        assert level == pytest.approx(expected, rel=1e-9)
        paid = demands.cost_of(grid, demands.costs(fit.prices)).sum() - 1.0
        assert fit.prices @ made.capacity == pytest.approx(1.0)
        assert paid == pytest.approx(fit.excess, abs=1e-8)  # the prices prove it
        assert fit.excess == pytest.approx(fitted.excess, abs=1e-8)
        x = demands.shares(grid, fit.used)
        assert (x * made.rates).sum(axis=1) == pytest.approx(paces.at(level), rel=1e-9)
        assert (x.sum(axis=1) <= 1 + 1e-9).all()
        assert (made.workers @ x <= (1 + 1e-8) * made.capacity).all()


def test_it_seldom_asks_the_solver(monkeypatch):
    programs, solve = [], Program.solve
    monkeypatch.setattr(Program, "solve", lambda self, **how: (programs.append(1), solve(self, **how))[1])
    walks = 0
    for seed in range(40):
        made = moment(seed)
        for near in every_start(len(made.capacity)):
            demands = Walking("test", classes_of(made.view), made.capacity, near)
            demands.least_level(*paces_of(demands, seed))
            walks += 1
    assert walks > 100
    assert len(programs) <= walks // 8


@pytest.mark.parametrize("seed", range(10))
def test_where_the_way_is_lost_the_solver_has_the_answer(seed, monkeypatch):
    made = moment(seed)
    classes = classes_of(made.view)
    found = Walking("test", classes, made.capacity)
    search = paces_of(found, seed)
    level = found.least_level(*search)[0]
    monkeypatch.setattr(walking, "walked", lambda *_: None)
    lost = Walking("test", classes, made.capacity)
    again, grid, fit = lost.least_level(*search)
    assert again == pytest.approx(level, rel=1e-9)
    assert (lost.shares(grid, fit.used) * made.rates).sum(axis=1) == pytest.approx(search[0].at(level), rel=1e-8)


@pytest.mark.parametrize("seed", [52, 88, 817, 1113, 1141, 1359, 1404])
def test_the_level_is_the_least_even_where_demands_just_fill_the_cluster(seed):
    """Who asks for its fastest type, all of it, does so over a stretch of levels."""
    made = moment(seed)
    plain = Demands("test", classes_of(made.view), made.capacity)
    alone_s = np.random.default_rng(seed + 7).uniform(0.5, 20.0, len(plain.of))
    nothing = np.zeros(len(alone_s))
    paces = Paces(plain.fastest * alone_s, nothing + 1.0, nothing, alone_s, nothing)
    low, high = alone_s.min(), 100.0 * alone_s.max()
    for _ in range(60):  # by halving
        level = 0.5 * (low + high)
        low, high = (low, level) if plain.fit(plain.asked(paces.at(level))).has_room else (level, high)
    for near in every_start(len(made.capacity)):
        demands = Walking("test", plain.classes, made.capacity, near)
        assert demands.least_level(paces, alone_s.min(), alone_s.max())[0] == pytest.approx(high, rel=1e-7)


def test_what_is_least_below_nothing_is_let_go():
    first = np.array([3, 0])
    ties = [(0, 1), (1, 2)]
    assert fails(first, ties, [0.2, 0.8, 0.5]) is None
    assert fails(first, ties, [-0.2, 0.8, 0.5]) == (0, 1)
    assert fails(first, ties, [0.2, 1.5, 0.5]) == (1, 0)  # of its first answer there would be -0.5
    assert fails(first, [(FREE, 1), (HELD, 2)], [0.3, 0.0, 0.5]) is None
    assert fails(first, [(FREE, 1), (HELD, 2)], [-0.3, 0.1, 0.5]) == (FREE, 1)
    assert fails(first, [(FREE, 1), (HELD, 2)], [0.3, 0.1, 0.5]) == (HELD, 2)


def test_equations_that_depend_on_each_other_have_no_solution():
    assert solved([[1.0, 2.0], [2.0, 4.0]], np.ones(2)) is None


def test_the_price_goes_to_the_type_that_is_short():
    """One class that uses 0.9 of the first type or 1.2 of the second, at full prices on the second: it pays to lean."""
    use = np.array([[[0.9, 0.0], [0.0, 1.2]]])
    start = Corner(np.array([0.0, 1.0]), np.array([0]), [(FREE, 0)])
    begin = solved([[1.0, 0.0], [-1.0, -1.0]], 1.0 - use[0, 0])
    found = walked(use, np.zeros((1, 2)), start, [1.0, 1.0], begin)
    assert found.corner.prices == pytest.approx([4 / 7, 3 / 7])
    assert found.excess == pytest.approx(0.9 * 4 / 7 - 1.0)
