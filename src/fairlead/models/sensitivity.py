"""The speed of a job by CPUs and host memory for each worker, as curves of a profile. 1 is the rate of a throughput table."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

BETWEEN, AT = "|", "@"
LEAST, MOST = 1e-6, 1e9
EXPECTED = f"amounts and speeds, both ascending, from {LEAST:g} to {MOST:g}, as in 3{AT}1{BETWEEN}9{AT}2.4"


@dataclass(frozen=True)
class Curve:
    """Points (amount, speed): linear between two, proportional below the first, constant behind the last."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str) -> Curve:
        """Raises ValueError with what was expected."""
        try:
            points = tuple((float(amount), float(speed)) for amount, speed in (p.split(AT) for p in text.split(BETWEEN)))
        except ValueError:
            raise ValueError(EXPECTED) from None
        amounts, speeds = zip(*points)
        rising = list(amounts) == sorted(set(amounts)) and list(speeds) == sorted(speeds)
        if not (rising and all(LEAST <= number <= MOST for number in (*amounts, *speeds))):  # neither is what is no number
            raise ValueError(EXPECTED)
        return cls(points)

    @cached_property
    def enough(self) -> float:
        """The least amount with which a job is as fast as it can be."""
        return next(amount for amount, speed in self.points if speed == self.points[-1][1])

    def speed(self, amount: float) -> float:
        at = bisect_right(self.points, amount, key=lambda point: point[0])
        if at == len(self.points):
            return self.points[-1][1]
        (low, slow), (high, fast) = self.points[at - 1] if at else (0.0, 0.0), self.points[at]
        return slow + (fast - slow) * (amount - low) / (high - low)


@dataclass(frozen=True)
class Sensitivity:
    """Both curves of a job; None where it does not matter."""

    cpus: Curve | None = None
    memory_gb: Curve | None = None

    def speed(self, cpus: float, memory_gb: float) -> float:
        pairs = ((self.cpus, cpus), (self.memory_gb, memory_gb))
        by_cpus, by_memory = (1.0 if curve is None else curve.speed(amount) for curve, amount in pairs)
        return by_cpus * by_memory
