"""The shared method for jobs that differ in demand, against a program with a variable for each job and type."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.hull_model import HullModel, no_prices
from fairlead.policies.allocation.lp.job_classes import classes_of
from fairlead.policies.allocation.lp.level_search import DeadlineDemands
from fairlead.policies.allocation.lp.program import Model, Program
from policies.per_job import cp, moment, solved


def demands_of(made):
    return HullModel("test", classes_of(made.view), made.capacity)


@pytest.mark.parametrize("seed", range(20))
def test_how_far_demands_exceed_the_cluster_is_exact(seed):
    made = moment(seed)
    demands = demands_of(made)
    demand = np.random.default_rng(seed).uniform(0.0, 1.0, len(demands.class_of)) * demands.fastest
    fit = demands.fit(demands.to_demands(demand))
    x, throughput, (whole, _, nowhere) = made.program()
    excess = cp.Variable()
    room = made.workers @ x <= (1 + excess) * made.capacity
    expected = solved(cp.Problem(cp.Minimize(excess), [whole, room, nowhere, throughput >= demand]))
    assert fit.excess == pytest.approx(expected, abs=1e-7)
    assert fit.prices @ made.capacity == pytest.approx(1.0)
    job_costs = demands.cost_of(demands.to_demands(demand), demands.costs(fit.prices))
    assert job_costs.sum() - 1.0 == pytest.approx(fit.excess, abs=1e-7)  # the prices prove it


@pytest.mark.parametrize("seed", range(20))
def test_earlier_prices_say_at_least_how_far_demands_exceed_the_cluster(seed, monkeypatch):
    made = moment(seed)
    demands = HullModel("test", classes_of(made.view), np.minimum(made.capacity, 1))  # one of each type: too few
    demand = np.random.default_rng(seed).uniform(0.8, 1.0, len(demands.class_of)) * demands.fastest
    grid = demands.to_demands(demand)
    exact = demands.fit(grid).excess
    assert exact > 0.01
    programs = []
    monkeypatch.setattr(Program, "solve", lambda *_, **__: programs.append(1))
    assert demands.fit(grid, at_least=True).excess == pytest.approx(exact, abs=1e-9)  # its own prices prove all of it
    part = 0.9999  # other demands, that exceed it as well
    other = demands.to_demands(part * demand)
    fit = demands.fit(other, at_least=True)
    job_costs = demands.cost_of(other, demands.costs(fit.prices))
    assert 0.001 < fit.excess < exact
    assert job_costs.sum() - 1.0 == pytest.approx(fit.excess, abs=1e-9)
    assert not programs


@pytest.mark.parametrize("seed", range(20))
def test_shares_give_everybody_what_they_demand_and_no_more_than_the_cheapest_way(seed):
    made = moment(seed)
    demands = demands_of(made)
    demand = np.random.default_rng(seed).uniform(0.0, 1.0, len(demands.class_of)) * demands.fastest
    grid = demands.to_demands(demand)
    fit = demands.fit(grid)
    x = demands.shares(grid, fit.used)
    assert (x * made.rates).sum(axis=1) == pytest.approx(demand, abs=1e-9)
    assert (x.sum(axis=1) <= 1 + 1e-9).all()
    assert (made.workers @ x <= (1 + fit.excess) * made.capacity + 1e-7).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_most_worth_that_meets_demands_is_exact_whatever_the_worth(seed):
    made = moment(seed)
    demands, rng = demands_of(made), np.random.default_rng(seed)
    demand = rng.uniform(0.0, 1.0, len(demands.class_of)) * demands.fastest
    demand /= max(1.0, 1.01 * (1.0 + demands.fit(demands.to_demands(demand)).excess))
    demand[rng.random(len(demand)) < 0.3] = 0.0
    worth = rng.uniform(-1.0, 3.0, demands.classes.rates.shape)
    grid = demands.to_demands(demand)
    got = demands.shares(grid, demands.maximize(grid, worth))
    x, throughput, allowed = made.program()
    value = cp.sum(cp.multiply(worth[demands.class_of], x))
    expected = solved(cp.Problem(cp.Maximize(value), [*allowed, throughput >= demand]))
    assert (worth[demands.class_of] * got).sum() == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert ((got * made.rates).sum(axis=1) >= demand - 1e-7).all()


@pytest.mark.parametrize("seed", range(20))
def test_prices_of_another_moment_lead_to_the_same_optimum(seed):
    made = moment(seed)
    fresh, rng = demands_of(made), np.random.default_rng(seed)
    demand = rng.uniform(0.0, 1.0, len(fresh.class_of)) * fresh.fastest
    worth = rng.uniform(0.1, 3.0, fresh.classes.rates.shape)

    def optimum(demands, part):
        grid = demands.to_demands(part * demand)
        fit = demands.fit(grid)
        mix = demands.maximize(grid, worth, fit.excess)
        return (
            fit.excess,
            demands.shares(grid, fit.used),
            (worth[demands.class_of] * demands.shares(grid, mix)[demands.present]).sum(),
        )

    excess, time, value = optimum(fresh, 1.0)
    for part in (1.0, 0.97, 0.5, 0.01):
        before = demands_of(made)
        optimum(before, part)
        warm = HullModel("test", before.classes, made.capacity, before.near)
        again, shares, most = optimum(warm, 1.0)
        assert again == pytest.approx(excess, abs=1e-9)
        assert most == pytest.approx(value, rel=1e-8)
        assert (shares * made.rates).sum(axis=1) == pytest.approx((time * made.rates).sum(axis=1), abs=1e-9)
        assert (made.workers @ shares <= (1 + excess) * made.capacity + 1e-7).all()


def test_where_prices_hold_no_program_is_solved(monkeypatch):
    made = moment(19)
    demands = demands_of(made)
    demand = np.random.default_rng(19).uniform(0.0, 1.0, len(demands.class_of)) * demands.fastest
    grid = demands.to_demands(demand)
    excess = demands.fit(grid).excess
    monkeypatch.setattr(Program, "solve", lambda self: pytest.fail("a program was solved"))
    assert demands.fit(grid).excess == pytest.approx(excess, abs=1e-9)


def test_a_solver_used_again_answers_as_a_new_one():
    def answer(size):
        rng = np.random.default_rng(size)
        rows, columns = np.divmod(np.arange(5 * size), size)
        model = Model(
            rng.uniform(1.0, 2.0, size),
            np.zeros(size),
            np.full(size, np.inf),
            np.full(5, -np.inf),
            np.ones(5),
            (rows, columns, rng.uniform(0.1, 1.0, 5 * size)),
        )
        return Program("test", model).solve().values.tobytes()

    first = [answer(size) for size in (8, 40, 3)]
    assert [answer(size) for size in (3, 40, 8)] == first[::-1]


def test_a_level_that_does_not_exist_is_an_error():
    made = moment(3)
    demands = demands_of(made)
    full = demands.fastest * 1.0
    if demands.fit(demands.to_demands(full)).excess <= 0:
        pytest.fail("choose a seed whose cluster is too small")
    ones = np.ones(len(full))
    with pytest.raises(SolverError):
        demands.min_level(DeadlineDemands(full, ones, 0.0 * ones, ones, least=full), 1.0, 2.0)


def paces_of(demands, seed):
    rng = np.random.default_rng(seed)
    soonest = rng.uniform(0.5, 20.0, len(demands.class_of))
    unit, spent = rng.uniform(1.0, 30.0, len(soonest)), rng.uniform(0.0, 10.0, len(soonest))
    paces = DeadlineDemands(demands.fastest * soonest, unit, spent, soonest, 1e-5 * demands.fastest)
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
def test_the_level_does_not_depend_on_the_prices_that_the_search_starts_with(seed):
    made = moment(seed)
    classes = classes_of(made.view)
    plain = HullModel("test", classes, made.capacity)
    paces, lowest, highest = paces_of(plain, seed)
    expected, grid, fitted = plain.min_level(paces, lowest, highest)
    shares = plain.shares(grid, fitted.used)
    for near in every_start(len(made.capacity)):
        demands = HullModel("test", classes, made.capacity, near)
        level, grid, fit = demands.min_level(paces, lowest, highest)
        assert level == pytest.approx(expected, rel=1e-12)
        job_costs = demands.cost_of(grid, demands.costs(fit.prices)).sum() - 1.0
        assert fit.prices @ made.capacity == pytest.approx(1.0)
        assert job_costs == pytest.approx(fit.excess, abs=1e-8)  # the prices prove it
        assert fit.excess == pytest.approx(fitted.excess, abs=1e-11)
        x = demands.shares(grid, fit.used)
        assert (x * made.rates).sum(axis=1) == pytest.approx(paces.at(level), rel=1e-9)
        assert (x.sum(axis=1) <= 1 + 1e-9).all()
        assert (made.workers @ x <= (1 + 1e-8) * made.capacity).all()
        assert x == pytest.approx(shares, abs=1e-6)  # of several optima always the same one


@pytest.mark.parametrize("seed", [52, 88, 817, 1113, 1141, 1359, 1404])
def test_the_level_is_the_least_even_where_demands_just_fill_the_cluster(seed):
    """Who asks for its fastest type, all of it, does so over a stretch of levels."""
    made = moment(seed)
    plain = HullModel("test", classes_of(made.view), made.capacity)
    alone_s = np.random.default_rng(seed + 7).uniform(0.5, 20.0, len(plain.class_of))
    nothing = np.zeros(len(alone_s))
    paces = DeadlineDemands(plain.fastest * alone_s, nothing + 1.0, nothing, alone_s, nothing)
    low, high = alone_s.min(), 100.0 * alone_s.max()
    for _ in range(60):  # by halving
        level = 0.5 * (low + high)
        low, high = (low, level) if plain.fit(plain.to_demands(paces.at(level))).has_room else (level, high)
    for near in every_start(len(made.capacity)):
        demands = HullModel("test", plain.classes, made.capacity, near)
        assert demands.min_level(paces, alone_s.min(), alone_s.max())[0] == pytest.approx(high, rel=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_the_level_is_exact_where_the_search_starts_near_the_optimum(seed):
    """A level at which demands exceed the cluster by 1e-9 would depend on the start."""
    made = moment(seed)
    classes = classes_of(made.view)
    plain = HullModel("test", classes, made.capacity)
    paces, lowest, highest = paces_of(plain, seed)
    expected, _, fitted = plain.min_level(paces, lowest, highest)
    rng = np.random.default_rng(seed)
    for off in (1e-9, 1e-8, 1e-7):
        near = no_prices(len(made.capacity))
        near[0, 0] = fitted.prices * made.capacity * (1.0 + off * rng.uniform(-1.0, 1.0, len(made.capacity)))
        level, _, _ = HullModel("test", classes, made.capacity, near).min_level(paces, lowest, highest)
        assert level == pytest.approx(expected, rel=1e-13, abs=0.0)


def test_no_two_classes_can_exchange_answers_of_equal_rank():
    """Hashes of a class with two answers can differ by the same number as those of another class."""
    demands = HullModel("test", classes_of(moment(3).view), moment(3).capacity)
    groups, answers = len(demands.classes), demands.valid.shape[1]
    g, f = np.indices((groups, answers)).reshape(2, -1)
    ranks = demands._ranks(g, f).reshape(groups, answers)
    gaps = ranks[:, :, None] - ranks[:, None, :]
    gaps = np.sort(gaps[:, *np.triu_indices(answers, 1)].ravel())
    assert np.diff(gaps).min() > 1e-10
