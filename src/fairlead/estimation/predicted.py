"""What jobs take of an accelerator, predicted from what they are, and what company does to them by that (`company`). How fast a
job is alone it knows from the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fairlead.core.plan import Lesson, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.estimation.company import TURNS, Company, uses_seen
from fairlead.estimation.rows import RateTable, Rows


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
