"""The market in expectation (Shockwave, appendix F): which way a job will go is known only by its chances, and the
scheduler sees each job's state before it divides a round's units.

    max_π Σ_i B_i·log E_π[U_i]

over policies π of joint states. At prices B_i/E[U_i] of utility the best policy is a dynamic program's; mixing such
policies leads to the optimum, and the next one's worth bounds how far it is. For small cases: joint states and divisions
are enumerated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError, SolverError
from fairlead.policies.shockwave.welfare import most_welfare

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
