"""Water filling: the paper's example, Pareto efficiency, and the textbook way as a second opinion on random instances."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.lp.hull_model import HullModel
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, normalized_rates
from fairlead.policies.allocation.lp.water_filling_model import FlexibleFill, ShareGroups, fill_levels
from fairlead.policies.allocation.max_min import (
    MaxMinFairness,
    MaxMinFairnessPerf,
    MaxMinFairnessWaterFilling,
    MaxMinFairnessWaterFillingPerf,
)
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.contracts import PolicyContract
from lifting import Textbook, fairly, gains_of, random_view, time_of
from scenes import state_of, table_of, view_of


class TestAgnosticContract(PolicyContract):
    make = lambda: Allocated(MaxMinFairnessWaterFilling(), RoundMechanism())  # noqa: E731


class TestAwareContract(PolicyContract):
    make = lambda: Allocated(MaxMinFairnessWaterFillingPerf(), RoundMechanism())  # noqa: E731


BOTH = pytest.mark.parametrize(
    "policy", [MaxMinFairnessWaterFilling(), MaxMinFairnessWaterFillingPerf()], ids=["time", "progress"]
)


def timed(where, weights, **others):
    return view_of(state_of(Cluster.parse(where), [Job(f"j{i}", steps=1e6, weight=w, **others) for i, w in enumerate(weights)]))


@BOTH
def test_who_can_use_no_more_leaves_the_rest_to_the_others(policy):
    """§4.3: weights 3, 1, 1, 1 on four accelerators. Plain max-min would leave the light ones a third each."""
    assert time_of(policy, timed("4xv100:4", (3.0, 1.0, 1.0, 1.0)))[:, 0].tolist() == [1.0, 1.0, 1.0, 1.0]


@BOTH
def test_weights_count_while_there_is_too_little(policy):
    time = time_of(policy, timed("2xv100:2", (3.0, 1.0, 1.0, 1.0)))[:, 0]
    assert time == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3])


@BOTH
def test_a_level_counts_a_gangs_accelerators(policy):
    jobs = [Job("gang", steps=1e6, workers=2), Job("single", steps=1e6)]
    view = view_of(state_of(Cluster.parse("2xv100:2"), jobs))
    assert time_of(policy, view)[:, 0] == pytest.approx([0.5, 1.0])  # an accelerator each


def test_who_can_use_one_type_only_is_no_bottleneck_for_the_others():
    table = table_of(("fast", "slow"), {("bound", 1): (1.0, 0.0), ("free", 1): (2.0, 1.0)})
    jobs = [Job(f"b{i}", steps=1e6, kind="bound") for i in range(4)] + [Job("f", steps=1e6, kind="free")]
    view = view_of(state_of(Cluster.parse("1xfast:1,1xslow:1"), jobs), 0.0, table)
    assert time_of(MaxMinFairnessWaterFillingPerf(), view)[:4, 0].tolist() == [0.25] * 4
    assert time_of(MaxMinFairnessWaterFillingPerf(), view)[4].tolist() == [0.0, 1.0]


def test_a_job_that_fits_nowhere_gets_nothing_and_stops_nobody():
    jobs = [Job("wide", steps=1e6, workers=4), Job("a", steps=1e6), Job("b", steps=1e6)]
    state = state_of(Cluster.parse("4xv100:2"), jobs, down=[1])
    for policy in (MaxMinFairnessWaterFilling(), MaxMinFairnessWaterFillingPerf()):
        assert time_of(policy, view_of(state))[:, 0].tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(24))
def test_levels_are_those_of_the_textbook_and_pareto_efficient(seed):
    view = random_view(seed, jobs=4 + seed % 7, types=1 + seed % 4)
    gain = gains_of(view)
    here = gain.max(axis=1) > 0
    levels = (time_of(MaxMinFairnessWaterFillingPerf(), view) * gain).sum(axis=1)[here]
    book = Textbook.alone(gain[here], view.jobs.workers[here].astype(float), view.capacity.astype(float))
    book.check_pareto(levels)
    assert levels == pytest.approx(book.fill([(1.0, range(len(levels)), fairly(view.jobs.weight[here].tolist()))]), abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_without_types_it_is_the_agnostic_max_min_that_leaves_nothing_idle(seed):
    view = random_view(seed, jobs=12)
    assert time_of(MaxMinFairnessWaterFilling(), view) == pytest.approx(time_of(MaxMinFairness(), view), abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_the_lowest_level_is_that_of_plain_max_min(seed):
    view = random_view(seed, jobs=12, types=3)
    gain, here = gains_of(view), gains_of(view).max(axis=1) > 0
    lowest = [
        ((time_of(policy, view) * gain).sum(axis=1) / view.jobs.weight)[here].min()
        for policy in (MaxMinFairnessPerf(), MaxMinFairnessWaterFillingPerf())
    ]
    assert lowest[0] == pytest.approx(lowest[1], abs=1e-7)


def test_identical_jobs_fare_alike_and_jobs_of_any_weights_are_dealt_with():
    rng = np.random.default_rng(0)
    table = table_of(("a", "b", "c"), {(f"k{k}", 1): rng.uniform(0.3, 3.0, 3) for k in range(5)})
    jobs = [Job(f"j{i}", steps=1e6, kind=f"k{i % 5}", weight=float(rng.uniform(0.1, 9.0) + 900 * (i < 2))) for i in range(200)]
    jobs += [Job(f"twin{i}", steps=1e6, kind="k0", weight=1.0) for i in range(2)]
    view = view_of(state_of(Cluster.parse("30xa:6,20xb:4,25xc:5"), jobs), 0.0, table)
    time = time_of(MaxMinFairnessWaterFillingPerf(), view)
    assert time[-1].tolist() == time[-2].tolist()
    levels = (time * gains_of(view)).sum(axis=1) / view.jobs.weight
    assert len(np.unique(levels.round(7))) > 1  # some were stopped by their own time
    assert (view.jobs.workers @ time) == pytest.approx(view.capacity, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_levels_take_the_least_time_there_is(seed):
    """θ against a program with a variable for every job and type."""
    optimize = pytest.importorskip("scipy.optimize")
    view = random_view(seed, jobs=9)
    classes = classes_of(view, by_weight=False)
    gain = normalized_rates(classes, view.capacity)
    demands = HullModel("test", classes, view.capacity)
    kind, workers = demands.class_of, view.jobs.workers[demands.present].astype(float)
    model = FlexibleFill(demands, gain.max(axis=1)[kind])
    level = model.top * np.random.default_rng(seed).uniform(0.0, 1.0, len(kind))
    fit = model.fit(level)
    m, j = len(kind), len(view.capacity)
    reach = np.zeros((m, m * j + 1))
    for i in range(m):
        reach[i, i * j : (i + 1) * j] = -gain[kind[i]]
    once = np.hstack((np.kron(np.eye(m), np.ones(j)), np.zeros((m, 1))))
    load = np.hstack((np.kron(workers, np.eye(j)), -view.capacity[:, None]))
    bounds = [(0.0, None if g > 0 else 0.0) for g in gain[kind].ravel()] + [(None, None)]
    limits = np.concatenate((-level, np.ones(m), view.capacity))
    found = optimize.linprog(np.append(np.zeros(m * j), 1.0), np.vstack((reach, once, load)), limits, bounds=bounds)
    assert fit.excess == pytest.approx(found.fun, abs=1e-8)
    time = demands.shares(model.to_demands(level), fit.used)[demands.present]
    assert (time * gain[kind]).sum(axis=1) == pytest.approx(level)
    assert model.cost(fit)(level) == pytest.approx(1.0 + fit.excess)


@pytest.mark.parametrize("seed", [0, 20, 67, 237, 307, 672, 877, 1117])
def test_gains_and_weights_of_many_orders_of_magnitude(seed):
    """Prices of types then differ as much, and some are smaller than what a solver takes for 0."""
    rng = np.random.default_rng(seed)
    gain, workers = np.exp(rng.normal(0.0, 3.0, (30, 5))), rng.choice([1, 1, 2, 4], 30)
    kind, weight = rng.integers(0, 30, 600), np.exp(rng.normal(0.0, 2.0, 600))
    groups = ShareGroups(rng.integers(0, 6, 600), rng.uniform(0.5, 3.0, 6), rng.random(6) < 0.5)
    capacity = rng.integers(5, 100, 5)
    each = np.arange(30)
    classes = JobClasses(
        kind, np.bincount(kind, minlength=30), each, workers, np.ones(30), each, gain, [(i,) for i in range(30)]
    )
    demands = HullModel("test", classes, capacity)
    model = FlexibleFill(demands, gain.max(axis=1)[kind])
    reached = fill_levels(model, weight, groups)
    level, time = reached.level, demands.shares(model.to_demands(reached.level), reached.fit.used)
    assert (time * gain[kind]).sum(axis=1) == pytest.approx(level)
    assert (time.sum(axis=1) <= 1 + 1e-9).all()
    used = workers[kind] @ time
    assert (used <= capacity * (1 + 1e-9)).all()
    assert used == pytest.approx(capacity, rel=1e-6)  # everybody can use every type


@BOTH
def test_weights_may_differ_by_more_than_a_sum_of_them_can_hold(policy):
    time = time_of(policy, timed("2xv100:2", (1e20, 1e3, 1.0, 1e-3)))[:, 0]
    assert time == pytest.approx([1.0, 0.999, 0.000999, 1e-6], abs=2e-6)
