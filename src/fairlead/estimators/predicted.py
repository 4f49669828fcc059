"""What jobs take of an accelerator, predicted from what they are, and what company does to them by that (`company`). How fast a
job is alone it knows from the table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.columns import JobColumns
from fairlead.core.observations import fact_about
from fairlead.core.plan import Facts, Lesson, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimators.base import RateTable, Rows, mates
from fairlead.estimators.colocated_rates import TURNS, Company, uses_seen
from fairlead.estimators.measured import Measured


@dataclass(frozen=True)
class Predicted:
    """Utilization and memory are predicted by kind, and with them what two jobs do to each other.

    `uses` has, by kind or model, the utilization of an accelerator in percent and the memory in GB that one worker takes. What
    two who share it lose is a polynomial of their utilizations, as fitted to measured pairs that shared as `sharing` says: by
    turns (`time-slicing`), or at once (`mps`). `below` and `above` are other coefficients: of 1, own, the other's while both
    come to at most 100 percent; also of own², own · other's, other's² beyond. Through MPS it counts what the other holds:
    `holds` has, by kind or model, the multiprocessors it keeps busy in percent and how long its kernels take in microseconds.
    A kind without a use is taken to fill its accelerator, and has no company. `profiles` names a measured set that ships, for
    kinds that `uses` and `holds` do not name. `types` are those that the predictions are about; on others nobody has company.
    Empty: all. What agents measured of a kind on a type counts more than what is predicted.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    table: RateTable = field(repr=False)
    uses: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()
    profiles: str = ""
    types: tuple[str, ...] = ()
    sharing: str = TURNS
    holds: dict[str, tuple[float, float]] = field(default_factory=dict)
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.company()

    def company(self) -> Company:
        return Company(
            "estimation predicted", self.uses, self.below, self.above, self.profiles, self.types, self.sharing, self.holds
        )

    def learn(self, view: Snapshot) -> Lesson:
        return Lesson(uses_seen(view))

    def rates(self, view: Snapshot) -> Rates:
        if not self._kept or self._kept["learned"] is not view.learned:
            self._kept.setdefault("rows", Rows(self.table))
            self._kept.update(learned=view.learned, fixed=self._predict(view))
        return Rates(self._kept["rows"].of(view.jobs, view.names), **self._kept["fixed"])

    def _predict(self, view: Snapshot) -> dict[str, Any]:
        """All that does not depend on who is there."""
        alone, kinds = self.table.alone, [kind for kind, _ in self.table.keys]
        paired, off, usage = self.company().of(view, kinds, alone)
        plain = Rates(view.jobs.number[:0], alone, self.table.spread, paired)
        follows = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.wishes, "usage": usage}
        return {"alone": alone, "spread": self.table.spread, "paired": paired, "paired_uncertainty": off, **follows}


# A real cluster whose jobs may share accelerators: rates alone are those that jobs report (`measured`), and what company does
# to them follows from how busy they keep an accelerator (`company`), as predicted until agents have seen it.

FOLLOWS_S, FOLLOWS_STEPS = 20.0, 10.0
"""After so long, and so many steps, a rate is of how a job runs now."""
NEVER = -1.0
"""In the place of the second at which somebody left it."""


@dataclass(frozen=True)
class Watched(Measured):
    """Throughputs are what running jobs report, and what two do to each other follows from what agents see each take alone.

    `speeds` are guesses of types' relative speeds until a kind has run there. `uses`, `holds`, `profiles`, `sharing`, `below`,
    `above` and `types` are as for `predicted`: what is believed of a kind until it was seen with an accelerator to itself. A
    kind of which nothing is known is alone at first, and so it is seen.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    uses: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = ()
    above: tuple[float, ...] = ()
    profiles: str = ""
    types: tuple[str, ...] = ()
    sharing: str = TURNS
    holds: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.company()

    def company(self) -> Company:
        return Company(
            "estimation watched", self.uses, self.below, self.above, self.profiles, self.types, self.sharing, self.holds
        )

    def learn(self, view: Snapshot) -> Lesson:
        """Rates of those without company only: beside another, a rate is not the kind's, nor is it for a while after."""
        jobs = view.jobs.runners
        alone, facts = mates(jobs, view) == -1, _company_seen(jobs, view)
        tells_s = _tells_s(jobs, {**view.learned, **facts})
        lesson = super().learn(view.but(jobs=jobs.only(alone & (tells_s <= view.time))))
        again = float(tells_s[alone & (tells_s > view.time)].min(initial=lesson.holds_until))
        return Lesson({**lesson.facts, **uses_seen(view), **facts}, again)

    def rates(self, view: Snapshot) -> Rates:
        base = super().rates(view)
        kinds = [""] * len(base.alone)
        for row, code in zip(base.row.tolist(), view.jobs.kind.tolist()):
            kinds[row] = view.names.kinds[code]
        paired, off, usage = self.company().of(view, kinds, base.alone)
        tells_s = _tells_s(view.jobs, view.learned)
        return replace(base, paired=paired, paired_uncertainty=off, usage=usage, tells_s=tells_s)


def _company_seen(jobs: JobColumns, view: Snapshot) -> dict[str, object]:
    """What is new of the company of those who run: when one of it last left, and who is there. A number alone is when the last
    one left, and `NEVER` alone that somebody is there of whom no more was written down."""
    facts = dict[str, object]()
    for number, others in zip(jobs.number.tolist(), _others(jobs, view)):
        name = fact_about("company", number)
        known: Any = view.learned.get(name)
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
    owner, place = view.holdings.places(jobs.number)
    shared = view.holdings.occupancy[place] > 1
    there, mine = dict[int, set[int]](), dict[int, set[int]]()
    for number, accelerator in zip(owner[shared].tolist(), place[shared].tolist()):
        there.setdefault(accelerator, set()).add(number)
        mine.setdefault(number, set()).add(accelerator)
    return [set[int]().union(*(there[one] for one in mine.get(number, ()))) - {number} for number in jobs.number.tolist()]


def _tells_s(jobs: JobColumns, facts: Facts) -> Floats:
    """From which second on the rate of each is of how it runs now. Agents tell a mean, which takes time to follow when somebody
    has left, and meanwhile is of whoever that was."""
    tells_s = np.full(len(jobs), -np.inf)
    for at, (number, rate) in enumerate(zip(jobs.number.tolist(), jobs.rate.tolist())):
        known: Any = facts.get(fact_about("company", number)) if rate > 0 else None
        left_s = known[0] if isinstance(known, list | tuple) else known
        if left_s is not None and left_s != NEVER:
            tells_s[at] = left_s + max(FOLLOWS_S, FOLLOWS_STEPS / rate)
    return tells_s
