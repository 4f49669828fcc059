"""How a job's loss falls as it trains: what a simulated world knows of a job and no scheduler may see, except for what the job
reports on its way. It knows neither files nor backends."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossCurve:
    """loss(x) = floor + (start − floor) · e^(−x / scale), where x is the share of its steps that a job has done."""

    start: float
    floor: float
    scale: float

    @property
    def wrong(self) -> str:
        """What would be right, or nothing."""
        good = 0 < self.floor <= self.start < math.inf and 0 < self.scale < math.inf
        return "" if good else "start|floor|scale with start ≥ floor > 0 and scale > 0"

    def at(self, share: float) -> float:
        return self.floor + (self.start - self.floor) * math.exp(-share / self.scale)

    def share_within(self, threshold: float) -> float:
        """The share of its steps after which the loss is within `threshold`, relatively, of its floor."""
        return max(0.0, self.scale * math.log((self.start - self.floor) / (threshold * self.floor)))

    @classmethod
    def converging(cls, at: float, floor: float, start: float, within: float) -> LossCurve:
        """The curve that comes within that of its floor after a share `at` of its steps."""
        return cls(start, floor, at / math.log((start - floor) / (within * floor)))
