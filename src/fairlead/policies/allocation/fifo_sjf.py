"""FIFO and shortest job first over types (Gavel §4.2). FIFO, with jobs 0, 1, …, M−1 in the order of arrival, is

    max_X Σ_m (M − m) · throughput(m, X) / throughput(m, X^fastest)

With co-location or spread gangs it is a program over classes and their columns (lp/weighted_sum.py), which is also exact.
`greedy` is FIFO as in Gavel's simulator: a queue, served anew at each recomputation, not a program. Shortest job first is

    min_X min_m  left_m / throughput(m, X)

The optimum gives the job that can finish first its fastest type; the same rule then divides the rest of the cluster among the
other jobs. Co-location follows the same queue and does not change the optimum: no job shares with the first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import PAYS, SharingOptions, spread_gain
from fairlead.policies.allocation.lp.demand_model import DemandModel, ModelAnswer, solve_with_sharing
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, no_allocation
from fairlead.policies.allocation.lp.throughput_polytope import ThroughputPolytope
from fairlead.policies.allocation.lp.weighted_sum import WarmStart, maximize_weighted_sum, solve_by_job

FIFO_SHARES_ABOVE = 1.5
"""With `greedy`, jobs share GPUs where their combined normalized throughput is above this, as in Gavel's simulator."""


@dataclass(frozen=True)
class FifoPerf(SharingOptions):
    """Give earlier jobs their fastest GPU type first: maximize throughput, weighted by order of arrival.

    `greedy`: as in Gavel's simulator, each job in turn takes the fastest type with room, and the queue stops at the first job
    without room. A recomputation starts from an empty cluster, so a job moves to a faster type that has become free. With
    `space_sharing`, the jobs without room are co-located in turn, up to the first whose combined throughput is at most 1.5."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    greedy: bool = False  # jobs are placed one by one, and no job overtakes the first that finds no room
    _near: list[WarmStart] = field(default_factory=list, init=False, repr=False, compare=False)  # the proof of the last optimum

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        if self.alone and not self.greedy:
            return _alone(view, memo)
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo
        if self.greedy:
            return self._one_by_one(view, classes), memo

        def answer(model: DemandModel, _: ModelAnswer | None) -> ModelAnswer:
            assert isinstance(model, ThroughputPolytope)
            weight = _by_arrival(model.present, len(model.classes.class_of))
            used, part, near = maximize_weighted_sum(model, weight, self._near[0] if self._near else WarmStart())
            self._near[:] = [near]
            return ModelAnswer(used, model.to_demands(part * model.fastest))

        return solve_with_sharing("FIFO", view, classes, self, answer)[0], memo

    def _one_by_one(self, view: Snapshot, classes: JobClasses) -> Allocation:
        queue_order = np.arange(len(view.jobs))
        type_of_row = greedy_types(view, classes, queue_order, strict=True, placement_sensitive=self.placement_sensitive)
        host_of_guest: dict[int, int] = {}
        if self.space_sharing:
            host_of_guest = colocate_waiting(view, type_of_row, queue_order, above=FIFO_SHARES_ABOVE, strict=True)
        return pair_allocation(view, type_of_row, host_of_guest)


def _by_arrival(present: Ints, count: int) -> Floats:
    """(M − m) / M."""
    weight: Floats = (count - present) / count
    return weight


def _alone(view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
    """FIFO without co-location. Each job has its own weight, so classes would not help."""
    jobs, rates, capacity = view.jobs, view.rates, view.capacity
    can = (jobs.fits >> np.arange(len(capacity))[:, None]) & (jobs.workers <= capacity[:, None])
    rate = rates.alone.T.take(rates.row, axis=1) * can  # types × jobs
    fastest = rate.max(axis=0)
    present = fastest.nonzero()[0]
    if not len(present):
        return no_allocation(view), memo
    number, load = jobs.number, jobs.workers.astype(np.float64)
    if len(present) < len(jobs):
        rate, fastest, number, load = rate[:, present], fastest[present], number[present], load[present]
    near = memo["prices"] if isinstance(memo, Mapping) else None
    active, x, prices = solve_by_job(rate / fastest, load, _by_arrival(present, len(jobs)), capacity.astype(np.float64), near)
    return Allocation.alone(number[active], x), {"prices": significant(prices)}


@dataclass(frozen=True)
class ShortestJobFirstPerf(SharingOptions):
    """Start the job that can finish first on its fastest GPU type, then the next on its fastest type with room.

    With `space_sharing`, a job without room is co-located where the combined throughput is highest, but not with the first
    job. With `placement_sensitive`, a gang without consolidated room may do better on another type."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        fastest = classes.by_job(classes.rates.max(axis=1))
        duration_s = np.divide(view.jobs.steps_left, fastest, out=np.full(len(view.jobs), np.inf), where=fastest > 0)
        queue_order = duration_s.argsort(kind="stable")
        type_of_row = greedy_types(view, classes, queue_order, strict=False, placement_sensitive=self.placement_sensitive)
        if self.space_sharing:
            hosts = type_of_row.copy()
            hosts[queue_order[:1]] = -1
            return pair_allocation(view, type_of_row, colocate_waiting(view, hosts, queue_order[1:])), memo
        return Allocation.alone(view.jobs.number, whole_shares(type_of_row, len(view.capacity))), memo


def greedy_types(
    view: Snapshot,
    classes: JobClasses,
    queue_order: Ints,
    *,
    strict: bool,
    placement_sensitive: bool = False,
) -> Ints:
    """By row of the view, the type that the job takes, or -1: in turn, each job takes all its workers on its fastest type that
    has room. `strict`: stop at the first job without room."""
    room, class_of_row = view.capacity.tolist(), classes.class_of.tolist()
    consolidated_room = [1.0 + 1e-9] * len(room)  # by type: the fraction of its nodes that consolidated gangs can still use
    workers = view.jobs.workers.tolist()
    preferred = _preferred_types(view, classes, placement_sensitive)
    type_of_row = np.full(len(view.jobs), -1, dtype=np.int64)

    for row in queue_order.tolist():
        if class_of_row[row] < 0:
            continue
        for type_, part in preferred[class_of_row[row]]:
            if room[type_] >= workers[row] and consolidated_room[type_] >= part:
                room[type_] -= workers[row]
                consolidated_room[type_] -= part
                type_of_row[row] = type_
                break
        else:
            if strict:
                break
    return type_of_row


def _preferred_types(view: Snapshot, classes: JobClasses, placement_sensitive: bool) -> list[list[tuple[int, float]]]:
    """By class, fastest first: a type, and the fraction of its nodes that a consolidated gang takes there (else 0)."""
    rates, types = classes.rates, classes.rates.shape[1]
    parts = np.zeros_like(rates)
    if placement_sensitive:
        spread = spread_gain(classes, view, rates)
        parts = np.where((classes.workers > 1)[:, None], spread.use, 0.0)
        rates, parts = np.concatenate((rates, spread.gain), axis=1), np.concatenate((parts, np.zeros_like(parts)), axis=1)
    order = np.argsort(-rates, axis=1, kind="stable").tolist()
    return [
        [(column % types, part[column]) for column in mine if rate[column] > 0]
        for mine, rate, part in zip(order, rates.tolist(), parts.tolist())
    ]


def colocate_waiting(
    view: Snapshot, type_of_row: Ints, queue_order: Ints, *, above: float = 1.0, strict: bool = False
) -> dict[int, int]:
    """Map jobs without room to the jobs that host them, as rows of the view. Each job, in queue order, goes to the host with
    the highest combined throughput, if that is above `above`. `strict`: stop at the first job without a host."""
    rates, workers = view.rates, view.jobs.workers
    free = type_of_row >= 0  # hosts without a guest
    found: dict[int, int] = {}
    number = view.jobs.number
    limit, least = np.array([view.job_of[n].max_slowdown for n in number.tolist()]), rates.least_paired

    def combined_throughput(guest: int, hosts: Ints) -> Floats:
        """The sum of both rates, each relative to the job alone; 0 where they cannot be co-located."""
        type_, mine, theirs = type_of_row[hosts], rates.row[guest], rates.row[hosts]
        alone = rates.alone[mine, type_] * rates.alone[theirs, type_]
        guest_rate, host_rate = rates.paired[mine, theirs, type_], rates.paired[theirs, mine, type_]
        together = guest_rate * rates.alone[theirs, type_] + host_rate * rates.alone[mine, type_]
        both = (guest_rate > 0) & (host_rate > 0) & (workers[hosts] == workers[guest])
        both &= rates.alone[mine, type_] / limit[guest] <= least[mine, theirs, type_] * (1 + PAYS)
        both &= rates.alone[theirs, type_] / limit[hosts] <= least[theirs, mine, type_] * (1 + PAYS)
        fits = (view.jobs.fits[guest] >> type_) & 1
        if view.separated:
            me, others = number.item(guest), number[hosts].tolist()
            both &= np.array([(min(me, other), max(me, other)) not in view.separated for other in others], dtype=np.bool_)
        return np.where(both & (fits > 0), together / np.maximum(alone, 1e-300), 0.0)

    for guest in queue_order[type_of_row[queue_order] < 0].tolist():
        hosts = free.nonzero()[0]
        if not len(hosts):
            break
        value = combined_throughput(guest, hosts)
        best = int(value.argmax())
        if value[best] > above:
            found[guest], free[hosts[best]] = int(hosts[best]), False
        elif strict:
            break
    return found


def pair_allocation(view: Snapshot, type_of_row: Ints, host_of_guest: Mapping[int, int]) -> Allocation:
    """All of the time on the type taken, which a host shares with its guest; by rows of the view."""
    number = view.jobs.number
    row = (type_of_row >= 0).nonzero()[0]
    guest_number = np.full(len(view.jobs), -1, dtype=np.int64)
    guest_number[list(host_of_guest.values())] = number[list(host_of_guest)]
    first, second = number[row], guest_number[row]
    swapped = (second >= 0) & (second < first)
    first, second = np.where(swapped, second, first), np.where(swapped, first, second)
    return Allocation(first, second, type_of_row[row], np.ones(len(row)))


def whole_shares(type_of_row: Ints, types: int) -> Floats:
    """All of the time on the type taken: rows × types."""
    shares: Floats = (type_of_row[:, None] == np.arange(types)).astype(np.float64)
    return shares
