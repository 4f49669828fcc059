"""Fairness among accounts by weight, and inside each account fairness or FIFO among its jobs (Gavel §4.3).

An account's levels add up to a share that grows with its weight. Under fairness a job has w_m / Σ w of the account's weight,
the sum going over the jobs that can still be raised; under FIFO the first of these has all of it. A job at its cap leaves its
weight to the others of its account, and an account at its cap leaves its part of the cluster to the others.

Accounts may be a tree: `a/b` is an account below `a`. The levels below `a` add up to its share, which its accounts divide by
their weights; jobs of `a` itself count as one of them, `a/`. An account at its cap leaves its part to its siblings first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fairlead.core.allocation import Allocation
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.base import Inside, accounts, check_weights, water_fill
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.water_filling_model import ShareGroups


@dataclass(frozen=True)
class Hierarchical:
    """Divide time among accounts by weight, and inside an account by fairness or FIFO, without regard to GPU types.

    `weights` of accounts by name (default 1); `inside` says how accounts divide among their jobs, and `but` names exceptions.
    Jobs without an account form one with an empty name. `a/b` is an account below `a`; weights are relative to siblings."""

    paper: ClassVar[str] = "Gavel §4.3 (Narayanan et al., OSDI'20)"
    weights: Mapping[str, float] = field(
        default_factory=dict
    )  # of each account, among its siblings, 0.001 to 1,000; default: 1
    inside: Inside = "fairness"  # how the time of an account is divided among its jobs
    but: Mapping[str, Inside] = field(default_factory=dict)  # accounts, with those below, in which it is divided in another way

    def __post_init__(self) -> None:
        check_weights("a hierarchical policy", self.weights)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return water_fill(view, self._accounts(view), aware=False), memo

    def _accounts(self, view: Snapshot) -> ShareGroups:
        return accounts(view, self.weights, self.inside, self.but)


@dataclass(frozen=True)
class HierarchicalPerf(SharingOptions, Hierarchical):
    """Divide progress among accounts by weight, and inside an account by fairness or FIFO; heterogeneity-aware.

    `weights` of accounts by name (default 1); `inside` says how accounts divide among their jobs, and `but` names exceptions.
    Jobs without an account form one with an empty name."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return water_fill(view, self._accounts(view), aware=True, sharing=self), memo
