"""Water filling: levels rise together until nobody can be lifted without lowering somebody else (Gavel §4.3, §4.4).

The level of a job is s_m·throughput(m, X) / throughput(m, X_equal), for agnostic forms s_m·Σ_j x_mj. Jobs belong to parties.
The levels of a party add up to B_e, which grows as fast as its weight while any of its jobs can be lifted; inside, a party
shares it out by weighted fairness, level_m = min(w_m·λ_e, cap_m), or in order, each job up to its cap before the next.

A cap is at first what a job reaches alone. Levels rise until the cluster is full, which prices p for the types' time prove: at
these the levels cost all there is. Since levels never fall, that stays so, and whoever could rise only on types that have a
price is capped where it stands, the others where they would begin to pay. From then on nobody needs more of those types, so
the next prices are for another one: with J types the cluster fills up at most J times, whatever the weights and however many
the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.base import filled
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.water_filling_model import Parties


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Equal, weighted time for all, and what some cannot use goes to the others: water filling that knows no types."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return filled(view, Parties.one(len(view.jobs)), aware=False), memo


@dataclass(frozen=True)
class MaxMinFairnessWaterFillingPerf(SharingOptions):
    """Equal, weighted progress for all, and what some cannot use goes to the others: heterogeneity-aware water filling.

    Pareto efficient: no job's throughput can be raised without lowering another's.
    """

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return filled(view, Parties.one(len(view.jobs)), aware=True, sharing=self), memo
