"""Allocations without an optimization, as baselines (Gavel §4.1, §4.4, §7.3).

    isolated:          X_mj = N_j / (n·s_m), at most all of its time: the n-th part of every type
    proportional:      X_mj = N_j / ΣN (X_equal), all scaled down alike where the accelerators do not suffice
    static partition:  an account has w_s / Σw of every type, and levels out time inside, agnostic of types

Time on a type that a job cannot use is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Bools, Floats
from fairlead.core.events import Memo
from fairlead.core.job import account_levels, with_parents
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.base import accounts, check_weights
from fairlead.policies.allocation.lp.job_classes import classes_of, even_mix, fill_fixed_mix
from fairlead.policies.allocation.lp.water_filling_model import ShareGroups


@dataclass(frozen=True)
class Isolated:
    """Give each of n jobs 1/n of every GPU type, as if it ran alone on a cluster of that size."""

    paper: ClassVar[str] = "Gavel §4.4 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        usable, jobs = _usable(view), view.jobs
        part = view.capacity / (np.maximum(usable.any(axis=1).sum(), 1) * jobs.workers[:, None])
        part = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
        return Allocation.alone(jobs.number, part * usable), memo


@dataclass(frozen=True)
class Proportional:
    """Give each job the same time on every GPU of the cluster."""

    paper: ClassVar[str] = "Gavel §4.1 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        usable, jobs = _usable(view), view.jobs
        wanted = float(jobs.workers[usable.any(axis=1)].sum())
        part = view.capacity / max(float(view.capacity.sum()), wanted, 1.0)
        return Allocation.alone(jobs.number, part * usable), memo


@dataclass(frozen=True)
class StaticPartition:
    """Give each account a fixed part of every GPU type by its weight, divided evenly among its jobs; accounts do not lend.

    `weights` of accounts by name (default 1). An account named there keeps its part while it has no jobs. `a/b` has a part of
    that of `a`."""

    paper: ClassVar[str] = "Gavel §7.3, Figure 12b (Narayanan et al., OSDI'20)"
    weights: Mapping[str, float] = field(default_factory=dict)  # weight of each account; default: 1

    def __post_init__(self) -> None:
        check_weights("policy static-partition", self.weights)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        groups = accounts(view, self.weights)
        part = self._parts(view, groups)
        classes = classes_of(view, group=groups.of, type_agnostic=True)
        each = np.zeros((len(classes), len(view.capacity)))
        for party in np.unique(classes.group).tolist():
            mine = classes.group == party
            own = replace(classes, **{name: getattr(classes, name)[mine] for name in ("count", "workers", "weight", "rates")})
            room = view.capacity * part[party]
            mix = even_mix(own, room)
            each[mine] = mix * fill_fixed_mix(own, mix, room)[:, None]
        return classes.each(view, each), memo

    def _parts(self, view: Snapshot, groups: ShareGroups) -> Floats:
        """By group: at every level of the tree, its weight by the weights of all siblings that have jobs or are named."""
        present, of = np.unique(view.jobs.account, return_inverse=True)
        names = [view.names.accounts[code] for code in present.tolist()]
        known = {above for name in names for above in with_parents(name)}
        known |= {above for name in self.weights for above in with_parents(name)[1:]}
        levels = account_levels([*names, *(name for name in self.weights if name not in known)])
        parts = np.ones(len(names))
        for upper, level in zip((("",) * len(levels[0]), *levels), levels):
            siblings: dict[str, tuple[list[float], list[float]]] = {parent: ([], []) for parent in upper}  # with jobs; absent
            for name, at in {name: at for at, name in reversed([*enumerate(level)])}.items():
                siblings[upper[at]][at >= len(names)].append(self.weights.get(name, 1.0))
            total = {parent: np.array(here[::-1]).sum() + sum(away[::-1]) for parent, (here, away) in siblings.items()}
            parts *= [self.weights.get(name, 1.0) / total[parent] for parent, name in zip(upper, level[: len(names)])]
        by_group = np.zeros(len(groups.weight))
        by_group[groups.of] = parts[of]
        return by_group


def _usable(view: Snapshot) -> Bools:
    """Jobs × types: where each job can run at the moment."""
    classes = classes_of(view, type_agnostic=True, by_weight=False)
    can = classes.matrix(classes.rates)
    return can > 0
