"""Shares such that everybody is done in time, for the tightest measure of time that the cluster can keep:

    min ρ   s.t.   throughput(m, X) ≥ min(fastest_m, left_m / (ρ·unit_m − spent_m))   for every job m

What is left over then makes the most of the accelerators. With unit 1 and nothing spent ρ is the makespan; with the time of a
fair share as the unit it is finish-time fairness (Gavel §4.2). Agnostic (`alike`), a job is on every type as fast as on its
fastest, and jobs that may use the same types have the same mix of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.classes import Classes
from fairlead.policies.demands import Demands
from fairlead.policies.levels import Cost, Demand, least_level, worth_level
from fairlead.policies.max_min import even_mix, in_class_order
from fairlead.policies.sharing import Answer, Sharing, in_way_order, shared
from fairlead.policies.supply import Fit, Supply

LEAST = 10 * NEGLIGIBLE
"""Of the time on its fastest type everybody gets so much, however little it needs: less would be lost as dust."""

_SPARE = 1e-9


@dataclass(frozen=True)
class Hurry:
    """What each job of a view has before it: steps that are `left`; its time counts in `unit`s, and it has `spent` some."""

    left: Floats
    unit: Floats
    spent: Floats

    def of(self, jobs: Ints, fastest: Floats, least: Floats) -> tuple[Demand, float, float]:
        """For some jobs, whose fastest and least throughputs these are: the demands by level, and the lowest and highest level
        that any of them could reach if it were alone."""
        left, unit, spent = self.left[jobs], self.unit[jobs], self.spent[jobs]
        unit = np.maximum(unit, 1e-9)  # of who has nothing left and has spent no time
        soonest = np.maximum(left / fastest, 1e-300)

        def demand(level: float) -> tuple[Floats, Floats]:
            time = np.maximum(level * unit - spent, soonest)
            r = np.maximum(left / time, least)
            return r, np.where((time > soonest) & (r > least), -r * unit / time, 0.0)

        alone = (spent + soonest) / unit  # the least ρ of each
        return demand, float(alone.min()), float(alone.max())


def in_time(
    name: str, view: Snapshot, classes: Classes, hurry: Hurry, memo: Memo, *, alike: bool, sharing: Sharing
) -> tuple[Allocation, Mapping[str, Any]]:
    """`memo` has what was returned with it the last time: level and prices, from which the next ones are found sooner."""
    near: Mapping[str, Any] = memo if isinstance(memo, Mapping) and "prices" in memo else {"level": 0.0, "prices": None}
    if not sharing.alone:
        return shared(name, view, classes, sharing, lambda supply: _supplied(view, supply, hurry, float(near["level"])))
    demands = Demands(name, classes, view.capacity, near["prices"])
    at, fastest = demands.there, demands.fastest
    if alike:
        hurry = Hurry(hurry.left / fastest_of(view, classes), hurry.unit, hurry.spent)
    demand, lowest, highest = hurry.of(at, fastest, _least(view, at) * fastest)
    guess = float(near["level"])
    if alike and (classes.rates > 0).all():  # everything is one pool, and fits as soon as its sum does
        price = np.full(len(view.capacity), 1.0 / float(view.capacity.sum()))
        level = worth_level(demand, demands.cost_at(price), lowest, highest, guess)
        x = np.zeros((len(view.jobs), len(view.capacity)))
        x[at] = demand(level)[0][:, None] * even_mix(classes, view.capacity)[demands.of]
        return Allocation.alone(view.jobs.number, x), {"level": level, "prices": demands.near}
    level, grid, fit = demands.least_level(demand, lowest, highest, guess)
    mix = fit.mix
    # Where every type has a price, all are full and every job gets just what it needs: nothing is left to deal out.
    usable = view.capacity > 0
    if (fit.prices * view.capacity)[usable].min() <= _SPARE:
        worth = classes.rates / classes.rates.max(axis=1, keepdims=True) * classes.workers[:, None]
        mix = demands.most(grid, in_class_order(worth, classes), fit.excess)
    x = demands.shares(grid, mix)
    x = _same_mix(classes, view, x) if alike else x
    return Allocation.alone(view.jobs.number, x), {"level": level, "prices": demands.near}


def _supplied(view: Snapshot, supply: Supply, hurry: Hurry, guess: float) -> Answer:
    """The same where jobs may share accelerators or stand apart."""
    at, fastest, workers = supply.there, supply.fastest, view.jobs.workers[supply.there]
    demand, lowest, highest = hurry.of(at, fastest, _least(view, at) * fastest)
    size = float(view.capacity.sum())

    def in_one_pool(r: Floats) -> tuple[float, Floats]:
        return float(workers @ (r / fastest)) / size - 1.0, workers / fastest / size

    def cost(fit: Fit) -> Cost:
        def of(r: Floats) -> tuple[float, Floats]:
            part = r / fastest
            return float(fit.bill.cost(supply.of, part).sum()) - 1.0, fit.bill.rise(supply.of, part) / fastest

        return of

    if guess <= 0.0:
        guess = worth_level(demand, in_one_pool, lowest, highest, lowest)
    near = supply.fit(supply.asked(demand(guess)[0]))
    first = worth_level(demand, cost(near), lowest, highest, guess)
    level, wanted, fit = least_level(supply.name, demand, lambda r: supply.fit(supply.asked(r)), cost, first, highest)
    asked = supply.asked(wanted)
    worth = supply.ways.progress(supply.classes.workers.astype(np.float64))
    time = supply.most(asked, in_way_order(worth, supply), fit.excess)
    return Answer(time, asked, memo={"level": level, "prices": None})


def _least(view: Snapshot, at: Ints) -> float:
    crowd = 100.0 * float(view.jobs.workers[at].sum())
    return min(LEAST, float(view.capacity[view.capacity > 0].min()) / crowd)


def fastest_of(view: Snapshot, classes: Classes) -> Floats:
    """Each job's rate on the fastest type that it may use; 1 for who can run nowhere."""
    fastest = view.rates.fastest
    if not (classes.rates > 0).all():
        fastest = (view.rates.of_jobs * (classes.by_job(classes.rates) > 0)).max(axis=1)
    return np.where(classes.of >= 0, fastest, 1.0)


def _same_mix(classes: Classes, view: Snapshot, x: Floats) -> Floats:
    """The same time in all for each job, in the same mix for all that may use the same types."""
    usable = classes.rates > 0
    total = x.sum(axis=1, keepdims=True)
    mask = classes.by_job(usable @ (1.0 * (1 << np.arange(usable.shape[1]))))
    _, pool = np.unique(mask, return_inverse=True)
    load = x * view.jobs.workers[:, None]
    used = np.zeros((int(pool.max()) + 1, x.shape[1]))
    np.add.at(used, pool, load)
    mixed: Floats = total * (used / np.maximum(used.sum(axis=1, keepdims=True), 1e-300))[pool]
    return mixed
