"""Horus (Yeung et al., TPDS'21, §4.2): waiting jobs stand in k queues by what they are predicted to need, queues take turns by
weight, and each job goes to the accelerators where it costs least:

    cost = ω₁ · memory share + ω₂ · predicted slowdown,   idle accelerators and those with somebody on them alike.

With k = 1 it is Horus, with k = 3 Horus-f. Beyond the paper, a job or the scheduler can set a limit to the slowdown (an
*interference SLO*): nobody is put where it is predicted to be slower, and who is seen to be slower is parted from its
company."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.compatibility import Judge, Limits, Look, looks_of
from fairlead.policies.colocation.pairing.slots import (
    Floor,
    Group,
    floor_of,
    less,
    matched,
    placed,
    running_groups,
    selected,
    stranded,
)
from fairlead.policies.colocation.pairing.slowdown_monitor import Seen, harm_of, slowdowns_seen, too_slow

# Who is looked at when (Horus §4.2.2): waiting jobs that are alike stand in one queue, and queues take turns by weight.
#
# w_x = max{Len_x, Med_x · Len_x},   Med_x the median wait of queue x in seconds
#
# Queues come of k-means under the L1 distance, whose centres are medians. It draws nothing: the first centre is the least
# point,
# each further one the point that is farthest from those there are. It knows neither accelerators nor cost.

MOST_ITERATIONS = 50


def clustered(features: Floats, k: int) -> Ints:
    """For each row its cluster, from 0 on; at most `k` of them, fewer where there are fewer different rows."""
    if k == 1 or len(features) < 2:
        return np.zeros(len(features), dtype=np.int64)
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    points, of, count = np.unique(scaled, axis=0, return_inverse=True, return_counts=True)
    of = of.reshape(-1)
    if len(points) <= k:
        return of
    centres = _first_centres(points, k)
    mine: Ints = np.full(len(points), -1)
    for _ in range(MOST_ITERATIONS):
        nearest = _distances(points, centres).argmin(axis=1)
        if np.array_equal(nearest, mine):
            break
        mine = nearest
        for cluster in np.unique(mine).tolist():
            there = mine == cluster
            centres[cluster] = np.median(points[there].repeat(count[there], axis=0), axis=0)
    return mine[of]


def _first_centres(points: Floats, k: int) -> Floats:
    chosen = [int(points.sum(axis=1).argmin())]
    while len(chosen) < k:
        chosen.append(int(_distances(points, points[chosen]).min(axis=1).argmax()))
    return points[chosen]


def _distances(points: Floats, centres: Floats) -> Floats:
    apart: Floats = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2)
    return apart


def in_turns(queue: Ints, waited_s: Floats, number: Ints, beta: int) -> Iterator[list[int]]:
    """Positions of all that wait, in batches of `beta`; before each batch the queues are weighed anew. Inside a queue who has
    waited longest goes first, and within a batch queue x has w_x of every Σw places."""
    lines = {int(x): np.flatnonzero(queue == x) for x in np.unique(queue)}
    lines = {x: line[np.lexsort((number[line], -waited_s[line]))] for x, line in lines.items()}
    while len(lines) > 1:
        batch: list[tuple[float, int, int]] = []
        for x, line in lines.items():
            weight = len(line) * max(1.0, float(np.median(waited_s[line])))
            batch += [((place + 1) / weight, x, at) for place, at in enumerate(line[:beta].tolist())]
        batch = sorted(batch)[:beta]
        yield [at for _, _, at in batch]
        for x in {x for _, x, _ in batch}:
            lines[x] = lines[x][sum(1 for _, other, _ in batch if other == x) :]
        lines = {x: line for x, line in lines.items() if len(line)}
    for line in lines.values():  # with nobody to share turns with
        yield from (line[start : start + beta].tolist() for start in range(0, len(line), beta))


# Who can wait no longer without being the last to end. A place is an accelerator for one of those who share it, and
#
# c_i = run time left alone, on the fastest type  ×  how much slower company usually makes it
# V   = Σ c_i · workers_i / places,  over all who run or wait: all that is left, if it could be dealt out evenly
#
# A waiting job with c_i ≥ V is *critical*: everybody else can be done by the time it ends. It goes by the steps that jobs say
# they make and by predictions, and knows nothing of accelerators by number. Horus' own algorithm leaves time out (§4.2.3).


def critical(view: Snapshot, judge: Judge, looks: Mapping[int, Look]) -> list[int]:
    """By number, the longest first."""
    jobs, rates = view.jobs, view.rates
    fastest, most = rates.fastest, judge.limits.jobs
    alone_s = np.divide(jobs.steps_left, fastest, out=np.zeros(len(jobs)), where=fastest > 0)
    kind = rates.alone.argmax(axis=1)[rates.row]
    shares = judge.has_company[rates.row, kind]
    shares &= ~np.fromiter((judge.refuses(looks[number]) for number in jobs.number.tolist()), np.bool_, len(jobs))
    lasts_s = alone_s * np.where(shares, judge.usually[rates.row, kind], 1.0)
    taken = (lasts_s * jobs.workers * np.where(shares, 1, most)).sum()
    places = most * int(view.capacity.sum())
    if not (places and np.isfinite(taken)):
        return []
    late = np.flatnonzero(~jobs.running & (lasts_s > 0) & (lasts_s >= taken / places))
    chosen: list[int] = jobs.number[late[np.lexsort((jobs.number[late], -lasts_s[late]))]].tolist()
    return chosen


# What people are told of who waits, where "others go first" is not all: why it has no company while others share, and that
# its
# wait counts anew if it has run before. It decides nothing, and looks at everybody who looks alike once.

UNKNOWN = "nothing is predicted of its kind"
BEARS_NONE = "it bears no slowdown (max_slowdown)"
NOBODY_BEARS = "nobody may be slowed down here (slo)"
UNSEEN = "it may not be slowed down much, and how fast it is alone is not known yet"
TOO_SLOW = "with any who would have room for it, one of the two would be slower than it may be"
ANEW = "the longest wait goes first, and its own counts from when it last stopped"


def reasons_of(floor: Floor, looks: Mapping[int, Look], waiting: Iterable[int], stopped: Ints) -> dict[int, Reason]:
    """By number, of those who found no place and of whom there is more to say. `stopped` are those who have run before."""
    told: dict[tuple[int, bool], Reason | None] = {}
    reasons, before = dict[int, Reason](), set(stopped.tolist())
    for number in waiting:
        look, again = looks[number], number in before
        key = (id(look), again)
        if key not in told:
            told[key] = _reason(floor, look, again)
        if (reason := told[key]) is not None:
            reasons[number] = reason
    return reasons


def _reason(floor: Floor, look: Look, stopped: bool) -> Reason | None:
    kinds = [kind for kind in floor.types_of(look) if floor.view.capacity[kind] >= look.workers]
    free = max((floor.idle_on(kind) for kind in kinds), default=look.workers)
    if free >= look.workers:  # or too few are up for it: neither others nor company are what it waits for
        return None
    why, anew = _why_alone(floor, look, kinds), ANEW if stopped else ""
    return Unplaced.outranked(look.workers, free=free, alone=why, anew=anew) if why or anew else None


def _why_alone(floor: Floor, look: Look, kinds: list[int]) -> str:
    judge = floor.judge
    if judge.refuses(look):
        return BEARS_NONE if look.max_slowdown < math.inf else NOBODY_BEARS
    usage = judge.view.rates.usage
    if usage is not None and all(math.isinf(usage.memory_gb[look.row, kind]) for kind in kinds):
        return UNKNOWN
    if judge.limit(look) < math.inf and not any(judge.can_tell(look, kind) for kind in kinds):
        return UNSEEN
    slow = False
    for kind, looks, _ in floor.open_to(look):
        both = (*looks, look)
        if judge.cost(both, kind) is not None:  # they have no room for it on their hosts, or are left alone for now
            return ""
        slow = slow or (any(judge.limit(one) < math.inf for one in both) and judge.fit(both, kind))
    return TOO_SLOW if slow else ""


@dataclass(frozen=True)
class Horus:
    """Share accelerators where that is predicted to cost least; queues of similar jobs take turns.

    `queues` is k; `beta` jobs are picked at a time, before queues are weighed anew. `memory_weight` and `slowdown_weight` are
    ω₁ and ω₂. At most `max_jobs` share an accelerator, with a predicted utilization of at most `max_utilization` percent and
    at most a part `max_memory` of its memory. `slo`: nobody may be slower than so many times alone, unless it says itself how
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
    max_jobs: int = 2
    max_utilization: float = math.inf
    max_memory: float = 1.0
    slo: float = math.inf
    local_from: int = 8
    starving_s: float = 7200.0
    match: bool = False
    critical: bool = False
    unpack: float = math.inf

    def __post_init__(self) -> None:
        for name in ("queues", "beta", "max_jobs", "local_from"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("memory_weight", "slowdown_weight"):
            _check(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "a weight from 0 on")
        _check(self.max_utilization > 0, "max_utilization", self.max_utilization, "percent above 0")
        _check(0 < self.max_memory < math.inf, "max_memory", self.max_memory, "a part above 0 of an accelerator's memory")
        for name in ("slo", "unpack"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "times the run time alone, from 1 on")
        _check(self.starving_s > 0, "starving_s", self.starving_s, "seconds above 0")

    @property
    def limits(self) -> Limits:
        return Limits(self.max_jobs, self.max_utilization / 100, self.max_memory, self.slo)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
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
        return selection.with_reasons(reasons_of(floor, looks, left, stopped)), memo if seen is before else seen.to_memo()

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
        current_since_s = view.rates.current_since_s
        begins_s = view.jobs.since_s if current_since_s is None else np.maximum(view.jobs.since_s, current_since_s)
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
