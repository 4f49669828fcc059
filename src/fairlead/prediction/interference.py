"""How much slower jobs get that share an accelerator, from how busy each would keep it alone (Horus §3.2, Equations 1 and 9).

A slowdown is seconds per step together over seconds per step alone: 1 is undisturbed, 2 is half the speed. Below 100 % of
cumulative utilization it is linear, above quadratic, in a job's own utilization and in that of the others: with the two apart,
the one who suffers more is told from the one who suffers less, which a function of the sum alone cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.prediction.learned import sane

FULL = 100.0  # percent: beyond it an accelerator is over-committed


@dataclass(frozen=True)
class Slowdown:
    """Coefficients over `terms`, `below` of degree 1, `above` of degree 2, and the standard deviations of what they missed."""

    below: tuple[float, ...]
    above: tuple[float, ...]
    spread_below: float = 0.0
    spread_above: float = 0.0

    def slowdowns(self, utilization: Floats) -> Floats:
        """Of each of the jobs on one accelerator, whose utilizations alone are given in percent. At least 1; one job has 1."""
        own = np.asarray(utilization, dtype=float)
        if len(own) < 2:
            return np.ones(len(own))
        return self.of(own, own.sum() - own)

    def of(self, own: Floats, others: Floats) -> Floats:
        """The same by columns, for many accelerators at once. What was fitted to pairs knows of one full neighbour at most;
        beyond that, time is divided in proportion."""
        beside = np.minimum(others, FULL)
        total = own + beside
        fitted = np.where(total <= FULL, terms(own, beside, 1) @ self.below, terms(own, beside, 2) @ self.above)
        crowded: Floats = np.maximum(fitted, 1.0) * np.where(total > 0, (own + others) / np.maximum(total, 1e-9), 1.0)
        return crowded

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
        if (len(below), len(above)) != (3, 6) or not sane((*below, *above, spread_below, spread_above)):
            raise InputError(source, "3 finite coefficients below 100 % and 6 above", field="slowdown")
        if min(spread_below, spread_above) < 0:
            raise InputError(source, "spreads of at least 0", field="spread", value=[spread_below, spread_above])
        return cls(below, above, spread_below, spread_above)


def fit(own: Floats, others: Floats, slowdown: Floats) -> Slowdown:
    """Least squares, each piece by itself."""
    parts: list[tuple[tuple[float, ...], float]] = []
    for inside, degree in ((own + others <= FULL, 1), (own + others > FULL, 2)):
        columns = terms(own[inside], others[inside], degree)
        if len(columns) <= columns.shape[1]:
            raise InputError(
                "pairs", f"more than {columns.shape[1]} below and above 100 % each", field="pairs", value=len(columns)
            )
        found = np.linalg.lstsq(columns, slowdown[inside], rcond=None)[0]
        missed = slowdown[inside] - columns @ found
        parts.append((tuple(found.tolist()), float(missed.std(ddof=columns.shape[1]))))
    (below, spread_below), (above, spread_above) = parts
    return Slowdown(below, above, spread_below, spread_above)


def terms(own: Floats, others: Floats, degree: int) -> Floats:
    """A polynomial of two shares of an accelerator, by columns: 1, own, others; of degree 2 also their squares and product."""
    mine, theirs = np.asarray(own, dtype=float) / FULL, np.asarray(others, dtype=float) / FULL
    columns = [np.ones_like(mine), mine, theirs]
    if degree == 2:
        columns += [mine * mine, mine * theirs, theirs * theirs]
    return np.stack(columns, axis=-1)


PLAIN = Slowdown(below=(1.0, 0.0, 0.1), above=(0.2, 0.45, 0.45, 0.1, 0.6, 0.1))
"""Nothing fitted: two light jobs hardly disturb each other, two full ones have about half the speed."""
