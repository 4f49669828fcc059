"""How much slower jobs get that share an accelerator, from how busy each would keep it alone (Horus §3.2, Equations 1 and 9).

A slowdown is seconds per step together over seconds per step alone: 1 is undisturbed, 2 is half the speed. Below 100 % of
cumulative utilization it is linear, above quadratic, in a job's own utilization and in that of the others: with the two apart,
the one who suffers more is told from the one who suffers less, which a function of the sum alone cannot do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats

FULL = 100.0  # percent: beyond it an accelerator is over-committed


@dataclass(frozen=True)
class Slowdown:
    """Coefficients over `terms`: `below` of degree 1, `above` of degree 2."""

    below: tuple[float, ...]
    above: tuple[float, ...]

    def slowdowns(self, utilization: Floats) -> Floats:
        """Of each of the jobs on one accelerator, whose utilizations alone are given in percent. At least 1; one job has 1."""
        own = np.asarray(utilization, dtype=float)
        if len(own) < 2:
            return np.ones(len(own))
        others = own.sum() - own
        return self.of(own, others)

    def of(self, own: Floats, others: Floats) -> Floats:
        """The same by columns, for many accelerators at once. What was fitted to pairs knows of one full neighbour at most;
        beyond that, time is divided in proportion."""
        beside = np.minimum(others, FULL)
        total = own + beside
        fitted = np.where(total <= FULL, terms(own, beside, 1) @ self.below, terms(own, beside, 2) @ self.above)
        crowded: Floats = np.maximum(fitted, 1.0) * (own + others) / np.maximum(total, 1e-9)
        return crowded


def terms(own: Floats, others: Floats, degree: int) -> Floats:
    """A polynomial of two shares of an accelerator, by columns: 1, own, others; of degree 2 also their squares and product."""
    mine, theirs = np.asarray(own, dtype=float) / FULL, np.asarray(others, dtype=float) / FULL
    columns = [np.ones_like(mine), mine, theirs]
    if degree == 2:
        columns += [mine * mine, mine * theirs, theirs * theirs]
    return np.stack(columns, axis=-1)


PLAIN = Slowdown(below=(1.0, 0.0, 0.1), above=(0.2, 0.45, 0.45, 0.1, 0.6, 0.1))
"""Nothing fitted: two light jobs hardly disturb each other, two full ones have about half the speed."""
