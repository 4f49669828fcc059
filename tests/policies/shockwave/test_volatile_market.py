"""The volatile market: the optimum of Nash welfare is an equilibrium; checked against cvxpy and brute force."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volatile_market import Equilibrium, JobProcess, expected_market, leontief_market, linear_market

from fairlead.core.cluster import Floats

MARKETS = {"linear": linear_market, "leontief": leontief_market}


def drawn(seed: int, kind: str) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, (6, 4, 6)))
    given = rng.uniform(0.05, 3.0, shape)
    if kind == "linear":
        given[rng.random(shape) < 0.3] = 0.0
        given[np.arange(shape[0]), rng.integers(shape[1], size=shape[0]), rng.integers(shape[2], size=shape[0])] = 1.0
    else:
        given *= rng.choice([1.0, 1.0, 2.0], (shape[0], 1, shape[2]))
    return rng.uniform(0.2, 3.0, shape[0]), given


def cost_of_a_unit(kind: str, given: Floats, prices: Floats) -> Floats:
    """The least price of a unit of utility for each job."""
    if kind == "linear":
        with np.errstate(divide="ignore"):
            return (prices / given).min(axis=(1, 2))
    return (prices * given).sum(axis=1).min(axis=1)


def gained(kind: str, given: Floats, shares: Floats) -> Floats:
    return (given * shares).sum(axis=(1, 2)) if kind == "linear" else (shares / given).min(axis=1).sum(axis=1)


@pytest.mark.parametrize("kind", MARKETS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_optimum_is_an_equilibrium(kind: str, seed: int) -> None:
    budgets, given = drawn(seed, kind)
    found = MARKETS[kind](budgets, given)
    assert (found.shares >= 0).all()
    sold = found.shares.sum(axis=0)
    assert (sold <= 1 + 1e-9).all()
    assert (found.prices * (1 - sold) <= 1e-8 * budgets.sum()).all()  # what has a price is sold out
    assert found.spent == pytest.approx(budgets, rel=1e-6)  # budgets are spent
    assert found.prices.sum() == pytest.approx(budgets.sum(), rel=1e-6)
    assert gained(kind, given, found.shares) == pytest.approx(found.utility, rel=1e-9)
    # No job could buy more with its budget: it pays the least price there is for its utility.
    assert cost_of_a_unit(kind, given, found.prices) * found.utility == pytest.approx(budgets, rel=1e-6)


@pytest.mark.parametrize("kind", MARKETS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_under_equal_budgets_every_job_has_at_least_its_equal_part(kind: str, seed: int) -> None:
    _, given = drawn(seed, kind)
    found = MARKETS[kind](np.ones(len(given)), given)
    assert gained(kind, given, np.full(given.shape, 1.0 / len(given))) == pytest.approx(found.fair)
    assert found.rho.max() <= 1 + 1e-8


@pytest.mark.parametrize("kind", MARKETS)
@pytest.mark.parametrize("seed", range(5))
def test_no_allocation_has_more_welfare(kind: str, seed: int) -> None:
    budgets, given = drawn(seed, kind)
    found = MARKETS[kind](budgets, given)
    x = [cp.Variable(given.shape[1:], nonneg=True) for _ in budgets]
    if kind == "linear":
        utility = [cp.sum(cp.multiply(given[i], x[i])) for i in range(len(budgets))]
    else:
        utility = [cp.sum(cp.min(cp.multiply(1 / given[i], x[i]), axis=0)) for i in range(len(budgets))]
    welfare = sum(b * cp.log(u) for b, u in zip(budgets, utility))
    best = cp.Problem(cp.Maximize(welfare), [sum(x) <= 1]).solve(solver=cp.CLARABEL) / budgets.sum()
    assert found.welfare == pytest.approx(best, abs=1e-6)


def test_the_least_product_of_rho_by_brute_force() -> None:
    """Two jobs, one resource, three rounds, and every division in tenths."""
    utilities = np.array([[[1.0, 2.0, 3.0]], [[3.0, 1.0, 1.0]]])
    found = linear_market(np.ones(2), utilities)
    tried = []
    for tenths in product(range(11), repeat=3):
        mine = np.array(tenths) / 10
        tried.append(Equilibrium(np.ones(2), np.stack((mine[None], 1 - mine[None])), found.prices, np.zeros(2), found.fair))
    rho = [found.fair / np.maximum(gained("linear", utilities, one.shares), 1e-12) for one in tried]
    assert found.rho.prod() <= min(one.prod() for one in rho) + 1e-9


def test_a_job_whose_utility_doubles_half_way_accrues_thirty_and_not_twenty() -> None:
    """§1: twenty rounds, and twice the utility from the eleventh on."""
    known = np.repeat([1.0, 2.0], 10)[None, None]
    assert linear_market(np.ones(1), known).utility == pytest.approx([30.0])
    assert linear_market(np.ones(1), np.ones((1, 1, 20))).utility == pytest.approx([20.0])


def test_a_job_that_will_speed_up_buys_later_and_both_gain() -> None:
    """One job's utility doubles half-way, another's does not: the market over time gives the first rounds to the second."""
    utilities = np.ones((2, 1, 20))
    utilities[0, 0, 10:] = 2.0
    found = linear_market(np.ones(2), utilities)
    assert found.shares[0, 0, :10].sum() == pytest.approx(0.0, abs=1e-5)
    assert found.utility == pytest.approx([20.0, 10.0], rel=1e-5)
    assert found.rho == pytest.approx([0.75, 1.0], rel=1e-5)


def test_weights_are_budgets() -> None:
    found = linear_market(np.array([3.0, 1.0]), np.ones((2, 1, 4)))
    assert found.utility == pytest.approx([3.0, 1.0])


def scaling_up(chance: float, faster: float) -> JobProcess:
    """A job that gains 1 a round with its unit and changes to a faster regime at random."""
    moves = np.array([np.eye(2), [[1 - chance, chance], [0.0, 1.0]]])
    gains = np.array([np.zeros((2, 2)), [[1.0, 1.0], [0.0, faster]]])
    return JobProcess(moves, gains)


def test_in_expectation_a_certain_future_is_the_market_itself() -> None:
    found = expected_market(np.ones(2), [scaling_up(0.0, 1.0), scaling_up(0.0, 1.0)], units=1, rounds=4)
    assert found.utility == pytest.approx([2.0, 2.0])
    assert found.chance.sum() == pytest.approx(1.0)


def test_in_expectation_no_policy_is_better_by_brute_force() -> None:
    """All policies of two rounds and two jobs, and all mixtures of two of them."""
    jobs = [scaling_up(0.5, 3.0), scaling_up(0.25, 2.0)]
    found = expected_market(np.ones(2), jobs, units=1, rounds=2)
    outcomes = []
    for first, *second in product((0, 1), repeat=5):  # the job that runs: first, and in each joint state after it
        u = np.zeros(2)
        u[first] += 1.0
        chance = jobs[first].moves[1, 0, 1]
        for moved, probability in ((0, 1 - chance), (1, chance)):
            state = [0, 0]
            state[first] = moved
            runs = second[2 * state[0] + state[1]]
            u[runs] += probability * jobs[runs].pay[1, state[runs]]
        outcomes.append(u)
    pure, part = np.array(outcomes), np.linspace(0, 1, 101)[:, None, None, None]
    mixed = (part * pure[:, None] + (1 - part) * pure).reshape(-1, 2)
    best = np.log(mixed[(mixed > 0).all(axis=1)]).sum(axis=1).max()
    welfare = np.log(found.utility).sum()
    assert best <= welfare + found.gap + 1e-9
    assert welfare == pytest.approx(best, abs=1e-3)
