"""A mean and how far it can be trusted, for comparisons over a few seeds. Pure arithmetic; it knows no metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

_LARGE = 1_000  # degrees of freedom from which the normal quantile with one correction is good to six digits


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The mean and the half width of its confidence interval (Student's t). One value has no width: NaN."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    known = [float(v) for v in values if math.isfinite(v)]
    if not known:
        return math.nan, math.nan
    if len(known) == 1:
        return known[0], math.nan
    return fmean(known), student_t(len(known) - 1, level) * stdev(known) / math.sqrt(len(known))


def student_t(freedom: int, level: float) -> float:
    """The t that a variable of Student's distribution stays within, on both sides, with probability `level`."""
    if freedom > _LARGE:
        z = NormalDist().inv_cdf((1 + level) / 2)
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, math.pi / 2  # the angle of t = √freedom · tan θ, in which the probability is a finite sum
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| ≤ √ν tan θ) for whole ν: a sum of powers of cos θ, with a term for the angle itself where ν is odd."""
    cosine = math.cos(angle)
    odd = freedom % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
