"""Max-min fairness: the paper's examples, its properties on random instances, and the textbook program as a second opinion."""

from __future__ import annotations

import numpy as np
import pytest
from instances import Moment, is_valid, moment, random_moment

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.stages import Allocated, Allocator
from fairlead.policies.allocation.lp.analytic_centre import centre
from fairlead.policies.allocation.lp.colocation_columns import spread_gain
from fairlead.policies.allocation.lp.job_classes import classes_of, hash_fractions, normalized_rates
from fairlead.policies.allocation.lp.max_min_program import MaxMinProgram
from fairlead.policies.allocation.max_min import MaxMinFairness, MaxMinFairnessPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.contracts import PolicyContract

SEEDS = range(24)


class TestAgnosticContract(PolicyContract):
    make = lambda: Allocated(MaxMinFairness(), RoundMechanism())  # noqa: E731


class TestAwareContract(PolicyContract):
    make = lambda: Allocated(MaxMinFairnessPerf(), RoundMechanism())  # noqa: E731


class TestGavelsWay(PolicyContract):
    jobs = 14
    make = lambda: Allocated(  # noqa: E731
        MaxMinFairnessPerf(optimum="centre"), RoundMechanism(min_interval_s=1920.0, newcomers="wait", types="in-order")
    )


class TestInCompany(PolicyContract):
    jobs = 14
    make = lambda: Allocated(MaxMinFairnessPerf(space_sharing=True), RoundMechanism())  # noqa: E731
    residents = 2


class TestPlacementSensitive(PolicyContract):
    jobs = 14
    make = lambda: Allocated(MaxMinFairnessPerf(placement_sensitive=True), RoundMechanism())  # noqa: E731


def level(given: Moment, policy: Allocator) -> float:
    """The objective: the least weighted, normalised throughput."""
    allocation, _ = policy.allocate(given.view, None)
    got = allocation.throughputs(given.view.jobs, given.view.rates)
    return float((got / given.equal * given.workers / given.view.jobs.weight).min())


def shares(given: Moment, policy: Allocator) -> Floats:
    allocation, _ = policy.allocate(given.view, None)
    return allocation.matrix(given.view.jobs.number, len(given.capacity))


def textbook(given: Moment, rates: Floats | None = None) -> float:
    """The program as the paper writes it, a variable for each job and type."""
    cp = pytest.importorskip("cvxpy", reason="the second opinion needs cvxpy")
    t = given.rates if rates is None else rates
    x = cp.Variable(t.shape, nonneg=True)
    equal = t @ (given.capacity / given.capacity.sum())
    gain = t * (given.workers / equal / given.view.jobs.weight)[:, None]
    keeps = [cp.sum(x, axis=1) <= 1, given.workers @ x <= given.capacity, x[given.rates == 0] == 0]
    problem = cp.Problem(cp.Maximize(cp.min(cp.sum(cp.multiply(gain, x), axis=1))), keeps)
    return float(problem.solve(solver="CLARABEL"))


def test_the_papers_three_jobs_do_a_tenth_better_than_apart() -> None:
    given = moment([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]], "v100:1,k80:1")
    x = shares(given, MaxMinFairnessPerf())
    assert level(given, MaxMinFairnessPerf()) == pytest.approx(textbook(given), abs=1e-6)
    isolated = given.rates @ np.full(2, 1 / 3)
    gained = (given.rates * x).sum(axis=1) / isolated
    assert gained == pytest.approx(1.1, abs=0.02)
    assert x == pytest.approx(np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]]), abs=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_class_program_reaches_the_optimum_of_the_textbook(seed: int) -> None:
    given = random_moment(seed)
    assert is_valid(given, shares(given, MaxMinFairnessPerf()))
    assert level(given, MaxMinFairnessPerf()) == pytest.approx(textbook(given), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_centre_is_an_optimum_too(seed: int) -> None:
    given = random_moment(seed)
    assert is_valid(given, shares(given, MaxMinFairnessPerf(optimum="centre")))
    assert level(given, MaxMinFairnessPerf(optimum="centre")) == pytest.approx(textbook(given), rel=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_agnostic_form_is_optimal_where_types_do_not_tell(seed: int) -> None:
    given = random_moment(seed, everywhere=True)
    x = shares(given, MaxMinFairness())
    assert is_valid(given, x)
    reached = float((x.sum(axis=1) * given.workers / given.view.jobs.weight).min())
    assert reached == pytest.approx(textbook(given, np.ones_like(given.rates)), rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_does_worse_than_with_an_equal_part_of_everything(seed: int) -> None:
    given = random_moment(seed, weighted=False, gangs=False)
    part = min(1.0, 1.0 / len(given.rates) * given.capacity.sum())
    each = np.minimum(given.capacity / len(given.rates), 1.0)
    each = each / max(1.0, each.sum())
    spread_gain = float(((given.rates @ each) / given.equal).min())
    assert level(given, MaxMinFairnessPerf()) >= spread_gain - 1e-6, part


@pytest.mark.parametrize("seed", SEEDS)
def test_on_one_type_it_is_the_agnostic_policy(seed: int) -> None:
    given = random_moment(seed, types=1)
    assert level(given, MaxMinFairnessPerf()) == pytest.approx(level(given, MaxMinFairness()), rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_company_never_does_worse(seed: int) -> None:
    given = random_moment(seed, gangs=False)
    rng = np.random.default_rng(seed)
    count = len(given.view.rates.alone)
    beside = given.view.rates.alone[:, None, :] * rng.uniform(0.3, 1.0, (count, count, 3))
    rates = given.view.rates
    shared = given.view.with_changes(estimate=lambda view: type(rates)(rates.row, rates.alone, rates.spread, beside))
    together = Moment(shared)
    alone, paired = level(given, MaxMinFairnessPerf()), level(together, MaxMinFairnessPerf(space_sharing=True))
    assert paired >= alone - 1e-6
    assert is_valid_in_company(together)


def is_valid_in_company(given: Moment) -> bool:
    """A pair takes its accelerators once, and the time of both."""
    allocation, _ = MaxMinFairnessPerf(space_sharing=True).allocate(given.view, None)
    load = np.bincount(allocation.types, allocation.share, minlength=len(given.capacity))
    time = allocation.matrix(given.view.jobs.number, len(given.capacity)).sum(axis=1)
    return bool((load <= given.capacity + 1e-4).all() and (time <= 1 + 1e-5).all())


@pytest.mark.parametrize("seed", range(8))
def test_company_against_the_textbook(seed: int) -> None:
    cp = pytest.importorskip("cvxpy", reason="the second opinion needs cvxpy")
    given = random_moment(seed, jobs=6, gangs=False)
    rng = np.random.default_rng(seed)
    rates = given.view.rates
    count = len(rates.alone)
    beside = rates.alone[:, None, :] * rng.uniform(0.3, 1.0, (count, count, 3))
    together = Moment(given.view.with_changes(estimate=lambda view: type(rates)(rates.row, rates.alone, rates.spread, beside)))
    jobs, types = given.rates.shape
    pairs = [(a, b) for a in range(jobs) for b in range(a + 1, jobs)]
    x, y = cp.Variable((jobs, types), nonneg=True), cp.Variable((len(pairs), types), nonneg=True)
    unit = 1.0 / given.equal / given.view.jobs.weight
    got, time = [], []
    for m in range(jobs):
        mine = [(k, a if b == m else b) for k, (a, b) in enumerate(pairs) if m in (a, b)]
        company = sum(y[k] @ (beside[rates.row[m], rates.row[other]] * (given.rates[other] > 0)) for k, other in mine)
        got.append((x[m] @ given.rates[m] + company) * unit[m])
        time.append(cp.sum(x[m]) + sum(cp.sum(y[k]) for k, _ in mine))
    keeps = [t <= 1 for t in time] + [cp.sum(x, axis=0) + cp.sum(y, axis=0) <= given.capacity]
    best = cp.Problem(cp.Maximize(cp.min(cp.hstack(got))), keeps).solve(
        solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9
    )
    assert level(together, MaxMinFairnessPerf(space_sharing=True)) == pytest.approx(float(best), rel=1e-6)


def test_a_kept_program_and_a_fresh_one_agree() -> None:
    kept = MaxMinFairnessPerf()
    for seed in SEEDS:
        given = random_moment(seed % 4 if seed % 2 else seed, jobs=6 + seed)
        first, _ = kept.allocate(given.view, None)
        second, _ = MaxMinFairnessPerf().allocate(given.view, None)
        assert np.array_equal(first.first, second.first)
        assert first.share == pytest.approx(second.share, abs=1e-6)


def test_weights_are_respected() -> None:
    given = moment([[1.0]] * 4, "v100:2", weights=[3.0, 1.0, 1.0, 1.0])
    x = shares(given, MaxMinFairnessPerf())[:, 0]
    assert x == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3], abs=1e-6)


def test_a_gang_that_finds_no_room_together_is_not_reckoned_at_full_speed() -> None:
    """Three gangs of three on two nodes of four: two can stand together, and the two accelerators that are left are apart."""
    given = moment([[3.0]] * 3, "v100:4,v100:4", workers=[3, 3, 3], spread=np.array([[0.5]]))
    classes = classes_of(given.view)
    gain = normalized_rates(classes, given.view.capacity)
    want = classes.count * classes.weight
    free = MaxMinProgram("free").solve(classes, given.view.capacity, gain, want)
    bound = MaxMinProgram("bound").solve(
        classes, given.view.capacity, gain, want, spread=spread_gain(classes, given.view, gain)
    )
    assert free.level == pytest.approx(3 * 8 / 9)
    assert bound.level == pytest.approx(3 * (2 / 3 + 2 / 9 * 0.5 / 3))


def test_a_type_where_a_job_cannot_run_is_left_out() -> None:
    given = moment([[0.0, 2.0], [4.0, 1.0]], "v100:1,k80:1")
    x = shares(given, MaxMinFairnessPerf())
    assert x[0, 0] == 0
    assert x == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]), abs=1e-6)


def test_the_centre_goes_with_plain_programs_only() -> None:
    with pytest.raises(InputError, match="optimum"):
        MaxMinFairnessPerf(optimum="centre", space_sharing=True)


@pytest.mark.parametrize(
    "policy", [MaxMinFairness(optimum="centre"), MaxMinFairnessPerf(optimum="centre"), MaxMinFairnessPerf()]
)
def test_a_type_whose_nodes_are_all_down_has_no_share(policy: Allocator) -> None:
    given = random_moment(3, everywhere=True)
    capacity = given.view.capacity.copy()
    capacity[1] = 0
    down = Moment(given.view.with_changes(capacity=capacity))
    x = shares(down, policy)
    assert is_valid(down, x)
    assert x[:, 1].sum() == 0
    assert x.sum() > 0


def test_no_two_classes_draw_the_same_lot() -> None:
    """Lots decide between optima that are equally good; two classes with one lot would leave it to the solver."""
    keys = [
        (row, mask, workers, 1.0, tag)
        for row in range(120)
        for mask in range(1, 8)
        for workers in (1, 2, 4, 8)
        for tag in (0, 1)
    ]
    drawn = hash_fractions(keys).tolist()
    assert len(set(drawn)) == len(keys)
    assert 0 <= min(drawn) < 0.01 < 0.99 < max(drawn) <= 1


@pytest.mark.parametrize("unit", [1e-4, 0.01, 1.0, 1e4])
def test_the_middle_is_the_same_in_any_unit(unit):
    one = np.array([1])
    assert centre(one, one, np.array([unit]), np.array([1, 1, 1]), np.ones((1, 3))) == pytest.approx(
        np.full((1, 3), 1 / 3), abs=1e-5
    )
    weight, gain = np.array([0.01, 1.0, 100.0]), np.array([[1.0, 0.2], [0.9, 0.5], [1.0, 1.0]])
    several = (np.array([2, 1, 1]), np.array([1, 2, 1]), weight * unit, np.array([2, 2]), gain)
    assert centre(*several) == pytest.approx(centre(*several[:2], weight, *several[3:]), abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_asked_before_does_not_matter(seed):
    """Kinds of two weights each, which could change types with one another and none would fare worse: as who begins anew."""
    rng = np.random.default_rng(seed)
    kinds, kept = rng.uniform(0.2, 5.0, (3, 3)), MaxMinFairnessPerf()
    for _ in range(6):
        of = np.append(np.arange(3), rng.integers(0, 3, int(rng.integers(2, 9))))
        weights = rng.choice([1.0, 2.0], len(of)).tolist()
        made = moment(kinds[of].tolist(), "v100:2,p100:3,k80:2", weights=weights)
        ours, fresh = (policy.allocate(made.view, None)[0] for policy in (kept, MaxMinFairnessPerf()))
        numbers = made.view.jobs.number
        assert ours.matrix(numbers, 3) == pytest.approx(fresh.matrix(numbers, 3), abs=1e-6)
