"""The slowdown of jobs that share an accelerator, from the utilization of each alone (Horus §3.2, Equations 1 and 9): seconds
per step co-located over seconds per step alone.

Below 100 % of cumulative utilization it is linear, above quadratic, in a job's own utilization and in that of the others.
Under MPS, `others` is the share of multiprocessors that the others hold, and `kernel_length_ratio` log₁₀ of the length of their
kernels over the length of its own (0: equal, or not known). The cost of co-location that policies minimize is in
`policies/colocation/pairing/colocation_cost.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.models.learned_models import sane

FULL = 100.0  # percent: beyond it an accelerator is over-committed


@dataclass(frozen=True)
class Slowdown:
    """Coefficients over `terms`, with or without kernel length ratio, and the standard deviations of the residuals."""

    below: tuple[float, ...]
    above: tuple[float, ...]
    spread_below: float = 0.0
    spread_above: float = 0.0

    def slowdowns(self, utilization: Floats, held: Floats | None = None, kernel_s: Floats | None = None) -> Floats:
        """The slowdown of each job on one accelerator. `utilization` is in percent; `held` is the share that
        others wait for, if it differs from utilization; `kernel_s` is the mean length of the job's kernels."""
        own = np.asarray(utilization, dtype=float)
        if len(own) < 2:
            return np.ones(len(own))
        holds = own if held is None else np.asarray(held, dtype=float)
        ratios = None if kernel_s is None else kernel_length_ratios(holds, np.asarray(kernel_s, dtype=float))
        return self.of(own, holds.sum() - holds, ratios)

    def of(self, own: Floats, others: Floats, kernel_length_ratio: Floats | None = None) -> Floats:
        """The slowdowns for many accelerators at once, by columns. Beyond one full neighbour, time is divided in proportion."""
        neighbour = np.minimum(others, FULL)
        total = own + neighbour
        if len(self.below) == len(BELOW):
            kernel_length_ratio = None
        elif kernel_length_ratio is None:
            kernel_length_ratio = np.zeros_like(total)
        below, above = (terms(own, neighbour, degree, kernel_length_ratio) for degree in (1, 2))
        fitted = np.where(total <= FULL, below @ self.below, above @ self.above)
        crowded: Floats = np.divide(own + others, total, out=np.ones_like(total), where=total > 0)
        return np.maximum(fitted, 1.0) * crowded

    def spread(self, own: Floats, others: Floats) -> Floats:
        """The expected error of `of`, as a standard deviation."""
        return np.where(np.asarray(own) + np.asarray(others) <= FULL, self.spread_below, self.spread_above)

    def to_data(self) -> dict[str, Any]:
        return {"below": list(self.below), "above": list(self.above), "spread": [self.spread_below, self.spread_above]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: object) -> Slowdown:
        try:
            below, above = (tuple(float(each) for each in data[part]) for part in ("below", "above"))
            spread_below, spread_above = (float(each) for each in data["spread"])
        except (KeyError, TypeError, ValueError):
            raise InputError(source, "below, above and spread, as lists of numbers", field="slowdown") from None
        if (len(below), len(above)) not in SIZES or not sane((*below, *above, spread_below, spread_above)):
            raise InputError(source, "3 finite coefficients below 100 % and 6 above, or 4 and 8", field="slowdown")
        if min(spread_below, spread_above) < 0:
            raise InputError(source, "spreads of at least 0", field="spread", value=[spread_below, spread_above])
        return cls(below, above, spread_below, spread_above)


def fit(own: Floats, others: Floats, slowdown: Floats, kernel_length_ratio: Floats | None = None) -> Slowdown:
    """Least squares, each piece by itself."""
    parts: list[tuple[tuple[float, ...], float]] = []
    for inside, degree in ((own + others <= FULL, 1), (own + others > FULL, 2)):
        ratio = None if kernel_length_ratio is None else kernel_length_ratio[inside]
        columns = terms(own[inside], others[inside], degree, ratio)
        if len(columns) <= columns.shape[1]:
            raise InputError(
                "pairs", f"more than {columns.shape[1]} below and above 100 % each", field="pairs", value=len(columns)
            )
        found = np.linalg.lstsq(columns, slowdown[inside], rcond=None)[0]
        residual = slowdown[inside] - columns @ found
        parts.append((tuple(found.tolist()), float(residual.std(ddof=columns.shape[1]))))
    (below, spread_below), (above, spread_above) = parts
    return Slowdown(below, above, spread_below, spread_above)


BELOW, ABOVE = ("1", "own", "others"), ("1", "own", "others", "own²", "own · others", "others²")
RATIO = ("own · others · grain", "own · others² · grain")  # `grain` stands for the kernel length ratio
SIZES = ((len(BELOW), len(ABOVE)), (len(BELOW) + 1, len(ABOVE) + 2))
"""The numbers of coefficients below and above 100 %, without and with the kernel length ratio."""


def terms(own: Floats, others: Floats, degree: int, kernel_length_ratio: Floats | None = None) -> Floats:
    """Columns of a polynomial of two shares: 1, own, others; degree 2 adds squares and product, a ratio adds its products."""
    mine, theirs = np.asarray(own, dtype=float) / FULL, np.asarray(others, dtype=float) / FULL
    columns = [np.ones_like(mine), mine, theirs]
    if degree == 2:
        columns += [mine * mine, mine * theirs, theirs * theirs]
    if kernel_length_ratio is not None:
        coarse = mine * theirs * kernel_length_ratio
        columns += [coarse, coarse * theirs] if degree == 2 else [coarse]
    return np.stack(columns, axis=-1)


def kernel_length_ratios(held: Floats, kernel_s: Floats) -> Floats:
    """The ratio of each job on one accelerator; several others count by their mean, weighted by the shares that they hold."""
    long = np.log10(np.maximum(kernel_s, SHORTEST_S))
    weight = np.maximum(held, 1e-9)
    others = ((weight * long).sum() - weight * long) / (weight.sum() - weight)
    return np.asarray(others - long)


SHORTEST_S = 1e-6  # the least length of a kernel
