"""Horus (Yeung et al., TPDS'21, §4.2): waiting jobs stand in k queues by what they are predicted to need, queues take turns by
weight, and each job goes to the accelerators where it costs least:

    cost = ω₁ · memory share + ω₂ · predicted slowdown,   idle accelerators and those with somebody on them alike.

With k = 1 it is Horus, with k = 3 Horus-f. Beyond the paper, a job or the scheduler can set a limit to the slowdown (an
*interference SLO*): nobody is put where it is predicted to be slower, and who is seen to be slower is parted from its
company."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.horus.company import Judge, Limits, Look, looks_of
from fairlead.policies.horus.critical import critical
from fairlead.policies.horus.floor import Floor, Group
from fairlead.policies.horus.placing import floor_of, less, matched, placed, running_groups, selected, stranded
from fairlead.policies.horus.queues import clustered, in_turns
from fairlead.policies.horus.reasons import reasons_of
from fairlead.policies.horus.watch import Seen, harm_of, slowdowns_seen, too_slow


@dataclass(frozen=True)
class Horus:
    """Share accelerators where that is predicted to cost least; queues of similar jobs take turns.

    `queues` is k; `beta` jobs are picked at a time, before queues are weighed anew. `memory_weight` and `slowdown_weight` are
    ω₁ and ω₂. At most `most_jobs` share an accelerator, with a predicted utilization of at most `most_utilization` percent and
    at most a part `most_memory` of its memory. `slo`: nobody may be slower than so many times alone, unless it says itself how
    much it bears. Gangs from `local_from` workers on stand on few nodes before cost counts. For who has waited `starving_s`,
    as many accelerators as it needs are kept free from newcomers. With `match` the first `beta` who wait take places not in
    their order, but as each gets on with who is there (Equation 3 over the buffer). With `critical`, who would last as long as
    all that is left goes before the queues. Once nobody waits, company in which somebody is seen to be `unpack` times slower
    than alone is parted while accelerators are idle.
    """

    paper: ClassVar[str] = "Horus (Yeung et al., TPDS'21)"
    queues: int = 1
    beta: int = 15
    memory_weight: float = 0.5
    slowdown_weight: float = 0.5
    most_jobs: int = 2
    most_utilization: float = math.inf
    most_memory: float = 1.0
    slo: float = math.inf
    local_from: int = 8
    starving_s: float = 7200.0
    match: bool = False
    critical: bool = False
    unpack: float = math.inf

    def __post_init__(self) -> None:
        for name in ("queues", "beta", "most_jobs", "local_from"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("memory_weight", "slowdown_weight"):
            _check(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a weight from 0 on")
        _check(self.most_utilization > 0, "most_utilization", self.most_utilization, "percent above 0")
        _check(0 < self.most_memory < math.inf, "most_memory", self.most_memory, "a part above 0 of an accelerator's memory")
        for name in ("slo", "unpack"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "times the run time alone, from 1 on")
        _check(self.starving_s > 0, "starving_s", self.starving_s, "seconds above 0")

    @property
    def limits(self) -> Limits:
        return Limits(self.most_jobs, self.most_utilization / 100, self.most_memory, self.slo)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.nobody(), memo
        before = Seen.from_memo(memo)
        looks = looks_of(view, before.least_gb)
        judge = self._judge(view, before)
        seen = before.after_failures(view, judge, looks)
        if seen is not before:
            looks = looks_of(view, seen.least_gb)
        groups = running_groups(view, looks)
        parted, harm = self._parted(view, judge, groups)
        seen = seen.and_slower(harm)
        judge = self._judge(view, seen)
        homeless = stranded(view, groups) - parted
        floor = floor_of(view, judge, (less(group, parted | homeless) for group in groups), self.local_from)
        # Who was parted, and from whom, has no other company before the next look: it might be as bad.
        floor.rest(place for group in groups if parted.intersection(group.members) for place in group.places)
        floor.company = False
        newcomers = placed(floor, looks, sorted(parted))
        floor.company = True
        starving, pressing, rest = self._waiting(view, judge, looks)
        newcomers += placed(floor, looks, (*sorted(homeless), *starving), starving=len(homeless) + len(starving))
        newcomers += placed(floor, looks, pressing)
        newcomers += matched(floor, looks, rest, self.beta) if self.match else placed(floor, looks, rest)
        if not len(view.jobs.waiters) and not parted and self.unpack < math.inf:
            newcomers += self._unpacked(view, floor)
        # How those do whom somebody left, and whether anybody still waits, is there to be seen next time.
        again = view.time if parted or (newcomers and self.unpack < math.inf) else math.inf
        found = set(newcomers)
        selection = selected(floor, min(again, self._holds(view, judge, floor.groups, found)))
        left = [number for number in (*starving, *pressing, *rest) if number not in found]
        stopped = view.jobs.number[view.jobs.starts > 0]
        return selection.because(reasons_of(floor, looks, left, stopped)), memo if seen is before else seen.to_memo()

    def _judge(self, view: Snapshot, seen: Seen) -> Judge:
        return Judge(view, self.limits, self.memory_weight, self.slowdown_weight, seen.slower)

    def _parted(self, view: Snapshot, judge: Judge, groups: list[Group]) -> tuple[set[int], dict[tuple[str, str, int], float]]:
        """Who must leave its company, the last to come first; and how much slower kinds were seen to be beside each other. Who
        has asked for a minimum run stays, and others leave; who has not made its first step leaves soon, and is waited for."""
        jobs, bound, starting = view.jobs, set[int](), set[int]()
        if (protected := view.protected) is not None:
            first = protected & (view.time - jobs.run_started_s >= jobs.min_run_s)
            bound, starting = (set(jobs.number[which].tolist()) for which in (protected, first))
        gone, harm = set[int](), dict[tuple[str, str, int], float]()
        for group in groups:
            left: Group | None = group
            limited = len(group.members) > 1 and any(judge.limit(look) < math.inf for look in group.looks)
            factors = slowdowns_seen(group, view) if limited else []
            slow = too_slow(group, factors, judge)
            while left is not None and len(left.members) > 1 and (slow or not judge.fit(left.looks, left.kind)):
                free = [number for number in left.members if number not in bound]
                if not free or left.members[-1] in starting:
                    break
                if slow:
                    harm |= harm_of(left, factors, free[-1])
                gone.add(free[-1])
                left, slow = less(left, {free[-1]}), False
        return gone, harm

    def _unpacked(self, view: Snapshot, floor: Floor) -> list[int]:
        """Who leaves its company for idle accelerators: the last to come, of the slowest company first."""
        bound = set() if view.protected is None else set(view.jobs.number[view.protected].tolist())
        crowds = [(max(slowdowns_seen(group, view)), group) for group in floor.groups if len(group.members) > 1]
        floor.company, moved = False, list[int]()
        for slower, group in sorted(crowds, key=lambda one: (-one[0], one[1].places)):
            mover, look = group.members[-1], group.looks[-1]
            if slower > self.unpack and mover not in bound and (spot := floor.best(look)) is not None:
                group.members, group.looks = group.members[:-1], group.looks[:-1]
                floor.put(mover, look, spot)
                moved.append(mover)
        return moved

    def _waiting(self, view: Snapshot, judge: Judge, looks: Mapping[int, Look]) -> tuple[list[int], list[int], list[int]]:
        """Who starves, longest first; who is critical; and all others, in the order of their turns; by number."""
        jobs = view.jobs.waiters
        if not len(jobs):
            return [], [], []
        hungry = view.time >= jobs.waiting_since_s + self.starving_s
        starving = jobs.number[hungry][np.lexsort((jobs.number[hungry], jobs.waiting_since_s[hungry]))].tolist()
        fed = set(jobs.number[~hungry].tolist())
        pressing = [number for number in critical(view, judge, looks) if number in fed] if self.critical else []
        rest = jobs.only(~hungry & ~np.isin(jobs.number, pressing))
        queue = clustered(_features(view, judge, rest.number), self.queues)
        turns = in_turns(queue, rest.waited_s, rest.number, self.beta)
        return starving, pressing, [number for batch in turns for number in rest.number[batch].tolist()]

    def _holds(self, view: Snapshot, judge: Judge, groups: list[Group], newcomers: set[int]) -> float:
        """Until when the answer is the same if nothing happens: somebody begins to starve, a minimum run ends, or there is a
        speed to be seen."""
        jobs = view.jobs.waiters
        ends = jobs.waiting_since_s + self.starving_s
        until = [float(ends[ends > view.time].min(initial=math.inf)), view.protection_ends]
        tells_s = view.rates.tells_s
        begins_s = view.jobs.since_s if tells_s is None else np.maximum(view.jobs.since_s, tells_s)
        begins = dict(zip(view.jobs.number.tolist(), begins_s.tolist()))
        for group in groups:
            watched = self.unpack < math.inf or any(judge.limit(look) < math.inf for look in group.looks)
            if len(group.members) > 1 and watched:
                until += [begins[number] for number in group.members if begins[number] > view.time]
                until += [view.time for number in group.members if number in newcomers]
        return min(until)


def _features(view: Snapshot, judge: Judge, numbers: Ints) -> Floats:
    """Tasks, predicted utilization, GPUs of a task (a worker has one) and predicted memory, on the best type."""
    at = view.jobs.number.searchsorted(numbers)
    row, rates = view.rates.row[at], view.rates
    best = rates.alone.argmax(axis=1)[row]
    if rates.usage is None:
        busy, memory = np.ones(len(at)), view.jobs.memory_gb[at]
    else:
        busy, memory = rates.usage.utilization[row, best], rates.usage.memory_gb[row, best]
    there = np.array(judge.there_gb)[best]
    memory = np.where(np.isfinite(memory), memory, np.where(np.isfinite(there), there, 0.0))
    return np.column_stack((view.jobs.workers[at], busy, np.ones(len(at)), memory)).astype(np.float64)


def _check(good: bool, field: str, value: object, expected: str) -> None:
    if not good:
        raise InputError("policy horus", expected, field=field, value=value)
