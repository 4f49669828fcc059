"""Programs for jobs of a class that differ in their demands: the cheapest time by type for a throughput of at least r_m,

    Σ_j T_gj·x_mj ≥ r_m,   Σ_j x_mj ≤ 1,   Σ_m s_m·x_mj ≤ N_j,   x ≥ 0        (Gavel §4.2: makespan, finish times, SLOs).

With a price on each type, the cheapest mix for r follows the lower hull of the points (0, 0), (T_gj, price_j). The hull is that
of the class; only r is the job's own. So a class has as many responses as there are hulls: the subsets S of its types that end
in the fastest, between whose members each job interpolates. Where time has a value of its own, a hull may first fall: then
every job is raised to its lowest point, the first type of S. Every optimum is a convex combination of these responses. The
program has a column for each, and one row per class and per type, however many jobs there are.

The prices of an earlier decision are often still right. Then no program is needed: the types with a price are full, and a
few equations give the mix of each class's tied responses.

Responses are linear between the rates of the class. A job between two of them counts as a part of each, so the jobs of a class
enter a program by their weights on the grid 0 ≤ T_g1 ≤ … ≤ T_gJ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.core.reasons import Reason
from fairlead.policies.allocation.lp.job_classes import JobClasses, break_ties_by_class, hash_fractions
from fairlead.policies.allocation.lp.level_search import (
    EXACT,
    FITS,
    BudgetExcess,
    DeadlineDemands,
    PricedFit,
    affordable_level,
    min_level,
)
from fairlead.policies.allocation.lp.lower_hulls import TIED, Tie, distinct, filling, hulls_of
from fairlead.policies.allocation.lp.program import TOLERANCE, Entries, Model, Program

_REMEMBERED = 12  # prices
_SLACK = 1e-8
SPARE = 1e-9  # a price up to this part of all prices is 0
_CLOSE = 1e-8  # of a level: where one job stops falling within the last step, that is a small part of it


@dataclass(frozen=True)
class GridDemands:
    """Demands of jobs, each as a part of a point of its class's grid and the rest one point below."""

    at: Ints  # by job: class × points + the point (from 1 on) at or above the demand
    part: Floats


class AloneModel(ABC):
    """What models of jobs that are each alone on types, with a price for each type, share."""

    classes: JobClasses
    capacity: Ints
    present: Ints

    def worth(self, unit: Floats, *, ordered: bool = False) -> Floats:
        """Classes × types: the value of time, throughput in these units. `ordered`: no two optima are equally good."""
        worth: Floats = self.classes.rates / unit[:, None]
        return break_ties_by_class(worth, self.classes) if ordered else worth

    def is_full(self, fit: PricedFit) -> bool:
        """Whether every type has a price: then all are full, and every job gets exactly what it needs."""
        return bool((fit.prices * self.capacity)[self.capacity > 0].min() > SPARE)

    @abstractmethod
    def shares(self, required: Any, used: Floats) -> Floats:
        """The time of each job by type: rows of the view × types."""

    def allocation(self, numbers: Ints, required: Any, used: Floats, reasons: Mapping[int, Reason]) -> Allocation:
        return Allocation.alone(numbers, self.shares(required, used), reasons)

    def _by_row(self, time: Floats) -> Floats:
        """Rows of the view in place of present jobs."""
        if len(self.present) == len(self.classes.class_of):
            return time
        x = np.zeros((len(self.classes.class_of), time.shape[1]))
        x[self.present] = time
        return x


class HullModel(AloneModel):
    """The jobs of one view by class, each alone on types, for any demands. `near` are earlier prices of `fit` and of
    `maximize`, 2 × some × types, with which optima are found sooner."""

    def __init__(self, name: str, classes: JobClasses, capacity: Ints, near: Floats | None = None) -> None:
        self.name, self.classes, self.capacity = name, classes, capacity
        self.present = (classes.class_of >= 0).nonzero()[0]  # rows of the view; all columns by job follow it
        self.class_of = classes.class_of[self.present]
        self._hulls = hulls = hulls_of(classes.rates)
        self.grid, self.valid = hulls.grid, hulls.valid
        self.fastest = hulls.grid[:, -1][self.class_of]
        self._plain = hulls.answers.shape[1] // 2  # after these come the answers that lift
        self._room = np.maximum(capacity, 1).astype(np.float64)
        self._scale = classes.workers[:, None, None] / self._room  # time of a class's members as a part of each type
        # Used in every step of a search: the inner points by job.
        self._inner = [point[self.class_of] for point in hulls.grid.T[1:-1]]
        self._first = self.class_of * self.grid.shape[1] + 1
        self.near = no_prices(len(capacity)) if near is None else near.copy()
        self._ambiguous = list[Floats]()  # prices that are not the only ones to prove their optimum

    # Demands.

    def to_demands(self, demand: Floats) -> GridDemands:
        """Throughputs by job as demands on the grid."""
        at = self._above(demand)
        part = (demand - self.grid.ravel()[at - 1]) * self._hulls.inverse.ravel()[at]
        return GridDemands(at, np.minimum(np.maximum(part, 0.0), 1.0))

    def _above(self, demand: Floats) -> Ints:
        at: Ints = self._first.copy()
        for point in self._inner:
            at += demand > point
        return at

    def costs(self, prices: Floats) -> Floats:
        """The least cost of a job at each point of its class's grid: classes × (types + 1), convex."""
        groups, points = self.grid.shape
        each = (self._hulls.plain.reshape(-1, points - 1) @ prices).reshape(groups, self._plain, points)
        each += self._hulls.barred[:, : self._plain, None]
        cheapest: Floats = each.min(axis=1) * self.classes.workers[:, None]
        return cheapest

    def cost_of(self, grid: GridDemands, costs: Floats) -> Floats:
        """The least cost of each job with its demand."""
        flat = costs.ravel()
        low = flat[grid.at - 1]
        job_costs: Floats = low + (flat[grid.at] - low) * grid.part
        return job_costs

    def job_costs(self, grid: GridDemands, fit: PricedFit) -> Floats:
        """The cost of each job's demand at the prices of a fit; 1 is the whole budget."""
        return self.cost_of(grid, self.costs(fit.prices))

    # Programs.

    def fit(self, grid: GridDemands, *, at_least: bool = False) -> PricedFit:
        """min θ such that the demands take at most (1 + θ) of every type, and the prices that prove it. With `at_least`,
        earlier prices that prove a clear excess are returned without a mix, and ties between optima are broken by a rule."""
        use = self._time(grid, self._plain) * self._scale
        barred = self._hulls.barred[:, : self._plain]
        excess, mix = self._best(barred, use, np.zeros(use.shape[:2]), None, self.near[0], TOLERANCE if at_least else np.inf)
        prices = self.near[0, 0] / self._room
        return PricedFit(excess, prices / float(prices @ self.capacity), mix)

    @property
    def hints(self) -> Floats:
        """The prices from which the next search starts, without prices that the solver chose among several: on another machine
        it may choose others."""
        hints = np.zeros_like(self.near)
        for kept, prices in zip(hints, self.near):
            known = [one for one in prices if not any((one == other).all() for other in self._ambiguous)]
            kept[: len(known)] = known
        return hints

    def maximize(self, grid: GridDemands, worth: Floats, over: float = 0.0) -> Floats:
        """The mix that meets the demands and maximises Σ worth_gj × time of g on j; `over` is a tolerated excess."""
        time = self._time(grid)
        use, gain = time * self._scale, (time * worth[:, None, :]).sum(axis=2)
        lifts = np.abs(time[:, self._plain :] - time[:, : self._plain]).max(axis=2) > TIED
        barred = self._hulls.barred.copy()
        barred[:, self._plain :][~lifts] = np.inf
        room = np.full(len(self.capacity), 1.0 + max(over, 0.0))
        try:
            return self._best(barred, use, gain, room, self.near[1])[1]
        except SolverError:  # the excess is known up to a rounding error, by which the demands may not fit
            return self._best(barred, use, gain, room + _SLACK, self.near[1])[1]

    def _best(
        self, barred: Floats, use: Floats, gain: Floats, room: Floats | None, near: Floats, enough: float = np.inf
    ) -> tuple[float, Floats]:
        """The excess and the mix of responses with the highest gain within `room`, or without a room with the least excess.
        `use` is classes × responses × types; prices of `near` that prove the optimum, or an excess above `enough`, move to the
        front."""
        types, loose = len(self.capacity), room is None
        room = np.ones(types) if room is None else room
        net = gain[:, :, None] - (use.reshape(-1, types) @ near.T).reshape(*gain.shape, -1)
        net -= barred[:, :, None]
        bound = near @ room + net.max(axis=1).sum(axis=0)
        if loose:
            bound[near.max(axis=1) <= 0] = np.inf
        least = float(bound.min())
        likely = int((bound <= least + FITS * (1.0 + abs(least))).argmax())  # the first that is equal up to rounding
        if loose and -bound[likely] > enough:
            if likely:
                _put_first(near, near[likely].copy())
            return float(-bound[likely]), np.zeros(self.valid.shape)
        ruled = enough < np.inf
        known = self._at(near[likely], net[:, :, likely], use, room, loose=loose, ruled=ruled)
        if known is not None:
            if likely:
                _put_first(near, near[likely].copy())
            return known
        g, f = (barred == 0).nonzero()
        columns, entries = len(g), self._entries(g, f, use)
        cost = np.append(gain[g, f], -1.0 if loose else 0.0)  # the last column is the excess
        lower, upper = np.zeros(columns + 1), np.full(columns + 1, np.inf)
        lower[-1], upper[-1] = (-np.inf, np.inf) if loose else (0.0, 0.0)
        one = np.ones(len(self.classes))
        row_lower, row_upper = np.concatenate((np.full(types, -np.inf), one)), np.concatenate((room, one))
        # With the usual tolerance the excess itself would be no better than 1e-7.
        program = Program(self.name, Model(cost, lower, upper, row_lower, row_upper, entries), tolerance=1e-10)
        warm = ruled and bound[likely] < np.inf
        if warm:  # each class has its cheapest answer, and the excess is that of the fullest type
            groups, first = np.arange(len(net)), net[:, :, likely].argmax(axis=1)
            basic = np.zeros(net.shape[:2], dtype=np.bool_)
            basic[groups, first] = True
            slack = np.arange(types) != np.where(self.capacity > 0, use[groups, first].sum(axis=0), -np.inf).argmax()
            program.start_at(np.append(basic[g, f], True), np.append(slack, np.zeros(len(net), dtype=np.bool_)))
        found = program.solve(primal=warm)
        prices = np.maximum(found.duals[:types], 0.0)
        full = np.count_nonzero(room - use[g, f].T @ found.values[:-1] + (found.values[-1] if loose else 0.0) <= FITS)
        if np.count_nonzero(found.values[:-1] > FITS) + loose != len(one) + full:  # a degenerate vertex
            self._ambiguous.append(prices)
        _put_first(near, prices)
        if ruled:
            at_prices = -(use.reshape(-1, types) @ prices).reshape(gain.shape) - barred
            known = self._at(prices, at_prices, use, room, loose=loose, ruled=True)
            if known is not None:
                return known
        return float(found.values[-1]), self._mix(g, f, found.values[:-1])

    def _at(
        self, prices: Floats, net: Floats, use: Floats, room: Floats, *, loose: bool, ruled: bool = False
    ) -> tuple[float, Floats] | None:
        """The same where these prices prove it, else None; `net` is the gain beyond them; `ruled`: see `_by_rule`."""
        priced = [j for j, price in enumerate(prices.tolist()) if price > FITS]
        if loose and not priced:
            return None
        groups, first = np.arange(len(net)), net.argmax(axis=1)
        most = net[groups, first]
        base = use[groups, first]
        tied = net >= (most - TIED * (1.0 + float(np.abs(most).sum())))[:, None]
        tied[groups, first] = False
        g, f = tied.nonzero()
        step = use[g, f] - base[g]
        other = (np.abs(step).max(axis=1) > TIED).nonzero()[0]  # for some demands two answers are the same
        ties = distinct(map(Tie, g[other].tolist(), f[other].tolist(), step[other].tolist()), len(priced))
        columns = [tie.step for tie in ties]
        if loose:
            columns.append((-1.0 * (self.capacity > 0)).tolist())
        free = (room - base.sum(axis=0)).tolist()
        if ruled and len(columns) > len(priced):
            tied[groups, first] = True
            return self._by_rule(tied, use, room, priced)
        part = filling(columns, free, priced)
        if part is None or any(
            sum(much * column[j] for much, column in zip(part, columns)) > left + FITS for j, left in enumerate(free)
        ):
            return None
        mix = np.zeros(self.valid.shape)
        mix[groups, first] = 1.0
        for tie, much in zip(ties, part):
            stays = float(mix[tie.group, first[tie.group]]) - much
            if min(much, stays) < -TIED:
                return None
            mix[tie.group, first[tie.group]], mix[tie.group, tie.answer] = max(stays, 0.0), max(much, 0.0)
        return part[-1] if loose else 0.0, mix

    def _by_rule(self, tied: Bools, use: Floats, room: Floats, full: Sequence[int]) -> tuple[float, Floats] | None:
        """The excess and the mix where several mixes of tied responses fill the full types: the cheapest one by hash fractions
        of the classes. So the optimum does not depend on the prices with which the search started."""
        g, f = tied.nonzero()
        types, columns, groups = len(self.capacity), len(g), len(tied)
        cost = np.append(-self._ranks(g, f), 0.0)
        entries = self._entries(g, f, use)
        below = np.full(types + groups, -np.inf)
        below[full], below[types:] = room[full], 1.0
        above = np.concatenate((room, np.ones(groups)))
        lower, upper = np.append(np.zeros(columns), -np.inf), np.full(columns + 1, np.inf)
        try:
            found = Program(self.name, Model(cost, lower, upper, below, above, entries), tolerance=1e-10).solve(prices=False)
        except SolverError:
            return None
        return float(found.values[-1]), self._mix(g, f, found.values[:-1])

    def _ranks(self, g: Ints, f: Ints) -> Floats:
        """Numbers by which responses of classes are preferred. They are squares, since two hashes of a class with different
        answers often differ by the same number as those of another class: then both could exchange answers."""
        ranks: Floats = hash_fractions((self.classes.keys[one], answer) for one, answer in zip(g.tolist(), f.tolist())) ** 2
        return ranks

    def _entries(self, g: Ints, f: Ints, use: Floats) -> Entries:
        """Matrix entries: columns for some responses and one for the excess; rows for the types and the classes."""
        types, columns = len(self.capacity), len(g)
        every, j = np.arange(columns), np.arange(types)
        return (
            np.concatenate((np.tile(j, columns), types + g, j)),
            np.concatenate((every.repeat(types), every, np.full(types, columns))),
            np.concatenate((use[g, f].ravel(), np.ones(columns), -(self.capacity > 0).astype(np.float64))),
        )

    def maximize_ratio(self, grid: GridDemands, worth: Floats, prices: Floats, over: float = 0.0) -> Floats:
        """The mix that meets the demands with the highest Σ worth·time / Σ prices·accelerator time, then with most of both,
        then the cheapest by hash fractions: a linear program in the mix divided by the denominator (Charnes and Cooper)."""
        price = prices[None, :] * self.classes.workers[:, None]
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
        model = Model(np.append(gain, 0.0), np.zeros(columns + 1), unbounded, lower, upper, entries)
        program = Program(self.name, model, tolerance=1e-10)
        dual = program.solve().duals
        # All optima: nothing of a column that costs more than it gains, all of a type that has a price.
        loses = gain - use @ dual[:types] - dual[types + g] - pay * dual[-1] < -FITS
        scarce = (dual[:types] > FITS).nonzero()[0]
        nothing = np.zeros(np.count_nonzero(loses))
        program.column_bounds(column[loses], nothing, nothing)
        program.row_bounds(scarce, np.zeros(len(scarce)), np.zeros(len(scarce)))
        program.costs(np.arange(columns + 1), np.append(np.zeros(columns), -1.0))
        found = program.solve(primal=True).values
        program.column_bounds(column[-1:] + 1, found[-1:], found[-1:])
        program.costs(column, -self._ranks(g, f))
        with suppress(SolverError):  # where demands leave no room, rounding can make the optima look like none
            found = program.solve(primal=True).values
        return self._mix(g, f, found[:-1])

    def shares(self, grid: GridDemands, mix: Floats) -> Floats:
        types = len(self.capacity)
        points: Floats = np.matmul(mix[:, None, :], self._hulls.answers.reshape(*mix.shape, -1)).reshape(-1, types)
        low = points[grid.at - 1]
        return self._by_row(low + (points[grid.at] - low) * grid.part[:, None])

    def _time(self, grid: GridDemands, answers: int | None = None) -> Floats:
        """Classes × responses (the first `answers`, or all) × types: the time that the members take together."""
        groups, points = self.grid.shape
        types, answers, size = points - 1, self.valid.shape[1] if answers is None else answers, self.grid.size
        members = np.bincount(grid.at, grid.part, minlength=size) + np.bincount(grid.at - 1, 1.0 - grid.part, minlength=size)
        by_point = members.astype(np.float64, copy=False).reshape(-1, 1, points)
        time: Floats = np.matmul(by_point, self._hulls.by_point[:, :, : answers * types])
        return time.reshape(groups, answers, types)

    def _mix(self, g: Ints, f: Ints, values: Floats) -> Floats:
        mix = np.zeros(self.valid.shape)
        mix[g, f] = values.clip(min=0.0)
        mix /= mix.sum(axis=1, keepdims=True)
        return mix

    # Demands that fall as a level rises.

    def min_level(
        self, demand: DeadlineDemands, lowest: float, highest: float, guess: float = 0.0
    ) -> tuple[float, GridDemands, PricedFit]:
        """The least level at which the demands fit, the demands, and the fit. A good `guess` saves time."""
        required = list[GridDemands]()
        above = self.grid.T[1:, self.class_of]
        time = np.full(above.shape, np.inf)
        np.divide(demand.left, above, out=time, where=above > demand.least)
        time[-1] = demand.soonest
        edges = (time + demand.spent) / demand.unit  # types × jobs: up to which level a job demands more than each point
        if not self.near[0, 0].any():
            self.near[0, 0] = self._first_prices() * self._room

        def fit(r: Floats) -> PricedFit:
            required[:] = [self.to_demands(r)]
            return self.fit(required[0], at_least=True)

        def spending(prices: Floats) -> BudgetExcess:
            return self._spending(demand, edges, self.costs(prices))

        first = affordable_level(spending(self._first_prices()), lowest, highest, guess, _CLOSE)
        level, _, found = min_level(self.name, demand.at, fit, lambda fit: spending(fit.prices), first, highest, _CLOSE, EXACT)
        return level, required[0], found

    def _spending(self, demand: DeadlineDemands, edges: Floats, costs: Floats) -> BudgetExcess:
        """Cost beyond the budget by level; the next level is guessed as if one job had this cost and this slope."""
        slope = np.zeros(costs.shape)  # from each point on a job costs `offset + slope · r`; at the last no more
        slope[:, :-1] = (costs[:, 1:] - costs[:, :-1]) * self._hulls.inverse[:, 1:]
        slopes, offsets, start = slope.ravel(), (costs - slope * self.grid).ravel(), self._first - 1
        left, unit, spent, soonest, least = demand.left, demand.unit, demand.spent, demand.soonest, demand.least

        def spending(level: float) -> tuple[float, float]:
            time = np.maximum(level * unit - spent, soonest)
            at = (edges > level).sum(axis=0) + start
            job_costs = slopes[at] * np.maximum(left / time, least)
            falling, fall = float(job_costs.sum()), float(job_costs @ (unit / time))
            over = float(offsets[at].sum()) + falling - 1.0
            if not fall > 0:
                return over, np.inf
            return over, level + over / fall * (falling / (falling - over) if over < 0.5 * falling else 1.0)

        return spending

    def _first_prices(self) -> Floats:
        """Prices of the last optimum, or by the speed of types; their sum over the cluster is 1."""
        prices: Floats = self.near[0, 0] / self._room
        if (total := float(prices @ self.capacity)) > 0:
            return prices / total
        members = self.classes.count * self.classes.workers
        worth: Floats = (members[:, None] * self.classes.rates / self.classes.rates.max(axis=1, keepdims=True)).sum(axis=0)
        worth /= float(worth @ self.capacity)
        return worth

    def likely_fits(self, demand: Callable[[float], Floats], end: float) -> Sequence[PricedFit]:
        """Nothing: good prices are soon found."""
        return ()

    def cost_at(self, prices: Floats) -> Callable[[Floats], float]:
        """The function from demands to their cost at these prices; 1 is the whole budget."""
        costs = self.costs(prices)
        slope_to = np.zeros(costs.shape)  # each point; between two, a job costs `offset + slope · r`
        slope_to[:, 1:] = (costs[:, 1:] - costs[:, :-1]) * self._hulls.inverse[:, 1:]
        offsets, slopes = (costs - slope_to * self.grid).ravel(), slope_to.ravel()

        def cost(r: Floats) -> float:
            at = self._above(r)
            return 1.0 + (float(offsets[at].sum() + slopes[at] @ r) - 1.0)

        return cost


def no_prices(types: int) -> Floats:
    """Prices where there is no earlier moment."""
    return np.zeros((2, _REMEMBERED, types))


def _put_first(near: Floats, prices: Floats) -> None:
    """Move these prices to the front; the last, or an equal one, is dropped."""
    same = (np.abs(near - prices).max(axis=1) <= FITS * (1.0 + prices.max())).nonzero()[0]
    place = int(same[0]) if len(same) else len(near) - 1
    near[1 : place + 1] = near[:place].copy()
    near[0] = prices
