"""Each job's cheapest responses to prices of types (see block_interior_point.py).

At given prices a job meets its demand with a part of its time at a point `high` and the rest at a point `low`: an edge of the
lower hull of its points (rate, cost). Demands that do not bind are met at one point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.policies.allocation.lp.block_interior_point import BlockProgram

_BARRED = 1e200


@dataclass(frozen=True)
class Responses:
    """By job: the edge, the part of time at `high`, the duals of demand and time; and the reduced costs by point."""

    low: Ints
    high: Ints
    part: Floats
    demand_price: Floats
    time_price: Floats
    reduced: Floats


class PricedBlocks:
    """The jobs of one program with fixed demands (no `slope`, no `pay`). `near` are responses at similar prices and demands."""

    def __init__(self, program: BlockProgram, near: Responses | None = None) -> None:
        self.program = program
        self.types, self.jobs = program.rate.shape[0] - 1, program.jobs
        self._at = np.arange(self.jobs)
        self._last = near

    @cached_property
    def _fastest(self) -> Ints:
        fastest: Ints = self.program.rate.argmax(axis=0)
        return fastest

    def responses(self, prices: Floats) -> Responses:
        """Each job's cheapest response."""
        program, at, need = self.program, self._at, self.program.base
        cost, rates, jobs = self._costs(prices), program.rate.ravel(), self.jobs
        costs = cost.ravel()
        if self._last is not None and program.gain is None:  # start at the last ones
            low, high = self._last.low, self._last.high
            fits = (rates[low * jobs + at] < need) & (need <= rates[high * jobs + at])
            low, high = low * fits, high.copy() if fits.all() else np.where(fits, high, self._fastest)
        else:
            low = np.zeros(jobs, dtype=np.int64) if program.gain is None else cost.argmin(axis=0)
            high = self._fastest.copy()
        slow = rates[low * jobs + at]
        binds = slow < need
        price, rent = np.zeros(jobs), np.zeros(jobs)
        reduced = np.empty(cost.shape)
        some = slice(None)
        for _ in range(2 * self.types + 2):
            here, there = low[some] * jobs + at[some], high[some] * jobs + at[some]
            slow, slow_cost, fast_cost = rates[here], costs[here], costs[there]
            span = rates[there] - slow
            mine = np.divide(fast_cost - slow_cost, span, out=np.zeros(len(span)), where=binds[some] & (span > 0))
            value = mine * slow
            price[some], rent[some] = mine, value - slow_cost
            left = cost[:, some] - program.rate[:, some] * mine
            reduced[:, some] = left
            size = np.abs(slow_cost) + np.abs(fast_cost) + np.abs(value)
            gains = (left.min(axis=0) + (value - slow_cost) < -1e-14 * size) & binds[some]
            if not gains.any():
                break
            some = at[some][gains]
            best = left[:, gains].argmin(axis=0)
            new = (best != low[some]) & (best != high[some])
            some, best = some[new], best[new]
            if not len(some):
                break
            below = rates[best * jobs + some] < need[some]
            low[some[below]], high[some[~below]] = best[below], best[~below]
        reduced += rent
        high = np.where(binds, high, low)
        slow = rates[low * jobs + at]
        span = rates[high * jobs + at] - slow
        part = np.divide(need - slow, span, out=np.ones(jobs), where=binds & (span > 0))
        self._last = Responses(low, high, np.minimum(part, 1.0), price, rent, reduced)
        return self._last

    def _costs(self, prices: Floats) -> Floats:
        cost: Floats = self.program.load * np.append(0.0, prices)[:, None]
        if self.program.gain is not None:
            cost -= self.program.gain
        np.copyto(cost, _BARRED, where=~self.program.usable)
        return cost

    def edge_time(self, low: Ints, high: Ints, some: Ints) -> Floats:
        """Time by point (with idle time) of some jobs on these edges."""
        rates, need, at = self.program.rate, self.program.base[some], np.arange(len(some))
        slow, fast = rates[low, some], rates[high, some]
        part = np.divide(need - slow, fast - slow, out=np.ones(len(some)), where=fast > slow)
        part = np.where(low == high, 1.0, np.minimum(np.maximum(part, 0.0), 1.0))
        time = np.zeros((self.types + 1, len(some)))
        time[low, at] = 1.0 - part
        time[high, at] = part
        return time

    def margins(self, found: Responses, prices: Floats) -> tuple[Floats, Ints]:
        """The part by which prices would have to be wrong for another edge; and the point that is next, one after the last
        where the demand would no longer bind."""
        jobs, at, points = self.jobs, self._at, self.types + 1
        cost = self.program.load * np.append(0.0, prices)[:, None]
        if self.program.gain is not None:
            cost += np.abs(self.program.gain)
        flat = cost.ravel()
        mine = np.maximum(flat[found.low * jobs + at], flat[found.high * jobs + at])
        margin = np.full((points + 1, jobs), np.inf)
        with np.errstate(over="ignore"):
            np.divide(found.reduced, cost + mine + 1e-300, out=margin[:points])
        margins = margin.ravel()
        margins[found.low * jobs + at] = np.inf
        margins[found.high * jobs + at] = np.inf
        if self.program.gain is not None:
            rates = self.program.rate.ravel()
            span = rates[found.high * jobs + at] - rates[found.low * jobs + at]
            free = found.demand_price * span / (mine + 1e-300)
            margin[points] = np.where((found.low != found.high) & (found.part < 1), free, np.inf)
        following = margin.argmin(axis=0)
        least = margins[following * jobs + at]
        top = self.program.rate.ravel()[self._fastest * jobs + at]
        return np.where(self.program.base >= top * (1.0 - 1e-12), np.inf, least), following
