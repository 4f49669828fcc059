"""Classes of jobs that all objectives treat the same: equal rates, workers, weight and usable types. A program over classes
with multiplicities is exact, and does not grow with the number of jobs. The closed-form shares of classes are here, too."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import RATE_BITS, significant
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot

SLIGHT = 1e-3
"""Tie break: the largest relative reduction of the value of a class."""

_APART = 997.0  # a factor that separates numbers that are close
_TUPLE = np.array((11400714785074694791, 14029467366897019727, 2870177450012600261), dtype=np.uint64)  # xxHash's primes
_TURN = np.array((31, 33), dtype=np.uint64)


@dataclass(frozen=True)
class JobClasses:
    """Columns by class. Job i of the view is of class `class_of[i]`; -1 where it can run nowhere at the moment."""

    class_of: Ints
    count: Ints
    row: Ints  # in the view's rates
    workers: Ints
    weight: Floats
    group: Ints  # a further distinction of a policy, such as the account
    rates: Floats  # classes × types, 0 where it may not or cannot run
    keys: Sequence[tuple[float, ...]]  # identify a class between decisions; mostly the same object
    limit: Floats | None = None  # the slowdown that its jobs tolerate; None: any

    def __len__(self) -> int:
        return len(self.count)

    def divide(self, view: Snapshot, totals: Floats, reasons: Mapping[int, Reason] | None = None) -> Allocation:
        """Divide total time (classes × types) equally among the members of each class."""
        return self.each(view, totals / self.count[:, None], reasons)

    def isolate_job(self, job: int) -> JobClasses:
        """The classes with one job, a row of the view, in a separate class at the end."""
        old = int(self.class_of[job])
        of, count = self.class_of.copy(), np.append(self.count, 1)
        of[job] = len(self)
        count[old] -= 1
        every = np.append(np.arange(len(self)), old)
        row, workers, group = (column[every] for column in (self.row, self.workers, self.group))
        keys, limit = [*self.keys, (*self.keys[old], job)], None if self.limit is None else self.limit[every]
        return JobClasses(of, count, row, workers, self.weight[every], group, self.rates[every], keys, limit)

    def for_sharing(self, view: Snapshot) -> JobClasses:
        """The classes, split by the slowdown that jobs tolerate, and with each job that was separated in one of its own."""
        separated = {number for pair in view.separated for number in pair}
        about = [(view.job_of[n].max_slowdown, n if n in separated else -1) for n in view.jobs.number.tolist()]
        if {*about} <= {(math.inf, -1)}:
            return self
        here = (self.class_of >= 0).nonzero()[0]
        split = [(int(self.class_of[row]), *about[row]) for row in here.tolist()]
        parts = sorted({*split})
        place, of = {part: at for at, part in enumerate(parts)}, np.full(len(self.class_of), -1, dtype=np.int64)
        of[here] = [place[part] for part in split]
        every = np.array([part[0] for part in parts], dtype=np.int64)
        row, workers, group = (column[every] for column in (self.row, self.workers, self.group))
        count: Ints = np.bincount(of[here], minlength=len(parts))
        keys = [(*self.keys[old], *rest) for old, *rest in parts]
        limit = np.array([part[1] for part in parts])
        return JobClasses(of, count, row, workers, self.weight[every], group, self.rates[every], keys, limit)

    def matrix(self, each: Floats) -> Floats:
        """Time of a member of each class as jobs × types; 0 for jobs without a class."""
        x = np.zeros((len(self.class_of), each.shape[1]))
        there = self.class_of >= 0
        x[there] = each[self.class_of[there]]
        return x

    def each(self, view: Snapshot, share: Floats, reasons: Mapping[int, Reason] | None = None) -> Allocation:
        """Time of a member of each class (classes × types) as an allocation."""
        number, of = view.jobs.number, self.class_of
        if len(of) and of.min() < 0:
            number, of = number[of >= 0], of[of >= 0]
        by_job = Allocation.tidy(share).take(of, axis=0).ravel()
        entry = (by_job > 0).nonzero()[0]
        row, types = np.divmod(entry, share.shape[1])
        alone = np.full(len(row), -1, dtype=np.int64)
        return Allocation(number[row], alone, types, by_job[entry], reasons or {})

    def by_job(self, column: Floats) -> Floats:
        """Expand a column by class, or classes × something, to jobs of the view; 0 for jobs that can run nowhere."""
        if not len(column):
            return np.zeros((len(self.class_of), *column.shape[1:]))
        spread: Floats = column[self.class_of]
        if len(self.class_of) and self.class_of.item(self.class_of.argmin()) < 0:
            spread[self.class_of < 0] = 0.0
        return spread


def classes_of(view: Snapshot, group: Ints | None = None, *, type_agnostic: bool = False, by_weight: bool = True) -> JobClasses:
    """The classes of a view's jobs, further split by `group` where given. `type_agnostic`: only whether a rate is
    above 0 counts. Without `by_weight`, every weight counts as 1."""
    jobs, rates, capacity = view.jobs, view.rates, view.capacity
    types = len(capacity)
    usable = jobs.fits & rates.runs_on[rates.row]
    largest = int(jobs.workers.max(initial=0))
    if largest > min(capacity.tolist(), default=largest):
        usable = usable & ((capacity[None, :] >= jobs.workers[:, None]) @ (1 << np.arange(types)))
    row = np.zeros(len(jobs), dtype=np.int64) if type_agnostic else rates.row
    code = row * (1 << types) + (usable & ((1 << types) - 1))
    code = code * (largest + 1) + jobs.workers  # a job type has one row for all sizes
    weights = jobs.weight if by_weight else np.ones(len(jobs))
    if by_weight and view.weighted and np.count_nonzero(weights != 1.0):
        distinct, which = np.unique(weights, return_inverse=True)
        code = code * len(distinct) + which
    if group is not None:
        code = code * (int(group.max(initial=0)) + 1) + group
    if np.count_nonzero(usable) == len(usable):
        at, of, count = _distinct(code)
    else:
        where = usable.nonzero()[0]
        one, mine, count = _distinct(code[where])
        of = np.full(len(jobs), -1, dtype=np.int64)
        of[where] = mine
        at = where[one]
    row, mask, workers, weight = row[at], usable[at], jobs.workers[at], weights[at]
    tag = np.zeros(len(at), dtype=np.int64) if group is None else group[at]
    allowed = (mask[:, None] >> np.arange(types)) & 1
    speed = np.ones((len(at), types)) if type_agnostic else significant(rates.alone[row], RATE_BITS)
    keys = _keys(np.array((row, mask, workers, tag)).tobytes(), weight.tobytes())
    return JobClasses(of, count, row, workers, weight, tag, speed * allowed, keys)


@lru_cache(maxsize=64)
def _keys(columns: bytes, weight: bytes) -> Sequence[tuple[float, ...]]:
    """Cached keys: classes change less often than jobs, and an identical object need not be compared."""
    row, mask, workers, tag = np.frombuffer(columns, dtype=np.int64).reshape(4, -1).tolist()
    return tuple(zip(row, mask, workers, np.frombuffer(weight).tolist(), tag))


def break_ties_by_class(worth: Floats, classes: JobClasses) -> Floats:
    """The values, slightly reduced by a number that follows from the class and the type, so that the optimum is unique,
    whatever path the solver took, also where two classes differ only in weight."""
    place = hash_fractions(classes.keys)
    types = worth.shape[1]
    on_type = np.modf(place[:, None] * (_APART * np.sqrt(np.arange(1, types + 1))))[0]
    ordered: Floats = worth * (1.0 - SLIGHT * (place[:, None] + np.arange(types)[None, :] / types + 0.1 * on_type))
    return ordered


def hash_fractions(keys: Iterable[Hashable]) -> Floats:
    """For each key of numbers a number in [0, 1] from its hash, which is the same in every process."""
    drawn: Floats = np.fromiter(map(hash, keys), dtype=np.int64).view(np.uint64) / 2.0**64
    return drawn


def column_hash_fractions(keys: Sequence[Hashable], one: Ints, two: Ints, types: Ints, speed: Floats) -> Floats:
    """The same for tuples (key of `one`, key of `two`, type, speed), as Python hashes them; no `two`: the empty tuple."""
    named = np.fromiter(map(hash, (*keys, ())), dtype=np.int64, count=len(keys) + 1).view(np.uint64)
    paced = np.fromiter(map(hash, speed.tolist()), dtype=np.int64, count=len(speed)).view(np.uint64)
    drawn = np.full(len(one), _TUPLE[2])
    for lane in (named[one], named[two], types.astype(np.uint64), paced):
        drawn += lane * _TUPLE[1]
        drawn = (drawn << _TURN[0]) | (drawn >> _TURN[1])
        drawn *= _TUPLE[0]
    drawn += np.uint64(4) ^ _TUPLE[2] ^ np.uint64(3527539)
    return drawn / 2.0**64


def _distinct(code: Ints) -> tuple[Ints, Ints, Ints]:
    """By ascending value: the position of one entry, the index of each entry's value, and the counts."""
    if not len(code) or int(code.max()) > 1 << 16:
        _, first, of, count = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
        return first, of, count
    every = np.bincount(code)
    known = (every > 0).nonzero()[0]
    place, one = np.empty(len(every), dtype=np.int64), np.empty(len(known), dtype=np.int64)
    place[known] = np.arange(len(known))
    of = place[code]
    one[of] = np.arange(len(code))
    return one, of, every[known]


def no_allocation(view: Snapshot) -> Allocation:
    """The allocation of jobs that can run nowhere at the moment."""
    return Allocation.alone(view.jobs.number, np.zeros((len(view.jobs), len(view.capacity))))


def normalized_rates(classes: JobClasses, capacity: Ints) -> Floats:
    """Progress of a class's member by type, in units of an equal share of the cluster, times its workers."""
    equal = classes.rates @ (capacity / capacity.sum())
    gain: Floats = classes.rates / equal[:, None] * classes.workers[:, None]
    return gain


def even_mix(classes: JobClasses, capacity: Ints | Floats) -> Floats:
    """Classes × types: the usable types in equal parts, as far as there are enough of each."""
    usable = (classes.rates > 0) & (capacity > 0)
    if usable.all():
        load = float((classes.count * classes.workers).sum())
        part = _poured(1.0, np.minimum(1.0, capacity / min(load, float(capacity.sum()))))
        return np.repeat(part[None, :], len(classes), axis=0)
    mix: Floats = usable / np.maximum(usable.sum(axis=1, keepdims=True), 1)
    return mix


def _poured(amount: float, room: Floats) -> Floats:
    """Divide an amount equally among parts with limits."""
    part, open_ = np.zeros(len(room)), np.ones(len(room), dtype=np.bool_)
    while open_.any():
        each = (amount - part[~open_].sum()) / np.count_nonzero(open_)
        small = open_ & (room < each)
        if not small.any():
            part[open_] = each
            break
        part[small] = room[small]
        open_ &= ~small
    return part


def fill_fixed_mix(classes: JobClasses, mix: Floats, capacity: Ints | Floats) -> Floats:
    """The fraction of time of each class's members by water filling: levels s·x/w rise together."""
    speed = classes.weight / classes.workers  # how fast x rises with the level
    load = mix * (classes.count * classes.workers)[:, None]
    fraction, moving = np.zeros(len(classes)), np.ones(len(classes), dtype=np.bool_)
    left = capacity.astype(np.float64)
    while moving.any():
        rise = (load * (speed * moving)[:, None]).sum(axis=0)
        room = np.divide(left, rise, out=np.full(len(left), np.inf), where=rise > 1e-12)
        until_full = ((1.0 - fraction) / speed)[moving].min()
        step = min(float(room.min()), float(until_full))
        fraction[moving] += speed[moving] * step
        left = np.maximum(left - rise * step, 0.0)
        full = left <= 1e-9 * capacity
        moving &= (fraction < 1.0 - 1e-12) & ~((mix > 0) & full[None, :]).any(axis=1)
    return np.minimum(fraction, 1.0)
