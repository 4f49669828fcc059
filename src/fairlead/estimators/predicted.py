"""What jobs take of an accelerator, predicted from what they are, and what company does to them by that (`company`). How fast a
job is alone it knows from the table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.columns import JobColumns
from fairlead.core.observations import observation_name
from fairlead.core.plan import Observations, ObservedValues, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import RateTable, Rows, mates
from fairlead.estimators.colocated_rates import TURNS, ColocationModel, usage_observations
from fairlead.estimators.measured import Measured


@dataclass(frozen=True)
class Predicted:
    """Utilization and memory are predicted by kind, and the slowdown of two co-located jobs follows from them.

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
    table: RateTable = field(repr=False)
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()
    profiles: str = ""
    types: tuple[str, ...] = ()
    sharing: str = TURNS
    sm_usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.colocation_model()

    def colocation_model(self) -> ColocationModel:
        return ColocationModel(
            "estimator predicted", self.usage, self.below, self.above, self.profiles, self.types, self.sharing, self.sm_usage
        )

    def observe(self, view: Snapshot) -> Observations:
        return Observations(usage_observations(view))

    def rates(self, view: Snapshot) -> Rates:
        if not self._kept or self._kept["observations"] is not view.observations:
            self._kept.setdefault("rows", Rows(self.table))
            self._kept.update(observations=view.observations, fixed=self._predict(view))
        return Rates(self._kept["rows"].of(view.jobs, view.names), **self._kept["fixed"])

    def _predict(self, view: Snapshot) -> dict[str, Any]:
        """All that does not depend on who is there."""
        alone, kinds = self.table.alone, [kind for kind, _ in self.table.keys]
        paired, off, usage = self.colocation_model().rates_of(view, kinds, alone)
        plain = Rates(view.jobs.number[:0], alone, self.table.spread, paired)
        follows = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.preferred_types, "usage": usage}
        return {"alone": alone, "spread": self.table.spread, "paired": paired, "paired_uncertainty": off, **follows}


# A real cluster whose jobs may share accelerators: rates alone are those that jobs report (`measured`), and what company does
# to them follows from how busy they keep an accelerator (`company`), as predicted until agents have seen it.

FOLLOWS_S, FOLLOWS_STEPS = 20.0, 10.0
"""After so long, and so many steps, a rate is of how a job runs now."""
NEVER = -1.0
"""In the place of the second at which somebody left it."""


@dataclass(frozen=True)
class Monitored(Measured):
    """Throughputs are what running jobs report; the slowdown of co-located jobs follows from the usage that agents measure.

    `speeds` are guesses of the types' relative speeds until a kind has run there. `usage`, `sm_usage`, `profiles`, `sharing`,
    `below`, `above` and `types` are as for `predicted` and hold until a kind was measured with an accelerator to itself. A kind
    without usage runs alone at first, and so it is measured.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    usage: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()
    profiles: str = ""
    types: tuple[str, ...] = ()
    sharing: str = TURNS
    sm_usage: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.colocation_model()

    def colocation_model(self) -> ColocationModel:
        return ColocationModel(
            "estimator monitored", self.usage, self.below, self.above, self.profiles, self.types, self.sharing, self.sm_usage
        )

    def observe(self, view: Snapshot) -> Observations:
        """Rates of those without company only: beside another, a rate is not the kind's, nor is it for a while after."""
        jobs = view.jobs.runners
        alone, facts = mates(jobs, view) == -1, _company_seen(jobs, view)
        current_since_s = _current_since_s(jobs, {**view.observations, **facts})
        lesson = super().observe(view.with_changes(jobs=jobs.only(alone & (current_since_s <= view.time))))
        again = float(current_since_s[alone & (current_since_s > view.time)].min(initial=lesson.valid_until))
        return Observations({**lesson.values, **usage_observations(view), **facts}, again)

    def rates(self, view: Snapshot) -> Rates:
        base = super().rates(view)
        kinds = [""] * len(base.alone)
        for row, code in zip(base.row.tolist(), view.jobs.kind.tolist()):
            kinds[row] = view.names.kinds[code]
        paired, off, usage = self.colocation_model().rates_of(view, kinds, base.alone)
        current_since_s = _current_since_s(view.jobs, view.observations)
        return replace(base, paired=paired, paired_uncertainty=off, usage=usage, current_since_s=current_since_s)


def _company_seen(jobs: JobColumns, view: Snapshot) -> dict[str, object]:
    """What is new of the company of those who run: when one of it last left, and who is there. A number alone is when the last
    one left, and `NEVER` alone that somebody is there of whom no more was written down."""
    facts = dict[str, object]()
    for number, others in zip(jobs.number.tolist(), _others(jobs, view)):
        name = observation_name("company", number)
        known: Any = view.observations.get(name)
        left_s, *before = known if isinstance(known, list | tuple) else (NEVER if known is None else known,)
        gone = not others.issuperset(before) or (known == NEVER and not others)
        told = [view.time if gone else left_s, *sorted(others)]
        if others and told != [left_s, *before]:
            facts[name] = told
        elif gone and not others:
            facts[name] = view.time
    return facts


def _others(jobs: JobColumns, view: Snapshot) -> list[set[int]]:
    """By job, who else is on one of its accelerators."""
    owner, place = view.device_map.places(jobs.number)
    shared = view.device_map.occupancy[place] > 1
    there, mine = dict[int, set[int]](), dict[int, set[int]]()
    for number, accelerator in zip(owner[shared].tolist(), place[shared].tolist()):
        there.setdefault(accelerator, set()).add(number)
        mine.setdefault(number, set()).add(accelerator)
    return [set[int]().union(*(there[one] for one in mine.get(number, ()))) - {number} for number in jobs.number.tolist()]


def _current_since_s(jobs: JobColumns, facts: ObservedValues) -> Floats:
    """From which second on the rate of each is of how it runs now. Agents tell a mean, which takes time to follow when somebody
    has left, and meanwhile is of whoever that was."""
    current_since_s = np.full(len(jobs), -np.inf)
    for at, (number, rate) in enumerate(zip(jobs.number.tolist(), jobs.rate.tolist())):
        known: Any = facts.get(observation_name("company", number)) if rate > 0 else None
        left_s = known[0] if isinstance(known, list | tuple) else known
        if left_s is not None and left_s != NEVER:
            current_since_s[at] = left_s + max(FOLLOWS_S, FOLLOWS_STEPS / rate)
    return current_since_s
