"""Partial allocation (Cole, Gkatzelis and Goel, EC'13; Themis §4): bids for some of a pool of like things, the division that is
proportionally fair, and what each winner pays for being there. It knows numbers and no jobs.

    division:  max Π_i V_i(g_i)   s.t.  Σ_i g_i ≤ pool
    payment:   winner i keeps the part  c_i = Π_{j≠i} V_j(with i there) / Π_{j≠i} V_j(without i),  at least 1/e

Things come in ones, so the division is exact by dynamic programming over the pool. Who has nothing, and is worth nothing so,
comes before everybody else, as a product with a 0 is one; where not all of them can be served, as many as possible are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats, Ints

LEAST_KEPT = 1 / math.e
"""What a winner keeps at least. The mechanism promises it where things can be divided; where they cannot, it is kept to."""

_FROM_NOTHING = 1e6
"""The logarithm of how much better something is than nothing: more than all others together can gain."""
_TIE = 1e-6
"""Gains that differ by less are the same: what rounding leaves of sums with `_FROM_NOTHING`."""


@dataclass(frozen=True)
class Bid:
    """What a bidder would take, ascending, and its worth with each (above 0) and with nothing (0 or more)."""

    sizes: tuple[int, ...]
    worths: tuple[float, ...]
    nothing: float

    @property
    def gains(self) -> list[float]:
        """The logarithm of each size's worth, over that of nothing."""
        if self.nothing > 0:
            return [math.log(worth / self.nothing) for worth in self.worths]
        return [_FROM_NOTHING + math.log(worth) for worth in self.worths]


def partial_allocation(bids: Sequence[Bid], pool: int) -> tuple[Ints, Floats]:
    """How much each bidder gets, and which part of it it keeps; of equally fair divisions, the one that gives more to earlier
    bidders."""
    if sum(bid.sizes[-1] for bid in bids) <= pool:
        return np.array([bid.sizes[-1] for bid in bids], dtype=np.int64), np.ones(len(bids))
    gains = [bid.gains for bid in bids]
    before = _reached(bids, gains, pool)
    given, won = np.zeros(len(bids), dtype=np.int64), np.zeros(len(bids))
    left = pool
    for at in range(len(bids) - 1, -1, -1):
        best = before[at + 1][left]
        for size, gain in zip((0, *bids[at].sizes), (0.0, *gains[at])):
            if size <= left and before[at][left - size] + gain >= best - _TIE:
                given[at], won[at] = size, gain
                left -= size
                break
    behind = _reached(bids[::-1], gains[::-1], pool)[::-1]
    kept = np.ones(len(bids))
    for at in given.nonzero()[0].tolist():
        without = float((before[at] + behind[at + 1][::-1]).max())
        kept[at] = math.exp(min(0.0, max(-1.0, float(won.sum()) - float(won[at]) - without)))
    return given, kept


def _reached(bids: Sequence[Bid], gains: Sequence[Sequence[float]], pool: int) -> list[Floats]:
    """The most that the first bidders can gain, none of them, one, two, …: each by what they have together."""
    reached = [np.zeros(pool + 1)]
    for bid, gained in zip(bids, gains):
        best = reached[-1].copy()
        for size, gain in zip(bid.sizes, gained):
            if size <= pool:
                best[size:] = np.maximum(best[size:], reached[-1][: pool + 1 - size] + gain)
        reached.append(best)
    return reached
