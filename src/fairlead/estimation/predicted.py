"""What jobs take of an accelerator, predicted from what they are, and what company does to them by that (Horus §3.2, §4.1):

    rate of i beside k on t  =  rate of i alone on t / f(u_i, u_k),

u the predicted utilization and f the slowdown: linear while both come to at most 100 % together, quadratic above
(`prediction/interference.py`). Predictions are plain numbers by kind, so that a journal says what was believed; who made them
is not its business. How fast a job is alone it knows from the table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fairlead.core.cluster import Bools
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import model_of
from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot
from fairlead.core.usage import Usage
from fairlead.estimation.rows import RateTable, Rows
from fairlead.prediction.interference import Slowdown
from fairlead.prediction.profiles import profiles
from fairlead.profiling.results import sets

WHERE = "estimation predicted"
BELOW, ABOVE = (0.99, 0.03, 0.10), (1.13, -2.85, 1.51, 2.59, 1.21, -1.45)
"""As fitted to 595 pairs that took turns on an H200."""


@dataclass(frozen=True)
class Predicted:
    """Utilization and memory are predicted by kind, and with them what two jobs do to each other.

    `uses` has, by kind or model, the utilization of an accelerator in percent and the memory in GB that one worker takes. What
    two who share it lose is a polynomial of their utilizations: `below` its coefficients (1, own, the other's) while both come
    to at most 100 percent, `above` (also own², own · other's, other's²) beyond; as fitted by `fairlead predict`. A kind without
    a prediction is taken to fill its accelerator, and has no company. `profiles` names a measured set that ships, for kinds
    that `uses` does not name. `types` are those that the predictions are about; on others nobody has company. Empty: all.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    table: RateTable = field(repr=False)
    uses: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = BELOW
    above: tuple[float, ...] = ABOVE
    profiles: str = ""
    types: tuple[str, ...] = ()
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for kind, (busy, memory) in self.uses.items():
            if not 0 <= busy <= 100:
                raise InputError(WHERE, f"a utilization from 0 to 100 percent for {kind}", field="uses", value=busy)
            if not 0 <= memory < math.inf:
                raise InputError(WHERE, f"GB of memory from 0 on for {kind}", field="uses", value=memory)
        for name, many in (("below", len(BELOW)), ("above", len(ABOVE))):
            given = getattr(self, name)
            if len(given) != many or not all(map(math.isfinite, given)):
                raise InputError(WHERE, f"{many} finite coefficients", field=name, value=given)
        if self.profiles and self.profiles not in sets():
            raise InputError(WHERE, near_or_all(self.profiles, sets()), field="profiles", value=self.profiles)

    def rates(self, view: Snapshot) -> Rates:
        if not self._kept:
            self._kept.update(rows=Rows(self.table), fixed=self._predict(view))
        return Rates(self._kept["rows"].of(view.jobs, view.names), **self._kept["fixed"])

    def _predict(self, view: Snapshot) -> dict[str, Any]:
        """All that does not depend on who is there."""
        alone, kinds = self.table.alone, [kind for kind, _ in self.table.keys]
        uses = {**_measured(self.profiles), **self.uses}
        found = [uses.get(kind, uses.get(model_of(kind))) for kind in kinds]
        busy, memory = np.array([(100.0, math.inf) if one is None else one for one in found]).T
        known: Bools = np.array([one is not None for one in found])
        about = np.array([not self.types or name in self.types for name in view.cluster.type_names])
        there = np.array([kind.memory_gb for kind in view.cluster.types])
        fits = (known[:, None] & known)[:, :, None] & about & ((memory[:, None] + memory)[:, :, None] <= there)
        slower = Slowdown(self.below, self.above).of(*np.broadcast_arrays(busy[:, None], busy[None, :]))
        paired = np.where(fits, alone[:, None, :] / slower[:, :, None], 0.0) * (alone > 0)[None, :, :]
        columns = (1, len(view.cluster.types))
        usage = Usage(
            np.where(about, np.tile(busy[:, None] / 100, columns), 1.0),
            np.where(about, np.tile(memory[:, None], columns), math.inf),
        )
        plain = Rates(np.zeros(0, dtype=np.int64), alone, self.table.spread, paired)
        follows = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.wishes, "usage": usage}
        return {"alone": alone, "spread": self.table.spread, "paired": paired, **follows}


def _measured(device: str) -> dict[str, tuple[float, float]]:
    """Utilization and memory, by kind, of a measured set."""
    known = profiles(device).alone if device else {}
    return {name: (one.utilization, one.memory_mb / 1024) for name, one in known.items()}
