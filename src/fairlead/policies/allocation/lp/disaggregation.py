"""Disaggregation: the time of classes is divided among their jobs and pairs of jobs, such that each job's demand is met.

Inside a class, the speeds are laid out from the fastest to none. From the largest demand to the smallest, each job takes the
slowest contiguous unit of time whose mean speed is enough for it; the rest is enough for the others. So a job uses few columns.
What is beyond the demands raises the smallest of them.

Co-location between two classes is laid out along one stretch of time on both sides: jobs at the same place are a pair. Inside a
class the stretch is folded in the middle; a job that has more than half of it would be paired with itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.reasons import Reason
from fairlead.policies.allocation.lp.colocation_columns import ThroughputColumns

IDLE = -1
"""The column of idle time."""

_NEAR = 1e-9

Lot = list[dict[int, float]]
"""By job of a class: its time by side of the supply."""


@dataclass(frozen=True)
class SelfPairing:
    """Jobs that cannot have their part of the co-location inside their class, by number."""

    jobs: Sequence[int]


def disaggregate(
    cols: ThroughputColumns, numbers: Ints, of: Ints, demand: Floats, time: Floats, reasons: Mapping[int, Reason]
) -> Allocation | SelfPairing:
    """Divide `time` by column among jobs, given by number, class, and demand as a part of the class's fastest."""
    clash = self_paired(cols, of, demand, time)
    if clash:
        return SelfPairing([int(numbers[job]) for job in clash])
    jobs: dict[int, list[int]] = {}  # by side
    part: dict[int, list[float]] = {}
    for some in _by_class(cols, of, demand, time):
        members, pieces, _ = _lots(some)
        for member, lot in zip(members, pieces):
            for at, share in lot.items():
                if share > 0:
                    jobs.setdefault(some.sides[at], []).append(member)
                    part.setdefault(some.sides[at], []).append(share)
    return _met(cols, numbers, jobs, part, reasons)


def self_paired(cols: ThroughputColumns, of: Ints, demand: Floats, time: Floats) -> list[int]:
    """Jobs that would be paired with themselves, as positions in the columns by job."""
    sides = cols.sides
    amount = time[sides.col] * sides.weight
    # No job has more than a unit of time: with two units of co-location inside a class, no job has more than half.
    small = np.zeros(len(cols.fastest), dtype=np.bool_)
    small[sides.owner[(sides.weight == 2.0) & (amount > 0) & (amount < 2.0)]] = True
    if not small.any():
        return []
    found = [_lots(some) for some in _by_class(cols, of, demand, time, small)]
    return [members[at] for members, _, at in found if at is not None]


@dataclass(frozen=True)
class _Some:
    """A class that uses some of its sides; lists, as most classes have few members and sides."""

    members: list[int]  # positions in the columns by job
    demand: list[float]
    sides: list[int]  # fastest first
    speed: list[float]
    amount: list[float]
    own: list[int]  # positions among the sides where both that meet are of the class


def _by_class(cols: ThroughputColumns, of: Ints, demand: Floats, time: Floats, only: Bools | None = None) -> Iterator[_Some]:
    sides = cols.sides
    amount = time[sides.col] * sides.weight
    used = (amount > 0 if only is None else (amount > 0) & only[sides.owner]).nonzero()[0]
    side, own = used.tolist(), (sides.weight[used] == 2.0).tolist()
    speed, laid = sides.speed[used].tolist(), amount[used].tolist()
    there = np.arange(len(of)) if only is None else only[of].nonzero()[0]
    by_class = there[of[there].argsort(kind="stable")]
    members, wanted = by_class.tolist(), demand[by_class].tolist()
    groups = np.arange(len(cols.fastest) + 1)
    first, begin = of[by_class].searchsorted(groups).tolist(), sides.owner[used].searchsorted(groups).tolist()
    for group in range(len(cols.fastest)) if only is None else only.nonzero()[0].tolist():
        i, j, k, m = first[group], first[group + 1], begin[group], begin[group + 1]
        if i < j and k < m:
            both = [at for at in range(m - k) if own[k + at]]
            yield _Some(members[i:j], wanted[i:j], side[k:m], speed[k:m], laid[k:m], both)


def _lots(some: _Some) -> tuple[list[int], Lot, int | None]:
    """The members of a class by demand, what each gets of which side, and the position of a job paired with itself, if any."""
    wanted = lifted(some.demand, some.speed, some.amount)
    order = sorted(range(len(wanted)), key=lambda at: -wanted[at])
    pieces = windows([wanted[at] for at in order], some.speed, some.amount)
    clash = _spread_out(pieces, some.speed, some.amount, some.own) if some.own else None
    return [some.members[at] for at in order], pieces, clash


def lifted(demand: Sequence[float], speed: Sequence[float], amount: Sequence[float]) -> list[float]:
    """The same demands raised to the highest common minimum at which all can be met. Speeds fall."""
    cut, supply, time, work = [*speed, 0.0], [], 0.0, 0.0
    for fast, much in zip(speed, amount):
        time += much
        work += much * fast
        supply.append(work - time * fast)
    supply.append(work)
    up = sorted(demand)
    many, total = len(up), [0.0, *accumulate(up)]
    above = [bisect_right(up, low) for low in cut]  # the first demand above each speed

    def rest(lifts: int) -> list[float]:
        """The sum of all but the first `lifts` demands beyond each speed."""
        return [total[-1] - total[max(lifts, first)] - (many - max(lifts, first)) * low for first, low in zip(above, cut)]

    def can(lifts: int) -> bool:
        """Whether the `lifts` smallest demands can all be raised to the largest of them."""
        level = up[lifts - 1]
        wanted = (left + lifts * max(level - low, 0.0) for left, low in zip(rest(lifts), cut))
        return all(want <= there + _NEAR for want, there in zip(wanted, supply))

    lifts, most = 0, many
    while lifts < most:
        middle = (lifts + most + 1) // 2
        lifts, most = (middle, most) if can(middle) else (lifts, middle - 1)
    if not lifts:
        return list(demand)
    level = min(low + max(there - left, 0.0) / lifts for low, there, left in zip(cut, supply, rest(lifts)))
    level = min(level, speed[0])
    return [max(one, level) for one in demand]


def windows(demand: Sequence[float], speed: Sequence[float], amount: Sequence[float]) -> Lot:
    """The time of each job at each speed (falling): a contiguous unit of time as slow as its (falling) demand allows."""
    rate = [*speed, 0.0]
    left = [*amount, max(len(demand) - sum(amount), 0.0)]
    pieces: Lot = []
    for want in demand:
        if want <= 0.0 and left[-1] >= 1.0:
            left[-1] -= 1.0
            pieces.append({})
        else:
            pieces.append(_window(want, rate, left))
    return pieces


def _window(want: float, rate: list[float], left: list[float]) -> dict[int, float]:
    """The unit of time of one job, taken from `left`."""
    last = len(rate) - 1
    high, passed = 0, 0.0  # the offset of the window's begin in its first piece
    low, reached, mean, room = 0, 0.0, 0.0, 1.0  # and of its end in its last piece
    while True:
        fits = min(left[low], room)
        mean += fits * rate[low]
        room -= fits
        reached = fits
        if room <= 0.0 or low == last:
            break
        low += 1
    while mean > want:
        while high < low and left[high] - passed <= 0.0:
            high, passed = high + 1, 0.0
        while low < last and left[low] - reached <= 0.0:
            low, reached = low + 1, 0.0
        slide = min(left[high] - passed, left[low] - reached)
        drop = rate[high] - rate[low]
        if slide <= 0.0:
            break
        if mean - slide * drop < want:
            slide = (mean - want) / drop
            mean = want
        else:
            mean -= slide * drop
        passed += slide
        reached += slide
    lot: dict[int, float] = {}
    for piece in range(high, low + 1):
        start = passed if piece == high else 0.0
        end = reached if piece == low else left[piece]
        if end > start:
            left[piece] -= end - start
            if piece < last:
                lot[piece] = end - start
    return lot


def _spread_out(pieces: Lot, rate: list[float], amount: list[float], own: list[int]) -> int | None:
    """Exchange co-location inside the class, so that no job keeps more than half; returns a job for which this fails."""
    half = {at: 0.5 * amount[at] for at in own}
    for at in own:
        for index, lot in enumerate(pieces):
            beyond = lot.get(at, 0.0) - half[at]
            if beyond <= _NEAR * max(1.0, half[at]):
                continue
            for distance in range(1, len(pieces)):
                for other in (index - distance, index + distance):
                    if 0 <= other < len(pieces) and beyond > 0.0:
                        beyond -= _exchange(lot, pieces[other], at, beyond, rate, half)
            if beyond > _NEAR * max(1.0, half[at]):
                return index
    return None


def _exchange(
    mine: dict[int, float], other: dict[int, float], at: int, most: float, rate: list[float], half: dict[int, float]
) -> float:
    """The amount of the time at `at` that the other job took, for a mix of its own of the same value to both."""
    taken = 0.0
    idle = 1.0 - sum(other.values())
    pieces = {**other, IDLE: idle}
    here = rate[at]
    for fast in [piece for piece in pieces if piece != IDLE and piece != at and rate[piece] >= here]:
        for slow in [piece for piece in pieces if piece not in (at, fast) and (piece == IDLE or rate[piece] <= here)]:
            below = 0.0 if slow == IDLE else rate[slow]
            part = 1.0 if rate[fast] == here else (here - below) / (rate[fast] - below)
            move = min(most - taken, half[at] - other.get(at, 0.0))
            for piece, share in ((fast, part), (slow, 1.0 - part)):
                if share > 0.0:
                    move = min(move, pieces[piece] / share)
                    if piece in half:
                        move = min(move, (half[piece] - mine.get(piece, 0.0)) / share)
            if move <= 0.0:
                continue
            for piece, share in ((fast, part), (slow, 1.0 - part)):
                pieces[piece] -= move * share
                if piece != IDLE and share > 0.0:
                    other[piece] -= move * share
                    mine[piece] = mine.get(piece, 0.0) + move * share
            mine[at] -= move
            other[at] = other.get(at, 0.0) + move
            taken += move
    return taken


def _met(
    cols: ThroughputColumns,
    number: Ints,
    members: Mapping[int, list[int]],
    part: Mapping[int, list[float]],
    reasons: Mapping[int, Reason],
) -> Allocation:
    """Convert jobs by side of the columns to entries of an allocation."""
    used, of_column = sorted(members), dict[int, list[int]]()
    for side, col in zip(used, cols.sides.col[used].tolist()):
        of_column.setdefault(col, []).append(side)
    first, second, types, share = list[int](), list[int](), list[int](), list[float]()
    for both, type_, second_job in zip(of_column.values(), cols.types[[*of_column]].tolist(), cols.two[[*of_column]].tolist()):
        one, stretch = members[both[0]], part[both[0]]
        two = [-1] * len(one)
        if second_job >= 0:
            halves = (one, stretch, members[both[1]], part[both[1]]) if len(both) == 2 else _folded(one, stretch)
            one, two, stretch = _beside(*halves)
        first += one
        second += two
        types += [type_] * len(one)
        share += stretch
    if not first:
        none = np.zeros(0, dtype=np.int64)
        return Allocation(none, none, none, np.zeros(0), reasons)
    one_, two_ = number[first], np.where(np.array(second) >= 0, number[second], -1)
    turned = (two_ >= 0) & (two_ < one_)
    lower, higher = np.where(turned, two_, one_), np.where(turned, one_, two_)
    return _added_up(lower, higher, np.array(types), np.array(share), reasons)


def _added_up(one: Ints, two: Ints, types: Ints, share: Floats, reasons: Mapping[int, Reason]) -> Allocation:
    """Add up the entries of jobs that share a type on several columns."""
    order = np.lexsort((types, two, one))
    one, two, types, share = one[order], two[order], types[order], share[order]
    new = np.ones(len(one), dtype=np.bool_)
    new[1:] = (one[1:] != one[:-1]) | (two[1:] != two[:-1]) | (types[1:] != types[:-1])
    at = new.nonzero()[0]
    total = Allocation.tidy(np.add.reduceat(share, at))
    kept = total > NEGLIGIBLE
    at = at[kept]
    return Allocation(one[at], two[at], types[at], total[kept], reasons)


def _folded(members: Sequence[int], stretch: Sequence[float]) -> tuple[list[int], Floats, list[int], Floats]:
    """The two halves of a stretch; a job across the middle is in both, at different places."""
    end = np.cumsum(stretch)
    begin, middle = end - stretch, end[-1] / 2
    left, right = np.minimum(end, middle) - begin, end - np.maximum(begin, middle)
    names = np.array(members)
    return names[left > 0].tolist(), left[left > 0], names[right > 0].tolist(), right[right > 0]


def _beside(
    one: Sequence[int], stretch: Sequence[float] | Floats, two: Sequence[int], other: Sequence[float] | Floats
) -> tuple[list[int], list[int], list[float]]:
    """Overlay two layouts of the same stretch of time: which jobs are paired, and for how long."""
    ends, others = np.cumsum(stretch), np.cumsum(other)
    others = others * (ends[-1] / others[-1])
    cuts = np.union1d(ends, others)
    begins = np.concatenate(([0.0], cuts[:-1]))
    middle = (begins + cuts) / 2
    left = np.minimum(ends.searchsorted(middle), len(one) - 1)
    right = np.minimum(others.searchsorted(middle), len(two) - 1)
    return np.array(one)[left].tolist(), np.array(two)[right].tolist(), (cuts - begins).tolist()
