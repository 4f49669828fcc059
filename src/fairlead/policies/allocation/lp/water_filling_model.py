"""What water filling fills: a cluster on which jobs are alone on types, at will or in fixed mixes, or a supply in which they
may also share accelerators or stand apart. A vessel remembers at which prices it was full."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.allocation.lp import demands as alone
from fairlead.policies.allocation.lp import throughput_polytope as supplies
from fairlead.policies.allocation.lp.demands import Demands, Grid
from fairlead.policies.allocation.lp.levels import Fitted
from fairlead.policies.allocation.lp.throughput_polytope import Asked, Bill, Supply

DUST = 1e-9
"""What costs no more than this part of all there is has no price."""

_TRACE = 1e-15
_REMEMBERED = 8


class _OfTypes(ABC):
    """With J types it fills up at most J times: from a full type on nobody needs more of it."""

    def __init__(self, name: str, top: Floats, capacity: Ints) -> None:
        self.name, self.top, self.times = name, top, len(capacity) + 1
        self._capacity = capacity
        self._prices: Floats = np.zeros(len(capacity))
        self._priced: Bools = np.zeros(len(capacity), dtype=np.bool_)

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """Full at these prices and at earlier ones is full at their sum. There is always a new price, however small."""
        rest = np.where(self._priced, 0.0, self._prices * self._capacity)
        self._priced = self._priced | (rest > min(DUST, float(rest.max()) / 2))
        self._prices = 0.0 * self._prices
        return self._without(self._priced)

    def clashes(self, level: Floats, fit: Fitted) -> bool:
        return False  # everybody is alone

    @abstractmethod
    def _without(self, priced: Bools) -> Floats:
        """By job, the level that it reaches without these types."""


class AtWill(_OfTypes):
    """For jobs that use types as suits the whole."""

    def __init__(self, demands: Demands, top: Floats) -> None:
        super().__init__(demands.name, top, demands.capacity)
        self._demands, self._unit = demands, demands.fastest / top

    def asked(self, level: Floats) -> Grid:
        return self._demands.asked(level * self._unit)

    def fit(self, level: Floats) -> alone.Fit:
        return self._demands.fit(self.asked(level))

    def overflows(self, fit: alone.Fit) -> None:
        """A price too small for the solver is not lost if it was once larger."""
        self._prices = fit.prices + _TRACE * self._prices

    def known(self) -> Sequence[alone.Fit]:
        return ()  # demands themselves know the prices of before

    def cost(self, fit: alone.Fit) -> Callable[[Floats], float]:
        cost = self._demands.cost_at(fit.prices)
        return lambda level: cost(level * self._unit)

    def _without(self, priced: Bools) -> Floats:
        fastest: Floats = np.where(priced, 0.0, self._demands.classes.rates).max(axis=1)
        level: Floats = fastest[self._demands.of] / self._unit
        return level


@dataclass(frozen=True)
class Load(Fitted):
    """And of which type there is least."""

    fullest: int


class InMixes(_OfTypes):
    """For jobs that use types in fixed proportions, jobs × types; their level is their accelerator time."""

    def __init__(self, name: str, mix: Floats, workers: Ints, capacity: Ints) -> None:
        super().__init__(name, workers.astype(np.float64), capacity)
        self._use = mix / np.maximum(capacity, 1)

    def fit(self, level: Floats) -> Load:
        load = level @ self._use
        return Load(float(load.max()) - 1.0, int(load.argmax()))

    def overflows(self, fit: Load) -> None:
        self._prices = np.zeros(len(self._capacity))
        self._prices[fit.fullest] = 1.0 / self._capacity[fit.fullest]

    def known(self) -> Sequence[Load]:
        return ()

    def cost(self, fit: Load) -> Callable[[Floats], float]:
        use = self._use[:, fit.fullest]
        return lambda level: float(level @ use)

    def _without(self, priced: Bools) -> Floats:
        return np.where((self._use[:, priced] > 0).any(axis=1), 0.0, self.top)


class InSupply:
    """It fills up at most as often as there are speeds of classes to be had: from then on nobody of the class goes beyond."""

    def __init__(self, supply: Supply, top: Floats, earlier: InSupply | None = None) -> None:
        """`earlier` was filled with the same jobs in larger classes: whatever was too much for it is too much for this one."""
        self.name, self.top = supply.name, top
        self.times = len(supply.ways.sides.way) + len(supply.classes) + 1
        self._supply = supply
        self._bill = Bill(np.zeros((len(supply.classes), 0)), np.zeros((len(supply.classes), 0)))
        self._known: list[tuple[supplies.Fit, Callable[[Floats], float]]] = []
        self._free = np.ones(len(supply.classes))  # by class, as a part of its fastest
        if earlier is not None:
            origin = supply.follows(earlier._supply)
            fits = [replace(fit, bill=fit.bill.of(origin)) for fit, _ in earlier._known]
            self._known = [(fit, self._cost(fit)) for fit in fits]
            self._free = earlier._free[origin]

    def asked(self, level: Floats) -> Asked:
        return self._supply.asked(level / self.top * self._supply.fastest)

    def fit(self, level: Floats) -> supplies.Fit:
        return self._supply.fit(self.asked(level), at_least=True)

    def used(self, fit: supplies.Fit) -> Floats:
        """The time on each way, no more than there is."""
        return fit.used / (1.0 + max(fit.excess, 0.0))

    def clashes(self, level: Floats, fit: supplies.Fit) -> bool:
        return bool(self._supply.beside_themselves(self.asked(level), self.used(fit)))

    def overflows(self, fit: supplies.Fit) -> None:
        self._bill = fit.bill
        others = [known for known in self._known if known[0] is not fit]
        self._known = [(fit, self.cost(fit)), *others][:_REMEMBERED]

    def known(self) -> Sequence[supplies.Fit]:
        return [fit for fit, _ in self._known]

    def cost(self, fit: supplies.Fit) -> Callable[[Floats], float]:
        return next((cost for known, cost in self._known if known is fit), None) or self._cost(fit)

    def _cost(self, fit: supplies.Fit) -> Callable[[Floats], float]:
        job, column = (fit.bill.price > 0)[self._supply.of].nonzero()
        of, top = self._supply.of[job], self.top[job]
        speed, price = fit.bill.speed[of, column] * top, fit.bill.price[of, column] / top
        return lambda level: float(np.maximum(level[job] - speed, 0.0) @ price)

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """Nobody goes beyond the least speed that has a price. There is always somebody whom that stops."""
        of, bill = self._supply.of, self._bill
        rising = (cap - level > 1e-12 * self.top).nonzero()[0]
        open_ = np.zeros(len(self._free), dtype=np.bool_)
        open_[of[rising]] = True
        price = np.where((bill.speed < self._free[:, None]) & open_[:, None], bill.price, 0.0)
        dear = price > min(DUST, float(price.max(initial=0.0)) / 2)
        least = np.where(dear, bill.speed, np.inf).min(axis=1)
        self._free = np.minimum(self._free, least)
        free: Floats = self._free[of] * self.top
        return free
