"""Finish-time fairness: ρ, isolated time, and the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.finish_time_fairness import FinishTimeFairness, FinishTimeFairnessPerf, isolated_rates
from fairlead.policies.allocation.lp.job_classes import classes_of
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.contracts import PolicyContract
from policies.per_job import Moment, arrived, cp, moment, solved
from scenes import state_of, table_of, view_of

TWO = Cluster.parse("1xv100:1,1xk80:1")
TABLE = table_of(("v100", "k80"), {("fast", 1): (4.0, 1.0), ("even", 1): (2.0, 2.0)})


class TestAware(PolicyContract):
    make = lambda: Allocated(FinishTimeFairnessPerf(), RoundMechanism())  # noqa: E731


class TestAgnostic(PolicyContract):
    make = lambda: Allocated(FinishTimeFairness(), RoundMechanism())  # noqa: E731


def isolated(made: Moment, rates: np.ndarray) -> np.ndarray:
    """The throughput of 1/n of the cluster, job by job."""
    found = []
    for row, workers in zip(rates, made.workers):
        share = [min(n / (len(rates) * workers), 1.0) if rate > 0 else 0.0 for n, rate in zip(made.capacity, row)]
        scale = max(1.0, sum(share))
        found.append(sum(rate * part / scale for rate, part in zip(row, share)))
    return np.array(found)


def rho(made: Moment, rates: np.ndarray, throughput: np.ndarray) -> np.ndarray:
    jobs = made.view.jobs
    alone = jobs.steps_left / isolated(made, rates)
    return (made.view.time - jobs.submitted_s + jobs.steps_left / throughput) / alone


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("policy", [FinishTimeFairnessPerf, FinishTimeFairness])
@pytest.mark.parametrize(("optimum", "near"), [("throughput", 1e-6), ("centre", 1e-3)])
@pytest.mark.usefixtures("all_digits")
def test_the_worst_rho_is_the_least_possible(seed, policy, optimum, near):
    made = moment(seed)
    rates = made.rates
    if policy is FinishTimeFairness:
        rates = np.where(rates > 0, rates.max(axis=1, keepdims=True), 0.0)
    x, _ = policy(optimum=optimum).allocate(made.view, None)
    made.check(x)
    unknown, _, allowed = made.program()
    throughput = cp.sum(cp.multiply(rates, unknown), axis=1)
    jobs = made.view.jobs
    alone = jobs.steps_left / isolated(made, rates)
    times = made.view.time - jobs.submitted_s + cp.multiply(jobs.steps_left, cp.inv_pos(throughput))
    expected = solved(cp.Problem(cp.Minimize(cp.max(cp.multiply(1 / alone, times))), allowed))
    got = rho(made, rates, (made.time(x) * rates).sum(axis=1)).max()
    assert got == pytest.approx(expected, rel=near)


def test_one_job_gets_its_fastest_type_for_all_of_the_time():
    view = view_of(state_of(TWO, [Job("a", 0.0, 400.0, "fast")]), 0.0, TABLE)
    x, _ = FinishTimeFairnessPerf().allocate(view, None)
    assert x.matrix(view.jobs.number, 2).tolist() == [[1.0, 0.0]]


def test_types_go_to_whom_they_serve():
    jobs = [Job("a", 0.0, 400.0, "fast"), Job("b", 0.0, 400.0, "even")]
    view = view_of(state_of(TWO, jobs), 0.0, TABLE)
    x, _ = FinishTimeFairnessPerf().allocate(view, None)
    assert x.matrix(view.jobs.number, 2) == pytest.approx(np.eye(2))


def test_a_job_that_has_waited_is_served_before_one_that_just_came():
    jobs = [Job("old", 0.0, 1000.0, "even"), Job("new", 900.0, 1000.0, "even")]
    view = arrived(Cluster.parse("1xv100:1"), jobs, 900.0, table_of(("v100",), {("even", 1): (2.0,)}))
    old, new = FinishTimeFairnessPerf().allocate(view, None)[0].throughputs(view.jobs, view.rates)
    assert old > new


def test_who_is_late_beyond_remedy_does_not_hold_the_others_back():
    """Job 0 has waited so long that its ρ stays the worst whatever is done; the others are still served as well as can be."""
    jobs = [Job("lost", 0.0, 10.0, "even"), *(Job(f"n{i}", 1e6, 1000.0, "even") for i in range(3))]
    table = table_of(("v100",), {("even", 1): (2.0,)})
    view = arrived(Cluster.parse("2xv100:2"), jobs, 1e6, table)
    time = FinishTimeFairnessPerf().allocate(view, None)[0].matrix(view.jobs.number, 1)[:, 0]
    assert time[0] == pytest.approx(1.0)
    assert time[1:] == pytest.approx(np.full(3, 1 / 3))


def test_in_the_centre_nobody_is_served_beyond_the_worst_rho_for_its_own_sake():
    """Job 0 decides ρ, and the others share as they like, each a little of everything: on both types, in equal parts."""
    jobs = [Job("lost", 0.0, 10.0, "even"), *(Job(f"n{i}", 1e6, 1000.0, "even") for i in range(3))]
    view = arrived(Cluster.parse("2xv100:2,2xk80:2"), jobs, 1e6, TABLE)
    time = FinishTimeFairnessPerf(optimum="centre").allocate(view, None)[0].matrix(view.jobs.number, 2)
    assert time[0].sum() == pytest.approx(1.0, abs=1e-3)
    assert time[1:] == pytest.approx(np.full((3, 2), time[1, 0]), abs=1e-3)
    assert (time[1:] > 0.1).all()


def test_isolated_time_grows_by_the_steps_done_over_the_isolated_rate_of_then():
    cluster = Cluster.parse("1xv100:1")
    table = table_of(("v100",), {("even", 1): (2.0,)})
    jobs = [Job("a", 0.0, 1000.0, "even"), Job("b", 0.0, 1000.0, "even")]
    state = state_of(cluster, jobs, {0: [0]})  # a runs, one step a second
    policy = FinishTimeFairnessPerf()
    memo = policy.allocate(view_of(state, 0.0, table), None)[1]
    assert memo["rate"].tolist() == [1.0, 1.0]  # half of the only accelerator
    memo = policy.allocate(view_of(state, 100.0, table), memo)[1]
    assert memo["isolated_s"].tolist() == [100.0, 0.0]
    memo = policy.allocate(view_of(state, 150.0, table), memo)[1]
    assert memo["isolated_s"].tolist() == [150.0, 0.0]
    assert memo["left"].tolist() == [850.0, 1000.0]


def test_lost_work_is_taken_off_the_isolated_time_again():
    cluster, table = Cluster.parse("1xv100:1"), table_of(("v100",), {("even", 1): (2.0,)})
    state = state_of(cluster, [Job("a", 0.0, 1000.0, "even")])
    memo = {"number": np.array([0]), "left": np.array([900.0]), "rate": np.array([2.0]), "isolated_s": np.array([50.0])}
    memo = FinishTimeFairnessPerf().allocate(view_of(state, 100.0, table), memo)[1]
    assert memo["isolated_s"].tolist() == [0.0]


def test_a_share_of_a_large_cluster_is_at_most_one_job_s_time():
    view = view_of(state_of(Cluster.parse("8xv100:4,8xk80:4"), [Job("a", 0.0, 1.0, "fast")]), 0.0, TABLE)
    assert isolated_rates(view, classes_of(view), type_agnostic=False).tolist() == [2.5]
    assert isolated_rates(view, classes_of(view), type_agnostic=True).tolist() == [4.0]


def test_the_agnostic_form_deals_types_out_evenly():
    jobs = [Job(f"j{i}", 0.0, 400.0, "fast") for i in range(4)]
    view = view_of(state_of(TWO, jobs), 0.0, TABLE)
    x, _ = FinishTimeFairness().allocate(view, None)
    assert x.matrix(view.jobs.number, 2) == pytest.approx(np.full((4, 2), 0.25))


def test_a_job_that_fits_nowhere_at_the_moment_is_left_out():
    jobs = [Job("wide", 0.0, 400.0, "fast", workers=2), Job("a", 0.0, 400.0, "fast")]
    table = table_of(("v100", "k80"), {("fast", 1): (4.0, 1.0), ("fast", 2): (4.0, 1.0)})
    for policy in (FinishTimeFairness(), FinishTimeFairnessPerf()):
        x, memo = policy.allocate(view_of(state_of(TWO, jobs), 10.0, table), None)
        assert isinstance(x, Allocation)
        assert set(x.first.tolist()) == {1}
        assert memo["number"].tolist() == [0, 1]
        assert memo["rate"].tolist() == [0.0, 4.0 if policy == FinishTimeFairness() else 2.5]  # n is one, not two


def test_the_newest_job_has_its_isolated_time_too():
    table = table_of(("v100",), {("even", 1): (2.0,)})
    jobs = [Job("a", 0.0, 1000.0, "even"), Job("b", 0.0, 1000.0, "even")]
    state = state_of(Cluster.parse("1xv100:1"), jobs, {1: [0]})
    policy = FinishTimeFairnessPerf()
    memo = policy.allocate(view_of(state, 0.0, table), None)[1]
    assert policy.allocate(view_of(state, 100.0, table), memo)[1]["isolated_s"].tolist() == [0.0, 100.0]
