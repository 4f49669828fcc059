"""Objectives over the sum of all jobs: throughput, cost, cost with deadlines."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import AcceleratorType, Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import TIMED, Job
from fairlead.core.reasons import Code
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.allocation.sum_objectives import MaxSumThroughputPerf, MinCost, MinCostSlo, prices
from fairlead.testing import Harness
from fairlead.testing.contracts import PolicyContract
from policies.per_job import Moment, arrived, cp, moment, solved
from scenes import state_of, table_of, view_of

PRICED = Cluster.parse(
    "2xv100:1,2xk80:1", (AcceleratorType("v100", price_per_hour=2.4), AcceleratorType("k80", price_per_hour=0.4))
)
TABLE = table_of(("v100", "k80"), {("resnet", 1): (10.0, 1.0), ("a3c", 1): (2.0, 1.0)})


class TestTotal(PolicyContract):
    make = lambda: Allocated(MaxSumThroughputPerf(), RoundMechanism())  # noqa: E731


class TestCost(PolicyContract):
    make = lambda: Allocated(MinCost(), RoundMechanism())  # noqa: E731


class TestCostWithDeadlines(PolicyContract):
    make = lambda: Allocated(MinCostSlo(), RoundMechanism())  # noqa: E731


def worth_and_price(made: Moment, *, normalized: bool) -> tuple[np.ndarray, np.ndarray]:
    price = made.workers[:, None] * np.array([kind.price_per_hour for kind in made.view.cluster.types])
    best = (made.rates / price).max(axis=1, keepdims=True)
    return made.rates / best if normalized else made.rates, price


def maximize_ratio(made: Moment, worth: np.ndarray, price: np.ndarray, floor: np.ndarray) -> float:
    """By Dinkelbach: the ratio at which max Σ (worth − ratio·price)·x is 0. Programs of another form than the policy's."""
    x, throughput, allowed = made.program()
    gain = cp.sum(cp.multiply(worth, x))
    pay = cp.sum(cp.multiply(price, x))
    value = 0.0
    cost = cp.Parameter(worth.shape)
    problem = cp.Problem(cp.Maximize(cp.sum(cp.multiply(cost, x))), [*allowed, throughput >= floor, pay >= 1e-3])
    for _ in range(50):
        cost.value = worth - value * price
        solved(problem)
        better = float(gain.value / pay.value)
        if abs(better - value) <= 1e-10 * better:
            return better
        value = better
    raise AssertionError("no ratio found")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.usefixtures("all_digits")
def test_total_throughput_is_the_largest_possible(seed, normalized):
    made = moment(seed)
    x, _ = MaxSumThroughputPerf(normalized=normalized).allocate(made.view, None)
    made.check(x)
    unit = made.rates.max(axis=1) if normalized else np.ones(len(made.rates))
    _, throughput, allowed = made.program()
    expected = solved(cp.Problem(cp.Maximize(cp.sum(cp.multiply(1 / unit, throughput))), allowed))
    assert (made.throughputs(x) / unit).sum() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.usefixtures("all_digits")
def test_the_throughput_per_cost_is_the_largest_possible(seed, normalized):
    made = moment(seed)
    x, _ = MinCost(normalized=normalized).allocate(made.view, None)
    made.check(x)
    worth, price = worth_and_price(made, normalized=normalized)
    expected = maximize_ratio(made, worth, price, np.zeros(len(worth)))
    time = made.time(x)
    assert (time * worth).sum() / (time * price).sum() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.usefixtures("all_digits")
def test_with_deadlines_kept_the_throughput_per_cost_is_the_largest_possible(seed, normalized):
    made = moment(seed, deadlines=True)
    x, _ = MinCostSlo(normalized=normalized, margin_s=0.0).allocate(made.view, None)
    made.check(x)
    jobs = made.view.jobs
    floor = jobs.steps_left / (jobs.submitted_s + jobs.deadline_s - made.view.time)
    floor[[number in x.reasons for number in jobs.number.tolist()]] = 0.0
    assert (made.throughputs(x) >= floor * (1 - 1e-6)).all()
    worth, price = worth_and_price(made, normalized=normalized)
    expected = maximize_ratio(made, worth, price, floor)
    time = made.time(x)
    assert (time * worth).sum() / (time * price).sum() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.usefixtures("all_digits")
def test_hardly_more_deadlines_are_given_up_than_must_be(seed):
    """Against an exact choice by integers. The rule gives up the fewest as far as one set of prices tells; seldom one more."""
    made = moment(seed, deadlines=True, tight=0.35)
    x, _ = MinCostSlo(margin_s=0.0).allocate(made.view, None)
    made.check(x)
    jobs = made.view.jobs
    need = jobs.steps_left / (jobs.submitted_s + jobs.deadline_s - made.view.time)
    due = np.isfinite(jobs.deadline_s) & (need > 0) & (need <= made.rates.max(axis=1))
    kept = due & ~np.isin(jobs.number, list(x.reasons))
    assert (made.throughputs(x)[kept] >= need[kept] * (1 - 1e-6)).all()
    _, throughput, allowed = made.program()
    keeps = cp.Variable(len(need), boolean=True)
    floor = cp.multiply(np.where(due, need, 0.0), keeps)
    problem = cp.Problem(cp.Maximize(cp.sum(cp.multiply(due.astype(float), keeps))), [*allowed, throughput >= floor])
    problem.solve(solver=cp.HIGHS)
    most = round(problem.value)
    assert most - 1 <= np.count_nonzero(kept) <= most


def test_reasons_tell_which_deadlines_are_given_up():
    jobs = [
        Job("late", 0.0, 1000.0, "resnet", deadline_s=50.0),
        Job("hopeless", 0.0, 1000.0, "resnet", deadline_s=150.0),
        Job("fine", 0.0, 1000.0, "resnet", deadline_s=300.0),
        Job("without", 0.0, 1000.0, "resnet"),
    ]
    x, _ = MinCostSlo(margin_s=0.0).allocate(arrived(PRICED, jobs, 100.0, TABLE), None)
    assert {number: reason.code for number, reason in x.reasons.items()} == dict.fromkeys((0, 1), Code.DEADLINE_INFEASIBLE)
    assert "deadline in -50 s cannot be met: it is out of reach (100 s of work on its fastest type)" in str(x.reasons[0])


def test_what_the_cluster_cannot_do_for_all_it_does_for_the_most():
    """Two accelerators, three deadlines that each take one for all of the time, and one that takes a third of one."""
    cluster = Cluster.parse("2xv100:1")
    table = table_of(("v100",), {("resnet", 1): (10.0,)})
    jobs = [
        *(Job(f"j{i}", 0.0, 1000.0, "resnet", deadline_s=100.0) for i in range(3)),
        Job("small", 0.0, 1000.0, "resnet", deadline_s=300.0),
    ]
    x, _ = MinCostSlo(margin_s=0.0).allocate(arrived(cluster, jobs, 0.0, table), None)
    assert sorted(x.reasons) == [1, 2]  # the later of the dearest; one third stays for the small one
    time = x.matrix(np.arange(4), 1)[:, 0]
    assert time[0] == pytest.approx(1.0)
    assert time[3] >= 1 / 3 - 1e-9
    assert time.sum() == pytest.approx(2.0)
    assert "others' deadlines need the GPUs" in str(x.reasons[2])


def test_each_job_runs_where_it_is_cheapest_for_it():
    jobs = [Job("a", 0.0, 1e5, "resnet"), Job("b", 0.0, 1e5, "a3c")]
    view = view_of(state_of(PRICED, jobs), 0.0, TABLE)
    x, _ = MinCost().allocate(view, None)
    assert x.matrix(view.jobs.number, 2).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_deadline_brings_a_job_to_the_dearer_type_as_far_as_it_must():
    jobs = [Job("a", 0.0, 1e5, "a3c", deadline_s=1e5 / 1.5)]
    view = view_of(state_of(PRICED, jobs), 0.0, TABLE)
    x, _ = MinCostSlo(margin_s=0.0).allocate(view, None)
    assert x.matrix(view.jobs.number, 2)[0] == pytest.approx([0.5, 0.5])


def test_without_normalizing_only_the_most_steps_for_the_money_count():
    jobs = [Job("a", 0.0, 1e5, "resnet"), Job("b", 0.0, 1e5, "a3c")]
    view = view_of(state_of(PRICED, jobs), 0.0, TABLE)
    x, _ = MinCost(normalized=False).allocate(view, None)
    assert x.matrix(view.jobs.number, 2).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_types_without_a_price_cost_the_same_or_next_to_nothing():
    view = view_of(state_of(Cluster.parse("1xv100:1,1xk80:1"), []), 0.0, TABLE)
    assert prices(view).tolist() == [1.0, 1.0]
    cluster = Cluster.parse("1xv100:1,1xk80:1", (AcceleratorType("v100", price_per_hour=2.0),))
    assert prices(view_of(state_of(cluster, []), 0.0, TABLE)).tolist() == [2.0, 0.002]


def test_total_throughput_goes_to_whoever_does_most_steps_unless_normalized():
    cluster = Cluster.parse("1xv100:1,1xk80:1")
    table = table_of(("v100", "k80"), {("many", 1): (100.0, 90.0), ("few", 1): (2.0, 1.0)})
    jobs = [Job("a", 0.0, 1e5, "many"), Job("b", 0.0, 1e5, "few")]
    view = view_of(state_of(cluster, jobs), 0.0, table)
    assert MaxSumThroughputPerf().allocate(view, None)[0].matrix(view.jobs.number, 2).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    fair = MaxSumThroughputPerf(normalized=True).allocate(view, None)[0]
    assert fair.matrix(view.jobs.number, 2).tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_margin_is_kept_where_all_deadlines_can_be_and_is_refused_below_0():
    table = table_of(("v100",), {("resnet", 1): (10.0,)})
    jobs = [Job("a", 0.0, 1000.0, "resnet", deadline_s=400.0), Job("b", 0.0, 1000.0, "resnet", deadline_s=200.0)]
    made = arrived(Cluster.parse("1xv100:1"), jobs, 0.0, table)
    time = MinCostSlo(margin_s=50.0).allocate(made, None)[0].matrix(np.arange(2), 1)[:, 0]
    assert time[1] >= 100.0 / 150.0 - 1e-6
    assert not MinCostSlo(margin_s=150.0).allocate(made, None)[0].reasons  # too much together: the deadlines alone count
    with pytest.raises(InputError, match="margin_s"):
        MinCostSlo(margin_s=-1.0)


def test_deadlines_of_less_than_half_an_hour_are_met_in_short_rounds():
    work = [(9, 838), (110, 1550), (673, 1274), (28, 659), (220, 1086), (93, 1144), (238, 741), (210, 1466)]
    jobs = [Job(f"j{i}", 0.0, float(run_s), TIMED, deadline_s=float(by)) for i, (run_s, by) in enumerate(work)]
    harness = Harness(SchedulerConfig(Part("min-cost-slo"), mechanism=Part("gavel-rounds"), round_s=120.0)).cluster("v100:2")
    harness.submit(*jobs).run()
    assert not [job.name for job in jobs if harness.ended_s(job.name) > job.deadline_s]
