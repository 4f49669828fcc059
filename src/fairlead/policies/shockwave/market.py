"""The volatile Fisher market (Shockwave §4, appendices C–E): jobs with budgets buy resources that cannot be kept, each
round's at its own price, and what a job gains from them changes as it trains.

    max Σ_i B_i·log U_i,   U_i = Σ_t u_it(x_it)   s.t.  Σ_i x_ijt ≤ 1

with u_it linear (Σ_j u_ijt·x_ijt) or Leontief (min_j x_ijt/a_ijt). Its optimum is the equilibrium: nobody can buy more with
its budget, what has a price is sold out, and budgets are spent. Capacity is one unit of each resource in each round. Exact,
and meant for small markets: the planner approximates it for large ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import InputError
from fairlead.policies.shockwave.welfare import most_welfare

_NAME = "volatile Fisher market"


@dataclass(frozen=True)
class Equilibrium:
    """Who gets what at which price. `shares` is jobs × resources × rounds, `prices` resources × rounds."""

    budgets: Floats
    shares: Floats
    prices: Floats
    utility: Floats  # of each job, over all rounds
    fair: Floats  # what each job would gain from 1/n of everything

    @property
    def welfare(self) -> float:
        """Nash social welfare over time: the logarithm of the geometric mean of utilities, by budget (Equation 1)."""
        return float(self.budgets @ np.log(self.utility) / self.budgets.sum())

    @property
    def spent(self) -> Floats:
        """What each job pays."""
        paid: Floats = (self.shares * self.prices).sum(axis=(1, 2))
        return paid

    @property
    def rho(self) -> Floats:
        """Finish-time fairness of each job, U(C/n) / U(X): at most 1 for all where budgets are equal (Corollary 4.0.1)."""
        return self.fair / self.utility


def linear_market(budgets: Floats, utilities: Floats) -> Equilibrium:
    """`utilities[i, j, t]`: what job i gains from all of resource j in round t."""
    jobs, resources, rounds = _checked(budgets, utilities, "utilities")
    if not (utilities.reshape(jobs, -1) > 0).any(axis=1).all():
        raise InputError(_NAME, "a gain above 0 from something for every job", field="utilities")
    goods = resources * rounds
    who, what = (utilities.reshape(jobs, goods) > 0).nonzero()
    gains, uses = np.zeros((jobs, len(who))), np.zeros((goods, len(who)))
    activity = np.arange(len(who))
    gains[who, activity] = utilities.reshape(jobs, goods)[who, what]
    uses[what, activity] = 1.0
    level, price = most_welfare(budgets, gains, uses)
    shares = np.zeros((jobs, goods))
    shares[who, what] = level
    shape = (jobs, resources, rounds)
    fair = utilities.sum(axis=(1, 2)) / jobs
    return Equilibrium(budgets, shares.reshape(shape), price.reshape(shape[1:]), gains @ level, fair)


def leontief_market(budgets: Floats, needs: Floats) -> Equilibrium:
    """`needs[i, j, t]`: of resource j what job i needs in round t for one unit of utility; infinity in all of a round in which
    it can do nothing."""
    jobs, resources, rounds = _checked(budgets, needs, "needs", infinite=True)
    works: Bools = needs.max(axis=1) < np.inf
    if not works.any(axis=1).all():
        raise InputError(_NAME, "a round with finite needs for every job", field="needs")
    if not (needs.max(axis=1) > 0).all():
        raise InputError(_NAME, "a need above 0 in every round of every job", field="needs")
    who, when = works.nonzero()
    gains, uses = np.zeros((jobs, len(who))), np.zeros((resources, rounds, len(who)))
    activity = np.arange(len(who))
    gains[who, activity] = 1.0
    uses[:, when, activity] = needs[who, :, when].T
    level, price = most_welfare(budgets, gains, uses.reshape(resources * rounds, -1))
    shares = np.zeros(needs.shape)
    shares[who, :, when] = level[:, None] * needs[who, :, when]
    fair = np.where(works, 1.0 / (jobs * needs.max(axis=1)), 0.0).sum(axis=1)
    return Equilibrium(budgets, shares, price.reshape(resources, rounds), gains @ level, fair)


def _checked(budgets: Floats, given: Floats, field: str, *, infinite: bool = False) -> tuple[int, int, int]:
    if given.ndim != 3 or not given.size:
        raise InputError(_NAME, "jobs × resources × rounds, at least one of each", field=field, value=given.shape)
    if not ((given >= 0).all() and (infinite or np.isfinite(given).all())):
        raise InputError(_NAME, "numbers from 0 on", field=field, value=given.tolist())
    if budgets.shape != given.shape[:1] or not ((budgets > 0) & np.isfinite(budgets)).all():
        raise InputError(_NAME, f"{len(given)} numbers above 0", field="budgets", value=budgets.tolist())
    jobs, resources, rounds = given.shape
    return jobs, resources, rounds
