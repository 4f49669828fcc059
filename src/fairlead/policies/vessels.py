"""What water filling fills: the room of a cluster for jobs alone on types, or a supply in which they may also share
accelerators or stand apart. A vessel remembers at which prices it was full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies import room as rooms
from fairlead.policies import supply as supplies
from fairlead.policies.room import Room
from fairlead.policies.supply import Asked, Bill, Supply

DUST = 1e-9
"""What costs no more than this part of all there is has no price."""

_TRACE = 1e-15
_REMEMBERED = 8


class InRoom:
    """With J types it fills up at most J times: from a full type on nobody needs more of it."""

    def __init__(self, room: Room, kind: Ints) -> None:
        self.name, self.times = room.name, len(room.capacity) + 1
        self.top = room.top[kind]
        self._room, self._kind = room, kind
        self._prices: Floats = np.zeros(len(room.capacity))
        self._priced: Bools = np.zeros(len(room.capacity), dtype=np.bool_)

    def fit(self, level: Floats) -> rooms.Fit:
        return self._room.fit(self._room.demand(self._kind, level))

    def overflows(self, fit: rooms.Fit) -> None:
        """A price too small for the solver is not lost if it was once larger."""
        self._prices = fit.prices + _TRACE * self._prices

    def known(self) -> Sequence[rooms.Fit]:
        return ()  # a program takes as long as to look at the prices of another

    def cost(self, fit: rooms.Fit) -> Callable[[Floats], float]:
        hull = self._room.hull(fit.prices)
        return lambda level: float((self._room.demand(self._kind, level) * hull).sum())

    def free_level(self, level: Floats, cap: Floats) -> Floats:
        """Full at these prices and at earlier ones is full at their sum. There is always a new price, however small."""
        rest = np.where(self._priced, 0.0, self._prices * self._room.capacity)
        self._priced = self._priced | (rest > min(DUST, float(rest.max()) / 2))
        self._prices = 0.0 * self._prices
        free: Floats = self._room.free_level(self._priced)[self._kind]
        return free


class InSupply:
    """It fills up at most as often as there are speeds of classes to be had: from then on nobody of the class goes beyond."""

    def __init__(self, supply: Supply, top: Floats, earlier: InSupply | None = None) -> None:
        """`earlier` was filled with the same jobs in larger classes: whatever was too much for it is too much for this one."""
        self.name, self.top = supply.name, top
        self.times = len(supply.ways.sides.way) + len(supply.classes) + 1
        self._supply = supply
        self._bill = Bill(np.zeros((len(supply.classes), 0)), np.zeros((len(supply.classes), 0)))
        self._known: list[supplies.Fit] = []
        if earlier is not None:
            origin = supply.follows(earlier._supply)
            self._known = [replace(fit, bill=fit.bill.of(origin)) for fit in earlier._known]
        self._free = np.ones(len(supply.classes))  # by class, as a part of its fastest

    def asked(self, level: Floats) -> Asked:
        return self._supply.asked(level / self.top * self._supply.fastest)

    def fit(self, level: Floats) -> supplies.Fit:
        return self._supply.fit(self.asked(level), at_least=True)

    def overflows(self, fit: supplies.Fit) -> None:
        self._bill = fit.bill
        self._known = [fit, *(other for other in self._known if other is not fit)][:_REMEMBERED]

    def known(self) -> Sequence[supplies.Fit]:
        return self._known

    def cost(self, fit: supplies.Fit) -> Callable[[Floats], float]:
        speed, price = fit.bill.speed[self._supply.of] * self.top[:, None], fit.bill.price[self._supply.of] / self.top[:, None]
        return lambda level: float((np.maximum(level[:, None] - speed, 0.0) * price).sum())

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
