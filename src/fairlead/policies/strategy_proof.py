"""Shares that nobody can improve by telling other rates than the true ones: the partial allocation mechanism (Cole, Gkatzelis
and Goel, EC'13) over proportional fairness. With X* of the most Nash welfare, and X⁻ᵐ the same without job m, job m gets

    X_m = f_m · X*_m,   f_m = ( Π_{i≠m} (throughput(i, X*) / throughput(i, X⁻ᵐ))^w_i )^(1/w_m)

that is, as much less as its presence harms the others. What it ends with is Π_i throughput(i, X*)^w_i over something that it
has no part in, and X* of the true rates makes that the most. 1/e ≤ f_m ≤ 1, since Σ_i w_i·throughput(i, X) / throughput(i, X*)
≤ Σ_i w_i.

What it gives up is Pareto efficiency: the time cut off is left idle. No mechanism has both with a sharing incentive (Gavel
§4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.max_min import nothing
from fairlead.policies.nash import nash
from fairlead.policies.programs.classes import Classes, classes_of

_AT_ONCE = 64
"""Markets solved together; more would only need more memory."""


@dataclass(frozen=True)
class StrategyProofPerf:
    """Proportionally fair progress, less what a job's presence costs the others: nobody gains by misreporting its rates.

    Not work conserving: up to 1 − 1/e of a job's time is left idle. A mechanism that gives what is left over to whoever waits
    (`turns`, unless `leftovers=false`) makes use of it, and makes the promise void.
    """

    paper: ClassVar[str] = "Gavel §4.4 (OSDI'20); Cole, Gkatzelis and Goel (EC'13)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return nothing(view), memo
        time, kept = partial(classes, view.capacity)
        return classes.each(view, time * kept[:, None]), memo


def partial(classes: Classes, capacity: Ints) -> tuple[Floats, Floats]:
    """By class: a member's time by type under proportional fairness, and the part of it that it keeps."""
    count = classes.count.astype(np.float64)
    kinds = len(classes)
    everybody = _market(classes, count[None, :], capacity)[0]
    kept = np.empty(kinds)
    value = (classes.rates * everybody).sum(axis=1)
    for begin in range(0, kinds, _AT_ONCE):
        absent = np.arange(begin, min(begin + _AT_ONCE, kinds))
        others = np.repeat(count[None, :], len(absent), axis=0)
        others[np.arange(len(absent)), absent] -= 1.0
        better = (classes.rates * _market(classes, others, capacity)).sum(axis=2)
        harm = (others * classes.weight * np.log(value / better)).sum(axis=1) / classes.weight[absent]
        kept[absent] = np.exp(np.minimum(harm, 0.0))
    return everybody, kept


def _market(classes: Classes, count: Floats, capacity: Ints) -> Floats:
    return nash(classes.rates, count, classes.weight, classes.workers, capacity)
