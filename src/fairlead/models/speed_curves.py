"""The rate of a job by its number of workers, as a curve fitted to observed rates (Optimus §3.2, without parameter servers):

    1 / rate(w) ≈ θ₀ / w + θ₁ + θ₂ · w,   θ ≥ 0.

Observed at one size, a job is assumed to scale without loss; at two, with a constant part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats

TELLS = 0.1
"""The relative difference of rates from which on a new one is recorded."""

SLOWEST, FASTEST = 1e-9, 1e12  # credible rates, in steps per second


def speed_observation(seen: Sequence[Sequence[float]], workers: int, rate: float) -> dict[str, Any] | None:
    """The observation of a job's rates with this one added; None where it is not new, or not credible."""
    if not SLOWEST <= rate <= FASTEST:
        return None
    known = {int(size): float(speed) for size, speed in seen}
    if abs(rate - known.get(workers, 0.0)) <= TELLS * known.get(workers, 0.0):
        return None
    known[workers] = rate
    return {"seen": [[size, known[size]] for size in sorted(known)], "curve": fit_speeds(sorted(known.items()))}


def fit_speeds(seen: Sequence[tuple[int, float]]) -> list[float]:
    """θ with the least squares of relative errors; of curves with fewer parts, those that come first."""
    size, rate = np.array(seen, dtype=np.float64).T
    parts = np.stack((1 / size, np.ones(len(size)), size), axis=1) * rate[:, None]  # so that 1 is wanted everywhere
    found = list[tuple[float, list[float]]]()
    for count in range(1, min(len(seen), 3) + 1):
        for some in combinations(range(min(len(seen), 3)), count):
            theta, *_ = np.linalg.lstsq(parts[:, some], np.ones(len(size)))
            if (theta >= 0).all():
                whole = np.zeros(3)
                whole[list(some)] = theta
                found.append((round(float(((parts @ whole - 1) ** 2).sum()), 12), whole.tolist()))
    return min(found, key=lambda one: one[0])[1]


def rate_at(curve: Sequence[float] | Floats, workers: int) -> float:
    """The rate with so many workers by a fitted curve."""
    return float(1 / (curve[0] / workers + curve[1] + curve[2] * workers))
