"""Gandiva-Fair: users share every type by tickets, then trade fast accelerators for slow ones (Chaudhary et al., EuroSys'20).

Each user u has the part t_u / Σt of every type, as far as its jobs can use it; the rest goes to the others in the same
proportion. For two types f and s, let r_u = mean over u's workers of throughput on f / throughput on s. The user who gains most
from f buys it from the user who gains least, and pays p of s for each of f, where p is the second highest r among users with
any s to pay with (a second-price auction). As r_seller ≤ p ≤ r_buyer, no user is worse off by mean speed-up. Then the next two
trade, until no trade is left; no user takes more accelerators in payment than its jobs can use.

A user's accelerators are divided among its jobs by weight, as split stride scheduling does with tickets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, fill_fixed_mix, no_allocation

MIN_GAP = 1e-9
"""Speed-ups closer than this (relatively) are equal: no user gains by trading."""

MIN_TRADE = 1e-9
"""The smallest trade, in accelerators."""

_MAX_TICKETS = 1e9


@dataclass(frozen=True)
class GandivaFair:
    """Give every user an equal part of each GPU type, then trade fast GPUs for slow ones between users who gain.

    `tickets` gives some users more or less than 1. `trade=false` stops after the equal parts. With `by=account`, accounts take
    the place of users."""

    paper: ClassVar[str] = "Gandiva-Fair (Chaudhary et al., EuroSys'20)"
    tickets: Mapping[str, float] = field(default_factory=dict)  # tickets of each user; default: 1
    trade: bool = True  # users may trade fast GPUs for more slow ones
    by: Literal["user", "account", "entity"] = "user"  # what gets an equal part; `entity` is the former name of `account`

    def __post_init__(self) -> None:
        for name, count in self.tickets.items():
            if not 0 < count <= _MAX_TICKETS:  # they are added up
                expected = f"tickets above 0 for each, at most {_MAX_TICKETS:g}"
                raise InputError("policy gandiva-fair", expected, field="tickets", value={name: count})

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        owner = view.jobs.user if self.by == "user" else view.jobs.account
        names = view.names.users if self.by == "user" else view.names.accounts
        classes = classes_of(view, owner)
        if not len(classes):
            return no_allocation(view), memo
        users, of = np.unique(classes.group, return_inverse=True)
        tickets = np.array([float(self.tickets.get(names[user], 1.0)) for user in users.tolist()])
        load = classes.count * classes.workers
        demand = np.bincount(of, load).astype(np.float64)
        quota = equal_parts(tickets, demand, view.capacity)
        if self.trade:
            quota = traded(quota, mean_rates(classes, of, len(users)), demand)
        each = _divide_quota(classes, of, quota, view.capacity)
        return classes.each(view, each), memo


def equal_parts(tickets: Floats, demand: Floats, capacity: Ints) -> Floats:
    """Users × types: accelerators by tickets, at most what the user can use, the same part of every type."""
    total, parts = float(capacity.sum()), np.zeros(len(tickets))
    unsated = np.ones(len(tickets), dtype=np.bool_)
    while unsated.any():
        level = (total - parts[~unsated].sum()) / tickets[unsated].sum()
        small = unsated & (demand <= level * tickets)
        if not small.any():
            parts[unsated] = level * tickets[unsated]
            break
        parts[small] = demand[small]
        unsated &= ~small
    quota: Floats = parts[:, None] * (capacity / max(total, 1.0))
    return quota


def mean_rates(classes: JobClasses, of: Ints, users: int) -> Floats:
    """Users × types × types: mean speed on the first type relative to the second; 0 where a job cannot use both."""
    load, rates = (classes.count * classes.workers).astype(np.float64), classes.rates
    count, types = np.bincount(of, load, minlength=users), rates.shape[1]
    both = (rates[:, :, None] > 0) & (rates[:, None, :] > 0)
    ratio = np.divide(rates[:, :, None], rates[:, None, :], out=np.zeros((len(rates), types, types)), where=both)
    summed, able = np.zeros((users, types, types)), np.ones((users, types, types), dtype=np.bool_)
    np.add.at(summed, of, ratio * load[:, None, None])
    np.logical_and.at(able, of, both)
    return significant(np.where(able, summed / count[:, None, None], 0.0))


def traded(quota: Floats, speedup: Floats, demand: Floats) -> Floats:
    """The users' accelerators after all trades, the types furthest apart first. Sums over users do not change."""
    quota, types = quota.copy(), quota.shape[1]
    mean = np.zeros((types, types))
    for f, s in np.ndindex(types, types):
        if len(known := speedup[:, f, s][speedup[:, f, s] > 0]):
            mean[f, s] = known.mean()
    pairs = [
        (f, s) for f in range(types) for s in range(types) if mean[f, s] > mean[s, f] or (mean[f, s] == mean[s, f] and f < s)
    ]
    for fast, slow in sorted(pairs, key=lambda pair: (-mean[pair], pair)):
        _trade(quota, speedup[:, fast, slow], demand, fast, slow)
    return quota


def _trade(quota: Floats, gain: Floats, demand: Floats, fast: int, slow: int) -> None:
    """The market of two types: the user who gains most buys from the one who gains least, at the second highest gain."""
    ranked = [int(user) for user in (-gain).argsort(kind="stable") if gain[user] > 0]
    buyer, seller = 0, len(ranked) - 1
    while buyer < seller:
        b, s = ranked[buyer], ranked[seller]
        if gain[b] <= gain[s] * (1 + MIN_GAP):
            break
        bidders = [u for u in ranked[buyer + 1 : seller] if quota[u, slow] > MIN_TRADE]
        price = float(gain[bidders[0]]) if bidders else float(gain[s])
        affords, offers = quota[b, slow] / price, quota[s, fast]
        if price > 1:  # the seller ends up with more accelerators, up to its demand
            offers = min(offers, (demand[s] - quota[s].sum()) / (price - 1))
        elif price < 1:
            affords = min(affords, (demand[b] - quota[b].sum()) / (1 - price))
        if affords <= MIN_TRADE:
            buyer += 1
            continue
        if offers <= MIN_TRADE:
            seller -= 1
            continue
        amount = min(affords, offers)
        quota[b, fast] += amount
        quota[s, fast] -= amount
        quota[b, slow] -= amount * price
        quota[s, slow] += amount * price
    np.maximum(quota, 0.0, out=quota)


def _divide_quota(classes: JobClasses, of: Ints, quota: Floats, capacity: Ints) -> Floats:
    """Classes × types of time for each member: a user's accelerators by the weights of its jobs."""
    usable = classes.rates > 0
    mix = np.where(usable, quota[of], 0.0)
    empty = mix.sum(axis=1) <= MIN_TRADE  # the user has no usable type: all usable types in equal parts
    mix[empty] = (usable * capacity)[empty]
    mix /= mix.sum(axis=1, keepdims=True)
    weights = np.bincount(of, classes.count * classes.weight)
    part = quota.sum(axis=1)[of] * classes.weight / weights[of]  # accelerators for a member
    each: Floats = mix * fill_fixed_mix(replace(classes, weight=np.maximum(part, MIN_TRADE)), mix, capacity)[:, None]
    return each
