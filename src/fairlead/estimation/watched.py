"""A real cluster whose jobs may share accelerators: rates alone are those that jobs report (`measured`), and what company does
to them follows from how busy they keep an accelerator (`company`), as predicted until agents have seen it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.columns import JobColumns
from fairlead.core.facts import fact_about
from fairlead.core.plan import Lesson, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.company import TURNS, Company, uses_seen
from fairlead.estimation.measured import Measured
from fairlead.estimation.observed import mates

FOLLOWS_S, FOLLOWS_STEPS = 20.0, 10.0
"""After so long, and so many steps, a rate is of how a job runs now."""
HAS = -1.0
"""In the place of the second from which on it has none."""


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
        self._company()

    def _company(self) -> Company:
        return Company(
            "estimation watched", self.uses, self.below, self.above, self.profiles, self.types, self.sharing, self.holds
        )

    def learn(self, view: Snapshot) -> Lesson:
        """Rates of those without company only: beside another, a rate is not the kind's, nor is it for a while after."""
        jobs = view.jobs.runners
        alone = mates(jobs, view) == -1
        facts, tells_s = _company_seen(jobs, alone, view)
        lesson = super().learn(view.but(jobs=jobs.only(alone & (tells_s <= view.time))))
        again = float(tells_s[alone & (tells_s > view.time)].min(initial=lesson.holds_until))
        return Lesson({**lesson.facts, **uses_seen(view), **facts}, again)

    def rates(self, view: Snapshot) -> Rates:
        base = super().rates(view)
        kinds = [""] * len(base.alone)
        for row, code in zip(base.row.tolist(), view.jobs.kind.tolist()):
            kinds[row] = view.names.kinds[code]
        paired, off, usage = self._company().of(view, kinds, base.alone)
        return replace(base, paired=paired, paired_uncertainty=off, usage=usage)


def _company_seen(jobs: JobColumns, alone: Bools, view: Snapshot) -> tuple[dict[str, object], Floats]:
    """What is new of who has company, or since when it has none any more; and from which second on the rate of each is of how
    it runs alone. Agents tell a mean, which takes time to follow."""
    facts, tells_s = dict[str, object](), np.full(len(jobs), -np.inf)
    for at, (number, rate, is_alone) in enumerate(zip(jobs.number.tolist(), jobs.rate.tolist(), alone.tolist())):
        name = fact_about("company", number)
        known: Any = view.learned.get(name)
        if not is_alone and known != HAS:
            facts[name] = HAS
        elif is_alone and known == HAS:
            facts[name] = known = view.time
        if is_alone and known is not None and rate > 0:
            tells_s[at] = known + max(FOLLOWS_S, FOLLOWS_STEPS / rate)
    return facts, tells_s
