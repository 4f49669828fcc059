"""Programs of policies that may co-locate two jobs, or consider gangs on many nodes (Gavel §3.1). The objective is solved over
a throughput polytope, and its solution is disaggregated to jobs and pairs of jobs.

Co-location inside a class may pair a job with itself. Then that job becomes a class of its own, and the program is solved
again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions, columns_of
from fairlead.policies.allocation.lp.disaggregation import SelfPairing
from fairlead.policies.allocation.lp.hull_model import HullModel
from fairlead.policies.allocation.lp.job_classes import JobClasses, no_allocation
from fairlead.policies.allocation.lp.level_search import DeadlineDemands, PricedFit
from fairlead.policies.allocation.lp.per_job_model import PerJobModel, all_differ
from fairlead.policies.allocation.lp.throughput_polytope import ThroughputPolytope

MAX_HULL_TYPES = 8
"""With more types than these, `Demands` has more answers than there are rows that a supply can be short of."""


class DemandModel(Protocol):
    """The feasible throughputs of jobs, by class. The types of required throughputs, used time and worth are each model's
    own."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> JobClasses: ...
    @property
    def present(self) -> Ints: ...  # rows of the view; columns by job follow it
    @property
    def class_of(self) -> Ints: ...
    @property
    def fastest(self) -> Floats: ...
    @property
    def hints(self) -> Floats | None: ...  # prices, for the next moment
    def to_demands(self, demand: Floats) -> Any: ...
    def fit(self, required: Any) -> Any: ...
    def is_full(self, fit: Any) -> bool: ...
    def job_costs(self, required: Any, fit: Any) -> Floats: ...
    def worth(self, unit: Floats, *, ordered: bool = False) -> Floats: ...
    def maximize(self, required: Any, worth: Floats, over: float = 0.0) -> Floats: ...
    def maximize_ratio(self, required: Any, worth: Floats, prices: Floats, over: float = 0.0) -> Floats: ...
    def min_level(
        self, demand: DeadlineDemands, lowest: float, highest: float, guess: float = 0.0
    ) -> tuple[float, Any, Any]: ...
    def allocation(
        self, numbers: Ints, required: Any, used: Floats, reasons: Mapping[int, Reason]
    ) -> Allocation | SelfPairing: ...


class PricedModel(DemandModel, Protocol):
    """A model of jobs that are each alone on types, with a price for each type."""

    @property
    def capacity(self) -> Ints: ...
    def fit(self, required: Any, *, at_least: bool = False) -> PricedFit: ...
    def cost_at(self, prices: Floats) -> Callable[[Floats], float]: ...
    def shares(self, required: Any, used: Floats) -> Floats: ...
    def likely_fits(self, demand: Callable[[float], Floats], end: float) -> Sequence[PricedFit]: ...


def model_of_types(name: str, classes: JobClasses, capacity: Ints, near: Floats | None = None) -> PricedModel:
    """The model of jobs alone on at most `MAX_HULL_TYPES` types. `near` are earlier prices."""
    if all_differ(classes):
        return PerJobModel(name, classes, capacity, near)
    return HullModel(name, classes, capacity, near)


@dataclass(frozen=True)
class ModelAnswer:
    """The time used, the throughputs that it must provide, and what else a policy returns."""

    used: Floats
    required: Any
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    memo: Memo = None
    level: Any = None  # the level reached


def solve_with_sharing(
    name: str,
    view: Snapshot,
    classes: JobClasses,
    sharing: SharingOptions,
    answer: Callable[[DemandModel, ModelAnswer | None], ModelAnswer],
    near: Floats | None = None,
) -> tuple[Allocation, Memo]:
    """Solve a policy's program and disaggregate the solution; return the allocation and the policy's memo. If `answer` is
    called again, it gets its last answer, which was for larger classes."""
    found: ModelAnswer | None = None
    classes = classes.for_sharing(view) if sharing.space_sharing else classes
    while True:
        model: DemandModel
        if sharing.alone and len(view.capacity) <= MAX_HULL_TYPES:
            model = model_of_types(name, classes, view.capacity, near)
        else:
            wanted = {"space_sharing": sharing.space_sharing, "placement_sensitive": sharing.placement_sensitive}
            model = ThroughputPolytope(name, classes, view.capacity, columns_of(classes, view, **wanted))
            if not len(model.cols):
                return no_allocation(view), None
        found = answer(model, found)
        dealt = model.allocation(view.jobs.number, found.required, found.used, found.reasons)
        if not isinstance(dealt, SelfPairing):
            return dealt, found.memo
        for job in view.jobs.number.searchsorted(np.array(dealt.jobs)).tolist():
            classes = classes.isolate_job(job)
