"""First in, first out over types (Gavel §4.2): jobs 0, 1, …, M−1 in the order of their arrival,

    max_X Σ_m (M − m) · throughput(m, X) / throughput(m, X^fastest)

Every job has a weight of its own, but at given prices its answer is plain: the type with the highest (M − m)·rate − price, or
none. So only jobs that are near to another answer at the last prices are in the program; the others keep theirs. The program
gives new prices. When nobody outside of it would answer otherwise at these, the optimum is exact; who would, joins it.

With company, or gangs that stand apart, it is a program over classes and their ways, in which each class knows what its
members' weights make of its time (by_rank.py). It is exact, too.

`sticky` is FIFO as Gavel's simulator has it, without a program: a job takes the fastest type with room for it and stays there
until it ends, and the line stops at the first that finds none."""

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
from fairlead.policies.allocation.lp.demand_model import DemandModel, ModelAnswer, shared
from fairlead.policies.allocation.lp.greedy_queue import beside, in_pairs, taken, whole_shares
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of, no_allocation
from fairlead.policies.allocation.lp.throughput_polytope import ThroughputPolytope
from fairlead.policies.allocation.lp.weighted_sum import Near, most_by_weight, weighted_sum


@dataclass(frozen=True)
class FifoPerf(SharingOptions):
    """Whoever came first has its fastest type, as far as the sum of all, weighted by arrival, gains from it.

    `sticky`: as Gavel's simulator, one by one; a job keeps the type it got, and nobody overtakes the first that finds no room.
    Who finds none then goes, with `space_sharing`, beside whoever it does best with, if that pays.
    """

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    sticky: bool = False
    _near: list[Near] = field(default_factory=list, init=False, repr=False, compare=False)  # what proved the last optimum

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        if self.alone and not self.sticky:
            return _alone(view, memo)
        classes = classes_of(view)
        if not len(classes):
            return no_allocation(view), memo
        if self.sticky:
            return self._one_by_one(view, classes, memo)
        return shared("FIFO", view, classes, self, lambda model, _: self._in_company(model))[0], memo

    def _in_company(self, model: DemandModel) -> ModelAnswer:
        assert isinstance(model, ThroughputPolytope)
        weight = _by_arrival(model.present, len(model.classes.of))
        used, part, near = most_by_weight(model, weight, self._near[0] if self._near else Near())
        self._near[:] = [near]
        return ModelAnswer(used, model.required(part * model.fastest))

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
        got = taken(view, classes, line, strict=True, held=held, placement_sensitive=self.placement_sensitive)
        mates = beside(view, got, line, mates) if self.space_sharing else {}
        guests, hosts = np.array([*mates], dtype=np.int64), np.array([*mates.values()], dtype=np.int64)
        row = (got >= 0).nonzero()[0]
        kept = {"number": number[row], "type": got[row], "guest": number[guests], "host": number[hosts]}
        return in_pairs(view, got, mates), kept


def _by_arrival(present: Ints, count: int) -> Floats:
    """(M − m) / M."""
    weight: Floats = (count - present) / count
    return weight


def _alone(view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
    """Nobody in company, as far as the sum of all gains from it. Each job counts for itself, so classes would tell no more."""
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
    who, x, prices = weighted_sum(rate / fastest, load, _by_arrival(present, len(jobs)), capacity.astype(np.float64), near)
    return Allocation.alone(number[who], x), {"prices": significant(prices)}


# Shortest job first over types (Gavel §4.2):
#
# min_X min_m  left_m / throughput(m, X)
#
# The optimum is the job that would be done first on its fastest type, alone there; then the same among the others, with what
# is
# left of the cluster, and so on. Company goes by the same line and does not change the optimum: nobody comes beside the job
# that
# is done first.


@dataclass(frozen=True)
class ShortestJobFirstPerf(SharingOptions):
    """The job that can be done first has its fastest type to itself, then the next, on the fastest type with room for it.

    With `space_sharing`, who finds no room of its own goes beside whoever it does best with, if that pays, but for the first.
    With `placement_sensitive`, a gang that finds no room together may do better on another type.
    """

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        fastest = classes.by_job(classes.rates.max(axis=1))
        lasts = np.divide(view.jobs.steps_left, fastest, out=np.full(len(view.jobs), np.inf), where=fastest > 0)
        line = lasts.argsort(kind="stable")
        got = taken(view, classes, line, strict=False, placement_sensitive=self.placement_sensitive)
        if self.space_sharing:
            hosts = got.copy()
            hosts[line[:1]] = -1
            return in_pairs(view, got, beside(view, hosts, line[1:], {})), memo
        return Allocation.alone(view.jobs.number, whole_shares(got, len(view.capacity))), memo
