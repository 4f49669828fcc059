"""Shared by allocation policies: water filling over groups of jobs, and the accounts of jobs as such groups."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.errors import InputError
from fairlead.core.job import MAX_WEIGHT, MIN_WEIGHT, account_levels, is_account, with_parents
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import NO_SHARING, SharingOptions
from fairlead.policies.allocation.lp.demand_model import (
    MAX_HULL_TYPES,
    DemandModel,
    ModelAnswer,
    model_of_types,
    solve_with_sharing,
)
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, even_mix, no_allocation, normalized_rates
from fairlead.policies.allocation.lp.throughput_polytope import ThroughputPolytope
from fairlead.policies.allocation.lp.water_filling_model import (
    FixedMixFill,
    FlexibleFill,
    PolytopeFill,
    ShareGroups,
    fill_levels,
)

Inside: TypeAlias = Literal["fairness", "fifo"]


def water_fill(view: Snapshot, groups: ShareGroups, *, aware: bool, sharing: SharingOptions = NO_SHARING) -> Allocation:
    """The allocation of a view's jobs by water filling."""
    classes = classes_of(view, type_agnostic=not aware, by_weight=False)
    if not len(classes):
        return no_allocation(view)
    if aware and not (sharing.alone and len(view.capacity) <= MAX_HULL_TYPES):
        return _fill_polytope(view, classes, groups, sharing)
    here = classes.class_of >= 0
    jobs, kind = view.jobs, classes.class_of[here]
    weight, groups = jobs.weight[here], groups.only(here)
    if aware:
        demands = model_of_types("water filling", classes, view.capacity)
        model = FlexibleFill(demands, normalized_rates(classes, view.capacity).max(axis=1)[kind])
        reached = fill_levels(model, weight, groups)
        time = demands.shares(model.to_demands(reached.level), reached.fit.used) / (1.0 + max(reached.fit.excess, 0.0))
        return Allocation.alone(jobs.number, time)
    mix, workers = even_mix(classes, view.capacity)[kind], jobs.workers[here]
    load = fill_levels(FixedMixFill(mix, workers, view.capacity), weight, groups)
    time = np.zeros((len(jobs), len(view.capacity)))
    time[here] = mix * (load.level / (workers * (1.0 + max(load.fit.excess, 0.0))))[:, None]
    return Allocation.alone(jobs.number, time)


def _fill_polytope(view: Snapshot, classes: JobClasses, groups: ShareGroups, sharing: SharingOptions) -> Allocation:
    """Water filling with jobs that may be co-located or spread."""

    def answer(model: DemandModel, before: ModelAnswer | None) -> ModelAnswer:
        assert isinstance(model, ThroughputPolytope)
        equal = model.classes.rates @ (view.capacity / view.capacity.sum())
        top = model.cols.fastest / equal * model.classes.workers
        here = np.zeros(len(view.jobs), dtype=np.bool_)
        here[model.present] = True
        so_far, earlier = (None, None) if before is None else before.level
        filling = PolytopeFill(model, top[model.class_of], earlier)
        reached = fill_levels(filling, view.jobs.weight[here], groups.only(here), so_far)
        return ModelAnswer(filling.used(reached.fit), filling.to_demands(reached.level), level=(reached, filling))

    return solve_with_sharing("water filling", view, classes, sharing, answer)[0]


def check_weights(where: str, weights: Mapping[str, float]) -> None:
    """Check the weights of accounts."""
    for name, weight in weights.items():
        if not is_account(name.rstrip("/")):  # `a/` has the jobs of `a` itself
            raise InputError(where, "an account such as research/vision", field="weights", value=name)
        if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            expected = f"numbers from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
            raise InputError(where, expected, field=f"weights.{name}", value=weight)


def accounts(
    view: Snapshot, weights: Mapping[str, float], inside: Inside = "fairness", but: Mapping[str, Inside] | None = None
) -> ShareGroups:
    """The accounts of a view's jobs as groups, below the accounts that these belong to."""
    present, of = np.unique(view.jobs.account, return_inverse=True)
    names = [view.names.accounts[code] for code in present.tolist()]
    levels = account_levels(names)
    above: ShareGroups | None = None
    for upper, lower in pairwise(levels):
        parent_of = dict(zip(lower, upper))
        place = {name: at for at, name in enumerate(dict.fromkeys(upper))}
        weight = np.array([weights.get(name, 1.0) for name in place])
        members = np.array([place[parent] for parent in parent_of.values()])
        above = ShareGroups(members, weight, np.zeros(len(place), dtype=np.bool_), above)
    kinds = {own: _inside(name, inside, but or {}) for own, name in zip(levels[-1], names)}
    own = {name: at for at, name in enumerate(kinds)}
    groups = np.array([own[name] for name in levels[-1]], dtype=np.int64)
    weight = np.array([weights.get(name, 1.0) for name in own])
    return ShareGroups(groups[of], weight, np.array([kind == "fifo" for kind in kinds.values()]), above)


def _inside(account: str, inside: Inside, but: Mapping[str, Inside]) -> Inside:
    """How an account divides its time: as `but` has it for the account or the nearest one above."""
    return next((but[name] for name in with_parents(account) if name in but), inside)
