"""The packing baselines of Horus (Horus §5): jobs in the order of submission, each on the accelerator with the most memory
left,

    min  (memory used and requested) / (device memory),

regardless of slowdowns. One policy does only that; the other observes rates and reverts a co-location that halves one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fairlead.core.errors import require
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.colocation_cost import ColocationCost, ColocationLimits, JobSignature
from fairlead.policies.colocation.pairing.slots import (
    ColocatedGroup,
    SlotFinder,
    on_drained_nodes,
    place_in_order,
    running_groups,
    to_selection,
)
from fairlead.policies.colocation.pairing.slowdown_monitor import ColocationMemo


@dataclass(frozen=True)
class OpportunisticPacking:
    """Place jobs on the GPU with the most memory left, if the predicted memory fits; at most `max_jobs` on each."""

    paper: ClassVar[str] = "Horus §5, OBP (Yeung et al., TPDS'21)"
    max_jobs: int = 2  # jobs on one GPU, at most

    def __post_init__(self) -> None:
        _check_max_jobs("policy opportunistic-packing", self.max_jobs)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        packing = _Packing.of(view, memo, self.max_jobs)
        moving = sorted(on_drained_nodes(view, packing.groups))
        slots = packing.slots(set(moving))
        place_in_order(slots, packing.signatures, (*moving, *view.jobs.waiters.number.tolist()))
        return to_selection(slots), memo if packing.memo is None else packing.memo


@dataclass(frozen=True)
class PerformanceAwarePacking:
    """As opportunistic packing, but a job returns to the queue if a job that it joined loses a fraction `drop` of its rate.

    Rates are compared `warm_up_s` after the start. At most `trials` jobs are on trial at once; until one is decided, other new
    jobs get idle accelerators only. Two jobs that were separated are not co-located again.
    """

    paper: ClassVar[str] = "Horus §5, PAB (Yeung et al., TPDS'21)"
    drop: float = 0.5  # a new job leaves if a job that it joined loses more than this part of its speed
    warm_up_s: float = 60.0  # seconds after the start of a new job before speeds are compared
    trials: int = 1  # new jobs on trial at the same time, at most
    max_jobs: int = 2  # jobs on one GPU, at most

    def __post_init__(self) -> None:
        where = "policy performance-aware-packing"
        _check_max_jobs(where, self.max_jobs)
        require(0 < self.drop < 1, where, "a fraction between 0 and 1", "drop", self.drop)
        require(0 <= self.warm_up_s < math.inf, where, "seconds, at least 0", "warm_up_s", self.warm_up_s)
        require(self.trials >= 1, where, "at least 1", "trials", self.trials)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        own: Mapping[str, Any] = memo or {}
        packing = _Packing.of(view, own.get("seen"), self.max_jobs)
        trials, returned, separated = self._decided(view, own, packing.groups)
        moving = sorted(returned | on_drained_nodes(view, packing.groups))
        slots = packing.slots(set(moving))
        slots.separated |= frozenset((one, two) for one, two in separated)
        joined = self._place(view, slots, packing.signatures, [*moving, *view.jobs.waiters.number.tolist()], trials)
        due = any(trial["until_s"] <= view.time for trial in trials.values())
        trials = {**trials, **joined}
        changed = {"trials": trials, "enemies": separated, "seen": own.get("seen")}
        if packing.memo is not None:
            changed["seen"] = packing.memo
        left = memo if changed == {"trials": {}, "enemies": [], "seen": None, **own} else changed
        ends = [trial["until_s"] for trial in trials.values() if trial["until_s"] > view.time]
        again = [view.time if returned else math.inf, view.protection_ends if due else math.inf]
        return to_selection(slots, min([*again, *ends])), left

    def _decided(
        self, view: Snapshot, own: Mapping[str, Any], groups: list[ColocatedGroup]
    ) -> tuple[dict[str, dict[str, Any]], set[int], list[list[int]]]:
        """The trials that continue, the jobs that return to the queue, and the pairs that are separated."""
        rate = dict(zip(view.jobs.number.tolist(), view.jobs.rate.tolist()))
        partners = {number: group.members for group in groups for number in group.members}
        protected = view.protected
        bound = set() if protected is None else set(view.jobs.number[protected].tolist())
        trials, returned = dict[str, dict[str, Any]](), set[int]()
        separated = [pair for pair in own.get("enemies", []) if pair[0] in rate and pair[1] in rate]
        for name, trial in own.get("trials", {}).items():
            number, before = int(name), {int(other): was for other, was in trial["before"].items()}
            present = [other for other in before if other in partners.get(number, ())]
            if not present:
                continue
            if view.time < trial["until_s"]:
                trials[name] = trial
            elif not any(rate[other] <= (1 - self.drop) * before[other] for other in present):
                continue
            elif number in bound:  # it returns once it may
                trials[name] = trial
            else:
                returned.add(number)
                separated += [sorted((number, other)) for other in present]
        return trials, returned, separated

    def _place(
        self,
        view: Snapshot,
        slots: SlotFinder,
        signatures: Mapping[int, JobSignature],
        jobs: list[int],
        trials: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        """Place jobs, co-located only while another trial may begin; return the trials that begin."""
        rate = dict(zip(view.jobs.number.tolist(), view.jobs.rate.tolist()))
        running = sum(trial["until_s"] > view.time for trial in trials.values())
        begun: dict[str, dict[str, Any]] = {}
        for number in jobs:
            slots.colocate = running + len(begun) < self.trials
            slot = slots.best(signatures[number], number)
            if slot is None:
                continue
            if slot.group is not None:
                alone = view.rates.alone[:, slot.type]  # expected of members that have not run yet
                members = slot.group.members
                before = {str(other): rate[other] or float(alone[signatures[other].row]) for other in members}
                begun[str(number)] = {"until_s": view.time + self.warm_up_s, "before": before}
            slots.put(number, signatures[number], slot)
        return begun


@dataclass(frozen=True)
class _Packing:
    """The input of both policies. `memo` is the new memo of memory limits; None where it is unchanged."""

    view: Snapshot
    memo: Memo
    costs: ColocationCost
    signatures: Mapping[int, JobSignature]
    groups: list[ColocatedGroup]

    @classmethod
    def of(cls, view: Snapshot, memo: Memo, max_jobs: int) -> _Packing:
        before = ColocationMemo.from_memo(memo)
        costs = ColocationCost(view, ColocationLimits(jobs=max_jobs), 1.0, 0.0, {})
        known = before.with_failures(view, costs)
        signatures = known.signatures(view)
        return cls(view, None if known is before else known.to_memo(), costs, signatures, running_groups(view, signatures))

    def slots(self, moving: set[int]) -> SlotFinder:
        """The groups without the jobs that move; gangs of any size prefer few nodes over memory."""
        remaining = [left for group in self.groups if (left := group.without(moving)) is not None]
        return SlotFinder(self.view, self.costs, 1, remaining)


def _check_max_jobs(where: str, max_jobs: int) -> None:
    require(max_jobs >= 1, where, "at least 1", "max_jobs", max_jobs)
