"""Tiresias+: consolidate a gang if it is known to run faster so.

    gain(job, type) = rate on as few nodes as possible / rate on more nodes − 1;  consolidated where gain > threshold

It asks the estimation, so it is as right as the profiles are (Blox §4.3, Figure 11), on whatever cluster and for whatever
models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.errors import InputError
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.selective import Wish, pack_selectively


@dataclass(frozen=True)
class TiresiasPlus:
    """Consolidate gangs that run faster so by more than a threshold; the others fill fragments (Blox §4.3).

    A gang that would not run spread at all (rate 0) waits until it can be consolidated; with `wait`, so does every gang that is
    to be.
    """

    threshold: float = 0.1
    wait: bool = False
    paper: ClassVar[str] = "Blox §4.3"

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InputError("placement tiresias-plus", "a number from 0 on", field="threshold", value=self.threshold)

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack_selectively(selection, view, self._wishes)

    def _wishes(self, view: Snapshot, jobs: Ints, types: Ints) -> list[Wish]:
        rates = view.rates
        row = rates.row[view.jobs.position_of(jobs)]
        together, apart = rates.alone[row, types], rates.spread[row, types]
        gains = together > apart * (1 + self.threshold)
        wishes = np.where(gains, Wish.TOGETHER_OR_LATER if self.wait else Wish.TOGETHER, Wish.ANYWHERE)
        wishes[gains & (apart <= 0)] = Wish.TOGETHER_OR_LATER
        return [Wish(wish) for wish in wishes.tolist()]
