"""Makespan: all jobs done as soon as possible."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.registry import Registry
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.makespan import MinTotalDuration, MinTotalDurationPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.contracts import PolicyContract
from policies.per_job import cp, moment, solved
from scenes import state_of, table_of, view_of

TABLE = table_of(("v100", "k80"), {("fast", 1): (4.0, 1.0), ("even", 1): (2.0, 2.0)})


class TestAware(PolicyContract):
    make = lambda: Allocated(MinTotalDurationPerf(), RoundMechanism())  # noqa: E731


class TestAgnostic(PolicyContract):
    make = lambda: Allocated(MinTotalDuration(), RoundMechanism())  # noqa: E731


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("policy", [MinTotalDurationPerf, MinTotalDuration])
@pytest.mark.parametrize(("optimum", "near"), [("throughput", 1e-6), ("centre", 1e-3)])
@pytest.mark.usefixtures("all_digits")
def test_the_longest_duration_is_the_least_possible(seed, policy, optimum, near):
    made = moment(seed)
    rates, left = made.rates, made.view.jobs.steps_left
    if policy is MinTotalDuration:
        rates = np.where(rates > 0, rates.max(axis=1, keepdims=True), 0.0)
    x, _ = policy(optimum=optimum).allocate(made.view, None)
    made.check(x)
    unknown, _, allowed = made.program()
    throughput, speed = cp.sum(cp.multiply(rates, unknown), axis=1), cp.Variable()
    slowest = solved(cp.Problem(cp.Maximize(speed), [*allowed, cp.multiply(1e3 / left, throughput) >= speed]))
    got = (left / (made.time(x) * rates).sum(axis=1)).max()
    assert got == pytest.approx(1e3 / slowest, rel=near)


def test_longer_jobs_get_more_so_that_all_end_together():
    jobs = [Job("long", 0.0, 300.0, "even"), Job("short", 0.0, 100.0, "even")]
    view = view_of(state_of(Cluster.parse("1xv100:1"), jobs), 0.0, table_of(("v100",), {("even", 1): (2.0,)}))
    x, _ = MinTotalDurationPerf().allocate(view, None)
    assert x.matrix(view.jobs.number, 1)[:, 0] == pytest.approx([0.75, 0.25])


def test_a_job_that_takes_longest_anyway_leaves_the_rest_to_the_others():
    jobs = [Job("endless", 0.0, 1e6, "even"), Job("a", 0.0, 300.0, "even"), Job("b", 0.0, 100.0, "even")]
    view = view_of(state_of(Cluster.parse("2xv100:2"), jobs), 0.0, table_of(("v100",), {("even", 1): (2.0,)}))
    x, _ = MinTotalDurationPerf().allocate(view, None)
    assert x.matrix(view.jobs.number, 1)[:, 0] == pytest.approx([1.0, 0.75, 0.25])


def test_what_is_left_over_is_used():
    """Both finish together on the v100 and the k80; a third has the other v100 to itself."""
    jobs = [Job(f"j{i}", 0.0, 100.0, "fast") for i in range(3)]
    view = view_of(state_of(Cluster.parse("4xv100:4,4xk80:4"), jobs), 0.0, TABLE)
    x, _ = MinTotalDurationPerf().allocate(view, None)
    assert x.matrix(view.jobs.number, 2).tolist() == [[1.0, 0.0]] * 3


def test_only_what_remains_counts():
    jobs = [Job("half done", 0.0, 200.0, "even"), Job("fresh", 0.0, 100.0, "even")]
    state = state_of(Cluster.parse("1xv100:1"), jobs, {0: [0]}, done={0: 100.0})
    x, _ = MinTotalDurationPerf().allocate(view_of(state, 0.0, table_of(("v100",), {("even", 1): (2.0,)})), None)
    assert x.matrix(np.arange(2), 1)[:, 0] == pytest.approx([0.5, 0.5])


def test_jobs_that_may_not_use_every_type_share_what_they_may_use():
    jobs = [Job("tied", 0.0, 400.0, "fast", allowed_types=("v100",)), *(Job(f"j{i}", 0.0, 400.0, "fast") for i in range(2))]
    view = view_of(state_of(Cluster.parse("1xv100:1,1xk80:1"), jobs), 0.0, TABLE)
    time = MinTotalDuration().allocate(view, None)[0].matrix(view.jobs.number, 2)
    assert time.sum(axis=1) == pytest.approx(np.full(3, 2 / 3))
    assert time[0, 1] == 0.0
    assert time[1] == pytest.approx(time[2])


def test_open_shop_is_the_agnostic_form():
    registry = Registry.installed()
    assert registry.load("policy", "ossp") is registry.load("policy", "min-total-duration") is MinTotalDuration
