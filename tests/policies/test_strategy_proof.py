"""The partial allocation mechanism: nobody gains by a lie, everybody keeps 1/e of its proportional share, and a general solver
as a second opinion on proportional fairness."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.lp.job_classes import classes_of
from fairlead.policies.allocation.max_min import MaxMinFairnessWaterFillingPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.allocation.strategy_proof import StrategyProofPerf, nash, partial
from fairlead.testing.contracts import PolicyContract
from scenes import state_of, table_of, view_of


class TestContract(PolicyContract):
    make = lambda: Allocated(StrategyProofPerf(), RoundMechanism())  # noqa: E731


def scene(rates, capacity, workers, weights):
    """A job of a kind of its own for every row of rates."""
    names = tuple(f"type-{t}" for t in range(len(capacity)))
    table = table_of(names, {(f"kind-{i}", int(s)): row for i, (row, s) in enumerate(zip(rates, workers))})
    jobs = [
        Job(f"job-{i}", steps=1e6, kind=f"kind-{i}", workers=int(s), weight=float(w))
        for i, (s, w) in enumerate(zip(workers, weights))
    ]
    where = ",".join(f"{size}x{name}:{size}" for size, name in zip(capacity, names))
    return view_of(state_of(Cluster.parse(where), jobs), 0.0, table)


def time_of(view, policy=None):
    allocation, memo = (policy or StrategyProofPerf()).allocate(view, None)
    assert memo is None
    return allocation.matrix(view.jobs.number, len(view.capacity))


def random_market(seed):
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    capacity = rng.integers(2, 4, types).tolist()
    return rng, rng.uniform(0.2, 4.0, (jobs, types)), capacity, rng.choice([1, 1, 2], jobs), rng.choice([1.0, 2.0, 3.0], jobs)


def best_lie(seed, policy):
    """The most that any of some lies brings to a job, as a factor of what the truth does."""
    rng, rates, capacity, workers, weights = random_market(seed)
    honest = (time_of(scene(rates, capacity, workers, weights), policy) * rates).sum(axis=1)
    best = 0.0
    for liar in range(len(rates)):
        for lie in (
            rng.uniform(0.1, 4.0, rates.shape[1]),
            rates[liar] * rng.uniform(0.5, 2.0, rates.shape[1]),
            1.0 / rates[liar],
        ):
            told = rates.copy()
            told[liar] = lie
            got = (time_of(scene(told, capacity, workers, weights), policy)[liar] * rates[liar]).sum()
            best = max(best, float(got / honest[liar]))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_a_lie_never_pays(seed):
    assert best_lie(seed, StrategyProofPerf()) <= 1 + 1e-6


def test_under_max_min_fairness_lies_would_pay():
    """So that the test above tests something."""
    assert max(best_lie(seed, MaxMinFairnessWaterFillingPerf()) for seed in range(6)) > 1.1


@pytest.mark.parametrize("seed", range(15))
def test_everybody_keeps_1_over_e_of_its_proportional_share(seed):
    _, rates, capacity, workers, weights = random_market(seed)
    view = scene(rates, capacity, workers, weights)
    _, kept = partial(classes_of(view), view.capacity)
    assert (kept >= 1 / math.e).all()
    assert (kept <= 1).all()
    assert (view.jobs.workers @ time_of(view) <= view.capacity + 1e-6).all()


def test_who_harms_nobody_keeps_everything():
    view = scene(np.array([[1.0, 2.0], [2.0, 1.0]]), [1, 1], [1, 1], [1.0, 1.0])
    assert time_of(view) == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-5)


def test_two_that_want_the_same():
    """Each has half of one accelerator; without it the other would have all of it, so each keeps half of its half."""
    view = scene(np.array([[1.0], [1.0]]), [1], [1, 1], [1.0, 1.0])
    assert time_of(view) == pytest.approx(np.full((2, 1), 0.25), abs=1e-7)


def test_identical_jobs_are_one_class_and_fare_as_if_they_were_not():
    rates = {("a", 1): (3.0, 1.0), ("b", 1): (1.5, 1.0)}
    jobs = [Job(f"j{i}", steps=1e6, kind="ab"[i % 2]) for i in range(6)]
    together = view_of(state_of(Cluster.parse("2xx:2,1xy:1"), jobs), 0.0, table_of(("x", "y"), rates))
    apart = scene(np.array([rates["ab"[i % 2], 1] for i in range(6)]), [2, 1], [1] * 6, [1.0] * 6)
    expected = np.array([rates["ab"[i % 2], 1] for i in range(6)])
    assert len(classes_of(together)) == 2
    assert (time_of(together) * expected).sum(axis=1) == pytest.approx((time_of(apart) * expected).sum(axis=1), abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_proportional_fairness_is_that_of_a_general_solver(seed):
    cp = pytest.importorskip("cvxpy")
    rng, rates, capacity, workers, weights = random_market(seed)
    rates = rates * (rng.random(rates.shape) < 0.8)
    rates[rates.max(axis=1) == 0, 0] = 1.0
    count = rng.integers(1, 4, len(rates)).astype(float)
    time = nash(rates, count[None, :], weights, workers, np.array(capacity))[0]
    assert (time.sum(axis=1) <= 1 + 1e-9).all()
    assert ((count * workers) @ time <= np.array(capacity) + 1e-9).all()
    x = cp.Variable(rates.shape, nonneg=True)
    welfare = cp.sum(cp.multiply(count * weights, cp.log(cp.sum(cp.multiply(rates, x), axis=1))))
    problem = cp.Problem(cp.Maximize(welfare), [cp.sum(x, axis=1) <= 1, (count * workers) @ x <= capacity])
    problem.solve(solver="CLARABEL")
    mine = float((count * weights * np.log((rates * time).sum(axis=1))).sum())
    assert mine == pytest.approx(problem.value, abs=1e-5)
    assert mine >= problem.value - 1e-6
