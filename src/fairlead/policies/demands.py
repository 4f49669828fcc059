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
from fairlead.policies.program import TOLERANCE, Program

FITS = 1e-9
"""Demands that exceed the cluster by no more than this part of it fit."""

_ROUNDS = 60
_STEPS = 200
_CLOSE = 1e-9  # a last step so small leaves an error of its square


@dataclass(frozen=True)
class Grid:
    """Demands of jobs, each as a part of a point of its class's grid and the rest of it one below."""

    at: Ints  # by job: class × points + the point (from 1 on) at or above the demand
    part: Floats


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
        order = classes.rates.argsort(axis=1, kind="stable")
        rates = np.take_along_axis(classes.rates, order, axis=1)
        self.grid = np.concatenate((np.zeros((len(classes), 1)), rates), axis=1)
        self.fastest = rates[:, -1][self.of]
        self.answers, self.valid = _answers(rates, order)
        self._plain = self.answers.shape[1] // 2  # behind these are the answers that lift
        self._room = np.maximum(capacity, 1).astype(np.float64)
        self._scale = classes.workers[:, None, None] / self._room  # time of a class's members as a part of each type
        # What a search looks at again and again: the inner points by job, and 1 / the step up to each point.
        self._inner = [rates[:, k][self.of] for k in range(rates.shape[1] - 1)]
        self._first = self.of * self.grid.shape[1] + 1
        self._fitting: Program | None = None
        steps = np.diff(self.grid, axis=1, prepend=0.0)
        self._inverse = np.divide(1.0, steps, out=np.zeros_like(steps), where=steps > 0)

    # Demands.

    def on_grid(self, demand: Floats) -> Grid:
        at = self._first.copy()
        for point in self._inner:
            at += demand > point
        part = (demand - self.grid.ravel()[at - 1]) * self._inverse.ravel()[at]
        return Grid(at, part.clip(0.0, 1.0))

    def costs(self, prices: Floats) -> Floats:
        """What a job at each point of its class's grid costs at least: classes × (types + 1), convex."""
        each = self.answers[:, : self._plain] @ prices
        each[~self.valid[:, : self._plain]] = np.inf
        cheapest: Floats = each.min(axis=1) * self.classes.workers[:, None]
        return cheapest

    def cost_of(self, grid: Grid, costs: Floats) -> Floats:
        """The same for each job with its demand."""
        flat = costs.ravel()
        low = flat[grid.at - 1]
        paid: Floats = low + (flat[grid.at] - low) * grid.part
        return paid

    # Programs.

    def fit(self, grid: Grid) -> Fit:
        """min θ such that the demands take no more than (1 + θ) of every type, and the prices that prove it."""
        g, f = self.valid[:, : self._plain].nonzero()
        use = self._time(grid)[g, f] * self._scale[g, 0]
        types, columns = len(self.capacity), len(g)
        j = np.arange(types)
        entries = (
            np.concatenate((np.tile(j, columns), types + g, j)),
            np.concatenate((np.arange(columns).repeat(types), np.arange(columns), np.full(types, columns))),
            np.concatenate((use.ravel(), np.ones(columns), -(self.capacity > 0).astype(np.float64))),
        )
        if self._fitting is None:
            lower = np.append(np.zeros(columns), -np.inf)
            self._fitting = self._program(np.append(np.zeros(columns), -1.0), lower, np.ones(types), entries)
        else:
            self._fitting.refill(entries)
        found = self._fitting.solve()
        prices = np.maximum(found.duals[:types], 0.0) / self._room
        return Fit(float(found.values[-1]), prices / float(prices @ self.capacity), self._mix(g, f, found.values[:-1]))

    def most(self, grid: Grid, worth: Floats, over: float = 0.0) -> Floats:
        """The mix of answers that meets the demands and maximises Σ worth_gj × time of g on j. `over`: an excess to bear."""
        g, f = self.valid.nonzero()
        time = self._time(grid)[g, f]
        types, columns = len(self.capacity), len(g)
        entries = (
            np.concatenate((np.tile(np.arange(types), columns), types + g)),
            np.concatenate((np.arange(columns).repeat(types), np.arange(columns))),
            np.concatenate(((time * self._scale[g, 0]).ravel(), np.ones(columns))),
        )
        room = np.full(types, 1.0 + max(over, 0.0))
        found = self._program((time * worth[g]).sum(axis=1), np.zeros(columns), room, entries).solve()
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
        groups, column = len(self.classes), np.arange(columns)
        entries = (
            np.concatenate(
                (np.tile(np.arange(types), columns), types + g, np.full(columns, types + groups), np.arange(types + groups))
            ),
            np.concatenate((column.repeat(types), column, column, np.full(types + groups, columns))),
            np.concatenate((use.ravel(), np.ones(columns), pay, np.full(types, -1.0 - max(over, 0.0)), -np.ones(groups))),
        )
        lower = np.concatenate((np.full(types, -np.inf), np.zeros(groups), [1.0]))
        upper = np.append(np.zeros(types + groups), 1.0)
        unbounded = np.full(columns + 1, np.inf)
        program = Program(self.name, np.append(gain, 0.0), np.zeros(columns + 1), unbounded, lower, upper, entries)
        dual = program.solve().duals
        # All optima: nothing of a column that costs more than it gains, all of a type that has a price.
        loses = gain - use @ dual[:types] - dual[types + g] - pay * dual[-1] < -FITS
        scarce = (dual[:types] > FITS).nonzero()[0]
        nothing = np.zeros(np.count_nonzero(loses))
        program.column_bounds(column[loses], nothing, nothing)
        program.row_bounds(scarce, np.zeros(len(scarce)), np.zeros(len(scarce)))
        program.costs(np.arange(columns + 1), np.append(np.zeros(columns), -1.0))
        found = program.solve(primal=True)
        return self._mix(g, f, found.values[:-1] / found.values[-1])

    def shares(self, grid: Grid, mix: Floats) -> Floats:
        """The time of each job by type: rows of the view × types."""
        types = len(self.capacity)
        points = (self.answers * mix[:, :, None, None]).sum(axis=1).reshape(-1, types)  # classes · points × types
        low = points[grid.at - 1]
        x = np.zeros((len(self.classes.of), types))
        x[self.there] = low + (points[grid.at] - low) * grid.part[:, None]
        return x

    def _time(self, grid: Grid) -> Floats:
        """classes × answers × types: what the members take together."""
        size = self.grid.size
        weights = np.bincount(grid.at, grid.part, minlength=size) + np.bincount(grid.at - 1, 1.0 - grid.part, minlength=size)
        time: Floats = np.matmul(weights.reshape(self.grid.shape)[:, None, None, :], self.answers)[:, :, 0, :]
        return time

    def _program(self, cost: Floats, lower: Floats, room: Floats, entries: tuple[Ints, Ints, Floats]) -> Program:
        """Rows: what is used of each type, as a part of it, and the parts of each class's answers, which sum to 1."""
        one = np.ones(len(self.classes))
        row_lower, row_upper = np.concatenate((np.full(len(room), -np.inf), one)), np.concatenate((room, one))
        return Program(self.name, cost, lower, np.full(len(cost), np.inf), row_lower, row_upper, entries)

    def _mix(self, g: Ints, f: Ints, values: Floats) -> Floats:
        mix = np.zeros(self.valid.shape)
        mix[g, f] = values.clip(min=0.0)
        mix /= mix.sum(axis=1, keepdims=True)
        return mix

    # Demands that fall as a level rises.

    def least_level(self, demand: Callable[[float], tuple[Floats, Floats]], lowest: float, highest: float) -> tuple[float, Fit]:
        """The least level at which the demands fit the cluster, and how they do.

        `demand(level)` gives r and its slope. Below `lowest` demands grow no more; from `highest` on all fall, convex, to 0.
        Prices show how high the level must at least be: where the demands cost what the cluster is worth. That level's
        program gives better prices, and so on; levels only rise."""
        members = self.classes.count * self.classes.workers
        worth = (members[:, None] * self.classes.rates / self.classes.rates.max(axis=1, keepdims=True)).sum(axis=0)
        level = self._worth_level(demand, worth / float(worth @ self.capacity), lowest, highest)
        nudge = 0.0
        for _ in range(_ROUNDS):
            fit = self.fit(self.on_grid(demand(level)[0]))
            if fit.excess <= FITS:
                return level, fit
            raised = self._worth_level(demand, fit.prices, level, highest)
            if raised <= level:  # as near as numbers come
                if fit.excess <= TOLERANCE:
                    return level, fit
                nudge = max(2.0 * nudge, float(np.spacing(level)))
                raised = level + nudge
            if not raised > level:
                break
            level = raised
        raise SolverError(self.name, f"no better level than {level:g}, at which demands are {fit.excess:g} over the cluster")

    def _worth_level(
        self, demand: Callable[[float], tuple[Floats, Floats]], prices: Floats, level: float, highest: float
    ) -> float:
        """The least, from `level` on, at which demands cost no more than the cluster is worth (1): Newton in a bracket."""
        costs = self.costs(prices)
        slopes = (np.diff(costs, axis=1, prepend=0.0) * self._inverse).ravel()
        low, high = level, np.inf
        for _ in range(_STEPS):
            r, falls = demand(level)
            grid = self.on_grid(r)
            over = float(self.cost_of(grid, costs).sum()) - 1.0
            if over > 0:
                low = level
            else:
                high = level
            if high <= low:
                break
            slope = float(slopes[grid.at] @ falls)
            newton = level - over / slope if slope < 0 else np.inf
            if abs(newton - level) <= _CLOSE * abs(level):
                return max(newton, low)
            if low < newton < high:
                level = newton
            elif high < np.inf:
                level = 0.5 * (low + high)
            else:  # nobody's demand falls yet
                level = max(highest, 2.0 * low)
            if level in (low, high):
                break
        return high


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
    unit = np.zeros((len(rates), types + 1, types))  # each class's points → their types; the origin has none
    unit[np.arange(len(rates))[:, None], np.arange(1, types + 1), order] = 1.0
    plain = part[..., None] * unit[:, above] + (1.0 - part)[..., None] * unit[:, below]
    plain[:, :, 0, :] = 0.0
    first = member.argmax(axis=1) + 1
    lifted = plain[:, np.arange(len(member))[:, None], np.maximum(np.arange(types + 1), first[:, None])]

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
    return np.concatenate((plain, lifted), axis=1), np.concatenate((valid, valid), axis=1)
