"""The throughput polytope: which time by column meets the demands of a class's members, and programs over it.

Let the members of class g spend the time Y_w on each of its columns w, at the speed T_w. Each member m has one unit of time,
may mix speeds, and demands the mean speed r_m. This can be disaggregated if and only if

    Σ_w max(T_w − τ, 0)·Y_w  ≥  Σ_m max(r_m − τ, 0)      for all τ ≥ 0,   and   Σ_w Y_w ≤ n_g

(the demands are majorised by the supply, as of jobs on uniform machines; Horvath, Lam and Sethi, JACM'77). Only the speeds τ =
T_w of used columns matter. So a program has a column for each way to run, however many jobs there are, and rows only for the
τ that some solution has violated. The duals of these rows are prices of speed: a demand r costs Σ_τ price_gτ·max(r − τ, 0), and
the cluster's budget is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.core.reasons import Reason
from fairlead.policies.allocation.lp.colocation_columns import ThroughputColumns
from fairlead.policies.allocation.lp.disaggregation import SelfPairing, disaggregate, self_paired
from fairlead.policies.allocation.lp.job_classes import SLIGHT, JobClasses, hash_fractions
from fairlead.policies.allocation.lp.level_search import (
    FITS,
    BudgetExcess,
    DeadlineDemands,
    FitResult,
    affordable_level,
    min_level,
    newton_excess,
)
from fairlead.policies.allocation.lp.program import TOLERANCE, ColumnGeneration, Model, Program, Solution

_ROUNDS = 500
_USED = 1e-10
_SLACK = 10 * FITS  # rows that a fit misses by less than this are kept, too


class SortedDemands:
    """Demands of jobs as parts of their class's fastest rate, sorted for fast sums of demands beyond a speed."""

    def __init__(self, of: Ints, part: Floats, classes: int, order: Ints | None = None) -> None:
        """`order` is a nearly sorted order, which makes sorting much faster."""
        key = of - 0.5 * part  # by class, and inside from the largest demand to the least
        self.order: Ints = key.argsort(kind="stable") if order is None else order[key[order].argsort(kind="stable")]
        order = self.order
        self.part = part
        self._key = key[order]
        self._sum = np.concatenate(([0.0], np.cumsum(part[order])))
        count = np.bincount(of, minlength=classes)
        self._first = count.cumsum() - count

    def beyond(self, owner: Ints, speed: Floats) -> Floats:
        """Σ max(r − speed, 0) over the members of each class named."""
        first = self._first[owner]
        last = np.maximum(self._key.searchsorted(owner - 0.5 * speed), first)
        total: Floats = np.maximum(self._sum[last] - self._sum[first] - (last - first) * speed, 0.0)
        return total


@dataclass(frozen=True)
class SpeedPrices:
    """Prices of speed: a demand r of class g costs Σ_i price[g, i]·max(r − speed[g, i], 0); the budget is 1."""

    speed: Floats  # classes × some; infinite where there is no more
    price: Floats

    def cost(self, of: Ints, part: Floats) -> Floats:
        cost: Floats = (np.maximum(part[:, None] - self.speed[of], 0.0) * self.price[of]).sum(axis=1)
        return cost

    def split(self, origin: Ints) -> SpeedPrices:
        """The rows for new classes, each a part of the class `origin` of these."""
        return SpeedPrices(self.speed[origin], self.price[origin])

    def rise(self, of: Ints, part: Floats) -> Floats:
        """The slope of each demand's cost."""
        rise: Floats = ((part[:, None] > self.speed[of]) * self.price[of]).sum(axis=1)
        return rise


@dataclass(frozen=True)
class PolytopeFit(FitResult):
    """The prices that prove the excess, and the time on each column."""

    prices: Floats  # by resource; all together cost 1
    bill: SpeedPrices
    used: Floats


class ThroughputPolytope:
    """The jobs of one view by class, and their columns, for any demands."""

    def __init__(self, name: str, classes: JobClasses, capacity: Ints, cols: ThroughputColumns) -> None:
        self.name, self.classes, self.capacity, self.cols = name, classes, capacity, cols
        can = np.append(cols.fastest > 0, False)
        self.present = can[classes.class_of].nonzero()[0]  # rows of the view; all columns by job follow it
        self.class_of = classes.class_of[self.present]
        self.fastest = cols.fastest[self.class_of]
        self.count = np.bincount(self.class_of, minlength=len(classes)).astype(np.float64)
        self.hints: Floats | None = None  # none: prices belong to columns that may be missing in the next solve
        self._level: _Model | None = None
        self._order: Ints | None = None  # of the last demands

    def start_from(self, earlier: ThroughputPolytope) -> Ints:
        """Start with the rows of an earlier polytope of larger classes; returns by class the class it was a part of."""
        origin = np.zeros(len(self.classes), dtype=np.int64)
        origin[self.class_of] = earlier.classes.class_of[self.present]
        owner, row = (origin[:, None] == earlier._excess_model().owner[None, :]).nonzero()
        self._excess_model().expect(owner, earlier._excess_model().speed[row])
        return origin

    def to_demands(self, demand: Floats) -> SortedDemands:
        """Throughputs by job as demands."""
        part = np.minimum(np.maximum(demand / self.fastest, 0.0), 1.0)
        required = SortedDemands(self.class_of, part, len(self.classes), self._order)
        self._order = required.order
        return required

    def job_costs(self, required: SortedDemands, fit: PolytopeFit) -> Floats:
        """The cost of each job's demand at the prices of a fit; 1 is the whole budget."""
        return fit.bill.cost(self.class_of, required.part)

    def worth(self, unit: Floats, *, ordered: bool = False) -> Floats:
        """The value of time by column, throughput in these units. `ordered`: no two optima are equally good."""
        cols = self.cols
        worth = cols.progress(cols.fastest / unit)
        if not ordered:
            return worth
        keys = [*self.classes.keys, ()]
        whose = zip(cols.one.tolist(), cols.two.tolist(), cols.types.tolist(), cols.speed.tolist())
        place = hash_fractions((keys[one], keys[two], type_, speed) for one, two, type_, speed in whose)
        slightly_less: Floats = worth * (1.0 - SLIGHT * place)
        return slightly_less

    def fit(self, required: SortedDemands, *, at_least: bool = False) -> PolytopeFit:
        """min θ such that the demands take at most (1 + θ) of every resource. With `at_least`, a clear excess may be more."""
        model = self._excess_model()
        model.aim(np.zeros(len(self.cols)), None)
        found = model.solve(required, TOLERANCE if at_least else np.inf)
        resources, classes = len(self.cols.available), len(self.classes)
        prices = found.duals[:resources].clip(min=0.0)
        total = float(prices @ self.cols.available)
        if abs(total - 1.0) > 1e-6:
            raise SolverError(self.name, "optimal, but the prices are inconsistent")
        hours = found.duals[resources : resources + classes].clip(min=0.0)
        rows = -found.duals[resources + classes :].clip(max=0.0)
        budget = total + float(hours @ self.count)
        return PolytopeFit(float(found.values[0]), prices / total, model.bill(rows / budget), found.values[1:].clip(min=0.0))

    def is_full(self, fit: PolytopeFit) -> bool:
        """Whether it is certain that every job gets exactly what it needs."""
        return False  # with spread or co-located gangs there may be better columns for the same demands

    def maximize(self, required: SortedDemands, worth: Floats, over: float = 0.0) -> Floats:
        """The time by column of the highest value that meets the demands; `over` is an excess, by which all get less."""
        model = self._excess_model()
        over = max(over, 0.0) + _SLACK
        model.aim(worth, over)
        return model.solve(required).values[1:].clip(min=0.0) / (1.0 + over)

    def maximize_ratio(self, required: SortedDemands, worth: Floats, prices: Floats, over: float = 0.0) -> Floats:
        """The time that meets the demands with the highest Σ worth·time / Σ prices·accelerator time, then with most of both, as
        a linear program in the time divided by the denominator (Charnes and Cooper)."""
        price = prices[self.cols.types] * self.cols.workers
        over = max(over, 0.0) + _SLACK
        model = _Model(self, np.append(0.0, worth / worth.max(initial=1e-300)), scaled=True, over=over)
        unit = price.max(initial=1e-300)
        columns = np.arange(1, len(self.cols) + 1)
        pays = (np.zeros(len(columns), dtype=np.int64), columns, price / unit)
        model.program.add_rows(np.ones(1), np.ones(1), pays)
        model.ratio_rows = 1
        found = model.solve(required)
        model.keep_to_optima(found)
        model.program.costs(np.arange(len(self.cols) + 1), np.append(-1.0, np.zeros(len(self.cols))))
        found = model.solve(required)
        return found.values[1:].clip(min=0.0) / (float(found.values[0]) * (1.0 + over))

    def min_level(
        self, demand: DeadlineDemands, lowest: float, highest: float, guess: float = 0.0
    ) -> tuple[float, SortedDemands, PolytopeFit]:
        """The least level at which the demands fit, the demands, and the fit; below `lowest`, demands do not grow."""
        size = float(self.capacity.sum())
        pool = self.classes.workers[self.class_of] / self.fastest / size

        def spending(fit: PolytopeFit) -> BudgetExcess:
            def cost(r: Floats) -> tuple[float, Floats]:
                part = r / self.fastest
                return float(fit.bill.cost(self.class_of, part).sum()) - 1.0, fit.bill.rise(self.class_of, part) / self.fastest

            return newton_excess(demand, cost)

        if guess <= 0.0:
            guess = affordable_level(newton_excess(demand, lambda r: (float(pool @ r) - 1.0, pool)), lowest, highest, lowest)
        near = self.fit(self.to_demands(demand(guess)[0]), at_least=True)
        first = affordable_level(spending(near), lowest, highest, guess)
        level, wanted, fit = min_level(
            self.name, demand.at, lambda r: self.fit(self.to_demands(r), at_least=True), spending, first, highest
        )
        return level, self.to_demands(wanted), fit

    def allocation(
        self, numbers: Ints, required: SortedDemands, time: Floats, reasons: Mapping[int, Reason]
    ) -> Allocation | SelfPairing:
        return disaggregate(self.cols, numbers[self.present], self.class_of, required.part, time, reasons)

    def beside_themselves(self, required: SortedDemands, time: Floats) -> Sequence[int]:
        """Jobs that would be paired with themselves if the time were disaggregated, as positions among the present jobs."""
        return self_paired(self.cols, self.class_of, required.part, time)

    def _excess_model(self) -> _Model:
        if self._level is None:
            self._level = _Model(self, np.append(-1.0, np.zeros(len(self.cols))), scaled=False)
        return self._level


class _Model:
    """The program of a polytope. Its first column is the excess θ or, `scaled`, the factor of everything."""

    def __init__(self, polytope: ThroughputPolytope, cost: Floats, *, scaled: bool, over: float = 0.0) -> None:
        self.polytope, self.scaled, self.ratio_rows = polytope, scaled, 0
        cols = polytope.cols
        sides = cols.sides
        resources, classes = len(cols.available), len(polytope.classes)
        col, resource = (cols.use > 0).nonzero()
        head = np.arange(resources)
        rows = [resource, head, resources + sides.owner]
        columns = [col + 1, np.zeros(resources, dtype=np.int64), sides.col + 1]
        values = [cols.use[col, resource], -(1.0 + over * scaled) * cols.available, sides.weight]
        above = np.concatenate((1.0 * cols.available, polytope.count))
        if scaled:
            rows.append(resources + np.arange(classes))
            columns.append(np.zeros(classes, dtype=np.int64))
            values.append(-polytope.count)
            above[:] = 0.0
        lower, upper = np.zeros(len(cols) + 1), np.full(len(cols) + 1, np.inf)
        lower[0] = 0.0 if scaled else -np.inf
        entries = (np.concatenate(rows), np.concatenate(columns), np.concatenate(values))
        below = np.full(resources + classes, -np.inf)
        model = Model(cost, lower, upper, below, above, entries)
        self.program: Program | ColumnGeneration
        if scaled:
            self.program = Program(polytope.name, model, tolerance=1e-10)
        else:
            self.program = ColumnGeneration(polytope.name, model, np.append(True, cols.two < 0), tolerance=1e-10)
        self._base = resources + classes
        self.owner, self.speed = np.zeros(0, dtype=np.int64), np.zeros(0)  # of each row of speed
        self._wanted = np.zeros(0)  # and how much is asked for beyond it
        self._expected: tuple[Ints, Floats] = (self.owner, self.speed)
        self._minimizes_excess = not scaled  # whether it looks for the least excess

    def expect(self, owner: Ints, speed: Floats) -> None:
        """Rows that are likely to be needed, of classes at speeds above 0."""
        some = (speed > 0) & (self.polytope.count[owner] > 0)
        self._expected = owner[some], speed[some]

    def aim(self, worth: Floats, over: float | None) -> None:
        """Set the objective; with `over` None it is the least excess."""
        if over is None and self._minimizes_excess:
            return
        self._minimizes_excess = over is None
        program, first = self.program, np.zeros(1, dtype=np.int64)
        program.costs(np.arange(len(worth) + 1), np.append(-1.0 if over is None else 0.0, worth))
        bounds = (-np.inf, np.inf) if over is None else (over, over)
        program.column_bounds(first, np.array([bounds[0]]), np.array([bounds[1]]))

    def solve(self, required: SortedDemands, enough: float = np.inf) -> Solution:
        """The optimum that meets the demands, adding violated rows until none is left, or the first column is `enough`."""
        if not len(self.owner):
            all_, (owner, speed) = (self.polytope.count > 0).nonzero()[0], self._expected
            self._ask(np.append(all_, owner), np.append(np.zeros(len(all_)), speed), required)
        elif not self.scaled:
            wanted = required.beyond(self.owner, self.speed)
            other = (wanted != self._wanted).nonzero()[0]  # most demands do not change between levels
            self.program.row_bounds(self._base + other, wanted[other], np.full(len(other), np.inf))
            self._wanted = wanted
        for _ in range(_ROUNDS):
            found = self.program.solve()
            owner, speed = self._short(found.values, required)
            if not len(owner):
                return found
            self._ask(owner, speed, required)
            if found.values[0] > enough:
                return found
        raise SolverError(self.polytope.name, f"throughputs that do not meet the demands after {_ROUNDS} rounds")

    def _short(self, values: Floats, required: SortedDemands) -> tuple[Ints, Floats]:
        """The classes, and for each the speed, at which the demands are missed by most."""
        sides = self.polytope.cols.sides
        scale = float(values[0]) if self.scaled else 1.0
        amount = values[1:][sides.col] * sides.weight
        used = (amount > _USED * scale).nonzero()[0]
        owner, speed, amount = sides.owner[used], sides.speed[used], amount[used] / max(scale, 1e-300)
        first = owner.searchsorted(owner)
        time, work = np.concatenate(([0.0], amount.cumsum())), np.concatenate(([0.0], (amount * speed).cumsum()))
        index = np.arange(1, len(owner) + 1)
        supply = (work[index] - work[first]) - (time[index] - time[first]) * speed
        lacks = required.beyond(owner, speed) - supply
        short = (lacks > FITS * np.maximum(1.0, required.beyond(owner, 0.0 * speed))).nonzero()[0]
        if not len(short):
            return owner[short], speed[short]
        worst = short[np.lexsort((-lacks[short], owner[short]))]
        worst = worst[np.concatenate(([True], owner[worst][1:] != owner[worst][:-1]))]
        return owner[worst], speed[worst]

    def _ask(self, owner: Ints, speed: Floats, required: SortedDemands) -> None:
        """Add rows: beyond this speed, the class's time must cover its demands."""
        sides = self.polytope.cols.sides
        begin, end = sides.first[owner], sides.first[owner + 1]
        size = end - begin
        row = np.arange(len(owner)).repeat(size)
        at = np.arange(int(size.sum())) - (size.cumsum() - size).repeat(size) + begin.repeat(size)
        faster = sides.speed[at] - speed[row]
        some = faster > 0
        rows, columns, values = row[some], sides.col[at[some]] + 1, (faster * sides.weight[at])[some]
        wanted = required.beyond(owner, speed)
        self._wanted = np.append(self._wanted, wanted)
        if self.scaled:
            rows, columns = np.append(rows, np.arange(len(owner))), np.append(columns, np.zeros(len(owner), dtype=np.int64))
            values, wanted = np.append(values, -wanted), np.zeros(len(owner))
        self.program.add_rows(wanted, np.full(len(owner), np.inf), (rows, columns, values))
        self.owner, self.speed = np.append(self.owner, owner), np.append(self.speed, speed)

    def bill(self, price: Floats) -> SpeedPrices:
        """Prices by row of speed, as prices by class."""
        some = (price > 0).nonzero()[0]
        owner, speed, price = self.owner[some], self.speed[some], price[some]
        order = owner.argsort(kind="stable")
        owner, speed, price = owner[order], speed[order], price[order]
        count = np.bincount(owner, minlength=len(self.polytope.classes))
        place = np.arange(len(owner)) - (count.cumsum() - count)[owner]
        shape = (len(count), int(count.max(initial=1)))
        speeds, prices = np.full(shape, np.inf), np.zeros(shape)
        speeds[owner, place], prices[owner, place] = speed, price
        return SpeedPrices(speeds, prices)

    def keep_to_optima(self, found: Solution) -> None:
        """Fix columns that lose to 0, and resources with a price to full use."""
        loses = (found.reduced[1:] < -FITS).nonzero()[0]
        nothing = np.zeros(len(loses))
        self.program.column_bounds(loses + 1, nothing, nothing)
        scarce = (found.duals[: self._base] > FITS).nonzero()[0]
        self.program.row_bounds(scarce, np.zeros(len(scarce)), np.zeros(len(scarce)))
        tight = (found.duals[self._base + self.ratio_rows :] < -FITS).nonzero()[0]
        self.program.row_bounds(self._base + self.ratio_rows + tight, np.zeros(len(tight)), np.zeros(len(tight)))
