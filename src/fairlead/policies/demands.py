"""Jobs of a class that differ in what they demand: the cheapest ways to give each job m at least the throughput r_m,

    Σ_j T_gj·x_mj ≥ r_m,   Σ_j x_mj ≤ 1,   Σ_m s_m·x_mj ≤ N_j,   x ≥ 0        (Gavel §4.2: makespan, finish times, SLOs).

With a price on each type, the cheapest way to r follows the lower hull of the points (0, 0), (T_gj, price_j), and the hull is
that of the class: only r is the job's own. So a class has no more answers than there are hulls: the subsets S of its types that
end in the fastest, between whose members each job interpolates. Where time has a worth of its own, a hull may first fall: then
every job is lifted to its lowest point, which is the first type of S. Every optimum is a convex combination of these answers, a
column each, and the program has one row per class and one per type, however many jobs there are.

Answers are linear between the rates of the class. A job at r between two of them counts as a part of each, so the jobs of a
class enter a program by their weights on the grid 0 ≤ T_g1 ≤ … ≤ T_gJ alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.classes import Classes
from fairlead.policies.program import Program

FITS = 1e-9
"""Demands that exceed the cluster by no more than this part of it fit."""

_ROUNDS = 60
_STEPS = 200


@dataclass(frozen=True)
class Grid:
    """Demands of jobs as parts of two neighbouring points of their class's grid, and their sum by class and point."""

    high: Ints  # by job, from 1 on: the point at or above the demand
    part: Floats  # by job: how much of it counts at that point, the rest one below
    weights: Floats  # classes × (types + 1)


@dataclass(frozen=True)
class Fit:
    """How far demands exceed the cluster (below 0: what is free), and what each type is worth: Σ price_j·N_j = 1."""

    excess: float
    prices: Floats
    mix: Floats  # of the answers of each class: classes × answers


class Demands:
    """The jobs of one moment, by class; it answers for any demands that they may have."""

    def __init__(self, name: str, classes: Classes, capacity: Ints) -> None:
        self.name, self.classes, self.capacity = name, classes, capacity
        self.there = (classes.of >= 0).nonzero()[0]  # rows of the view; all columns by job follow it
        self.of = classes.of[self.there]
        self.order = classes.rates.argsort(axis=1, kind="stable")
        self.sorted = np.take_along_axis(classes.rates, self.order, axis=1)
        self.grid = np.concatenate((np.zeros((len(classes), 1)), self.sorted), axis=1)
        self.fastest = self.grid[self.of, -1]
        self.answers, self.valid = _answers(self.sorted, self.order)
        self._plain = self.answers.shape[1] // 2  # behind these are the answers that lift
        self._room = np.maximum(capacity, 1).astype(np.float64)
        self._scale = classes.workers[:, None, None] / self._room  # time of a class's members as a part of each type

    # Demands.

    def on_grid(self, demand: Floats) -> Grid:
        grid = self.grid[self.of]
        high = np.maximum((demand[:, None] > grid).sum(axis=1), 1)
        high = np.minimum(high, grid.shape[1] - 1)
        low_rate, high_rate = self.grid[self.of, high - 1], self.grid[self.of, high]
        step = high_rate - low_rate
        part = np.divide(demand - low_rate, step, out=np.ones(len(demand)), where=step > 0).clip(0.0, 1.0)
        points = grid.shape[1]
        at = self.of * points + high
        size = len(self.classes) * points
        weights = np.bincount(at, part, minlength=size) + np.bincount(at - 1, 1.0 - part, minlength=size)
        return Grid(high, part, weights.reshape(-1, points))

    def costs(self, prices: Floats) -> Floats:
        """What a job at each point of its class's grid costs at least: classes × (types + 1), convex."""
        each = self.answers[:, : self._plain] @ prices
        each[~self.valid[:, : self._plain]] = np.inf
        cheapest: Floats = each.min(axis=1) * self.classes.workers[:, None]
        return cheapest

    def cost_of(self, grid: Grid, costs: Floats) -> Floats:
        """The same for each job with its demand."""
        paid: Floats = costs[self.of, grid.high] * grid.part + costs[self.of, grid.high - 1] * (1.0 - grid.part)
        return paid

    # Programs.

    def fit(self, grid: Grid) -> Fit:
        """min θ such that the demands take no more than (1 + θ) of every type, and the prices that prove it."""
        valid = self.valid.copy()
        valid[:, self._plain :] = False
        g, f = valid.nonzero()
        use = self._use(grid)[g, f]
        types, columns = len(self.capacity), len(g)
        j = np.arange(types)
        rows = (np.tile(j, columns), types + g, j)
        cols = (np.arange(columns).repeat(types), np.arange(columns), np.full(types, columns))
        values = (use.ravel(), np.ones(columns), -np.ones(types))
        cost = np.zeros(columns + 1)
        cost[-1] = -1.0
        lower = np.append(np.zeros(columns), -np.inf)
        one = np.ones(len(self.classes))
        bounds = (np.concatenate((np.full(types, -np.inf), one)), np.concatenate((np.ones(types), one)))
        found = _program(self.name, cost, lower, *bounds, rows, cols, values).solve()
        mix = np.zeros(valid.shape)
        mix[g, f] = found.values[:-1].clip(min=0.0)
        prices = np.maximum(found.duals[:types], 0.0) / self._room
        return Fit(float(found.values[-1]), prices / float(prices @ self.capacity), mix)

    def most(self, grid: Grid, worth: Floats, over: float = 0.0) -> Floats:
        """The mix of answers that meets the demands and maximises Σ worth_gj × time of g on j. `over`: excess to put up with."""
        g, f = self.valid.nonzero()
        time = self._time(grid)[g, f]
        types, columns = len(self.capacity), len(g)
        rows = (np.tile(np.arange(types), columns), types + g)
        cols = (np.arange(columns).repeat(types), np.arange(columns))
        values = ((time * self._scale[g, 0]).ravel(), np.ones(columns))
        one = np.ones(len(self.classes))
        room = np.full(types, 1.0 + max(over, 0.0))
        bounds = (np.concatenate((np.full(types, -np.inf), one)), np.concatenate((room, one)))
        cost = (time * worth[g]).sum(axis=1)
        found = _program(self.name, cost, np.zeros(columns), *bounds, rows, cols, values).solve()
        return self._mix(g, f, found.values)

    def best_ratio(self, grid: Grid, worth: Floats, price: Floats, over: float = 0.0) -> Floats:
        """The mix that meets the demands and maximises Σ worth·time / Σ price·time; among these, the most of both.

        Charnes and Cooper: divided by the denominator, with its inverse as one more unknown, the program is linear."""
        g, f = self.valid.nonzero()
        time = self._time(grid)[g, f]
        types, columns = len(self.capacity), len(g)
        use = time * self._scale[g, 0]
        gain, pay = (time * worth[g]).sum(axis=1), (time * price[g]).sum(axis=1)
        unit_gain, unit_pay = max(float(gain.max()), 1e-300), max(float(pay.max()), 1e-300)
        gain, pay = gain / unit_gain, pay / unit_pay
        groups = len(self.classes)
        paid, gained = types + groups, types + groups + 1
        column = np.arange(columns)
        room = np.full(types, -1.0 - max(over, 0.0))
        rows = (
            np.tile(np.arange(types), columns),
            types + g,
            np.full(columns, paid),
            np.full(columns, gained),
            np.arange(types + groups),
        )
        cols = (column.repeat(types), column, column, column, np.full(types + groups, columns))
        values = (use.ravel(), np.ones(columns), pay, gain, np.concatenate((room, -np.ones(groups))))
        free = np.full(types, -np.inf)
        lower = np.concatenate((free, np.zeros(groups), [1.0, -np.inf]))
        upper = np.concatenate((np.zeros(types + groups), [1.0, np.inf]))
        program = _program(self.name, np.append(gain, 0.0), np.zeros(columns + 1), lower, upper, rows, cols, values)
        first = program.solve()
        least = first.objective * (1.0 - FITS)
        program.row_bounds(np.array([gained]), np.array([least]), np.array([np.inf]))
        program.costs(np.arange(columns + 1), np.append(np.zeros(columns), -1.0))
        found = program.solve(primal=True)
        return self._mix(g, f, found.values[:-1] / found.values[-1])

    def shares(self, grid: Grid, mix: Floats) -> Floats:
        """The time of each job by type: rows of the view × types."""
        points = (self.answers * mix[:, :, None, None]).sum(axis=1)  # classes × points × types
        part = grid.part[:, None]
        x = np.zeros((len(self.classes.of), len(self.capacity)))
        x[self.there] = points[self.of, grid.high] * part + points[self.of, grid.high - 1] * (1.0 - part)
        return x

    def _time(self, grid: Grid) -> Floats:
        """classes × answers × types: what the members take together."""
        time: Floats = np.matmul(grid.weights[:, None, None, :], self.answers)[:, :, 0, :]
        return time

    def _use(self, grid: Grid) -> Floats:
        return self._time(grid) * self._scale

    def _mix(self, g: Ints, f: Ints, values: Floats) -> Floats:
        mix = np.zeros(self.valid.shape)
        mix[g, f] = values.clip(min=0.0)
        return mix / mix.sum(axis=1, keepdims=True)

    # Demands that fall as a level rises.

    def least_level(self, demand: Callable[[float], tuple[Floats, Floats]], lowest: float, highest: float) -> tuple[float, Fit]:
        """The least level at which the demands fit the cluster, and how they do.

        `demand(level)` gives r and its slope (not above 0, and 0 at most for finitely large levels). Below `lowest` nothing
        changes any more; from `highest` on demands go to 0. Prices show how high the level must at least be: where the
        demands cost what the cluster is worth. That level's program gives better prices, and so on; levels only rise."""
        level, fit = lowest, self.fit(self.on_grid(demand(lowest)[0]))
        for _ in range(_ROUNDS):
            if fit.excess <= FITS:
                return level, fit
            raised = self._worth_level(demand, fit.prices, level, highest)
            if raised <= level:
                raise SolverError(self.name, f"no progress at level {level:g}, {fit.excess:g} over the cluster")
            level = raised
            fit = self.fit(self.on_grid(demand(level)[0]))
        raise SolverError(self.name, f"no level found in {_ROUNDS} rounds")

    def _worth_level(
        self, demand: Callable[[float], tuple[Floats, Floats]], prices: Floats, low: float, highest: float
    ) -> float:
        """The level at which demands cost exactly what the cluster is worth (1): Newton's method inside a bracket."""
        costs = self.costs(prices)
        slopes = np.diff(costs, axis=1)
        steps = np.diff(self.grid, axis=1)
        slopes = np.divide(slopes, steps, out=np.zeros_like(slopes), where=steps > 0)

        def surplus(level: float) -> tuple[float, float]:
            r, falls = demand(level)
            grid = self.on_grid(r)
            return float((grid.weights * costs).sum()) - 1.0, float((slopes[self.of, grid.high - 1] * falls).sum())

        high = max(highest, low)
        value, slope = surplus(high)
        while value > 0:
            low = high
            high = low - value / slope if slope < 0 else 2.0 * low
            value, slope = surplus(high)
        level = low
        value, slope = surplus(level)
        for _ in range(_STEPS):
            if value > 0:
                low = level
            else:
                high = level
            newton = level - value / slope if slope < 0 else high
            close = abs(newton - level) <= 1e-14 * abs(level)
            if close or high - low <= 1e-15 * abs(high):
                break
            level = newton if low < newton < high else 0.5 * (low + high)
            value, slope = surplus(level)
        return level


def _program(
    name: str,
    cost: Floats,
    lower: Floats,
    row_lower: Floats,
    row_upper: Floats,
    rows: tuple[Ints, ...],
    columns: tuple[Ints, ...],
    values: tuple[Floats, ...],
) -> Program:
    entries = (np.concatenate(rows), np.concatenate(columns), np.concatenate(values))
    return Program(name, cost, lower, np.full(len(cost), np.inf), row_lower, row_upper, entries)


@lru_cache(maxsize=16)
def _subsets(types: int) -> tuple[Bools, Ints, Ints]:
    """All subsets of the positions 1..types, and for each and each grid point 0..types the member at or below it (0: none) and
    the member at or above it (the last one, where there is none)."""
    codes = np.arange(1, 1 << types)
    member = ((codes[:, None] >> np.arange(types)) & 1).astype(np.bool_)
    place = np.arange(1, types + 1)
    points = np.arange(types + 1)
    below = np.where(member[:, None, :] & (place <= points[:, None])[None], place, 0).max(axis=2)
    above = np.where(member[:, None, :] & (place >= points[:, None])[None], place, types + 1).min(axis=2)
    return member, below, np.where(above > types, below, above)


def _answers(rates: Floats, order: Ints) -> tuple[Floats, Bools]:
    """classes × answers × grid points × types of time, and which answers a class has. `rates` ascend along `order`.

    The first half of the answers interpolates between the members of each subset, from 0 on; the second half lifts whoever
    demands less to the subset's first member."""
    types = rates.shape[1]
    member, below, above = _subsets(types)
    grid = np.concatenate((np.zeros((len(rates), 1)), rates), axis=1)
    low, high, here = grid[:, below], grid[:, above], grid[:, None, :]
    part = np.divide(here - low, high - low, out=np.ones(low.shape), where=high > low)
    unit = np.concatenate((np.zeros((1, types)), np.eye(types)))  # point → its type; the origin has none
    plain = part[..., None] * unit[above] + (1.0 - part)[..., None] * unit[below]
    plain[:, :, 0, :] = 0.0
    first = member.argmax(axis=1) + 1
    lifted = plain[:, np.arange(len(member))[:, None], np.maximum(np.arange(types + 1), first[:, None])]
    by_type = np.zeros((len(rates), 2 * len(member), types + 1, types))
    both = np.concatenate((plain, lifted), axis=1)
    np.put_along_axis(by_type, np.broadcast_to(order[:, None, None, :], both.shape), both, axis=3)

    # A member that is as fast as the next is no hull's; and a hull ends in a type than which there is none faster.
    last = types - member[:, ::-1].argmax(axis=1)
    follows = np.where(member, np.arange(types), -1)
    rising = np.ones((len(rates), len(member)), dtype=np.bool_)
    for position in range(types):
        before = np.where(np.arange(types) < position, follows, -1).max(axis=1)  # the member before this position
        checked = member[:, position] & (before >= 0)
        rising[:, checked] &= rates[:, position, None] > rates[:, before[checked]]
    usable = rates[:, first - 1] > 0
    valid = rising & usable & (rates[:, last - 1] == rates[:, -1:])
    return by_type, np.concatenate((valid, valid), axis=1)


