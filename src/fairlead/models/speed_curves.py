"""The rate of a job by its number of workers, as a curve fitted to observed rates (Optimus §3.2, without parameter servers):

    1 / rate(w) ≈ θ₀ / w + θ₁ + θ₂ · w,   θ ≥ 0.

A job observed at one size is assumed to scale without loss; at two sizes, θ₁ is fitted too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats

MIN_CHANGE = 0.1
"""The relative change of a rate from which on it is recorded."""

MIN_RATE, MAX_RATE = 1e-9, 1e12  # credible rates, in steps per second


def speed_observation(seen: Sequence[Sequence[float]], workers: int, rate: float) -> dict[str, Any] | None:
    """The observation of a job's rates with this one added; None if the rate is not new, or not credible."""
    if not MIN_RATE <= rate <= MAX_RATE:
        return None
    known = {int(size): float(speed) for size, speed in seen}
    if abs(rate - known.get(workers, 0.0)) <= MIN_CHANGE * known.get(workers, 0.0):
        return None
    known[workers] = rate
    return {"seen": [[size, known[size]] for size in sorted(known)], "curve": fit_speeds(sorted(known.items()))}


def fit_speeds(seen: Sequence[tuple[int, float]]) -> list[float]:
    """θ with the least squared relative errors; ties go to the curve with fewer terms."""
    size, rate = np.array(seen, dtype=np.float64).T
    terms = np.stack((1 / size, np.ones(len(size)), size), axis=1) * rate[:, None]  # times the rate: the target is 1
    found = list[tuple[float, list[float]]]()
    for count in range(1, min(len(seen), 3) + 1):
        for used_terms in combinations(range(min(len(seen), 3)), count):
            theta, *_ = np.linalg.lstsq(terms[:, used_terms], np.ones(len(size)))
            if (theta >= 0).all():
                theta_full = np.zeros(3)
                theta_full[list(used_terms)] = theta
                found.append((round(float(((terms @ theta_full - 1) ** 2).sum()), 12), theta_full.tolist()))
    return min(found, key=lambda one: one[0])[1]


def rate_at(curve: Sequence[float] | Floats, workers: int) -> float:
    """The rate with this number of workers, by a fitted curve."""
    return float(1 / (curve[0] / workers + curve[1] + curve[2] * workers))
