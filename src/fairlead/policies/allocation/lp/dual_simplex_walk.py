"""Prices that prove by how much demands exceed the cluster, found from those of the moment before by hand:

    max_p Σ_g min_a use_ga·p   s.t.   Σ_j p_j = 1,   p ≥ 0

`use_ga` is what the members of class g take of each type, as parts of it, with answer a (demands.py). It is the simplex method
on as many numbers as there are types: where as many answers tie as prices have freedom, prices are at a corner. How far classes
lean to which of their tied answers, and what stays free of a type without a price, is then the solution of a few equations. Is
any of it below 0, its tie is let go, and prices go on along the others to where the next answer is as cheap. From one moment to
the next that is a step or two, for which a solver would take longer to be told the program than to solve it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.policies.allocation.lp.demands import TIED, Demands, Fit, Grid
from fairlead.policies.allocation.lp.job_classes import JobClasses
from fairlead.policies.allocation.lp.levels import FITS, Fitted, Paces, Spending, least_level, worth_level

FREE, HELD = -1, -2
"""In place of a class: a type that has no price, and one whose price nothing holds yet where it is."""

_STEPS = 40
_CLOSE = 1e-8  # of a level: where one job stops falling within the last step, that is a small part of it
_PROVES = 1e-11  # what is used and what it costs differ by no more
_FLAT = 1e-13  # what costs change by along a way, where they do not

Hold: TypeAlias = tuple[int, int]
"""What holds prices where they are: a class and an answer that is as cheap to it as its first; or FREE or HELD, and a type."""


@dataclass(frozen=True)
class Corner:
    """Prices of types as a whole, a cheapest answer of each class, and what else is as cheap."""

    prices: Floats
    first: Ints
    holds: list[Hold]


@dataclass(frozen=True)
class Around:
    """A corner, and what a member of each class takes there at each point of its grid: classes × points × types; for each tie,
    its class and how much more it takes with the other answer."""

    corner: Corner
    points: Floats
    tied: Ints
    lean: Floats


@dataclass(frozen=True)
class Leaning(Fitted):
    """The corner whose prices prove by how much the cluster is exceeded, and how much there is of what each hold stands for."""

    corner: Corner
    much: Sequence[float]


def fails(first: Ints, holds: Sequence[Hold], much: Sequence[float]) -> Hold | None:
    """What there would be least of, where that is below 0: of a tied answer, of a class's first, of what is free of a type."""
    worst, least = None, -TIED
    stays = dict[int, float]()
    for hold, amount in zip(holds, much):
        group = hold[0]
        if group >= 0:
            stays[group] = stays.get(group, 1.0) - amount
        elif group == HELD:
            amount = -abs(amount)
        if amount < least:
            worst, least = hold, amount
    for group, amount in stays.items():
        if amount < least:
            worst, least = (group, first.item(group)), amount
    return worst


def solved(columns: Sequence[Sequence[float]], free: Floats) -> tuple[Floats, list[float]] | None:
    """The inverse of the equations, and how much of each column makes up what is free; None where some depend on others."""
    try:
        inverse: Floats = np.linalg.inv(np.array(columns))
    except np.linalg.LinAlgError:
        return None
    much = (free @ inverse).tolist()
    return (inverse, much) if math.isfinite(sum(much)) else None


def walked(
    use: Floats, barred: Floats, corner: Corner, open_: Sequence[float], begin: tuple[Floats, list[float]]
) -> Leaning | None:
    """The corner that is the optimum, from another one that has all its holds; None where it is not found in a few steps. `use`
    is classes × answers × types; `barred` is infinite where a class has no such answer; `open_` is 1 for types of which there
    is anything, else 0; `begin` is the solution at the first corner."""
    groups, types, answers = np.arange(len(use)), use.shape[2], use.shape[1]
    flat, loose = use.reshape(-1, types), [-part for part in open_]
    prices, first, holds = corner.prices, corner.first.copy(), list(corner.holds)
    base, (inverse, much) = use[groups, first], begin
    slack = (flat @ prices).reshape(-1, answers) - (base @ prices)[:, None] + barred
    for _ in range(_STEPS):
        leaves = fails(first, holds, much)
        if leaves is None:
            kept = [prices.item(kind) if group == HELD else 0.0 for group, kind in holds]
            exact: Floats = np.maximum(inverse @ np.array([*kept, -1.0]), 0.0)
            least = ((flat @ exact).reshape(-1, answers) + barred).min(axis=1)
            proves = abs(float(least.sum() - open_ @ exact) - much[-1]) <= _PROVES
            return Leaning(much[-1], Corner(exact, first, holds), much) if proves else None
        if leaves in holds:
            at = holds.index(leaves)
            way = -inverse[:, at] if leaves[0] == HELD and much[at] > 0 else inverse[:, at]
        else:  # a class would leave its first answer: another, of which there is most, is its first from now on
            group = leaves[0]
            tied = [at for at, hold in enumerate(holds) if hold[0] == group]
            at = max(tied, key=much.__getitem__)
            first[group], holds[at] = holds[at][1], leaves
            base[group] = use[group, first[group]]
            way = -inverse[:, tied].sum(axis=1)
        rise = (flat @ way).reshape(-1, answers) - (base @ way)[:, None]
        for hold in holds:
            if hold[0] >= 0 and hold != leaves:
                rise[hold] = 0.0
        falls = (rise.ravel() < -_FLAT).nonzero()[0]
        length = slack.ravel()[falls] / -rise.ravel()[falls]
        ends: list[tuple[float, Hold]] = []  # what comes to an end on the way, and where
        for kind, (price, change) in enumerate(zip(prices.tolist(), way.tolist())):
            if change < -_FLAT and (FREE, kind) not in holds:
                ends.append((price / -change, (FREE, kind)))
        if len(falls):
            nearest = int(length.argmin())
            ends.append((max(length.item(nearest), 0.0), divmod(falls.item(nearest), answers)))
        far, enters = min(ends, default=(np.inf, leaves))
        if not far < np.inf:
            return None
        prices, holds[at] = np.maximum(prices + far * way, 0.0), enters
        slack += far * rise
        columns = [(use[hold] - base[hold[0]]).tolist() if hold[0] >= 0 else _unit(hold[1], types) for hold in holds]
        solution = solved([*columns, loose], 1.0 - base.sum(axis=0))
        if solution is None:
            return None
        inverse, much = solution
    return None


def _unit(kind: int, types: int) -> list[float]:
    return [float(kind == other) for other in range(types)]


class Walking(Demands):
    """Demands whose prices are walked to from those of the moment before; where that does not lead to the end, the solver is
    asked. Optima are the same up to rounding, and of several equally good ones it may be another.

    What is used of each class's answers is told as what they come to: classes · points × types."""

    def __init__(self, name: str, classes: JobClasses, capacity: Ints, near: Floats | None = None) -> None:
        super().__init__(name, classes, capacity, near)
        self._groups = np.arange(len(classes))
        self._barred = self._hulls.barred[:, : self._plain]
        self._open = [float(count > 0) for count in capacity.tolist()]

    def least_level(self, demand: Paces, lowest: float, highest: float, guess: float = 0.0) -> tuple[float, Grid, Fit]:
        asked = list[Grid]()
        here = self._around(self._first_prices() * self._room)

        def fit(r: Floats) -> Leaning:
            nonlocal here
            asked[:] = [self.asked(r)]
            found = self._fitted(asked[0], here)
            if found.corner.prices is not here.corner.prices:
                here = self._around(found.corner.prices)
            return found

        edges = self._edges(demand)
        first = worth_level(self._spending(demand, edges, here), lowest, highest, guess, _CLOSE)
        level, _, found = least_level(
            self.name, demand.at, fit, lambda _: self._spending(demand, edges, here), first, highest, _CLOSE
        )
        self.near[0, 0] = found.corner.prices
        return level, asked[0], Fit(found.excess, found.corner.prices / self._room, self._used(found))

    def most(self, grid: Grid, worth: Floats, over: float = 0.0) -> Floats:
        return self._by_point(super().most(grid, worth, over))

    def shares(self, grid: Grid, used: Floats) -> Floats:
        return self._dealt(grid, used)

    def _around(self, prices: Floats) -> Around:
        """What is cheapest at these prices: a hull that is so for one demand is so for all, and for their sum."""
        hulls = self._hulls
        total = (hulls.sums.reshape(-1, len(prices)) @ (prices / self._room)).reshape(self._barred.shape) + self._barred
        first = total.argmin(axis=1)
        g, a = (total <= (total[self._groups, first] + TIED)[:, None]).nonzero()
        holds = [(FREE, kind) for kind, price in enumerate(prices.tolist()) if price <= FITS]
        tied = (a != first[g]).nonzero()[0]
        g, a = g[tied], a[tied]
        holds += zip(g.tolist(), a.tolist())
        points = hulls.plain_of(self._groups, first)
        return Around(Corner(prices, first, holds), points, g, hulls.plain_of(g, a) - points[g])

    def _edges(self, demand: Paces) -> Floats:
        """Types × jobs: up to which level each demands more than each point of its grid; the last, all that it could."""
        above = self.grid.T[1:, self.of]
        time = np.full(above.shape, np.inf)
        np.divide(demand.left, above, out=time, where=above > demand.least)
        time[-1] = demand.soonest
        edges: Floats = (time + demand.spent) / demand.unit
        return edges

    def _spending(self, demand: Paces, edges: Floats, here: Around) -> Spending:
        """At the prices of a corner. What falls with the level is guessed to fall as the demand of one job would that costs as
        much and falls as fast: closer than a tangent, and never beyond where the costs really are nothing."""
        groups, points = self.grid.shape
        costs = (here.points.reshape(-1, points - 1) @ (here.corner.prices / self._room)).reshape(groups, points)
        costs *= self.classes.workers[:, None]
        slope = np.zeros(costs.shape)  # from each point on a job costs `offset + slope · r`; at the last no more
        slope[:, :-1] = (costs[:, 1:] - costs[:, :-1]) * self._hulls.inverse[:, 1:]
        slopes, offsets, start = slope.ravel(), (costs - slope * self.grid).ravel(), self._first - 1
        left, unit, spent, soonest, least = demand.left, demand.unit, demand.spent, demand.soonest, demand.least

        def spending(level: float) -> tuple[float, float]:
            time = np.maximum(level * unit - spent, soonest)
            at = (edges > level).sum(axis=0) + start
            paid = slopes[at] * np.maximum(left / time, least)
            falling, fall = float(paid.sum()), float(paid @ (unit / time))
            over = float(offsets[at].sum()) + falling - 1.0
            if not fall > 0:
                return over, np.inf
            return over, level + over / fall * (falling / (falling - over) if over < 0.5 * falling else 1.0)

        return spending

    def _fitted(self, grid: Grid, here: Around) -> Leaning:
        """How demands fit: as the prices of this corner prove it, or those of another one, not far from it."""
        types = len(self.capacity)
        weights = self._weights(grid) * self.classes.workers[:, None, None]
        base = weights.ravel() @ here.points.reshape(-1, types) / self._room
        steps = (np.matmul(weights[here.tied], here.lean)[:, 0] / self._room).tolist()
        corner, columns = self._held(here.corner, steps)
        begin = solved([*columns, [-part for part in self._open]], 1.0 - base)
        if begin is None:
            return self._by_program(grid)
        if fails(corner.first, corner.holds, begin[1]) is None:
            return Leaning(begin[1][-1], corner, begin[1])
        use = self._time(grid, self._plain) * self._scale
        return walked(use, self._barred, corner, self._open, begin) or self._by_program(grid)

    def _by_program(self, grid: Grid) -> Leaning:
        fit = self.fit(grid)
        first, mix = fit.used.argmax(axis=1), fit.used.copy()
        mix[self._groups, first] = 0.0
        g, a = mix.nonzero()
        corner = Corner(fit.prices * self._room, first, [*zip(g.tolist(), a.tolist())])
        return Leaning(fit.excess, corner, mix[g, a].tolist())

    def _held(self, corner: Corner, steps: Sequence[list[float]]) -> tuple[Corner, list[list[float]]]:
        """With as many holds as prices have freedom, and what each is in the equations; `steps` are those of the ties. What
        ties for all demands may be the same for these, and then holds nothing."""
        types = len(self.capacity)
        free = len(corner.holds) - len(steps)  # these come first
        columns = [_unit(kind, types) for _, kind in corner.holds[:free]]
        holds = corner.holds[:free]
        for hold, step in zip(corner.holds[free:], steps):
            if len(holds) < types - 1 and max(map(abs, step)) > TIED:
                holds.append(hold)
                columns.append(step)
        for kind in range(types):
            if len(holds) < types - 1 and (FREE, kind) not in holds:
                holds.append((HELD, kind))
                columns.append(_unit(kind, types))
        return Corner(corner.prices, corner.first, holds), columns

    def _used(self, found: Leaning) -> Floats:
        """What a member of each class takes at each point, where classes lean to several answers."""
        points = self._hulls.plain_of(self._groups, found.corner.first)
        leans = [(hold, much) for hold, much in zip(found.corner.holds, found.much) if hold[0] >= 0]
        steps = [self._hulls.plain_of(group, answer) - points[group] for (group, answer), _ in leans]
        for ((group, _), much), step in zip(leans, steps):
            points[group] += min(max(much, 0.0), 1.0) * step
        return points.reshape(-1, len(self.capacity))
