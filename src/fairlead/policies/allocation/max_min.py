"""Max-min fairness over weighted, normalised effective throughput (Gavel §4.1; LAS as an optimization problem):

    max_X min_m  (1/w_m) · s_m · throughput(m, X) / throughput(m, X_equal)

X_equal gives a job the same time on every accelerator of the cluster: on type j the fraction N_j / ΣN. The agnostic form takes
all types for equal and gives everybody the same mix of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.analytic_centre import centre
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions, apart, check_among, company, dealt
from fairlead.policies.allocation.lp.fair_shares import FairShares
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, in_class_order


@dataclass(frozen=True)
class MaxMinFairness:
    """Equal, weighted shares of time for all, whatever the accelerator: max-min fairness that knows no types.

    `among` the optima: `most` leaves nothing idle (water filling), `centre` is where an interior-point solver ends.
    """

    paper: ClassVar[str] = "Gavel §4.1 (Narayanan et al., OSDI'20)"
    among: Literal["most", "centre"] = "most"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view, alike=True)
        if not len(classes):
            return nothing(view), memo
        if self.among == "centre":
            each = middle(classes, view.capacity, classes.rates * classes.workers[:, None])
        else:
            mix = even_mix(classes, view.capacity)
            each = mix * level_out(classes, mix, view.capacity)[:, None]
        return classes.each(view, each), memo


@dataclass(frozen=True)
class MaxMinFairnessPerf(SharingOptions):
    """Equal, weighted progress for all, each on the types where its time is worth most: heterogeneity-aware max-min fairness.

    `among` the optima: `most` makes the most progress in all, `centre` is where an interior-point solver ends (as Gavel's).
    """

    paper: ClassVar[str] = "Gavel §4.1 (Narayanan et al., OSDI'20)"
    among: Literal["most", "centre"] = "most"
    _shares: FairShares = field(default_factory=lambda: FairShares("max-min fairness"), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_among("max-min-fairness-perf", self.among, self)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return nothing(view), memo
        gain = normalised(classes, view.capacity)
        if self.among == "centre":
            return classes.each(view, middle(classes, view.capacity, gain)), memo
        paired = company(classes, view, gain) if self.space_sharing else None
        spread = apart(classes, view, gain) if self.placement_sensitive else None
        worth = gain if spread is None else np.concatenate((gain, spread.gain), axis=1)
        want = classes.count * classes.weight
        filled = self._shares.solve(
            classes, view.capacity, gain, want, paired=paired, then=lambda: in_class_order(worth, classes), spread=spread
        )
        return dealt(classes, view, filled), memo


def nothing(view: Snapshot) -> Allocation:
    """For jobs that can run nowhere at the moment."""
    return Allocation.alone(view.jobs.number, np.zeros((len(view.jobs), len(view.capacity))))


def middle(classes: JobClasses, capacity: Ints, gain: Floats) -> Floats:
    """Of all optima the one in their middle: x of a member of each class."""
    return centre(classes.count, classes.workers, classes.weight, capacity, gain)


def normalised(classes: JobClasses, capacity: Ints) -> Floats:
    """Progress of a class's member by type, in units of what an equal share of the cluster would give it, times its workers."""
    equal = classes.rates @ (capacity / capacity.sum())
    gain: Floats = classes.rates / equal[:, None] * classes.workers[:, None]
    return gain


def even_mix(classes: JobClasses, capacity: Ints | Floats) -> Floats:
    """Classes × types: the types that a class may use in equal parts, as far as there are enough of each."""
    usable = (classes.rates > 0) & (capacity > 0)
    if usable.all():
        load = float((classes.count * classes.workers).sum())
        part = _poured(1.0, np.minimum(1.0, capacity / min(load, float(capacity.sum()))))
        return np.repeat(part[None, :], len(classes), axis=0)
    mix: Floats = usable / np.maximum(usable.sum(axis=1, keepdims=True), 1)
    return mix


def _poured(amount: float, room: Floats) -> Floats:
    """An amount in equal parts into vessels that may be too small for theirs."""
    part, open_ = np.zeros(len(room)), np.ones(len(room), dtype=np.bool_)
    while open_.any():
        each = (amount - part[~open_].sum()) / np.count_nonzero(open_)
        small = open_ & (room < each)
        if not small.any():
            part[open_] = each
            break
        part[small] = room[small]
        open_ &= ~small
    return part


def level_out(classes: JobClasses, mix: Floats, capacity: Ints | Floats) -> Floats:
    """The fraction of time of each class's members, by water filling: levels s·x/w rise together until a member runs always, or
    one of the types it uses is full."""
    speed = classes.weight / classes.workers  # how fast x rises with the level
    load = mix * (classes.count * classes.workers)[:, None]
    fraction, moving = np.zeros(len(classes)), np.ones(len(classes), dtype=np.bool_)
    left = capacity.astype(np.float64)
    while moving.any():
        rise = (load * (speed * moving)[:, None]).sum(axis=0)
        room = np.divide(left, rise, out=np.full(len(left), np.inf), where=rise > 1e-12)
        until_full = ((1.0 - fraction) / speed)[moving].min()
        step = min(float(room.min()), float(until_full))
        fraction[moving] += speed[moving] * step
        left = np.maximum(left - rise * step, 0.0)
        full = left <= 1e-9 * capacity
        moving &= (fraction < 1.0 - 1e-12) & ~((mix > 0) & full[None, :]).any(axis=1)
    return np.minimum(fraction, 1.0)
