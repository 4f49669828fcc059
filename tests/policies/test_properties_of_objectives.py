"""What Gavel §4.4 says of its policies, for every one of them, on random moments: the objective is no worse than with the n-th
part of the cluster for each job, no worse with company than without, and on one type that of the form that knows no types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from instances import random_moment

from fairlead.core.allocation import Allocation
from fairlead.policies.allocation.fifo_sjf import FifoPerf, ShortestJobFirstPerf
from fairlead.policies.allocation.finish_time_fairness import FinishTimeFairness, FinishTimeFairnessPerf
from fairlead.policies.allocation.hierarchical import Hierarchical, HierarchicalPerf
from fairlead.policies.allocation.makespan import MinTotalDuration, MinTotalDurationPerf
from fairlead.policies.allocation.max_min import (
    MaxMinFairness,
    MaxMinFairnessPerf,
    MaxMinFairnessWaterFilling,
    MaxMinFairnessWaterFillingPerf,
)
from fairlead.policies.allocation.partition import Isolated
from fairlead.policies.allocation.sum_objectives import MaxSumThroughputPerf, MinCost, MinCostSlo
from policies.per_job import moment

ENTITIES = {"entity-0": 1.0, "entity-1": 2.0, "entity-2": 3.0}


def lowest_level(made, x: Allocation) -> float:
    return float((_levels(made, x) / made.view.jobs.weight).min())


def lowest_level_among_entities(made, x: Allocation) -> float:
    """As the first of the paper's programs has it: an entity's weight is parted among its jobs by theirs."""
    jobs = made.view.jobs
    of_entity = np.array([ENTITIES.get(name, 1.0) for name in made.view.names.accounts])
    part = (of_entity / np.bincount(jobs.account, jobs.weight, len(of_entity)))[jobs.account] * jobs.weight
    return float((_levels(made, x) / part).min())


def _levels(made, x: Allocation) -> np.ndarray:
    equal = made.rates @ (made.capacity / made.capacity.sum())
    return x.throughputs(made.view.jobs, made.view.rates) / equal * made.workers


def least_finish_time(made, x: Allocation) -> float:
    jobs, (apart, _) = made.view.jobs, Isolated().allocate(made.view, None)
    isolated = jobs.steps_left / apart.throughputs(jobs, made.view.rates)
    waited = made.view.time - jobs.submitted_s
    return -float(((waited + _durations(made, x)) / isolated).max())


def least_duration(made, x: Allocation) -> float:
    return -float(_durations(made, x).max())


def first_done(made, x: Allocation) -> float:
    return -float(_durations(made, x).min())


def _durations(made, x: Allocation) -> np.ndarray:
    jobs = made.view.jobs
    with np.errstate(divide="ignore"):
        return jobs.steps_left / x.throughputs(jobs, made.view.rates)


def total(made, x: Allocation) -> float:
    return float(x.throughputs(made.view.jobs, made.view.rates).sum())


def total_per_cost(made, x: Allocation) -> float:
    price = np.array([kind.price_per_hour for kind in made.view.cluster.types])
    workers = made.workers[made.view.jobs.number.searchsorted(x.first)]
    return total(made, x) / float(workers * x.share @ price[x.types])


def by_arrival(made, x: Allocation) -> float:
    got, count = x.throughputs(made.view.jobs, made.view.rates), len(made.rates)
    return float((count - np.arange(count)) @ (got / made.rates.max(axis=1)))


@dataclass(frozen=True)
class Claim:
    """A policy, what it makes as large as can be, and the same policy without types where there is one."""

    make: Callable[..., Any]
    objective: Callable[[Any, Allocation], float]
    agnostic: Callable[[], Any] | None = None


CLAIMS = {
    "max-min": Claim(MaxMinFairnessPerf, lowest_level, MaxMinFairness),
    "water filling": Claim(MaxMinFairnessWaterFillingPerf, lowest_level, MaxMinFairnessWaterFilling),
    "hierarchical": Claim(
        lambda **options: HierarchicalPerf(ENTITIES, **options), lowest_level_among_entities, lambda: Hierarchical(ENTITIES)
    ),
    "finish-time fairness": Claim(FinishTimeFairnessPerf, least_finish_time, FinishTimeFairness),
    "makespan": Claim(MinTotalDurationPerf, least_duration, MinTotalDuration),
    "fifo": Claim(FifoPerf, by_arrival),
    "shortest first": Claim(ShortestJobFirstPerf, first_done),
    "total throughput": Claim(MaxSumThroughputPerf, total),
    "cost": Claim(lambda **options: MinCost(normalized=False, **options), total_per_cost),
    "cost, no deadlines": Claim(lambda **options: MinCostSlo(normalized=False, **options), total_per_cost),
}
EVERY = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)


def reached(claim: Claim, policy: Any, made) -> float:
    allocation, _ = policy.allocate(made.view, None)
    return claim.objective(made, allocation)


def no_worse(value: float, than: float) -> bool:
    return value >= than - 1e-6 * abs(than)


@EVERY
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.usefixtures("all_digits")
def test_the_objective_is_no_worse_than_with_the_nth_part_of_the_cluster_each(claim, seed):
    made = moment(seed, jobs=20)
    assert no_worse(reached(claim, claim.make(), made), reached(claim, Isolated(), made))


@EVERY
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("all_digits")
def test_the_objective_is_no_worse_with_company_than_without(claim, seed):
    made = moment(seed, jobs=20, weighted=True)
    assert no_worse(reached(claim, claim.make(space_sharing=True), made), reached(claim, claim.make(), made))


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS.values() if claim.agnostic], ids=lambda c: c.objective.__name__)
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.usefixtures("all_digits")
def test_on_one_type_the_objective_is_that_of_the_agnostic_form(claim, seed):
    made = random_moment(seed, types=1)
    assert reached(claim, claim.make(), made) == pytest.approx(reached(claim, claim.agnostic(), made), rel=1e-6)
