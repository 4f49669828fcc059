"""Reference implementation of the volatile Fisher market (Shockwave §4, appendices C–F): jobs with budgets buy resources that
cannot be stored, at a price for each round, and the utility of a resource changes while a job trains.

    max Σ_i B_i·log U_i,   U_i = Σ_t u_it(x_it)   s.t.  Σ_i x_ijt ≤ 1

with u_it linear (Σ_j u_ijt·x_ijt) or Leontief (min_j x_ijt/a_ijt). The optimum is the equilibrium: no job can buy more with
its budget, resources with a price are sold out, and budgets are spent. Capacity is one unit of each resource in each round. It
is exact and meant for small markets; the planner approximates it for large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError

GAP = 1e-11
"""Distance of the welfare from the optimum, per budget."""

_OFF = 1e-9  # relative error of prices
_STEPS = 200


def max_welfare(budgets: Floats, gains: Floats, uses: Floats) -> tuple[Floats, Floats]:
    """The level of each activity and the price of each row (Eisenberg and Gale's program):

        max Σ_i B_i·log(Σ_k g_ik·y_k)   s.t.  Σ_k a_rk·y_k ≤ 1,   y ≥ 0

    by a primal-dual interior-point method. `gains` is jobs × activities, `uses` rows × activities, neither negative; each job
    must gain from some activity, and each activity use something."""
    money = budgets / budgets.sum()
    y = np.full(gains.shape[1], 0.5 / uses.sum(axis=1).max())
    gain = gains / (gains @ y)[:, None]  # units of utility do not matter
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
        length = 0.995 * min(1.0, _reach(y, dy), _reach(room, droom))
        y, room = y + length * dy, room + length * droom
        length = 0.995 * min(1.0, _reach(price, dprice), _reach(slack, dslack))
        price, slack = price + length * dprice, slack + length * dslack
    raise SolverError("Nash welfare", f"a gap of {gap:g} after {_STEPS} steps")


def _reach(values: Floats, steps: Floats) -> float:
    """The number of such steps for which all values stay above 0."""
    falls = steps < 0
    return float((values[falls] / -steps[falls]).min()) if falls.any() else np.inf


@dataclass(frozen=True)
class Equilibrium:
    """Shares and prices. `shares` is jobs × resources × rounds, `prices` resources × rounds."""

    budgets: Floats
    shares: Floats
    prices: Floats
    utility: Floats  # of each job, over all rounds
    fair: Floats  # utility of 1/n of everything

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
    """`utilities[i, j, t]`: the utility of all of resource j in round t for job i."""
    jobs, resources, rounds = utilities.shape
    goods = resources * rounds
    who, what = (utilities.reshape(jobs, goods) > 0).nonzero()
    gains, uses = np.zeros((jobs, len(who))), np.zeros((goods, len(who)))
    activity = np.arange(len(who))
    gains[who, activity] = utilities.reshape(jobs, goods)[who, what]
    uses[what, activity] = 1.0
    level, price = max_welfare(budgets, gains, uses)
    shares = np.zeros((jobs, goods))
    shares[who, what] = level
    shape = (jobs, resources, rounds)
    fair = utilities.sum(axis=(1, 2)) / jobs
    return Equilibrium(budgets, shares.reshape(shape), price.reshape(shape[1:]), gains @ level, fair)


def leontief_market(budgets: Floats, needs: Floats) -> Equilibrium:
    """`needs[i, j, t]`: the amount of resource j that job i needs in round t for one unit of utility; infinite where it cannot
    run in a round."""
    jobs, resources, rounds = needs.shape
    works: Bools = needs.max(axis=1) < np.inf
    who, when = works.nonzero()
    gains, uses = np.zeros((jobs, len(who))), np.zeros((resources, rounds, len(who)))
    activity = np.arange(len(who))
    gains[who, activity] = 1.0
    uses[:, when, activity] = needs[who, :, when].T
    level, price = max_welfare(budgets, gains, uses.reshape(resources * rounds, -1))
    shares = np.zeros(needs.shape)
    shares[who, :, when] = level[:, None] * needs[who, :, when]
    fair = np.where(works, 1.0 / (jobs * needs.max(axis=1)), 0.0).sum(axis=1)
    return Equilibrium(budgets, shares, price.reshape(resources, rounds), gains @ level, fair)


# The market in expectation (Shockwave, appendix F): the future of a job is known by its transition probabilities, and the
# scheduler observes each job's state before it divides the units of a round.
#
# max_π Σ_i B_i·log E_π[U_i]
#
# over policies π of joint states. At prices B_i/E[U_i] of utility the best policy is a dynamic program's; mixtures of such
# policies converge to the optimum, and the worth of the next one bounds the gap. Joint states and divisions are enumerated.

_MAX_POLICIES = 500


@dataclass(frozen=True)
class JobProcess:
    """A job as a Markov process. `moves[n, s, r]`: the probability of state r after a round in s with n units; `gains[n, s,
    r]`: the utility of that transition."""

    moves: Floats
    gains: Floats
    first: int = 0

    @property
    def pay(self) -> Floats:
        """Units × states: the expected utility of a round."""
        expected: Floats = (self.moves * self.gains).sum(axis=2)
        return expected


@dataclass(frozen=True)
class Mixture:
    """Policies and their probabilities; `policies[m][t]` is, by joint state, the index of a division in `divisions`."""

    utility: Floats  # of each job, expected
    chance: Floats  # of each policy
    policies: tuple[tuple[Ints, ...], ...]
    divisions: tuple[tuple[int, ...], ...]
    gap: float  # bound on the distance of Σ B·log U from the optimum


def expected_market(budgets: Floats, jobs: Sequence[JobProcess], units: int, rounds: int, tolerance: float = 1e-8) -> Mixture:
    """The policy of dividing `units` in each round with the most expected welfare. A job takes at most as many units as its
    process has."""
    divisions = tuple(d for d in product(*(range(len(job.moves)) for job in jobs)) if sum(d) <= units)
    alone = np.eye(len(jobs))
    found = [_best(jobs, divisions, rounds, one) for one in alone]
    for _ in range(_MAX_POLICIES):
        columns = np.array([utility for _, utility in found]).T
        chance, _ = max_welfare(budgets, columns, np.ones((1, len(found))))
        utility = columns @ chance
        policy, reply = _best(jobs, divisions, rounds, budgets / utility)
        gap = float(budgets / utility @ reply - budgets.sum())
        if gap <= tolerance * budgets.sum():
            return Mixture(utility, chance, tuple(policy for policy, _ in found), divisions, max(gap, 0.0))
        found.append((policy, reply))
    raise SolverError("market in expectation", f"a gap of {gap:g} after {_MAX_POLICIES} policies")


def _best(
    jobs: Sequence[JobProcess], divisions: Sequence[tuple[int, ...]], rounds: int, weights: Floats
) -> tuple[tuple[Ints, ...], Floats]:
    """The policy with the most weighted utility, by backward induction, and the expected utility of each job."""
    states = tuple(job.moves.shape[1] for job in jobs)
    future, policy = np.zeros(states), []
    for _ in range(rounds):
        worth = np.stack([_pay(jobs, d, weights) + _expected(jobs, d, future) for d in divisions])
        policy.append(worth.argmax(axis=0))
        future = worth.max(axis=0)
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
            after += _advanced(jobs, division, here)
        there = after
    return tuple(policy), utility


def _pay(jobs: Sequence[JobProcess], division: tuple[int, ...], weights: Floats) -> Floats:
    total = np.zeros(tuple(job.moves.shape[1] for job in jobs))
    for i, (job, n) in enumerate(zip(jobs, division)):
        total += weights[i] * job.pay[n].reshape([-1 if axis == i else 1 for axis in range(len(jobs))])
    return total


def _expected(jobs: Sequence[JobProcess], division: tuple[int, ...], future: Floats) -> Floats:
    """The expectation of a function of the next joint state, by the present one."""
    for i, (job, n) in enumerate(zip(jobs, division)):
        future = np.moveaxis(np.tensordot(job.moves[n], future, axes=(1, i)), 0, i)
    return future


def _advanced(jobs: Sequence[JobProcess], division: tuple[int, ...], here: Floats) -> Floats:
    """The distribution over joint states after a round."""
    for i, (job, n) in enumerate(zip(jobs, division)):
        here = np.moveaxis(np.tensordot(job.moves[n], here, axes=(0, i)), 0, i)
    return here
