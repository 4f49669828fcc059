"""The exact end of an interior-point path: from nearly right prices to an optimal vertex and the proof that it is one.

With nearly right prices the edges of most jobs are right (block_responses.py). The jobs with the smallest price margins are
open; all others keep their edges. One small program over the open jobs gives new prices. Jobs whose edges
turn out to be wrong join the open jobs. Many jobs with equal margins are one column: they lean equally far.

Where that ends, the vertex is computed again from its basis: one system of equations gives how far tied jobs lean, and the
level, by elementwise operations and ordered sums. So the numbers depend on the basis alone, not on the path to it.

Every answer is checked by weak duality, and one that is not proven to the relative gap `GAP` is not used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.block_interior_point import BlockProgram, interior_path
from fairlead.policies.allocation.lp.block_responses import PricedBlocks, Responses
from fairlead.policies.allocation.lp.lower_hulls import filling
from fairlead.policies.allocation.lp.program import Model, Program

GAP = 1e-9
"""The largest relative gap, excess load or missing part of a demand of an answer."""

_GOALS = (1e-3, 1e-5, 1e-8)  # gaps of the path at which the exact end is tried
_KEPT = 1e-11  # reduced costs up to this part of a job's costs are 0
_ROUNDS = 8
_OPEN = 160  # more open jobs than these: prices are not yet good enough
_OF_PART = 0.05  # of the load of some jobs moves at most from type to type
_PARTS = 6, 3, 2  # one of so many jobs may have a wrong edge at rough prices
_LARGE = 8192  # so many jobs need closer prices
FEW_JOBS = 1024  # with more, the first prices are those of a sample
_MANY = 8  # so many jobs with equal margins are one column
_NO_TIME = 1e-9  # time up to this is the solver's rounding
_NO_PRICE = 1e-10  # the same of prices, as a part of the highest


@dataclass(frozen=True)
class Bundle:
    """Jobs that lean together from their edges to these."""

    jobs: Ints
    low: Ints
    high: Ints


@dataclass(frozen=True)
class Basis:
    """What determines a vertex: the edge of each job, the jobs that lean to another one, and the types that are full."""

    low: Ints
    high: Ints
    leaning: Sequence[Bundle]
    full: Sequence[int]


@dataclass(frozen=True)
class BlockAnswer:
    """A proven optimum: time by type and job, prices, the level, the relative gap, and the basis where it has a plain one."""

    time: Floats
    prices: Floats
    level: float
    gap: float
    basis: Basis | None = None


class VertexSearch(PricedBlocks):
    """The vertices of one program."""

    def __init__(self, name: str, program: BlockProgram, near: Responses | None = None) -> None:
        super().__init__(program, near)
        self.name = name
        self._unit = 1e-300 if program.gain is None else float(np.abs(program.gain).max(initial=0.0))

    def optimum(self, near: Floats | None, basis: Basis | None = None) -> BlockAnswer:
        """The optimum, from a basis or prices `near` it if there are any; raises a `SolverError` where there is none."""
        found = None if basis is None or len(basis.low) != self.jobs else self.from_basis(basis)
        if found is None and near is not None:
            found = self.from_prices(near)
            if found is None and self.jobs > FEW_JOBS and self.program.growth is not None:
                found = self._by_part(near)
        if found is None:
            with np.errstate(all="ignore"):
                for point in interior_path(self.program, _GOALS):
                    found = self.from_prices(point.prices)
                    if found is not None:
                        break
        return self.by_simplex() if found is None else found

    def _by_part(self, prices: Floats) -> BlockAnswer | None:
        """The optimum from rough prices: the path only for jobs whose edges these leave open."""
        program = self.program
        found = self.responses(prices)
        order = self.margins(found, prices)[0].argsort(kind="stable")
        for part in _PARTS:
            rest = np.ones(self.jobs, dtype=np.bool_)
            rest[order[: max(self.jobs // part, FEW_JOBS // 2)]] = False
            if self._unbalanced(found, prices, ~rest, _OF_PART):
                continue
            others = rest.nonzero()[0]
            time = self.edge_time(found.low[others], found.high[others], others)
            reduced = program.only((~rest).nonzero()[0], (program.load[1:, others] * time[1:]).sum(axis=1))
            with np.errstate(all="ignore"):
                for point in interior_path(reduced, _GOALS[1:2] if self.jobs > _LARGE else _GOALS[:1]):
                    answer = self.from_prices(point.prices)
                    if answer is not None:
                        return answer
        return None

    # The exact end.

    def from_prices(self, prices: Floats) -> BlockAnswer | None:
        """The optimum near these prices; None where they are not good enough."""
        few, joined = 4 * self.types + 12 + self.jobs // 512, np.zeros(0, dtype=np.int64)
        most = max(_OPEN, self.jobs // 64)
        for _ in range(_ROUNDS):
            found = self.responses(prices)
            open_, bundles, inside = self._open(found, prices, few, joined)
            if self._unbalanced(found, prices, inside):
                return None
            try:
                prices, _, own, leans = self._small_program(found, open_, bundles)
            except SolverError:
                few *= 3
                if few > _OPEN or few > 4 * self.jobs:
                    return None
                continue
            after = self.responses(prices)
            stays = self._stays(after, found.low, found.high, self._at)
            wrong = ~stays & ~inside
            for bundle, lean in zip(bundles, leans.tolist()):
                if lean > 0:
                    wrong[bundle.jobs] |= ~self._stays(after, bundle.low, bundle.high, bundle.jobs)
                if lean < 1:
                    wrong[bundle.jobs] |= ~stays[bundle.jobs]
            if not wrong.any():
                return self._ended(found, open_, own, bundles, leans, prices, after)
            new = wrong.nonzero()[0]
            if len(new) > most:
                break
            joined = np.union1d(joined, new) if len(joined) + len(new) <= most else new
        return None

    def _unbalanced(self, found: Responses, prices: Floats, inside: Bools, part: float = 2.0) -> bool:
        """Whether a part of the load of open jobs cannot make up for what the others take too much of some types."""
        priced = prices > _NO_PRICE * float(prices.max())
        if self.jobs <= FEW_JOBS or self.program.growth is None or not priced.any():
            return False
        load = self.program.load[1:]
        taken = (load * self.edge_time(found.low, found.high, self._at)[1:]).sum(axis=1)
        over = (taken - self.program.room)[priced]
        return float(over.max() - over.min()) > part * float(load[:, inside].sum())

    def _open(self, found: Responses, prices: Floats, few: int, joined: Ints) -> tuple[Ints, list[Bundle], Bools]:
        """The open jobs, the bundles, and which jobs are in one of these."""
        margin, following = self.margins(found, prices)
        near = margin.argsort(kind="stable")[: max(4 * few, 2 * self.jobs // 3)]
        near = near[margin[near] < np.inf]
        inside = np.zeros(self.jobs, dtype=np.bool_)
        if not len(near):
            inside[joined] = True
            return joined, [], inside
        sorted_margin = margin[near]
        new = np.ones(len(near), dtype=np.bool_)
        new[1:] = np.diff(sorted_margin) > 1e-9 * (1e-3 + sorted_margin[1:])
        first, run = new.nonzero()[0], np.cumsum(new) - 1
        size = np.diff(np.append(first, len(near)))
        many = size > _MANY
        open_ = np.union1d(near[~many[run]][:few], joined)
        inside[open_] = True
        bundles = list[Bundle]()
        for at in many.nonzero()[0][: 4 * self.types].tolist():
            members = np.sort(near[first[at] : first[at] + size[at]])
            members = members[~inside[members]]
            points = self.types + 2
            alike = (found.low[members] * points + found.high[members]) * points + following[members]
            for one in np.unique(alike).tolist():
                bundles.append(self._bundle(found, members[alike == one], following))
        for bundle in bundles:
            inside[bundle.jobs] = True
        return open_, bundles, inside

    def _bundle(self, found: Responses, jobs: Ints, following: Ints) -> Bundle:
        low, high, point = found.low[jobs], found.high[jobs], following[jobs]
        rate = self.program.rate[np.minimum(point, self.types), jobs]
        slower, free = rate < self.program.base[jobs], low == high
        new_low = np.where(free | slower, point, low)
        new_high = np.where(slower, high, point)
        ends = point > self.types  # the demand no longer binds
        new_low, new_high = np.where(ends, high, new_low), np.where(ends, high, new_high)
        return Bundle(jobs, new_low, new_high)

    def _stays(self, after: Responses, low: Ints, high: Ints, some: Ints) -> Bools:
        """Whether edges are optimal responses at new prices."""
        rates, jobs = self.program.rate, self.jobs
        reduced = after.reduced.ravel()
        price = after.demand_price[some]
        size = np.abs(price * rates[after.high[some], some]) + np.abs(after.time_price[some]) + self._unit
        worst = np.maximum(reduced[low * jobs + some], reduced[high * jobs + some])
        fast = rates[high, some]
        # A response that does more than its demand is optimal only where demand has no price.
        exact = (high != low) | (price * fast <= _KEPT * size) | (fast <= self.program.base[some])
        return np.asarray((worst <= _KEPT * size) & exact)

    def _small_program(self, found: Responses, open_: Ints, bundles: Sequence[Bundle]) -> tuple[Floats, float, Floats, Floats]:
        """Prices, the level, the time of open jobs by type, and how far bundles lean; all others keep their edges."""
        program, types, count = self.program, self.types, len(open_)
        rest = np.ones(self.jobs, dtype=np.bool_)
        rest[open_] = False
        others = rest.nonzero()[0]
        time = self.edge_time(found.low[others], found.high[others], others)
        room = program.room - (program.load[1:, others] * time[1:]).sum(axis=1)
        type_, job = program.usable[1:, open_].nonzero()
        own, level = len(type_), len(type_)  # the column of the level is after those of open jobs, then come the bundles
        column = np.arange(own)
        steps = [
            self.edge_time(b.low, b.high, b.jobs) - self.edge_time(found.low[b.jobs], found.high[b.jobs], b.jobs)
            for b in bundles
        ]
        use = [(program.load[1:, bundle.jobs] * step[1:]).sum(axis=1) for bundle, step in zip(bundles, steps)]
        gain = np.zeros(own + 1 + len(bundles))
        if program.gain is not None:
            gain[:own] = program.gain[1:, open_][type_, job]
            gain[own + 1 :] = [float((program.gain[:, b.jobs] * step).sum()) for b, step in zip(bundles, steps)]
        gain[level] = program.level_gain
        unit = max(float(np.abs(gain).max()), 1e-300)
        rows = [type_, types + job, types + count + job]
        columns = [column, column, column]
        values = [program.load[1:, open_][type_, job], np.ones(own), program.rate[1:, open_][type_, job]]
        if program.growth is not None:
            rows.append(np.arange(types))
            columns.append(np.full(types, level))
            values.append(-program.growth)
        for place, taken in enumerate(use):
            rows.append(np.arange(types))
            columns.append(np.full(types, level + 1 + place))
            values.append(taken)
        lower, upper = np.zeros(len(gain)), np.full(len(gain), np.inf)
        lower[level], upper[level] = (-np.inf, np.inf) if program.has_level else (0.0, 0.0)
        upper[level + 1 :] = 1.0
        below = np.concatenate((np.full(types + count, -np.inf), program.base[open_]))
        above = np.concatenate((room, np.ones(count), np.full(count, np.inf)))
        entries = (np.concatenate(rows), np.concatenate(columns), np.concatenate(values))
        model = Model(gain / unit, lower, upper, below, above, entries)
        solved = Program(self.name, model, tolerance=1e-10).solve()
        time = np.zeros((types, count))
        time[type_, job] = solved.values[:own].clip(min=0.0)
        prices = np.maximum(solved.duals[:types], 0.0) * unit
        return prices, float(solved.values[level]), time, solved.values[level + 1 :]

    # The vertex of a basis.

    def _ended(
        self,
        found: Responses,
        open_: Ints,
        own: Floats,
        bundles: Sequence[Bundle],
        leans: Floats,
        prices: Floats,
        after: Responses,
    ) -> BlockAnswer | None:
        """The answer of a small program after which all others keep their edges."""
        low, high = found.low.copy(), found.high.copy()
        leaning = list[Bundle]()
        for bundle, lean in zip(bundles, leans.tolist()):
            if lean > 1.0 - _NO_TIME:
                low[bundle.jobs], high[bundle.jobs] = bundle.low, bundle.high
            elif lean > _NO_TIME:
                leaning.append(bundle)
        plain = self._lean(open_, own, low, high, leaning)
        full = (prices > _NO_PRICE * float(prices.max())).nonzero()[0].tolist()
        if plain:
            answer = self.from_basis(Basis(low, high, leaning, full), prices)
            if answer is not None:
                return answer
        time = self.edge_time(found.low, found.high, self._at)
        for bundle, lean in zip(bundles, leans.tolist()):
            step = self.edge_time(bundle.low, bundle.high, bundle.jobs) - time[:, bundle.jobs]
            time[:, bundle.jobs] += lean * step
        time[1:, open_] = own
        return self._proven(time[1:], prices, after)

    def _lean(self, open_: Ints, own: Floats, low: Ints, high: Ints, leaning: list[Bundle]) -> bool:
        """Enter the edges of open jobs, given their time by type; those on more points than an edge has lean. False where a
        job leans in two ways."""
        rates, needs = self.program.rate, self.program.base
        for place, job in enumerate(open_.tolist()):
            on = own[:, place].tolist()
            share = [1.0 - sum(on), *on]
            rate, need = rates[:, job].tolist(), needs.item(job)
            points = sorted(
                (point for point, part in enumerate(share) if part > _NO_TIME), key=lambda point: (rate[point], point)
            )
            spare = sum(one * part for one, part in zip(rate, share)) - need > _NO_TIME
            first, last = points[0], points[-1]
            edge = first, last
            if len(points) == 2 + (not spare):  # one point more than an edge needs
                middle = last if spare else points[1]
                if spare and rate[first] >= need:
                    edge = first, first
                to = (middle, middle) if spare else (first, middle) if rate[middle] >= need else (middle, last)
                leaning.append(Bundle(np.array([job]), np.array(to[:1]), np.array(to[1:])))
            elif len(points) > 2 - spare:
                return False
            low[job], high[job] = edge
        return True

    def from_basis(self, basis: Basis, prices: Floats | None = None) -> BlockAnswer | None:
        """The vertex of a basis, if it is the optimum. `prices`: those of a basis that has none of its own."""
        program, types = self.program, self.types
        time = self.edge_time(basis.low, basis.high, self._at)
        steps = [self.edge_time(one.low, one.high, one.jobs) - time[:, one.jobs] for one in basis.leaning]
        columns = [(program.load[1:, one.jobs] * step[1:]).sum(axis=1).tolist() for one, step in zip(basis.leaning, steps)]
        gains = [0.0 if program.gain is None else float((program.gain[:, one.jobs] * step).sum())
                 for one, step in zip(basis.leaning, steps)]  # fmt: skip
        if program.growth is not None:
            columns.append((-program.growth).tolist())
            gains.append(program.level_gain)
        if len(columns) == len(basis.full):
            free = (program.room - (program.load[1:] * time[1:]).sum(axis=1)).tolist()
            parts = filling(columns, free, basis.full)
            costs = filling([[column[j] for column in columns] for j in basis.full], gains, range(len(columns)))
            if parts is None or costs is None:
                return None
            for one, step, part in zip(basis.leaning, steps, parts):
                if not -_NO_TIME <= part <= 1.0 + _NO_TIME:
                    return None
                time[:, one.jobs] += part * step
            prices = np.zeros(types)
            prices[basis.full] = np.maximum(costs, 0.0)
        elif prices is None or basis.leaning:
            return None
        after = self.responses(prices)
        stays = self._holds(after, basis.low, basis.high, self._at)
        stays = stays and all(self._holds(after, one.low, one.high, one.jobs) for one in basis.leaning)
        return self._proven(time[1:], prices, after, basis) if stays else None

    def _holds(self, after: Responses, low: Ints, high: Ints, some: Ints) -> bool:
        """Whether these are optimal responses at new prices, and edges that include the demands."""
        rates, need = self.program.rate, self.program.base[some]
        includes = (low == high) | ((rates[low, some] <= need + _KEPT) & (need <= rates[high, some] + _KEPT))
        return bool((includes & self._stays(after, low, high, some)).all())

    def by_simplex(self) -> BlockAnswer:
        """The optimum of the whole program by the simplex method."""
        nothing = Responses(self._at, self._at, *(np.zeros(self.jobs),) * 3, np.zeros((0, self.jobs)))
        prices, level, time, _ = self._small_program(nothing, self._at, ())
        return self._proven(time, prices, self.responses(prices)) or BlockAnswer(time, prices, level, np.inf)

    def _proven(self, time: Floats, prices: Floats, found: Responses, basis: Basis | None = None) -> BlockAnswer | None:
        """The answer, if weak duality proves it."""
        program = self.program
        time = np.maximum(time, 0.0)
        met = (program.rate[1:] * time).sum(axis=0)
        if float((program.base - met).max()) > GAP or float(time.sum(axis=0).max()) > 1.0 + GAP:
            return None
        load = (program.load[1:] * time).sum(axis=1)
        rent = found.time_price + np.maximum(-found.reduced.min(axis=0), 0.0)  # no reduced cost is below 0
        bill = float((found.demand_price * program.base).sum()) - float(rent.sum()) - float((prices * program.room).sum())
        if program.growth is not None:
            grows = program.growth > 0
            level = float(((load - program.room)[grows] / program.growth[grows]).max())
            total = float((prices * program.growth).sum())
            gap = (level - bill / total) / max(1.0, abs(level)) if total > 0 else np.inf
        else:
            assert program.gain is not None
            value = program.gain[1:] * time
            level, gap = 0.0, (-bill - float(value.sum())) / max(float(np.abs(value).sum()), 1e-300)
            if float((load - program.room).max()) > GAP:
                return None
        return BlockAnswer(time, prices, level, gap, basis) if gap <= GAP else None
