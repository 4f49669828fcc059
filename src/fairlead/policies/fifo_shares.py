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
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.in_line import beside, in_pairs, taken
from fairlead.policies.max_min import nothing
from fairlead.policies.programs.by_rank import Near, most_by_weight
from fairlead.policies.programs.classes import Classes, classes_of
from fairlead.policies.programs.company import Sharing
from fairlead.policies.programs.program import Model, Program
from fairlead.policies.programs.supply import Supply
from fairlead.policies.sharing import Answer, Means, shared

_GAP = 1e-9
_ROUNDS = 500
_FEW = 16  # jobs in the first program
_PART = 4


@dataclass(frozen=True)
class FifoPerf(Sharing):
    """Whoever came first has its fastest type, as far as the sum of all, weighted by arrival, gains from it.

    `sticky`: as Gavel's simulator, one by one; a job keeps the type it got, and nobody overtakes the first that finds no room.
    Who finds none then goes, with `space_sharing`, beside whoever it does best with, if that pays.
    """

    paper: ClassVar[str] = "Gavel §4.2 (Narayanan et al., OSDI'20)"
    sticky: bool = False
    _near: list[Near] = field(default_factory=list, init=False, repr=False, compare=False)  # what proved the last optimum

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        classes = classes_of(view)
        if not len(classes):
            return nothing(view), memo
        if self.sticky:
            return self._one_by_one(view, classes, memo)
        if not self.alone:
            return shared("FIFO", view, classes, self, lambda means, _: self._in_company(means))[0], memo
        there = (classes.of >= 0).nonzero()[0]
        of = classes.of[there]
        weight = _by_arrival(there, len(view.jobs))
        speed = classes.rates / classes.rates.max(axis=1, keepdims=True)
        near = memo["prices"] if isinstance(memo, Mapping) else None
        x = np.zeros((len(view.jobs), len(view.capacity)))
        x[there], prices = weighted_sum(speed[of], weight, classes.workers[of], view.capacity.astype(np.float64), near)
        return Allocation.alone(view.jobs.number, x), {"prices": prices}

    def _in_company(self, means: Means) -> Answer:
        assert isinstance(means, Supply)
        weight = _by_arrival(means.there, len(means.classes.of))
        used, part, near = most_by_weight(means, weight, self._near[0] if self._near else Near())
        self._near[:] = [near]
        return Answer(used, means.asked(part * means.fastest))

    def _one_by_one(self, view: Snapshot, classes: Classes, memo: Memo) -> tuple[Allocation, Memo]:
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


def weighted_sum(
    speed: Floats, weight: Floats, workers: Ints, capacity: Floats, near: Floats | None = None
) -> tuple[Floats, Floats]:
    """max Σ_m weight_m · Σ_j speed_mj · x_mj: jobs × types, and the price of each type. `near` are prices to start from."""
    count, types = speed.shape
    if near is None:
        near = np.zeros(types)
        if count > _FEW:  # what a sample of the jobs would pay for a part of the cluster
            near = weighted_sum(speed[::_PART], weight[::_PART], workers[::_PART], capacity / _PART)[1]
    load = workers.astype(np.float64)
    gain = np.column_stack((np.where(speed > 0, weight[:, None] * speed, -np.inf), np.zeros(count)))  # the last one: no type
    rows, prices = np.arange(count), near
    net = _net(gain, load, near)
    answer = net.argmax(axis=1)
    best = net[rows, answer]
    net[rows, answer] = -np.inf
    lead = best - net.max(axis=1)  # of the answer over the next best
    open_ = np.zeros(count, dtype=np.bool_)
    wavering, few = lead.argsort(kind="stable"), _FEW
    open_[wavering[:few]] = True
    for _ in range(_ROUNDS):
        room = capacity - _used(answer, load, ~open_, types)
        if room.min() < 0:  # the prices were too low: more than these are to be moved
            few *= 2
            open_[wavering[:few]] = True
            continue
        value, choice, prices = _assigned(gain, load, open_.nonzero()[0], room)
        net = _net(gain, load, prices)
        short = net.max(axis=1) - net[rows, answer]
        short[open_] = 0.0
        worth = value + float(gain[rows, answer][~open_].sum())
        if short.sum() <= _GAP * max(worth, 1e-300):
            break
        open_ |= short > 0.01 * _GAP * worth / count
    else:
        raise SolverError("FIFO", f"no optimum in {_ROUNDS} rounds")
    x = (answer[:, None] == np.arange(types)).astype(np.float64)
    x[open_] = choice
    return x, prices


def _net(gain: Floats, load: Floats, prices: Floats) -> Floats:
    """What a job has of each type beyond its price."""
    net = gain.copy()
    net[:, :-1] -= load[:, None] * prices
    return net


def _used(answer: Ints, load: Floats, who: Bools, types: int) -> Floats:
    return np.bincount(answer[who], load[who], minlength=types + 1)[:types].astype(np.float64)


def _assigned(gain: Floats, load: Floats, who: Ints, room: Floats) -> tuple[float, Floats, Floats]:
    """The program for some jobs and what the others leave: its value, the jobs' time by type, and the prices."""
    types = len(room)
    job, kind = np.isfinite(gain[who, :types]).nonzero()
    column = np.arange(len(job))
    none, ones = np.full(types + len(who), -np.inf), np.ones(len(column))
    entries = (np.concatenate((kind, types + job)), np.tile(column, 2), np.concatenate((load[who[job]], ones)))
    above = np.concatenate((room, np.ones(len(who))))
    found = Program("FIFO", Model(gain[who[job], kind], 0.0 * ones, ones, none, above, entries)).solve()
    x = np.zeros((len(who), types))
    x[job, kind] = found.values.clip(min=0.0)
    return found.objective, x, np.maximum(found.duals[:types], 0.0)
