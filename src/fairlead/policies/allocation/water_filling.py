"""Max-min fairness by water filling (Gavel §4.3): lexicographic max-min over the levels of lp/water_filling_model.py,

level_m = s_m·throughput(m, X) / throughput(m, X_equal),   for the agnostic form s_m·Σ_j x_mj."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.base import water_fill
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.water_filling_model import ShareGroups


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Max-min fairness of time by water filling: jobs share what other jobs cannot use, without regard to GPU types."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return water_fill(view, ShareGroups.one(len(view.jobs)), aware=False), memo


@dataclass(frozen=True)
class MaxMinFairnessWaterFillingPerf(SharingOptions):
    """Max-min fairness of progress by water filling: jobs share what other jobs cannot use; heterogeneity-aware.

    Pareto efficient: no job's throughput can be raised without lowering another's."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return water_fill(view, ShareGroups.one(len(view.jobs)), aware=True, sharing=self), memo
