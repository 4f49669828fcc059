"""Steps as jobs count them, and as they were declared. A job whose batch size grows makes fewer steps of more work each; the
state counts steps of the size it began with, as simulations do, so that what is left of a job does not change with its size:

    declared = Σ over batch sizes of (steps made at it) · size / first size.

Sizes are seen when a worker's page is read, so a change is known to within what was done between two looks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlead.core.adaptation import Regime


class _Stretch(NamedTuple):
    size: int
    made: float  # steps of the job's own count at which it began
    declared: float


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
