"""Shares such that everybody is done in time, for the tightest measure of time that the cluster can keep:

    min ρ   s.t.   throughput(m, X) ≥ min(fastest_m, left_m / (ρ·unit_m − spent_m))   for every job m

What is left over then makes the most of the accelerators. Or, among the optima of the plain program, in which nobody goes on
past who cannot be in time, the one in their `centre` is taken, as by an interior-point solver (`centre.py`). With unit 1 and
nothing spent ρ is the makespan; with the time of a fair share as the unit it is finish-time fairness (Gavel §4.2). Agnostic
(`alike`), a job is on every type as fast as on its fastest, and jobs that may use the same types have the same mix of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.centre import centre
from fairlead.policies.classes import Classes
from fairlead.policies.demands import Demands
from fairlead.policies.max_min import even_mix, in_class_order

Among: TypeAlias = Literal["most", "centre"]

LEAST = 10 * NEGLIGIBLE
"""Of the time on its fastest type everybody gets so much, however little it needs: less would be lost as dust."""

_SPARE = 1e-9


def in_time(
    name: str,
    view: Snapshot,
    classes: Classes,
    left: Floats,
    unit: Floats,
    spent: Floats,
    memo: Memo,
    *,
    alike: bool,
    among: Among = "most",
) -> tuple[Floats, dict[str, Any]]:
    """jobs × types of time; columns by job of the view. `memo` has what was returned with it the last time: level and prices,
    from which the next ones are found sooner."""
    near: Mapping[str, Any] = memo if isinstance(memo, Mapping) and "prices" in memo else {"level": 0.0, "prices": None}
    demands = Demands(name, classes, view.capacity, near["prices"])
    at = demands.there
    left = (left / fastest_of(view, classes) if alike else left)[at]
    unit, spent, fastest = unit[at], spent[at], demands.fastest
    unit = np.maximum(unit, 1e-9)  # of who has nothing left and has spent no time

    crowd = 100.0 * float(view.jobs.workers[at].sum())
    least = fastest * min(LEAST, float(view.capacity[view.capacity > 0].min()) / crowd)

    soonest = np.maximum(left / fastest, 1e-300)

    def demand(level: float) -> tuple[Floats, Floats]:
        time = np.maximum(level * unit - spent, soonest)
        r = np.maximum(left / time, least)
        return r, np.where((time > soonest) & (r > least), -r * unit / time, 0.0)

    alone = (spent + soonest) / unit  # the least ρ of each
    lowest, highest, guess = float(alone.min()), float(alone.max()), float(near["level"])
    if alike and (classes.rates > 0).all():  # everything is one pool, and fits as soon as its sum does
        price = np.full(len(view.capacity), 1.0 / float(view.capacity.sum()))
        level = demands.worth_level(demand, price, lowest, highest, guess)
        share = demand(level)[0][:, None] * even_mix(classes, view.capacity)[demands.of]
        if among == "centre":
            share = _middle(view, demands, demand(max(level, highest))[0])
        return _by_job(view, at, share), {"level": level, "prices": demands.near}
    level, grid, fit = demands.least_level(demand, lowest, highest, guess)
    if among == "centre":
        share = _middle(view, demands, demand(max(level, highest))[0])
        return _by_job(view, at, share), {"level": level, "prices": demands.near}
    mix = fit.mix
    # Where every type has a price, all are full and every job gets just what it needs: nothing is left to deal out.
    usable = view.capacity > 0
    if (fit.prices * view.capacity)[usable].min() <= _SPARE:
        worth = classes.rates / classes.rates.max(axis=1, keepdims=True) * classes.workers[:, None]
        mix = demands.most(grid, in_class_order(worth, classes), fit.excess)
    x = demands.shares(grid, mix)
    return _same_mix(classes, view, x) if alike else x, {"level": level, "prices": demands.near}


def _middle(view: Snapshot, demands: Demands, need: Floats) -> Floats:
    """Of all shares with which everybody has what it needs, those in the middle."""
    ones, gain = np.ones(len(need), dtype=np.int64), demands.classes.rates[demands.of] / need[:, None]
    return centre(ones, view.jobs.workers[demands.there], ones.astype(np.float64), view.capacity, gain)


def _by_job(view: Snapshot, at: Ints, share: Floats) -> Floats:
    x = np.zeros((len(view.jobs), len(view.capacity)))
    x[at] = share
    return x


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
