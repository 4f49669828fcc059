"""Steps as jobs count them, and as they were declared. A job whose batch size grows makes fewer steps of more work each; the
state counts steps of the size it began with, as simulations do, so that what is left of a job does not change with its size:

    declared = Σ over batch sizes of (steps made at it) · size / first size.

Sizes are seen when a worker's page is read, so a change is known to within what was done between two looks. Where the size is
another at most looks, steps are counted by the mean of those seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlead.core.adaptation import Regime


class _Stretch(NamedTuple):
    size: int
    made: float  # steps of the job's own count at which it began
    declared: float


SETTLED = 10
"""Looks in a row at which a job has the same size, after which it is that."""
CHANGES = 3
"""So often a size may become another before any has settled."""
TELLS = 0.1
"""A difference of mean sizes that is worth telling."""


class Sizes:
    """Which batch size counts for one job, out of those seen from look to look."""

    def __init__(self) -> None:
        self._last = self._alike = self._changes = 0
        self._swings: list[int] = [0, 0]  # looks since it changes faster than can be followed, and the sum of their sizes
        self._mean = 0

    def see(self, size: int) -> int:
        """The one that it has; or the mean of those seen, where it changes faster than can be followed."""
        self._changes += self._last not in (0, size)
        self._alike = self._alike + 1 if size == self._last else 1
        self._last = size
        if self._alike >= SETTLED:
            self._changes, self._swings, self._mean = 0, [0, 0], 0
        if self._changes <= CHANGES:
            return size
        self._swings = [self._swings[0] + 1, self._swings[1] + size]
        mean = self._swings[1] / self._swings[0]
        if abs(mean - self._mean) > TELLS * self._mean:
            self._mean = round(mean)
        return self._mean


class Counted:
    """One job's batch sizes so far."""

    def __init__(self, regimes: Iterable[Regime] = ()) -> None:
        """With what the state knows of them, after a restart."""
        self._stretches: list[_Stretch] = []
        for regime in regimes:
            self._stretches.append(_Stretch(regime.batch_size, self.made(regime.from_steps), regime.from_steps))

    def hear(self, made: float, size: int) -> bool:
        """The size of the steps behind so many; whether it is another than before. What was done at later ones was lost, and is
        done again."""
        kept = [stretch for stretch in self._stretches if stretch.made < made]
        another = not kept or kept[-1].size != size
        if another:
            kept.append(_Stretch(size, made if kept else 0.0, self.declared(made) if kept else 0.0))
        self._stretches = kept
        return another

    @property
    def worth(self) -> float:
        """How many declared steps one is at present."""
        return self._worth(self._stretches[-1]) if self._stretches else 1.0

    def declared(self, made: float) -> float:
        since = next((stretch for stretch in reversed(self._stretches) if stretch.made <= made), None)
        return made if since is None else since.declared + (made - since.made) * self._worth(since)

    def made(self, declared: float) -> float:
        since = next((stretch for stretch in reversed(self._stretches) if stretch.declared <= declared), None)
        return declared if since is None else since.made + (declared - since.declared) / self._worth(since)

    def _worth(self, stretch: _Stretch) -> float:
        return stretch.size / self._stretches[0].size
