"""A real cluster whose jobs may share accelerators: rates alone are those that jobs report (`measured`), and what company does
to them follows from how busy they keep an accelerator (`company`), as predicted until agents have seen it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from fairlead.core.plan import Lesson, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.company import ABOVE, BELOW, Company, uses_seen
from fairlead.estimation.measured import Measured
from fairlead.estimation.observed import mates


@dataclass(frozen=True)
class Watched(Measured):
    """Throughputs are what running jobs report, and what two do to each other follows from what agents see each take alone.

    `speeds` are guesses of types' relative speeds until a kind has run there. `uses`, `below`, `above`, `profiles` and `types`
    are as for `predicted`: what is believed of a kind until it was seen with an accelerator to itself. A kind of which nothing
    is known is alone at first, and so it is seen.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    uses: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = BELOW
    above: tuple[float, ...] = ABOVE
    profiles: str = ""
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._company()

    def _company(self) -> Company:
        return Company("estimation watched", self.uses, self.below, self.above, self.profiles, self.types)

    def learn(self, view: Snapshot) -> Lesson:
        """Rates of those without company only: beside another, a rate is not the kind's."""
        jobs = view.jobs.runners
        lesson = super().learn(view.but(jobs=jobs.only(mates(jobs, view) == -1)))
        return replace(lesson, facts={**lesson.facts, **uses_seen(view)})

    def rates(self, view: Snapshot) -> Rates:
        base = super().rates(view)
        kinds = [""] * len(base.alone)
        for row, code in zip(base.row.tolist(), view.jobs.kind.tolist()):
            kinds[row] = view.names.kinds[code]
        paired, usage = self._company().of(view, kinds, base.alone)
        return replace(base, paired=paired, usage=usage)
