"""What it takes to lift every job to a level of its own, whether the cluster has room for it, and what stands in the way.

A job's level is Σ_j gain_j·x_j for the fractions of time x_j. With a price p_j for a type's time, the cheapest way to level r
lies on the lower hull of the points (0, 0) and (gain_j, s·p_j): time divided between two neighbours of the hull. The hull is
the same for all jobs of a kind, so a kind has as many ways as there are chains of types that end in its fastest, 2^(J−1). What
all of its jobs take on a way depends only on how many stand at each gain (between two: a part at each). So whether there is
room is a program with a column for each way and a row for each kind and type, however many jobs there are and however they
differ:

    min θ   s.t.  Σ_k Σ_c use_kcj·λ_kc ≤ (1+θ)·N_j,   Σ_c λ_kc = 1,   λ ≥ 0

The duals of its rows by type are prices at which the levels cost 1+θ times all there is, and no way is cheaper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.program import Program

TIGHT = 1e-11
"""Levels that take so much more than there is, relatively, have room."""

_STUCK = 1e-7


@dataclass(frozen=True)
class Room:
    """Columns by kind. `points` are the gains in ascending order behind a 0 (the last one repeated where there are fewer than
    types); way c takes `use[k, c, i]` of each type for a job of kind k at its point i."""

    name: str
    points: Floats  # kinds × (types + 1)
    use: Floats  # kinds × ways × (types + 1) × types
    is_way: Bools  # kinds × ways
    capacity: Floats

    @classmethod
    def at_will(cls, name: str, gain: Floats, workers: Ints, capacity: Ints) -> Room:
        """For jobs that use types as suits the whole; a gain of 0: not at all."""
        kinds, types = gain.shape
        top = gain.max(axis=1)
        usable = gain > 0
        points = np.column_stack((np.zeros(kinds), np.sort(np.where(usable, gain, top[:, None]), axis=1)))
        chains = np.arange(1, 1 << types)
        member = (chains[:, None] >> np.arange(types) & 1).astype(np.bool_)  # chains × types
        apart = np.abs(gain[:, :, None] - gain[:, None, :]) > 1e-12 * top[:, None, None]
        apart[:, np.arange(types), np.arange(types)] = True
        use = np.zeros((kinds, len(chains), types + 1, types))
        is_way = np.zeros((kinds, len(chains)), dtype=np.bool_)
        for c, inside in enumerate(member):  # of types that are equally fast, a chain has one
            distinct = apart[:, inside][:, :, inside].all(axis=(1, 2))
            is_way[:, c] = usable[:, inside].all(axis=1) & distinct & (gain[:, inside].max(axis=1) == top)
            use[:, c] = _along(points, np.where(inside, gain, np.nan), top) * workers[:, None, None]
        some = is_way.any(axis=0)
        return cls(name, points, use[:, some], is_way[:, some], capacity.astype(np.float64))

    @classmethod
    def in_mixes(cls, name: str, mix: Floats, workers: Ints, capacity: Ints | Floats) -> Room:
        """For jobs that use types in fixed proportions; their level is their accelerator time."""
        kinds, types = mix.shape
        points: Floats = np.repeat(np.array([0.0, *[1.0] * types])[None, :], kinds, axis=0) * workers[:, None].astype(
            np.float64
        )
        use = points[:, None, :, None] * mix[:, None, None, :]
        return cls(name, points, use, np.ones((kinds, 1), dtype=np.bool_), capacity.astype(np.float64))

    @property
    def top(self) -> Floats:
        """The highest level of each kind: always on its fastest type."""
        return self.points[:, -1]

    def demand(self, kind: Ints, level: Floats) -> Floats:
        """Kinds × points: how many jobs of each kind stand at each of its points; one between two counts as a part of each."""
        lower, above = self._between(kind, level)
        kinds, width = self.points.shape
        at = kind * width + lower
        size = kinds * width
        below, over = np.bincount(at, 1.0 - above, minlength=size), np.bincount(at + 1, above, minlength=size)
        demand: Floats = (below + over).reshape(kinds, width).astype(np.float64, copy=False)
        return demand

    def hull(self, prices: Floats) -> Floats:
        """Kinds × points: what a job of each kind pays to stand at each point, by its cheapest way."""
        cost = self.use @ prices
        total = np.where(self.is_way, cost.sum(axis=2), np.inf)  # the cheapest way is so at every point
        cheapest: Floats = cost[np.arange(len(cost)), total.argmin(axis=1)]
        return cheapest

    def free_level(self, priced: Bools) -> Floats:
        """By kind, the level up to which a job pays nothing where some types have a price."""
        pays = (self.use[..., priced] > 0).any(axis=3) | ~self.is_way[:, :, None]
        level: Floats = np.where(pays, 0.0, self.points[:, None, :]).max(axis=(1, 2))
        return level

    def fit(self, demand: Floats) -> Fit:
        """How much of the cluster it takes, by which ways, and the prices that prove it."""
        kinds, types = len(self.points), len(self.capacity)
        owner, way = self.is_way.nonzero()
        use = np.einsum("kcij,ki->kcj", self.use, demand)[owner, way]
        columns = np.arange(1, len(owner) + 1)
        by_type = np.tile(np.arange(types), len(owner))
        rows = np.concatenate((by_type, owner + types, np.arange(types)))
        at = np.concatenate((columns.repeat(types), columns, np.zeros(types, dtype=np.int64)))
        values = np.concatenate((use.ravel(), np.ones(len(owner)), -self.capacity))
        program = Program(
            self.name,
            np.concatenate(([-1.0], np.zeros(len(owner)))),
            np.concatenate(([-np.inf], np.zeros(len(owner)))),
            np.full(len(owner) + 1, np.inf),
            np.concatenate((np.full(types, -np.inf), np.ones(kinds))),
            np.concatenate((self.capacity, np.ones(kinds))),
            (rows, at, values),
            tolerance=1e-10,  # with the usual one θ itself is no better than 1e-7
        )
        found = program.solve()
        prices = found.duals[:types].clip(min=0.0)
        if abs(float(prices @ self.capacity) - 1.0) > 1e-6:
            raise SolverError(self.name, "optimal, with prices that do not add up")
        parts = np.zeros(self.is_way.shape)
        parts[owner, way] = found.values[1:].clip(min=0.0)
        return Fit(float(found.values[0]), prices / float(prices @ self.capacity), parts)

    def time(self, fit: Fit, kind: Ints, level: Floats, workers: Ints) -> Floats:
        """Jobs × types: the fractions of time that lift each to its level."""
        at_points = np.einsum("kcij,kc->kij", self.use, fit.ways)
        lower, above = self._between(kind, level)
        use: Floats = at_points[kind, lower] * (1.0 - above)[:, None] + at_points[kind, lower + 1] * above[:, None]
        use /= workers[:, None] * max(1.0, 1.0 + fit.excess)
        return use

    def _between(self, kind: Ints, level: Floats) -> tuple[Ints, Floats]:
        """The point below each level, and how far it is from there to the next."""
        level = np.minimum(level, self.points[kind, -1])
        lower = np.zeros(len(kind), dtype=np.int64)
        for column in self.points.T[1:-1]:
            lower += level > column[kind]
        start = self.points[kind, lower]
        return lower, (level - start) / (self.points[kind, lower + 1] - start)


@dataclass(frozen=True)
class Fit:
    """`excess` is θ; `ways` are the parts λ."""

    excess: float
    prices: Floats
    ways: Floats

    @property
    def has_room(self) -> bool:
        return self.excess <= TIGHT

    @property
    def has_nearly_room(self) -> bool:
        """What is left of a difference when nothing smaller can be told apart."""
        return self.excess <= _STUCK


def _along(points: Floats, gain: Floats, top: Floats) -> Floats:
    """Kinds × points × types: time on each type at each point, along a chain; gains outside of it are NaN."""
    low = np.fmax.reduce(np.where(gain[:, None, :] <= points[:, :, None], gain[:, None, :], np.nan), axis=2, initial=0.0)
    high = np.fmin.reduce(np.where(gain[:, None, :] >= points[:, :, None], gain[:, None, :], np.nan), axis=2, initial=np.inf)
    high = np.where(np.isfinite(high), high, top[:, None])
    width = high - low
    above = np.divide(points - low, width, out=np.ones_like(width), where=width > 0)
    time = np.where(gain[:, None, :] == high[:, :, None], above[:, :, None], 0.0)
    beneath = (gain[:, None, :] == low[:, :, None]) & (width > 0)[:, :, None]
    time += np.where(beneath, (1.0 - above)[:, :, None], 0.0)
    return time
