"""The policy `horus` (Yeung et al., TPDS'21, §4.2): waiting jobs are in k queues by predicted requirements, queues are
served round-robin by weight, and each job goes to the accelerators where it costs least:

    cost = ω₁ · memory fraction + ω₂ · predicted slowdown,   on idle accelerators and on shared ones alike.

With k = 1 it is Horus, with k = 3 Horus-f. Beyond the paper, a job or the scheduler can limit the slowdown (an *interference
SLO*): no job is placed where a predicted slowdown exceeds a limit, and jobs with a larger observed slowdown are separated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.observed_slowdowns import observed_slowdowns
from fairlead.core.plan import Selection
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.colocation_cost import ColocationCost, ColocationLimits, JobSignature
from fairlead.policies.colocation.pairing.slots import (
    ColocatedGroup,
    SlotFinder,
    on_drained_nodes,
    place_by_match,
    place_in_order,
    running_groups,
    to_selection,
)
from fairlead.policies.colocation.pairing.slowdown_monitor import (
    ColocationMemo,
    exceeds_limit,
    slowdowns_with,
)

MAX_ITERATIONS = 50


def clustered(features: Floats, k: int) -> Ints:
    """The cluster of each row by k-medians (L1 distance), from the smallest point and those farthest from the centres so
    far."""
    if k == 1 or len(features) < 2:
        return np.zeros(len(features), dtype=np.int64)
    low, high = features.min(axis=0), features.max(axis=0)
    scaled = (features - low) / np.where(high > low, high - low, 1.0)
    points, of, count = np.unique(scaled, axis=0, return_inverse=True, return_counts=True)
    of = of.reshape(-1)
    if len(points) <= k:
        return of
    first = [int(points.sum(axis=1).argmin())]
    while len(first) < k:
        first.append(int(_distances(points, points[first]).min(axis=1).argmax()))
    centres = points[first]
    assigned: Ints = np.full(len(points), -1)
    for _ in range(MAX_ITERATIONS):
        nearest = _distances(points, centres).argmin(axis=1)
        if np.array_equal(nearest, assigned):
            break
        assigned = nearest
        for cluster in np.unique(assigned).tolist():
            there = assigned == cluster
            centres[cluster] = np.median(points[there].repeat(count[there], axis=0), axis=0)
    return assigned[of]


def _distances(points: Floats, centres: Floats) -> Floats:
    distances: Floats = np.abs(points[:, None, :] - centres[None, :, :]).sum(axis=2)
    return distances


def weighted_turns(queue: Ints, waited_s: Floats, number: Ints, beta: int) -> Iterator[list[int]]:
    """Positions of waiting jobs in batches of `beta` (Horus §4.2.2). Queue x has w_x of every Σw positions of a batch,

        w_x = max{Len_x, Med_x · Len_x},   Med_x the median wait of queue x in seconds,

    computed again for each batch. Inside a queue the longest wait goes first."""
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
    for line in lines.values():  # the last queue
        yield from (line[start : start + beta].tolist() for start in range(0, len(line), beta))


def critical_jobs(view: Snapshot, costs: ColocationCost, signatures: Mapping[int, JobSignature]) -> list[int]:
    """Waiting jobs that would end last if they waited longer, by number, longest first. A place is an accelerator for one of
    the jobs that share it, and

        c_i = run time left alone, on the fastest type  ×  typical slowdown by co-location
        V   = Σ c_i · workers_i / places,  over all jobs: the time for all work, if it were divided evenly

    A waiting job with c_i ≥ V is critical. Horus' own algorithm does not consider run times (§4.2.3)."""
    jobs, rates = view.jobs, view.rates
    fastest, sharing = rates.fastest, costs.limits.jobs
    alone_s = np.divide(jobs.steps_left, fastest, out=np.zeros(len(jobs)), where=fastest > 0)
    type_ = rates.alone.argmax(axis=1)[rates.row]
    slowdown, has_partner = (column[rates.row, type_] for column in costs.typical)
    shares = has_partner & ~np.fromiter(
        (costs.runs_alone(signatures[number]) for number in jobs.number.tolist()), np.bool_, len(jobs)
    )
    left_s = alone_s * np.where(shares, slowdown, 1.0)
    work = (left_s * jobs.workers * np.where(shares, 1, sharing)).sum()
    places = sharing * int(view.capacity.sum())
    if not (places and np.isfinite(work)):
        return []
    late = np.flatnonzero(~jobs.running & (left_s > 0) & (left_s >= work / places))
    chosen: list[int] = jobs.number[late[np.lexsort((jobs.number[late], -left_s[late]))]].tolist()
    return chosen


NO_PREDICTION = "nothing is predicted for its kind"
TOLERATES_NONE = "it tolerates no slowdown (max_slowdown)"
NO_SLOWDOWN = "this scheduler allows no slowdown (slo)"
RATE_UNKNOWN = "its slowdown is limited, and its exclusive rate is not known yet"
TOO_SLOW = "with every job that leaves room for it, one of the two would exceed its slowdown limit"
WAIT_RESTARTED = "the longest wait goes first, and its own counts from when it last stopped"


def waiting_reasons(
    slots: SlotFinder, signatures: Mapping[int, JobSignature], waiting: Iterable[int], stopped: Ints
) -> dict[int, Reason]:
    """Reasons of jobs that found no slot, where there is more to say than that others go first. `stopped` have run before."""
    cache: dict[tuple[int, bool], Reason | None] = {}
    reasons, before = dict[int, Reason](), set(stopped.tolist())
    for number in waiting:
        job, again = signatures[number], number in before
        key = (id(job), again)
        if key not in cache:
            cache[key] = _reason(slots, job, again)
        if (reason := cache[key]) is not None:
            reasons[number] = reason
    return reasons


def _reason(slots: SlotFinder, job: JobSignature, stopped: bool) -> Reason | None:
    usable_types = [type_ for type_ in slots.types_of(job) if slots.view.capacity[type_] >= job.workers]
    idle = (slots.idle[slots.view.cluster.accelerators_of_type[type_]] for type_ in usable_types)
    free = max((int(np.count_nonzero(some)) for some in idle), default=job.workers)
    if free >= job.workers:  # or too few are up: it waits neither for other jobs nor for co-location
        return None
    why, restarted = _why_alone(slots, job, usable_types), WAIT_RESTARTED if stopped else ""
    return Reasons.waiting(job.workers, free=free, alone=why, after_run=restarted) if why or restarted else None


def _why_alone(slots: SlotFinder, job: JobSignature, usable_types: list[int]) -> str:
    costs = slots.costs
    if costs.runs_alone(job):
        return TOLERATES_NONE if job.max_slowdown < math.inf else NO_SLOWDOWN
    usage = costs.view.rates.usage
    if usage is not None and all(math.isinf(usage.memory_gb[job.row, type_]) for type_ in usable_types):
        return NO_PREDICTION
    if costs.slowdown_limit(job) < math.inf and not any(costs.rate_known(job, type_) for type_ in usable_types):
        return RATE_UNKNOWN
    slow = False
    for type_, signatures, _ in slots.joinable(job):
        both = (*signatures, job)
        if costs.cost(both, type_) is not None:  # their hosts are full, or they are frozen
            return ""
        slow = slow or (any(costs.slowdown_limit(one) < math.inf for one in both) and costs.fits(both, type_))
    return TOO_SLOW if slow else ""


@dataclass(frozen=True)
class Horus:
    """Co-locate jobs on GPUs where that is predicted to cost least; queues of similar jobs alternate.

    `queues` is k; `beta` jobs are picked at a time, before queues are weighed again. `memory_weight` and `slowdown_weight` are
    ω₁ and ω₂. At most `max_jobs` share an accelerator, with a predicted utilization of at most `max_utilization` percent and
    at most a fraction `max_memory` of its memory. `slo` limits the slowdown of jobs without a limit of their own. Gangs from
    `local_from` workers on prefer few nodes over low cost. For a job that has waited `starving_s`, the accelerators it needs
    are closed to other new jobs. With `match` the first `beta` waiting jobs are placed not in order, but by how well they match
    the running ones (Equation 3 over the buffer). With `critical`, jobs that would last as long as all remaining work go before
    the queues. Once no job waits, jobs with an observed slowdown above `unpack` move to idle accelerators.
    """

    paper: ClassVar[str] = "Horus (Yeung et al., TPDS'21)"
    queues: int = 1  # queues of similar jobs, clustered by workers, predicted utilization and memory; 3 is Horus-f
    beta: int = 15  # jobs that are picked before the queues are weighed again
    memory_weight: float = 0.5  # weight of memory in the cost of a placement (ω₁)
    slowdown_weight: float = 0.5  # weight of the slowdown in the cost of a placement (ω₂)
    max_jobs: int = 2  # jobs on one GPU, at most
    max_utilization: float = math.inf  # percent of predicted utilization of all jobs on a GPU, at most
    max_memory: float = 1.0  # part of a GPU's memory that jobs may use
    slo: float = math.inf
    """No job may be more than this many times slower than alone; a job's own `max_slowdown` takes precedence."""
    local_from: int = 8  # gangs from this size on prefer few nodes over low cost
    starving_s: float = 7200.0  # after this wait, the GPUs that a job needs are closed to other new jobs
    match: bool = False  # place the first `beta` waiting jobs by best match (Equation 3) instead of in order
    critical: bool = False  # a job that would last as long as all remaining work, divided evenly, goes before the queues
    unpack: float = math.inf  # once no job waits, a job this many times slower than alone moves to an idle GPU

    def __post_init__(self) -> None:
        def check(good: bool, field: str, expected: str) -> None:
            if not good:
                raise InputError("policy horus", expected, field=field, value=getattr(self, field))

        for name in ("queues", "beta", "max_jobs", "local_from"):
            check(getattr(self, name) >= 1, name, "at least 1")
        for name in ("memory_weight", "slowdown_weight"):
            check(0 <= getattr(self, name) < math.inf, name, "a weight of at least 0")
        check(self.max_utilization > 0, "max_utilization", "percent above 0")
        check(0 < self.max_memory < math.inf, "max_memory", "a fraction above 0 of a GPU's memory")
        for name in ("slo", "unpack"):
            check(getattr(self, name) >= 1, name, "times the run time alone, at least 1")
        check(self.starving_s > 0, "starving_s", "seconds above 0")

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        before = ColocationMemo.from_memo(memo)
        costs = self._costs(view, before)
        known = before.with_failures(view, costs)
        signatures = known.signatures(view)
        groups = running_groups(view, signatures)
        separated, slowdowns = self._separated(view, costs, groups)
        if slowdowns:
            known = replace(known, slowdowns={**known.slowdowns, **slowdowns})
        costs = self._costs(view, known)
        drained = on_drained_nodes(view, groups) - separated
        remaining = [left for group in groups if (left := group.without(separated | drained)) is not None]
        slots = SlotFinder(view, costs, self.local_from, remaining)
        # Separated jobs and their former partners are not co-located again in this decision: it might be as bad.
        slots.freeze(place for group in groups if separated.intersection(group.members) for place in group.places)
        slots.colocate = False
        placed = place_in_order(slots, signatures, sorted(separated))
        slots.colocate = True
        starving, critical, rest = self._waiting(view, costs, signatures)
        placed += place_in_order(slots, signatures, (*sorted(drained), *starving), starving=len(drained) + len(starving))
        placed += place_in_order(slots, signatures, critical)
        if self.match:
            placed += place_by_match(slots, signatures, rest, self.beta)
        else:
            placed += place_in_order(slots, signatures, rest)
        if not len(view.jobs.waiters) and not separated and self.unpack < math.inf:
            placed += self._unpacked(view, slots)
        # The next decision sees how the remaining jobs of separated groups run, and whether any job still waits.
        again = view.time if separated or (placed and self.unpack < math.inf) else math.inf
        new = set(placed)
        selection = to_selection(slots, min(again, self._valid_until(view, costs, slots.groups, new)))
        waiting = [number for number in (*starving, *critical, *rest) if number not in new]
        stopped = view.jobs.number[view.jobs.starts > 0]
        reasons = waiting_reasons(slots, signatures, waiting, stopped)
        return selection.with_reasons(reasons), memo if known is before else known.to_memo()

    def _costs(self, view: Snapshot, known: ColocationMemo) -> ColocationCost:
        limits = ColocationLimits(self.max_jobs, self.max_utilization / 100, self.max_memory, self.slo)
        return ColocationCost(view, limits, self.memory_weight, self.slowdown_weight, known.slowdowns)

    def _separated(
        self, view: Snapshot, costs: ColocationCost, groups: list[ColocatedGroup]
    ) -> tuple[set[int], dict[tuple[str, str, int], float]]:
        """Jobs that must leave their groups, and observed slowdowns of kinds; protected jobs stay and others leave."""
        jobs, bound, starting = view.jobs, set[int](), set[int]()
        if (protected := view.protected) is not None:
            first = protected & (view.time - jobs.run_started_s >= jobs.min_run_s)
            bound, starting = (set(jobs.number[which].tolist()) for which in (protected, first))
        leaving, observed = set[int](), dict[tuple[str, str, int], float]()
        for group in groups:
            left: ColocatedGroup | None = group
            limited = len(group.members) > 1 and any(costs.slowdown_limit(job) < math.inf for job in group.signatures)
            factors = observed_slowdowns(view, group.members, group.places, group.type) if limited else []
            slow = exceeds_limit(group, factors, costs)
            while left is not None and len(left.members) > 1 and (slow or not costs.fits(left.signatures, left.type)):
                free = [number for number in left.members if number not in bound]
                if not free or left.members[-1] in starting:
                    break
                if slow:
                    observed |= slowdowns_with(left, factors, free[-1])
                leaving.add(free[-1])
                left, slow = left.without({free[-1]}), False
        return leaving, observed

    def _unpacked(self, view: Snapshot, slots: SlotFinder) -> list[int]:
        """Jobs that leave their groups for idle accelerators: the most recent member, of the slowest group first."""
        bound = set() if view.protected is None else set(view.jobs.number[view.protected].tolist())
        shared = [
            (max(observed_slowdowns(view, group.members, group.places, group.type)), group)
            for group in slots.groups
            if len(group.members) > 1
        ]
        slots.colocate, moved = False, list[int]()
        for slowdown, group in sorted(shared, key=lambda one: (-one[0], one[1].places)):
            mover, job = group.members[-1], group.signatures[-1]
            if slowdown > self.unpack and mover not in bound and (slot := slots.best(job)) is not None:
                group.members, group.signatures = group.members[:-1], group.signatures[:-1]
                slots.put(mover, job, slot)
                moved.append(mover)
        return moved

    def _waiting(
        self, view: Snapshot, costs: ColocationCost, signatures: Mapping[int, JobSignature]
    ) -> tuple[list[int], list[int], list[int]]:
        """Starving jobs, longest wait first; critical ones; and all others in the order of their turns; by number."""
        jobs = view.jobs.waiters
        if not len(jobs):
            return [], [], []
        late = view.time >= jobs.waiting_since_s + self.starving_s
        starving = jobs.number[late][np.lexsort((jobs.number[late], jobs.waiting_since_s[late]))].tolist()
        others = set(jobs.number[~late].tolist())
        critical = [number for number in critical_jobs(view, costs, signatures) if number in others] if self.critical else []
        rest = jobs.only(~late & ~np.isin(jobs.number, critical))
        queue = clustered(_features(view, costs, rest.number), self.queues)
        turns = weighted_turns(queue, rest.waited_s, rest.number, self.beta)
        return starving, critical, [number for batch in turns for number in rest.number[batch].tolist()]

    def _valid_until(self, view: Snapshot, costs: ColocationCost, groups: list[ColocatedGroup], new: set[int]) -> float:
        """When the answer may change without an event: starvation, the end of a minimum run, or a rate to observe."""
        jobs = view.jobs.waiters
        ends = jobs.waiting_since_s + self.starving_s
        until = [float(ends[ends > view.time].min(initial=math.inf)), view.protection_ends]
        current_since_s = view.rates.current_since_s
        begins_s = view.jobs.since_s if current_since_s is None else np.maximum(view.jobs.since_s, current_since_s)
        begins = dict(zip(view.jobs.number.tolist(), begins_s.tolist()))
        for group in groups:
            monitored = self.unpack < math.inf or any(costs.slowdown_limit(job) < math.inf for job in group.signatures)
            if len(group.members) > 1 and monitored:
                until += [begins[number] for number in group.members if begins[number] > view.time]
                until += [view.time for number in group.members if number in new]
        return min(until)


def _features(view: Snapshot, costs: ColocationCost, numbers: Ints) -> Floats:
    """Tasks, predicted utilization, GPUs of a task (one per worker) and predicted memory, on the best type."""
    at = view.jobs.number.searchsorted(numbers)
    row, rates = view.rates.row[at], view.rates
    best = rates.alone.argmax(axis=1)[row]
    if rates.usage is None:
        utilization, memory = np.ones(len(at)), view.jobs.memory_gb[at]
    else:
        utilization, memory = rates.usage.utilization[row, best], rates.usage.memory_gb[row, best]
    device = np.array(costs.device_memory_gb)[best]
    memory = np.where(np.isfinite(memory), memory, np.where(np.isfinite(device), device, 0.0))
    return np.column_stack((view.jobs.workers[at], utilization, np.ones(len(at)), memory)).astype(np.float64)
