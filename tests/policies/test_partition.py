"""Isolated, proportional and statically partitioned shares: who gets how much, and that it fits."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.hierarchical import HierarchicalPerf
from fairlead.policies.allocation.max_min import MaxMinFairness
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.allocation.partition import Isolated, Proportional, StaticPartition
from fairlead.testing.contracts import PolicyContract
from lifting import random_view
from scenes import state_of, table_of, view_of


class TestStaticPartitionContract(PolicyContract):
    make = lambda: Allocated(StaticPartition({"": 2.0}), RoundMechanism())  # noqa: E731


class TestIsolatedContract(PolicyContract):
    make = lambda: Allocated(Isolated(), RoundMechanism())  # noqa: E731


class TestProportionalContract(PolicyContract):
    make = lambda: Allocated(Proportional(), RoundMechanism())  # noqa: E731


def time_of(policy, view):
    allocation, memo = policy.allocate(view, None)
    assert memo is None
    return allocation.matrix(view.jobs.number, len(view.capacity))


def moment(where, jobs, table=None):
    return view_of(state_of(Cluster.parse(where), jobs), 0.0, table)


def test_isolated_is_the_nth_part_of_every_type():
    jobs = [Job("a", steps=1e6), Job("b", steps=1e6), Job("gang", steps=1e6, workers=2), Job("d", steps=1e6)]
    time = time_of(Isolated(), moment("2xv100:2,2xk80:2", jobs))
    assert time == pytest.approx(np.array([[0.5, 0.5], [0.5, 0.5], [0.25, 0.25], [0.5, 0.5]]))


def test_isolated_is_at_most_all_of_a_jobs_time():
    time = time_of(Isolated(), moment("6xv100:6,2xk80:2", [Job("a", steps=1e6), Job("b", steps=1e6)]))
    assert time == pytest.approx(np.array([[0.75, 0.25]] * 2))


def test_proportional_is_the_same_time_on_every_accelerator():
    few = [Job("a", steps=1e6), Job("b", steps=1e6, workers=2)]
    assert time_of(Proportional(), moment("6xv100:6,2xk80:2", few)) == pytest.approx(np.array([[0.75, 0.25]] * 2))
    many = [Job(f"j{i}", steps=1e6) for i in range(16)]
    assert time_of(Proportional(), moment("6xv100:6,2xk80:2", many)) == pytest.approx(np.array([[0.375, 0.125]] * 16))


@pytest.mark.parametrize("policy", [Isolated(), Proportional(), StaticPartition({"entity-0": 3.0})])
@pytest.mark.parametrize("seed", range(8))
def test_it_fits(policy, seed):
    view = random_view(seed, jobs=12)
    time = time_of(policy, view)
    assert (time.sum(axis=1) <= 1 + 1e-8).all()
    assert (view.jobs.workers @ time <= view.capacity * (1 + 1e-8)).all()
    assert not time[view.rates.of_jobs == 0].any()


def test_a_part_is_by_weight_and_stays_with_its_entity():
    jobs = [Job(f"a{i}", steps=1e6, account="a") for i in range(4)] + [Job("b", steps=1e6, account="b")]
    view = moment("4xv100:4,4xk80:4", jobs)
    time = time_of(StaticPartition({"b": 3.0}), view)
    assert time[:4].sum() == pytest.approx(2.0)  # a quarter of eight
    assert time[:4] == pytest.approx(np.full((4, 2), 0.25))
    assert time[4].sum() == pytest.approx(1.0)  # all that one job can use; five more stand idle


def test_an_entity_named_in_the_weights_keeps_its_part_while_it_has_no_jobs():
    view = moment("4xv100:4", [Job(f"a{i}", steps=1e6, account="a") for i in range(4)])
    assert time_of(StaticPartition(), view)[:, 0].tolist() == [1.0] * 4
    assert time_of(StaticPartition({"b": 1.0}), view)[:, 0].tolist() == [0.5] * 4


@pytest.mark.parametrize("seed", range(4))
def test_a_single_entity_shares_as_agnostic_fairness_does(seed):
    view = random_view(seed, jobs=12, accounts=1)
    assert time_of(StaticPartition(), view) == pytest.approx(time_of(MaxMinFairness(), view), abs=1e-8)


def test_knowing_types_makes_more_of_the_same_cluster():
    """As figure 12b: 18 jobs of three entities with weights 1, 2, 3 on 3 accelerators of each of three types."""
    rng = np.random.default_rng(1)
    kinds = {(f"k{k}", 1): (1.0 + rng.uniform(1.0, 9.0), 1.0 + rng.uniform(0.2, 3.0), 1.0) for k in range(6)}
    jobs = [Job(f"j{i}", steps=1e6, kind=f"k{i % 6}", account=f"entity-{i // 6}") for i in range(18)]
    view = moment("3xv100:3,3xp100:3,3xk80:3", jobs, table_of(("v100", "p100", "k80"), kinds))
    weights = {"entity-1": 2.0, "entity-2": 3.0}
    normal = view.rates.of_jobs / view.rates.of_jobs.mean(axis=1, keepdims=True)
    agnostic, aware = ((time_of(policy(weights), view) * normal).sum() for policy in (StaticPartition, HierarchicalPerf))
    assert aware > agnostic * 1.05


def test_a_weight_is_above_0():
    with pytest.raises(InputError, match=r"weights\.a"):
        StaticPartition({"a": -1.0})


def test_parts_of_a_tree_are_products_of_weights_among_siblings_and_stay_with_absent_ones():
    """a has 3/4 of 8 GPUs; of these a/x has 1/3, a/y (named, without jobs) 1/3 and the jobs of a itself 1/3."""
    jobs = [Job(f"j{i}", steps=1e6, account=account) for i, account in enumerate(["a"] * 8 + ["a/x"] * 8 + ["b"] * 8)]
    time = time_of(StaticPartition({"a": 3.0, "a/y": 1.0}), moment("8xv100:8", jobs))[:, 0].reshape(3, 8)
    assert time.sum(axis=1) == pytest.approx([2.0, 2.0, 2.0])
    assert time_of(StaticPartition({"b": 3.0, "c/d": 4.0}), moment("8xv100:8", jobs[16:]))[:, 0].sum() == pytest.approx(6.0)
