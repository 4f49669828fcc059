"""What jobs take of an accelerator, predicted from what they are, and what company does to them by that (Horus §3.2, §4.1):

    rate of i beside k on t  =  rate of i alone on t / f(u_i + u_k),

u the predicted utilization and f the slowdown by cumulative utilization: a line up to 100 %, a parabola above. Predictions are
plain numbers by kind, so that a journal says what was believed; who made them is not its business. How fast a job is alone it
knows from the table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import InputError
from fairlead.core.job import model_of
from fairlead.core.plan import Rates
from fairlead.core.snapshot import Snapshot
from fairlead.core.usage import Usage
from fairlead.estimation.rows import RateTable, Rows

WHERE = "estimation predicted"
FULL = 1.0
"""The cumulative utilization from which on an accelerator is over-committed."""


@dataclass(frozen=True)
class Predicted:
    """Utilization and memory are predicted by kind, and with them what two jobs do to each other.

    `uses` has, by kind or model, the utilization of an accelerator in percent and the memory in GB that one worker takes. Two
    who share it are slowed down by `below` (a + b·u) while their utilizations u, as parts of 1, come to at most 1 together, and
    by `above` (a + b·u + c·u²) beyond. A kind without a prediction is taken to fill its accelerator, and has no company.
    `types` are those that the predictions are about; on others nobody has company. Empty: all.
    """

    paper: ClassVar[str] = "Horus §3.2 and §4.1 (Yeung et al., TPDS'21)"
    table: RateTable = field(repr=False)
    uses: dict[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, float] = (1.0, 0.1)
    above: tuple[float, float, float] = (0.787, 0.026, 0.287)
    types: tuple[str, ...] = ()
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for kind, (busy, memory) in self.uses.items():
            if not 0 <= busy <= 100:
                raise InputError(WHERE, f"a utilization from 0 to 100 percent for {kind}", field="uses", value=busy)
            if not 0 <= memory < math.inf:
                raise InputError(WHERE, f"GB of memory from 0 on for {kind}", field="uses", value=memory)
        for name in ("below", "above"):
            if not all(map(math.isfinite, getattr(self, name))):
                raise InputError(WHERE, "finite coefficients", field=name, value=getattr(self, name))

    def slowdown(self, utilization: Floats) -> Floats:
        """How many times slower than alone jobs are that come to such a cumulative utilization together; 1 at least."""
        slower = np.where(utilization <= FULL, _value(self.below, utilization), _value(self.above, utilization))
        return np.maximum(slower, 1.0)

    def rates(self, view: Snapshot) -> Rates:
        if not self._kept:
            self._kept.update(rows=Rows(self.table), fixed=self._predict(view))
        return Rates(self._kept["rows"].of(view.jobs, view.names), **self._kept["fixed"])

    def _predict(self, view: Snapshot) -> dict[str, Any]:
        """All that does not depend on who is there."""
        alone, kinds = self.table.alone, [kind for kind, _ in self.table.keys]
        found = [self.uses.get(kind, self.uses.get(model_of(kind))) for kind in kinds]
        busy, memory = np.array([(100.0, math.inf) if one is None else one for one in found]).T
        known: Bools = np.array([one is not None for one in found])
        about = np.array([not self.types or name in self.types for name in view.cluster.type_names])
        there = np.array([kind.memory_gb for kind in view.cluster.types])
        fits = (known[:, None] & known)[:, :, None] & about & ((memory[:, None] + memory)[:, :, None] <= there)
        slower = self.slowdown((busy[:, None] + busy) / 100)
        paired = np.where(fits, alone[:, None, :] / slower[:, :, None], 0.0) * (alone > 0)[None, :, :]
        columns = (1, len(view.cluster.types))
        usage = Usage(
            np.where(about, np.tile(busy[:, None] / 100, columns), 1.0),
            np.where(about, np.tile(memory[:, None], columns), math.inf),
        )
        plain = Rates(np.zeros(0, dtype=np.int64), alone, self.table.spread, paired)
        follows = {"best": alone.max(axis=1), "mask": plain.runs_on, "ranked": plain.wishes, "usage": usage}
        return {"alone": alone, "spread": self.table.spread, "paired": paired, **follows}


def _value(coefficients: tuple[float, ...], at: Floats) -> Floats:
    """Of a polynomial whose constant stands in front."""
    value: Floats = np.polynomial.polynomial.polyval(at, np.array(coefficients))
    return value
