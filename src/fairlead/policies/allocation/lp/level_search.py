"""Search for the least level at which demands that fall with the level fit the cluster. Callers supply the fit and the
costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import SolverError
from fairlead.policies.allocation.lp.program import TOLERANCE

FITS = 1e-9
"""Demands that exceed the cluster by no more than this part of it fit."""

EXACT = 1e-13
"""An excess that is only rounding."""

CLOSE = 1e-9
"""A last step along a tangent that is so small a part of the level leaves an error of its square."""

_NEARLY = 1e-7
_ROUNDS = 60
_STEPS = 200
_BEFORE = 4e-9
_ROUNDING = 1e-12  # of costs: where demands just fill the cluster and do not fall, it would pass whole stretches of levels

Demand: TypeAlias = Callable[[float], tuple[Floats, Floats]]
"""A level → what each job demands, and how fast that changes with the level."""

Cost: TypeAlias = Callable[[Floats], tuple[float, Floats]]
"""Demands → what they cost beyond all that there is to spend, and how fast each job's cost rises with its demand."""

BudgetExcess: TypeAlias = Callable[[float], tuple[float, float]]
"""A level → what demands cost there beyond all that there is to spend, and a better guess of where that is nothing: infinite
where no demand falls."""


@dataclass(frozen=True)
class DeadlineDemands:
    """Demands of jobs with `left` steps: left / (level·unit − spent), between `least` and left / `soonest`."""

    left: Floats
    unit: Floats
    spent: Floats
    soonest: Floats
    least: Floats

    def only(self, jobs: Ints) -> DeadlineDemands:
        """The demands of some jobs."""
        return DeadlineDemands(*(column[jobs] for column in (self.left, self.unit, self.spent, self.soonest, self.least)))

    def at(self, level: float) -> Floats:
        """The demand of each job."""
        return np.maximum(self.left / np.maximum(level * self.unit - self.spent, self.soonest), self.least)

    def __call__(self, level: float) -> tuple[Floats, Floats]:
        time = np.maximum(level * self.unit - self.spent, self.soonest)
        r = np.maximum(self.left / time, self.least)
        return r, np.where((time > self.soonest) & (r > self.least), -r * self.unit / time, 0.0)


@dataclass(frozen=True)
class FitResult:
    """The part by which demands exceed the cluster (below 0: the free part)."""

    excess: float

    @property
    def has_room(self) -> bool:
        return self.excess <= FITS

    @property
    def has_nearly_room(self) -> bool:
        """Whether the excess is a rounding error."""
        return self.excess <= _NEARLY


@dataclass(frozen=True)
class PricedFit(FitResult):
    """The prices that prove the excess (Σ price_j·N_j = 1), and what is used of the cluster, as the model of the fit has it."""

    prices: Floats
    used: Floats


F = TypeVar("F", bound=FitResult)


def min_level(
    name: str,
    demand: Callable[[float], Floats],
    fit: Callable[[Floats], F],
    spending: Callable[[F], BudgetExcess],
    first: float,
    highest: float,
    close: float = CLOSE,
    fits: float = FITS,
) -> tuple[float, Floats, F]:
    """The least level from `first` on, the demands, and their fit. The prices of a fit give a lower bound of the level, whose
    program gives better prices; levels only rise. `fits` is the excess at which the search ends: at `EXACT`, the level is that
    of the last prices, wherever the search began."""
    level, nudge = first, 0.0
    for _ in range(_ROUNDS):
        wanted = demand(level)
        found = fit(wanted)
        if found.excess <= fits:
            return level, wanted, found
        raised = affordable_level(spending(found), level, highest, level, close)
        if raised <= level:  # as near as numbers come
            if found.excess <= TOLERANCE:
                return level, wanted, found
            nudge = max(2.0 * nudge, float(np.spacing(level)))
            raised = level + nudge
        if not raised > level:
            break
        level = raised
    raise SolverError(name, f"no better level than {level:g}, at which demands are {found.excess:g} over the cluster")


def newton_excess(demand: Demand, cost: Cost) -> BudgetExcess:
    """Newton's next level."""

    def spending(level: float) -> tuple[float, float]:
        r, falls = demand(level)
        over, rise = cost(r)
        slope = float((rise * falls).sum())
        return over, level - over / slope if slope < 0 else np.inf

    return spending


def affordable_level(spending: BudgetExcess, low: float, highest: float, guess: float, close: float = CLOSE) -> float:
    """The least level from `low` on at which demands cost at most the budget, by guesses in a bracket until `close`."""
    level, high, tried = max(low, guess), np.inf, False
    for _ in range(_STEPS):
        over, better = spending(level)
        if over > _ROUNDING:
            low, tried = level, True
        else:
            high = level
        if high <= low:
            break
        if abs(better - level) <= close * abs(level):
            if over > _ROUNDING:
                return max(better, low)
            better = level - _BEFORE * abs(level)  # a stretch may end here on which they cost as much
        if low < better < high:
            level = better
        elif not tried:
            level, tried = low, True
        elif high < np.inf:
            level = 0.5 * (low + high)
            if level in (low, high):
                break
        else:  # no demand falls yet
            level = max(highest, 2.0 * low)
    return high
