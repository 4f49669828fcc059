"""The volatile Fisher market (Shockwave §4, appendices C–E): jobs with budgets buy resources that cannot be kept, each
round's at its own price, and what a job gains from them changes as it trains.

    max Σ_i B_i·log U_i,   U_i = Σ_t u_it(x_it)   s.t.  Σ_i x_ijt ≤ 1

with u_it linear (Σ_j u_ijt·x_ijt) or Leontief (min_j x_ijt/a_ijt). Its optimum is the equilibrium: nobody can buy more with
its budget, what has a price is sold out, and budgets are spent. Capacity is one unit of each resource in each round. Exact,
and meant for small markets: the planner approximates it for large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError, SolverError

# The most Nash welfare over a polytope of activities (Eisenberg and Gale's program in general form):
#
# max Σ_i B_i·log(Σ_k g_ik·y_k)   s.t.  Σ_k a_rk·y_k ≤ 1,   y ≥ 0
#
# with the prices of the rows. By a primal-dual interior-point method on dense arrays, for small markets; large ones of few
# types of accelerators are solved by `policies/nash.py`. What an activity stands for is said by who calls.

GAP = 1e-11
"""How far from the optimum the welfare may be, per budget."""

_OFF = 1e-9  # how far a price may be from what it buys, as a part of it
_STEPS = 200


def most_welfare(budgets: Floats, gains: Floats, uses: Floats) -> tuple[Floats, Floats]:
    """The level of each activity and the price of each row. `gains` is jobs × activities, `uses` rows × activities, neither
    negative; each job must gain by some activity, and each activity use something."""
    money = budgets / budgets.sum()
    y = np.full(gains.shape[1], 0.5 / uses.sum(axis=1).max())
    gain = gains / (gains @ y)[:, None]  # whose units a job counts in changes nothing
    room = 1.0 - uses @ y
    price, slack = np.full(len(uses), 1.0 / len(uses)), 1.0 / (len(y) * y)
    for _ in range(_STEPS):
        utility = gain @ y
        worth = (money / utility) @ gain
        cost = price @ uses
        off = np.abs(cost - slack - worth) / (cost + worth)
        gap = float(y @ slack + room @ price)
        if gap <= GAP and off.max() <= _OFF:
            return y, price * budgets.sum()
        aim = gap / (len(y) + len(price)) * (0.1 if off.max() <= 1.0 else 0.5)
        curve = (gain * (money / utility**2)[:, None]).T @ gain
        matrix = curve + np.diag(slack / y) + (uses * (price / room)[:, None]).T @ uses
        try:
            dy = np.linalg.solve(matrix, worth + aim / y - (aim / room) @ uses)
        except np.linalg.LinAlgError as error:
            raise SolverError("Nash welfare", "a singular step") from error
        droom = -(uses @ dy)
        dprice = (aim - price * droom) / room - price
        dslack = (aim - slack * dy) / y - slack
        ahead = 0.995 * min(1.0, _reach(y, dy), _reach(room, droom))
        y, room = y + ahead * dy, room + ahead * droom
        ahead = 0.995 * min(1.0, _reach(price, dprice), _reach(slack, dslack))
        price, slack = price + ahead * dprice, slack + ahead * dslack
    raise SolverError("Nash welfare", f"a gap of {gap:g} after {_STEPS} steps")


def _reach(values: Floats, steps: Floats) -> float:
    """How many such steps all values stay above 0."""
    falls = steps < 0
    return float((values[falls] / -steps[falls]).min()) if falls.any() else np.inf


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


# The market in expectation (Shockwave, appendix F): which way a job will go is known only by its chances, and the
# scheduler sees each job's state before it divides a round's units.
#
# max_π Σ_i B_i·log E_π[U_i]
#
# over policies π of joint states. At prices B_i/E[U_i] of utility the best policy is a dynamic program's; mixing such
# policies leads to the optimum, and the next one's worth bounds how far it is. For small cases: joint states and divisions
# are enumerated.

_NAME = "market in expectation"
_MIXED = 500


@dataclass(frozen=True)
class Chances:
    """A job's states and how it moves among them. `moves[n, s, r]`: the chance to be in r after a round in s with n units;
    `gains[n, s, r]`: what it gains by that."""

    moves: Floats
    gains: Floats
    first: int = 0

    def __post_init__(self) -> None:
        if self.moves.ndim != 3 or self.moves.shape[1] != self.moves.shape[2] or self.gains.shape != self.moves.shape:
            raise InputError(_NAME, "units × states × states, as many as `gains`", field="moves", value=self.moves.shape)
        if not ((self.moves >= 0).all() and np.allclose(self.moves.sum(axis=2), 1.0)):
            raise InputError(_NAME, "chances that add up to 1 for each state", field="moves", value=self.moves.tolist())
        if not (self.gains >= 0).all():
            raise InputError(_NAME, "numbers from 0 on", field="gains", value=self.gains.tolist())

    @property
    def pay(self) -> Floats:
        """Units × states: what a round is expected to give."""
        expected: Floats = (self.moves * self.gains).sum(axis=2)
        return expected


@dataclass(frozen=True)
class Mixture:
    """Policies and how often each is drawn; `policies[m][t]` is by joint state the number of a division in `divisions`."""

    utility: Floats  # of each job, expected
    chance: Floats  # of each policy
    policies: tuple[tuple[Ints, ...], ...]
    divisions: tuple[tuple[int, ...], ...]
    gap: float  # the welfare Σ B·log U is at most so far from the optimum


def expected_market(budgets: Floats, jobs: Sequence[Chances], units: int, rounds: int, tolerance: float = 1e-8) -> Mixture:
    """The division of `units` in each of so many rounds that has the most welfare in expectation. Each job takes from none
    to as many units as its chances tell of."""
    divisions = tuple(d for d in product(*(range(len(job.moves)) for job in jobs)) if sum(d) <= units)
    alone = np.eye(len(jobs))
    found = [_best(jobs, divisions, rounds, one) for one in alone]
    if any(not column[i] > 0 for i, (_, column) in enumerate(found)):
        raise InputError(_NAME, "jobs that can gain something", field="jobs")
    for _ in range(_MIXED):
        columns = np.array([utility for _, utility in found]).T
        chance, _ = most_welfare(budgets, columns, np.ones((1, len(found))))
        utility = columns @ chance
        policy, reply = _best(jobs, divisions, rounds, budgets / utility)
        gap = float(budgets / utility @ reply - budgets.sum())
        if gap <= tolerance * budgets.sum():
            return Mixture(utility, chance, tuple(policy for policy, _ in found), divisions, max(gap, 0.0))
        found.append((policy, reply))
    raise SolverError(_NAME, f"a gap of {gap:g} after {_MIXED} policies")


def _best(
    jobs: Sequence[Chances], divisions: Sequence[tuple[int, ...]], rounds: int, weights: Floats
) -> tuple[tuple[Ints, ...], Floats]:
    """The policy with the most weighted utility, by backward induction, and what each job expects from it."""
    states = tuple(job.moves.shape[1] for job in jobs)
    ahead, policy = np.zeros(states), []
    for _ in range(rounds):
        worth = np.stack([_pay(jobs, d, weights) + _pull(jobs, d, ahead) for d in divisions])
        policy.append(worth.argmax(axis=0))
        ahead = worth.max(axis=0)
    policy.reverse()
    there, utility = np.zeros(states), np.zeros(len(jobs))
    there[tuple(job.first for job in jobs)] = 1.0
    for chosen in policy:
        after = np.zeros(states)
        for number, division in enumerate(divisions):
            here = np.where(chosen == number, there, 0.0)
            for i, (job, n) in enumerate(zip(jobs, division)):
                others = tuple(axis for axis in range(len(jobs)) if axis != i)
                utility[i] += here.sum(axis=others) @ job.pay[n]
            after += _push(jobs, division, here)
        there = after
    return tuple(policy), utility


def _pay(jobs: Sequence[Chances], division: tuple[int, ...], weights: Floats) -> Floats:
    total = np.zeros(tuple(job.moves.shape[1] for job in jobs))
    for i, (job, n) in enumerate(zip(jobs, division)):
        total += weights[i] * job.pay[n].reshape([-1 if axis == i else 1 for axis in range(len(jobs))])
    return total


def _pull(jobs: Sequence[Chances], division: tuple[int, ...], ahead: Floats) -> Floats:
    """What a function of the next joint state is expected to be, by this one."""
    for i, (job, n) in enumerate(zip(jobs, division)):
        ahead = np.moveaxis(np.tensordot(job.moves[n], ahead, axes=(1, i)), 0, i)
    return ahead


def _push(jobs: Sequence[Chances], division: tuple[int, ...], here: Floats) -> Floats:
    """Where one is after a round, by where one was."""
    for i, (job, n) in enumerate(zip(jobs, division)):
        here = np.moveaxis(np.tensordot(job.moves[n], here, axes=(0, i)), 0, i)
    return here
