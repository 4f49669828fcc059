"""The slowdown of jobs that share an accelerator, from the utilization of each alone (Horus §3.2, Equations 1 and 9): seconds
per step co-located over seconds per step alone.

Below 100 % of cumulative utilization it is linear, above quadratic, in a job's own utilization and in that of the others.
Under MPS, `others` is the share of multiprocessors that the others hold, and `grain` the logarithm, base 10, of how many times
longer their kernels are than its own (0: alike, or not known). The cost of co-location that policies minimize is in
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
    """Coefficients over `terms`, with grain or without, and the standard deviations of what they missed."""

    below: tuple[float, ...]
    above: tuple[float, ...]
    spread_below: float = 0.0
    spread_above: float = 0.0

    def slowdowns(self, utilization: Floats, held: Floats | None = None, kernel_s: Floats | None = None) -> Floats:
        """The slowdown of each job on one accelerator. `utilization` is in percent; `held` is what makes others wait, where
        that is something else; `kernel_s` is the mean length of its kernels."""
        own = np.asarray(utilization, dtype=float)
        if len(own) < 2:
            return np.ones(len(own))
        holds = own if held is None else np.asarray(held, dtype=float)
        return self.of(own, holds.sum() - holds, None if kernel_s is None else grains(holds, np.asarray(kernel_s, dtype=float)))

    def of(self, own: Floats, others: Floats, grain: Floats | None = None) -> Floats:
        """The same by columns, for many accelerators at once. Beyond one full neighbour, time is divided in proportion."""
        beside = np.minimum(others, FULL)
        total = own + beside
        if len(self.below) == len(BELOW):
            grain = None
        elif grain is None:
            grain = np.zeros_like(total)
        below, above = (terms(own, beside, degree, grain) for degree in (1, 2))
        fitted = np.where(total <= FULL, below @ self.below, above @ self.above)
        crowded: Floats = np.divide(own + others, total, out=np.ones_like(total), where=total > 0)
        return np.maximum(fitted, 1.0) * crowded

    def spread(self, own: Floats, others: Floats) -> Floats:
        """How far off `of` is to be expected, as a standard deviation."""
        return np.where(np.asarray(own) + np.asarray(others) <= FULL, self.spread_below, self.spread_above)

    def kept(self) -> dict[str, Any]:
        return {"below": list(self.below), "above": list(self.above), "spread": [self.spread_below, self.spread_above]}

    @classmethod
    def restored(cls, data: Mapping[str, Any], source: object) -> Slowdown:
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


def fit(own: Floats, others: Floats, slowdown: Floats, grain: Floats | None = None) -> Slowdown:
    """Least squares, each piece by itself."""
    parts: list[tuple[tuple[float, ...], float]] = []
    for inside, degree in ((own + others <= FULL, 1), (own + others > FULL, 2)):
        columns = terms(own[inside], others[inside], degree, None if grain is None else grain[inside])
        if len(columns) <= columns.shape[1]:
            raise InputError(
                "pairs", f"more than {columns.shape[1]} below and above 100 % each", field="pairs", value=len(columns)
            )
        found = np.linalg.lstsq(columns, slowdown[inside], rcond=None)[0]
        missed = slowdown[inside] - columns @ found
        parts.append((tuple(found.tolist()), float(missed.std(ddof=columns.shape[1]))))
    (below, spread_below), (above, spread_above) = parts
    return Slowdown(below, above, spread_below, spread_above)


BELOW, ABOVE = ("1", "own", "others"), ("1", "own", "others", "own²", "own · others", "others²")
GRAIN = ("own · others · grain", "own · others² · grain")
SIZES = ((len(BELOW), len(ABOVE)), (len(BELOW) + 1, len(ABOVE) + 2))
"""How many coefficients there are below and above 100 %, without grain and with it."""


def terms(own: Floats, others: Floats, degree: int, grain: Floats | None = None) -> Floats:
    """A polynomial of two shares by columns: 1, own, others; degree 2: squares and product; with grain, its products."""
    mine, theirs = np.asarray(own, dtype=float) / FULL, np.asarray(others, dtype=float) / FULL
    columns = [np.ones_like(mine), mine, theirs]
    if degree == 2:
        columns += [mine * mine, mine * theirs, theirs * theirs]
    if grain is not None:
        coarse = mine * theirs * grain
        columns += [coarse, coarse * theirs] if degree == 2 else [coarse]
    return np.stack(columns, axis=-1)


def grains(held: Floats, kernel_s: Floats) -> Floats:
    """Of each of the jobs on one accelerator; of several others the mean, by what they hold."""
    long = np.log10(np.maximum(kernel_s, SHORTEST_S))
    weight = np.maximum(held, 1e-9)
    others = ((weight * long).sum() - weight * long) / (weight.sum() - weight)
    return np.asarray(others - long)


SHORTEST_S = 1e-6  # that a kernel takes
