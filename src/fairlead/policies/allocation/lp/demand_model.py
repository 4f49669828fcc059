"""Policies that may put two jobs on one accelerator, or reckon with gangs that stand apart (Gavel §3.1): whatever they
maximise, it is a program over a supply, and its answer is dealt out to jobs and pairs of jobs.

Company inside a class may come out such that somebody would be beside itself. Then that job becomes a class of its own, and the
policy is asked again; with every job in its own class nobody can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions, ways_of
from fairlead.policies.allocation.lp.hull_model import Demands
from fairlead.policies.allocation.lp.disaggregation import Clash
from fairlead.policies.allocation.lp.job_classes import JobClasses, nothing
from fairlead.policies.allocation.lp.level_search import Paces
from fairlead.policies.allocation.lp.throughput_polytope import Supply

MANY = 8
"""With more types than these, `Demands` has more answers than there are rows that a supply can be short of."""


class Means(Protocol):
    """What the jobs of a moment can be given, by class: with `Demands` each alone on types, with `Supply` in company as well.

    What is `asked` of them, how much of what is used, and what time is worth, is each one's own matter."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> JobClasses: ...
    @property
    def there(self) -> Ints: ...  # rows of the view; columns by job follow it
    @property
    def of(self) -> Ints: ...
    @property
    def fastest(self) -> Floats: ...
    @property
    def near(self) -> Floats | None: ...  # prices, for the next moment
    def asked(self, demand: Floats) -> Any: ...
    def fit(self, asked: Any) -> Any: ...
    def is_full(self, fit: Any) -> bool: ...
    def paid(self, asked: Any, fit: Any) -> Floats: ...
    def worth(self, unit: Floats, *, ordered: bool = False) -> Floats: ...
    def most(self, asked: Any, worth: Floats, over: float = 0.0) -> Floats: ...
    def best_ratio(self, asked: Any, worth: Floats, prices: Floats, over: float = 0.0) -> Floats: ...
    def least_level(self, demand: Paces, lowest: float, highest: float, guess: float = 0.0) -> tuple[float, Any, Any]: ...
    def allocation(self, numbers: Ints, asked: Any, used: Floats, reasons: Mapping[int, Reason]) -> Allocation | Clash: ...


@dataclass(frozen=True)
class Answer:
    """What is used, what it is to be enough for, and what else a policy has to say."""

    used: Floats
    asked: Any
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    memo: Memo = None
    level: Any = None  # what was reached


def shared(
    name: str,
    view: Snapshot,
    classes: JobClasses,
    sharing: SharingOptions,
    answer: Callable[[Means, Answer | None], Answer],
    near: Floats | None = None,
) -> tuple[Allocation, Memo]:
    """The allocation that a policy's answer comes to, and what it remembers. `near` are prices of an earlier moment.

    Where it is asked again, it is told its last answer, for classes that were larger: it can do as well, but no better."""
    found: Answer | None = None
    while True:
        means: Means
        if sharing.alone and len(view.capacity) <= MANY:
            means = Demands(name, classes, view.capacity, near)
        else:
            wanted = {"space_sharing": sharing.space_sharing, "placement_sensitive": sharing.placement_sensitive}
            means = Supply(name, classes, view.capacity, ways_of(classes, view, **wanted))
            if not len(means.ways):
                return nothing(view), None
        found = answer(means, found)
        dealt = means.allocation(view.jobs.number, found.asked, found.used, found.reasons)
        if not isinstance(dealt, Clash):
            return dealt, found.memo
        for job in view.jobs.number.searchsorted(np.array(dealt.jobs)).tolist():
            classes = classes.but_one(job)
