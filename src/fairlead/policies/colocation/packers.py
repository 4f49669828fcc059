"""The packers that Horus is compared with (Horus §5): jobs in the order of their submission, each onto the accelerator with the
most memory left,

    min  (memory used and asked for) / (memory there),

whatever that does to their speed. The one goes by that alone; the other looks at steps per second and takes back what it put
where somebody lost half of its speed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.compatibility import Judge, Limits, Look, looks_of
from fairlead.policies.colocation.pairing.slots import Floor, Group, floor_of, less, placed, running_groups, selected, stranded
from fairlead.policies.colocation.pairing.slowdown_monitor import Seen

ALL_NODES = 1
"""Gangs of any size stand on few nodes before memory counts."""


@dataclass(frozen=True)
class OpportunisticPacking:
    """Onto the accelerator with the most memory left, if the predicted memory fits; at most `max_jobs` to each."""

    paper: ClassVar[str] = "Horus §5, OBP (Yeung et al., TPDS'21)"
    max_jobs: int = 2

    def __post_init__(self) -> None:
        _check_most("opportunistic-packing", self.max_jobs)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        given = _Given.of(view, memo, self.max_jobs)
        moving = sorted(stranded(view, given.groups))
        floor = given.floor(set(moving))
        placed(floor, given.looks, (*moving, *view.jobs.waiters.number.tolist()))
        return selected(floor), memo if given.seen is given.before else given.seen.to_memo()


@dataclass(frozen=True)
class PerformanceAwarePacking:
    """As opportunistic packing, but a newcomer goes back to the queue if a job it joined falls by a part `drop` of its speed.

    It is looked at `warm_up_s` after it came. So many newcomers as `trials` can be on trial at once; until one is judged,
    others find idle accelerators only. Two of whom one was sent away do not meet again.
    """

    paper: ClassVar[str] = "Horus §5, PAB (Yeung et al., TPDS'21)"
    drop: float = 0.5
    warm_up_s: float = 60.0
    trials: int = 1
    max_jobs: int = 2

    def __post_init__(self) -> None:
        where = "policy performance-aware-packing"
        _check_most("performance-aware-packing", self.max_jobs)
        if not 0 < self.drop < 1:
            raise InputError(where, "a part between 0 and 1", field="drop", value=self.drop)
        if not 0 <= self.warm_up_s < math.inf:
            raise InputError(where, "seconds from 0 on", field="warm_up_s", value=self.warm_up_s)
        if self.trials < 1:
            raise InputError(where, "at least 1", field="trials", value=self.trials)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        own: Mapping[str, Any] = memo or {}
        given = _Given.of(view, own.get("seen"), self.max_jobs)
        trials, sent, enemies = self._judged(view, own, given.groups)
        moving = sorted(sent | stranded(view, given.groups))
        floor = given.floor(set(moving))
        floor.enemies = frozenset((one, two) for one, two in enemies)
        joined = self._place(view, floor, given.looks, [*moving, *view.jobs.waiters.number.tolist()], trials)
        due = any(trial["until_s"] <= view.time for trial in trials.values())
        trials = {**trials, **joined}
        changed = {"trials": trials, "enemies": enemies, "seen": own.get("seen")}
        if given.seen is not given.before:
            changed["seen"] = given.seen.to_memo()
        left = memo if changed == {"trials": {}, "enemies": [], "seen": None, **own} else changed
        ends = [trial["until_s"] for trial in trials.values() if trial["until_s"] > view.time]
        again = [view.time if sent else math.inf, view.protection_ends if due else math.inf]
        return selected(floor, min([*again, *ends])), left

    def _judged(
        self, view: Snapshot, own: Mapping[str, Any], groups: list[Group]
    ) -> tuple[dict[str, dict[str, Any]], set[int], list[list[int]]]:
        """The trials that go on, who goes back to the queue, and who has parted from whom."""
        speed = dict(zip(view.jobs.number.tolist(), view.jobs.rate.tolist()))
        mates = {number: group.members for group in groups for number in group.members}
        protected = view.protected
        bound = set() if protected is None else set(view.jobs.number[protected].tolist())
        trials, sent = dict[str, dict[str, Any]](), set[int]()
        enemies = [pair for pair in own.get("enemies", []) if pair[0] in speed and pair[1] in speed]
        for name, trial in own.get("trials", {}).items():
            number, before = int(name), {int(other): rate for other, rate in trial["before"].items()}
            there = [other for other in before if other in mates.get(number, ())]
            if not there:
                continue
            if view.time < trial["until_s"]:
                trials[name] = trial
            elif not any(speed[other] <= (1 - self.drop) * before[other] for other in there):
                continue
            elif number in bound:  # it goes once it may
                trials[name] = trial
            else:
                sent.add(number)
                enemies += [sorted((number, other)) for other in there]
        return trials, sent, enemies

    def _place(
        self, view: Snapshot, floor: Floor, looks: Mapping[int, Look], newcomers: list[int], trials: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Newcomers to their places, company only while there may be another trial; the trials that begin."""
        speed = dict(zip(view.jobs.number.tolist(), view.jobs.rate.tolist()))
        open_ = sum(trial["until_s"] > view.time for trial in trials.values())
        begun: dict[str, dict[str, Any]] = {}

        def alone(number: int, kind: int) -> float:
            """What is expected of who has just come and was not seen to run."""
            return float(view.rates.alone[looks[number].row, kind])

        for number in newcomers:
            floor.company = open_ + len(begun) < self.trials
            spot = floor.best(looks[number], number)
            if spot is None:
                continue
            if spot.group is not None:
                before = {str(other): speed[other] or alone(other, spot.kind) for other in spot.group.members}
                begun[str(number)] = {"until_s": view.time + self.warm_up_s, "before": before}
            floor.put(number, looks[number], spot)
        return begun


@dataclass(frozen=True)
class _Given:
    """What both begin with: memory that was learned to be needed, what everybody looks like, and who stands together."""

    view: Snapshot
    before: Seen
    seen: Seen
    judge: Judge
    looks: Mapping[int, Look]
    groups: list[Group]

    @classmethod
    def of(cls, view: Snapshot, memo: Memo, max_jobs: int) -> _Given:
        before = Seen.from_memo(memo)
        judge = Judge(view, Limits(jobs=max_jobs), 1.0, 0.0, {})
        seen = before.after_failures(view, judge, looks_of(view, before.least_gb))
        looks = looks_of(view, seen.least_gb)
        return cls(view, before, seen, judge, looks, running_groups(view, looks))

    def floor(self, gone: set[int]) -> Floor:
        return floor_of(self.view, self.judge, (less(group, gone) for group in self.groups), ALL_NODES)


def _check_most(policy: str, most: int) -> None:
    if most < 1:
        raise InputError(f"policy {policy}", "at least 1", field="max_jobs", value=most)
