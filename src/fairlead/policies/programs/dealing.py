"""The time of classes, dealt out to their jobs and to pairs of jobs, such that each job's demand is met.

Inside a class the speeds that it has are laid out from the fastest to none. From the largest demand to the least, each job
takes the slowest unit of time in a row whose mean is enough for it; what it leaves is enough for the others. So a job is on few
ways, and stays on them. What is beyond the demands lifts the least of them.

Company between two classes is laid out along one stretch of time on both sides: who lies beside one another is a pair. Inside a
class the stretch is folded in the middle; whoever has more than half of it would be beside itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.allocation import NEGLIGIBLE, Allocation
from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.reasons import Reason
from fairlead.policies.programs.ways import Ways

IDLE = -1
"""The way of who does nothing."""

_NEAR = 1e-9

Lot = list[dict[int, float]]
"""By job of a class: its time by side of the supply."""


@dataclass(frozen=True)
class Clash:
    """Jobs that cannot have their part of the company inside their class, by number."""

    jobs: Sequence[int]


def dealt_out(
    ways: Ways, numbers: Ints, of: Ints, demand: Floats, time: Floats, reasons: Mapping[int, Reason]
) -> Allocation | Clash:
    """`time` is by way; the other columns by job: its number, its class, and its demand as a part of its class's fastest."""
    clash = stuck(ways, of, demand, time)
    if clash:
        return Clash([int(numbers[job]) for job in clash])
    sides = ways.sides
    who: list[list[int]] = [[] for _ in range(len(sides.way))]  # by side
    part: list[list[float]] = [[] for _ in range(len(sides.way))]
    amount = time[sides.way] * sides.weight
    for members, mine in _by_class(ways, of, amount):
        members, lots, _ = _lots(ways, members, mine, demand, amount)
        for member, lot in zip(members.tolist(), lots):
            for at, share in lot.items():
                if share > 0:
                    who[mine[at]].append(member)
                    part[mine[at]].append(share)
    return _met(ways, numbers, who, part, reasons)


def stuck(ways: Ways, of: Ints, demand: Floats, time: Floats) -> list[int]:
    """Jobs that would be beside themselves, as positions in the columns by job."""
    sides = ways.sides
    amount = time[sides.way] * sides.weight
    # Nobody has more than a unit of time: where a class has two in company of its own, nobody has more than half of it.
    small = np.zeros(len(ways.fastest), dtype=np.bool_)
    small[sides.owner[(sides.weight == 2.0) & (amount > 0) & (amount < 2.0)]] = True
    if not small.any():
        return []
    found = [_lots(ways, members, mine, demand, amount) for members, mine in _by_class(ways, of, amount, small)]
    return [int(members[at]) for members, _, at in found if at is not None]


def _by_class(ways: Ways, of: Ints, amount: Floats, only: Bools | None = None) -> Iterator[tuple[Ints, Ints]]:
    """The members of each class, as positions in the columns by job, and the sides that it uses, fastest first."""
    sides = ways.sides
    by_class = of.argsort(kind="stable")
    ends = np.bincount(of, minlength=len(ways.fastest)).cumsum()
    for group in range(len(ends)) if only is None else only.nonzero()[0].tolist():
        members = by_class[ends[group - 1] if group else 0 : ends[group]]
        mine = np.arange(sides.first[group], sides.first[group + 1])
        mine = mine[amount[mine] > 0]
        if len(members) and len(mine):
            yield members, mine


def _lots(ways: Ways, members: Ints, mine: Ints, demand: Floats, amount: Floats) -> tuple[Ints, Lot, int | None]:
    """The members of a class by demand, what each gets of which of these sides, and who would be beside itself, if anybody."""
    speed, laid = ways.sides.speed[mine], amount[mine]
    wanted = lifted(demand[members], speed, laid)
    order = np.argsort(-wanted, kind="stable")
    lots = windows(wanted[order], speed, laid)
    own = (ways.sides.weight[mine] == 2.0).nonzero()[0].tolist()
    return members[order], lots, _spread_out(lots, speed, laid, own) if own else None


def lifted(demand: Floats, speed: Floats, amount: Floats) -> Floats:
    """The same demands, but none below a level, the highest at which they can all be met. Speeds fall."""
    time, work = amount.cumsum(), (amount * speed).cumsum()
    cut = np.append(speed, 0.0)
    supply = np.append(work - time * speed, work[-1])
    up = np.sort(demand)
    beyond = np.maximum(up[:, None] - cut, 0.0)
    rest = beyond.sum(axis=0) - beyond.cumsum(axis=0)  # of those above each
    many = np.arange(1, len(up) + 1)
    kept = (rest + many[:, None] * beyond <= supply + _NEAR).all(axis=1)
    if not kept[0]:
        return demand
    last = len(up) - 1 if kept.all() else int(kept.argmin()) - 1
    level = float((cut + np.maximum(supply - rest[last], 0.0) / (last + 1)).min())
    higher: Floats = np.maximum(demand, min(level, float(speed[0])))
    return higher


def windows(demand: Floats, speed: Floats, amount: Floats) -> Lot:
    """What each job gets of each speed; demands and speeds fall. Each takes a unit of time, idle time among it, next to one
    another in the order of speeds, as low as its mean suffices."""
    rate = [*speed.tolist(), 0.0]
    left = [*amount.tolist(), max(len(demand) - float(amount.sum()), 0.0)]
    lots: Lot = []
    for want in demand.tolist():
        if want <= 0.0 and left[-1] >= 1.0:
            left[-1] -= 1.0
            lots.append({})
        else:
            lots.append(_window(want, rate, left))
    return lots


def _window(want: float, rate: list[float], left: list[float]) -> dict[int, float]:
    """One job's unit, taken off what is `left`."""
    last = len(rate) - 1
    high, passed = 0, 0.0  # the window begins so far into a piece
    low, reached, mean, room = 0, 0.0, 0.0, 1.0  # and ends so far into another
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


def _spread_out(lots: Lot, speed: Floats, amount: Floats, own: list[int]) -> int | None:
    """Nobody keeps more than half of the company inside the class: the rest of it is exchanged with others for time that is
    faster and slower, and worth the same. The job with which that fails, if any."""
    rate = speed.tolist()
    half = {at: 0.5 * float(amount[at]) for at in own}
    for at in own:
        for index, lot in enumerate(lots):
            beyond = lot.get(at, 0.0) - half[at]
            if beyond <= _NEAR * max(1.0, half[at]):
                continue
            for distance in range(1, len(lots)):
                for other in (index - distance, index + distance):
                    if 0 <= other < len(lots) and beyond > 0.0:
                        beyond -= _exchange(lot, lots[other], at, beyond, rate, half)
            if beyond > _NEAR * max(1.0, half[at]):
                return index
    return None


def _exchange(
    mine: dict[int, float], other: dict[int, float], at: int, most: float, rate: list[float], half: dict[int, float]
) -> float:
    """How much of the time at `at` the other job took, for a mix of its own that is worth the same to both."""
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


def _met(ways: Ways, number: Ints, who: list[list[int]], part: list[list[float]], reasons: Mapping[int, Reason]) -> Allocation:
    """Jobs by side of the ways → entries of an allocation."""
    sides = ways.sides
    of_way: dict[int, list[int]] = {}
    for side in range(len(who)):
        if who[side]:
            of_way.setdefault(int(sides.way[side]), []).append(side)
    first, second, types, share = [], [], [], []
    for way, both in of_way.items():
        one = number[np.array(who[both[0]], dtype=np.int64)]
        stretch = np.array(part[both[0]])
        two = np.full(len(one), -1, dtype=np.int64)
        if ways.two[way] >= 0:
            if len(both) == 2:
                two, other = number[np.array(who[both[1]], dtype=np.int64)], np.array(part[both[1]])
            else:
                one, stretch, two, other = _folded(one, stretch)
            one, two, stretch = _beside(one, stretch, two, other)
        turned = (two >= 0) & (two < one)
        first.append(np.where(turned, two, one))
        second.append(np.where(turned, one, two))
        types.append(np.full(len(one), ways.types[way], dtype=np.int64))
        share.append(stretch)
    if not first:
        none = np.zeros(0, dtype=np.int64)
        return Allocation(none, none, none, np.zeros(0), reasons)
    one, two, kinds = np.concatenate(first), np.concatenate(second), np.concatenate(types)
    return _added_up(one, two, kinds, np.concatenate(share), reasons)


def _added_up(one: Ints, two: Ints, kinds: Ints, share: Floats, reasons: Mapping[int, Reason]) -> Allocation:
    """One entry for who shares a type on more ways than one: together and apart, or side by side in both orders."""
    order = np.lexsort((kinds, two, one))
    one, two, kinds, share = one[order], two[order], kinds[order], share[order]
    new = np.ones(len(one), dtype=np.bool_)
    new[1:] = (one[1:] != one[:-1]) | (two[1:] != two[:-1]) | (kinds[1:] != kinds[:-1])
    at = new.nonzero()[0]
    total = Allocation.tidy(np.add.reduceat(share, at))
    kept = total > NEGLIGIBLE
    at = at[kept]
    return Allocation(one[at], two[at], kinds[at], total[kept], reasons)


def _folded(who: Ints, stretch: Floats) -> tuple[Ints, Floats, Ints, Floats]:
    """The two halves of a stretch; who lies across the middle is on both sides, at different places."""
    end = stretch.cumsum()
    begin, middle = end - stretch, end[-1] / 2
    left, right = np.minimum(end, middle) - begin, end - np.maximum(begin, middle)
    return who[left > 0], left[left > 0], who[right > 0], right[right > 0]


def _beside(one: Ints, stretch: Floats, two: Ints, other: Floats) -> tuple[Ints, Ints, Floats]:
    """Two layouts of the same stretch of time: who lies beside whom, and how long."""
    ends, others = stretch.cumsum(), other.cumsum()
    others = others * (ends[-1] / others[-1])
    cuts = np.union1d(ends, others)
    begins = np.concatenate(([0.0], cuts[:-1]))
    middle = (begins + cuts) / 2
    left = np.minimum(ends.searchsorted(middle), len(one) - 1)
    right = np.minimum(others.searchsorted(middle), len(two) - 1)
    return one[left], two[right], cuts - begins
