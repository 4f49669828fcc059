"""The estimators `predicted` and `monitored`: co-located rates from utilization and memory by kind (`colocated_rates.py`).
`predicted` takes exclusive rates from a table; `monitored` from reports of running jobs, for real clusters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.columns import JobColumns
from fairlead.core.observations import observation_name
from fairlead.core.plan import Observations, ObservedValues, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import RateTable, TableRows, partners, rate_columns
from fairlead.estimators.colocated_rates import ColocationModel, usage_observations
from fairlead.estimators.measured import Measured


@dataclass(frozen=True)
class _WithTable:
    """The first parameter of an estimator that reads a table."""

    table: RateTable = field(repr=False)


@dataclass(frozen=True)
class Predicted(ColocationModel, _WithTable):
    """Predict utilization and memory by job type, and derive the slowdown of two co-located jobs from them.

    `usage` has, by kind or model, the utilization of an accelerator in percent and the memory in GB of one worker. The slowdown
    is a polynomial of the two utilizations, fitted to measured pairs that shared as `sharing` says: `time-slicing` or `mps`.
    `below` and `above` replace its coefficients: of 1, own, other while both sum to at most 100 percent; above that also of
    own², own · other, other². Under MPS the multiprocessors that the other job occupies count instead: `sm_usage` has, by kind
    or model, their percentage and the length of a kernel in microseconds. A kind without usage is assumed to fill its
    accelerator and is not co-located. `profiles` names a shipped set of measurements for kinds without an entry. `types` lists
    the accelerator types that the predictions hold for (empty: all); jobs are not co-located on others. Usage that agents
    measured replaces predicted usage.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    where: ClassVar[str] = "estimator predicted"
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def _rows(self) -> TableRows:
        return TableRows(self.table)

    def observe(self, view: Snapshot) -> Observations:
        return Observations(usage_observations(view))

    def rates(self, view: Snapshot) -> Rates:
        inputs = view.observations, view.predictions
        if not self._kept or any(one is not other for one, other in zip(self._kept["inputs"], inputs)):
            alone, kinds = self.table.alone, [kind for kind, _ in self.table.keys]
            paired, off, usage = self.colocated_rates(view, kinds, alone)
            columns = {**rate_columns(alone, self.table.spread, paired), "paired_uncertainty": off, "usage": usage}
            self._kept.update(inputs=inputs, columns=columns)
        return Rates(self._rows.of(view.jobs, view.names), **self._kept["columns"])


ADAPTS_S, ADAPTS_STEPS = 20.0, 10.0
"""A reported rate is current this long, and this many steps, after a change of co-location."""
NEVER = -1.0
"""In place of the time at which a co-located job left."""


@dataclass(frozen=True)
class Monitored(ColocationModel, Measured):
    """Use throughputs that jobs report, and derive the slowdown of co-located jobs from the usage that agents measure.

    `speeds` are guesses of the types' relative speeds until a kind has run there. `usage`, `sm_usage`, `profiles`, `sharing`,
    `below`, `above` and `types` are as for `predicted` and hold until a kind was measured with an accelerator to itself. A job
    that was submitted with a prediction has its own usage and throughput until then. A kind without usage runs alone at first,
    and so it is measured.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    where: ClassVar[str] = "estimator monitored"

    def __post_init__(self) -> None:
        Measured.__post_init__(self)
        ColocationModel.__post_init__(self)

    def observe(self, view: Snapshot) -> Observations:
        """Rates of exclusive jobs only: a co-located rate is not the kind's, nor is it for a while after."""
        jobs = view.jobs.runners
        alone, values = partners(jobs, view) == -1, _colocation_observations(jobs, view)
        current_since_s = _current_since_s(jobs, {**view.observations, **values})
        found = super().observe(view.with_changes(jobs=jobs.only(alone & (current_since_s <= view.time))))
        again = float(current_since_s[alone & (current_since_s > view.time)].min(initial=found.valid_until))
        return Observations({**found.values, **usage_observations(view), **values}, again)

    def rates(self, view: Snapshot) -> Rates:
        base = super().rates(view)
        kinds, predictions = [""] * len(base.alone), [""] * len(base.alone)
        for row, code, number in zip(base.row.tolist(), view.jobs.kind.tolist(), view.jobs.number.tolist()):
            kinds[row], predictions[row] = view.names.kinds[code], view.job_of[number].prediction
        paired, off, usage = self.colocated_rates(view, kinds, base.alone, predictions)
        current_since_s = _current_since_s(view.jobs, view.observations)
        return replace(base, paired=paired, paired_uncertainty=off, usage=usage, current_since_s=current_since_s)


def _colocation_observations(jobs: JobColumns, view: Snapshot) -> dict[str, object]:
    """New observations of co-location: when a co-located job last left, and the present ones. A number alone is the time at
    which the last one left; `NEVER` alone means that some job is present (from journals of an older version)."""
    values = dict[str, object]()
    for number, others in zip(jobs.number.tolist(), _colocated(jobs, view)):
        name = observation_name("colocation", number)
        known: Any = view.observations.get(name)
        left_s, *before = known if isinstance(known, list | tuple) else (NEVER if known is None else known,)
        left = not others.issuperset(before) or (known == NEVER and not others)
        value = [view.time if left else left_s, *sorted(others)]
        if others and value != [left_s, *before]:
            values[name] = value
        elif left and not others:
            values[name] = view.time
    return values


def _colocated(jobs: JobColumns, view: Snapshot) -> list[set[int]]:
    """The other jobs on the accelerators of each job."""
    owner, place = view.device_map.places(jobs.number)
    shared = view.device_map.occupancy[place] > 1
    there, mine = dict[int, set[int]](), dict[int, set[int]]()
    for number, accelerator in zip(owner[shared].tolist(), place[shared].tolist()):
        there.setdefault(accelerator, set()).add(number)
        mine.setdefault(number, set()).add(accelerator)
    return [set[int]().union(*(there[one] for one in mine.get(number, ()))) - {number} for number in jobs.number.tolist()]


def _current_since_s(jobs: JobColumns, observations: ObservedValues) -> Floats:
    """The time from which on a job's reported rate is its present one; a mean follows slowly when a neighbour has left."""
    current_since_s = np.full(len(jobs), -np.inf)
    for at, (number, rate) in enumerate(zip(jobs.number.tolist(), jobs.rate.tolist())):
        known: Any = observations.get(observation_name("colocation", number)) if rate > 0 else None
        left_s = known[0] if isinstance(known, list | tuple) else known
        if left_s is not None and left_s != NEVER:
            current_since_s[at] = left_s + max(ADAPTS_S, ADAPTS_STEPS / rate)
    return current_since_s
