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
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import INFINITY, ZERO
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import SharingOptions
from fairlead.policies.allocation.lp.greedy_queue import beside, in_pairs, taken, whole_shares
from fairlead.policies.allocation.lp.job_classes import JobClasses, classes_of
from fairlead.policies.allocation.lp.program import Model, Program
from fairlead.policies.allocation.lp.shared_programs import Answer, Means, shared
from fairlead.policies.allocation.lp.throughput_polytope import Supply
from fairlead.policies.allocation.lp.weighted_sum import Near, most_by_weight
from fairlead.policies.allocation.max_min import nothing

_GAP = 1e-9
_ROUNDS = 500
_FEW = 16  # jobs in the first program
_PART = 4


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
            return nothing(view), memo
        if self.sticky:
            return self._one_by_one(view, classes, memo)
        return shared("FIFO", view, classes, self, lambda means, _: self._in_company(means))[0], memo

    def _in_company(self, means: Means) -> Answer:
        assert isinstance(means, Supply)
        weight = _by_arrival(means.there, len(means.classes.of))
        used, part, near = most_by_weight(means, weight, self._near[0] if self._near else Near())
        self._near[:] = [near]
        return Answer(used, means.asked(part * means.fastest))

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


def _by_arrival(there: Ints, count: int) -> Floats:
    """(M − m) / M."""
    weight: Floats = (count - there) / count
    return weight


def _alone(view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
    """Nobody in company, as far as the sum of all gains from it. Each job counts for itself, so classes would tell no more."""
    jobs, rates, capacity = view.jobs, view.rates, view.capacity
    can = (jobs.fits >> np.arange(len(capacity))[:, None]) & (jobs.workers <= capacity[:, None])
    rate = rates.alone.T.take(rates.row, axis=1) * can  # types × jobs
    fastest = rate.max(axis=0)
    there = fastest.nonzero()[0]
    if not len(there):
        return nothing(view), memo
    number, load = jobs.number, jobs.workers.astype(np.float64)
    if len(there) < len(jobs):
        rate, fastest, number, load = rate[:, there], fastest[there], number[there], load[there]
    near = memo["prices"] if isinstance(memo, Mapping) else None
    who, x, prices = weighted_sum(rate / fastest, load, _by_arrival(there, len(jobs)), capacity.astype(np.float64), near)
    return Allocation.alone(number[who], x), {"prices": prices}


def weighted_sum(
    speed: Floats, load: Floats, weight: Floats, capacity: Floats, near: Floats | None = None
) -> tuple[Ints, Floats, Floats]:
    """max Σ_m weight_m · Σ_j speed_jm · x_mj: who may have time, their time by type, and the price of each type. `near` are
    prices to start from.

    Most of a long line want no type at such prices. Of them no more is looked at than by how much they miss one."""
    types, count = speed.shape
    if near is None:
        near = np.zeros(types)
        if count > _FEW:  # what a sample of the jobs would pay for a part of the cluster
            near = weighted_sum(speed[:, ::_PART], load[::_PART], weight[::_PART], capacity / _PART)[2]
    gain, prices = np.where(speed > ZERO, speed * weight, -INFINITY), near
    net = _net(gain, load, near)
    best = net.max(axis=0)
    wants = (best >= ZERO).nonzero()[0]
    theirs = net[:, wants]
    answer = theirs.argmax(axis=0)
    theirs[answer, np.arange(len(wants))] = 0.0  # in its place, to want no type
    lead = np.abs(best)  # of the answer over the next best
    lead[wants] -= theirs.max(axis=0, initial=0.0)
    few = _FEW
    open_ = _least(lead, few)
    for _ in range(_ROUNDS):
        sure = ~open_[wants]
        closed, choice = wants[sure], answer[sure]
        room = capacity - np.bincount(choice, load[closed], minlength=types)
        if room.min() < 0:  # the prices were too low: more than these are to be moved
            few *= 2
            open_ |= _least(lead, few)
            continue
        opened = open_.nonzero()[0]
        value, time, prices = _assigned(gain[:, opened], load[opened], room)
        net = _net(gain, load, prices)
        short = net.max(axis=0, initial=0.0)
        short[closed] -= net[choice, closed]
        short[opened] = ZERO
        worth = value + float(gain[choice, closed].sum())
        if short.sum() <= _GAP * max(worth, 1e-300):
            break
        open_ |= short > 0.01 * _GAP * worth / count
    else:
        raise SolverError("FIFO", f"no optimum in {_ROUNDS} rounds")
    who = np.concatenate((closed, opened))
    x = np.concatenate((choice[:, None] == np.arange(types), time))
    order = who.argsort()
    return who[order], x[order], prices


def _net(gain: Floats, load: Floats, prices: Floats) -> Floats:
    """What a job has of each type beyond its price."""
    net: Floats = gain - prices[:, None] * load
    return net


def _least(lead: Floats, few: int) -> Bools:
    """The `few` with the least lead, of equals the first."""
    if len(lead) <= few:
        return np.ones(len(lead), dtype=np.bool_)
    last = np.partition(lead, few - 1)[few - 1]
    chosen: Bools = lead <= last
    if np.count_nonzero(chosen) > few:
        equal = (lead == last).nonzero()[0]
        chosen[equal[few - np.count_nonzero(chosen) :]] = False
    return chosen


def _assigned(gain: Floats, load: Floats, room: Floats) -> tuple[float, Floats, Floats]:
    """The program for some jobs and what the others leave: its value, the jobs' time by type, and the prices."""
    types, count = gain.shape
    job, kind = np.isfinite(gain.T).nonzero()
    column = np.arange(len(job))
    none, ones = np.full(types + count, -np.inf), np.ones(len(column))
    entries = (np.concatenate((kind, types + job)), np.concatenate((column, column)), np.concatenate((load[job], ones)))
    above = np.concatenate((room, np.ones(count)))
    found = Program("FIFO", Model(gain[kind, job], 0.0 * ones, ones, none, above, entries)).solve()
    x = np.zeros((count, types))
    x[job, kind] = np.maximum(found.values, ZERO)
    return found.objective, x, np.maximum(found.duals[:types], ZERO)


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
