"""FIFO and shortest job first over types (Gavel §4.2). FIFO, with jobs 0, 1, …, M−1 in the order of arrival, is

    max_X Σ_m (M − m) · throughput(m, X) / throughput(m, X^fastest)

With co-location or spread gangs it is a program over classes and their columns (lp/weighted_sum.py), which is exact, too.
`sticky` is FIFO as in Gavel's simulator, a greedy queue without a program. Shortest job first is

    min_X min_m  left_m / throughput(m, X)

The optimum is the job that would be done first, alone on its fastest type; then the same among the others on the rest of the
cluster. Co-location follows the same queue and does not change the optimum: no job shares with the first one."""

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
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.demand_model import DemandModel, ModelAnswer, solve_with_sharing
from fairlead.policies.allocation.lp.greedy_queue import colocate_waiting, greedy_types, pair_allocation, whole_shares
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, no_allocation
from fairlead.policies.allocation.lp.throughput_polytope import ThroughputPolytope
from fairlead.policies.allocation.lp.weighted_sum import WarmStart, maximize_weighted_sum, solve_by_job


@dataclass(frozen=True)
class FifoPerf(SharingOptions):
    """The job that came first has its fastest type, as far as the sum weighted by arrival gains from it.

    `sticky`: as in Gavel's simulator, a job takes the fastest type with room and keeps it, and no job overtakes the first
    without room. With `space_sharing`, a job without room is then co-located where that pays most."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    sticky: bool = False
    _near: list[WarmStart] = field(default_factory=list, init=False, repr=False, compare=False)  # what proved the last optimum

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        if self.alone and not self.sticky:
            return _alone(view, memo)
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo
        if self.sticky:
            return self._one_by_one(view, classes, memo)

        def answer(model: DemandModel, _: ModelAnswer | None) -> ModelAnswer:
            assert isinstance(model, ThroughputPolytope)
            weight = _by_arrival(model.present, len(model.classes.of))
            used, part, near = maximize_weighted_sum(model, weight, self._near[0] if self._near else WarmStart())
            self._near[:] = [near]
            return ModelAnswer(used, model.required(part * model.fastest))

        return solve_with_sharing("FIFO", view, classes, self, answer)[0], memo

    def _one_by_one(self, view: Snapshot, classes: JobClasses, memo: Memo) -> tuple[Allocation, Memo]:
        number, line = view.jobs.number, np.arange(len(view.jobs))
        held: dict[int, int] = {}
        mates: dict[int, int] = {}
        if isinstance(memo, Mapping):
            place = {one: row for row, one in enumerate(number.tolist())}
            held = {place[one]: kind for one, kind in zip(memo["number"].tolist(), memo["type"].tolist()) if one in place}
            known = zip(memo["guest"].tolist(), memo["host"].tolist())
            mates = {place[guest]: place[host] for guest, host in known if guest in place and host in place}
            held = {row: kind for row, kind in held.items() if row not in mates}
        got = greedy_types(view, classes, line, strict=True, held=held, placement_sensitive=self.placement_sensitive)
        mates = colocate_waiting(view, got, line, mates) if self.space_sharing else {}
        guests, hosts = np.array([*mates], dtype=np.int64), np.array([*mates.values()], dtype=np.int64)
        row = (got >= 0).nonzero()[0]
        kept = {"number": number[row], "type": got[row], "guest": number[guests], "host": number[hosts]}
        return pair_allocation(view, got, mates), kept


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
    """The job that can be done first has its fastest type, then the next, on the fastest type with room.

    With `space_sharing`, a job without room is co-located where that pays most, but not with the first. With
    `placement_sensitive`, a gang without consolidated room may do better on another type."""

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        fastest = classes.by_job(classes.rates.max(axis=1))
        lasts = np.divide(view.jobs.steps_left, fastest, out=np.full(len(view.jobs), np.inf), where=fastest > 0)
        line = lasts.argsort(kind="stable")
        got = greedy_types(view, classes, line, strict=False, placement_sensitive=self.placement_sensitive)
        if self.space_sharing:
            hosts = got.copy()
            hosts[line[:1]] = -1
            return pair_allocation(view, got, colocate_waiting(view, hosts, line[1:], {})), memo
        return Allocation.alone(view.jobs.number, whole_shares(got, len(view.capacity))), memo
