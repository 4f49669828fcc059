"""Turn an order of jobs into a selection: each job in turn takes what it needs, as far as the accelerators reach.

A single type is taken by prefix sums; several types are assigned job by job, each to its fastest free type. A running job keeps
its type while it stays selected, and moves to a faster one that would otherwise be idle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.columns import INFINITY, JobColumns
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot


def in_order(
    view: Snapshot,
    key: Floats | Ints | None = None,
    *,
    backfill: bool = True,
    preempt: bool = True,
    valid_until: float | None = None,
    prefer: Ints | None = None,
) -> Selection:
    """Select by ascending `key`, ties by submission (None: by submission alone).

    With `backfill` a job that does not fit is passed over; without it, no job behind it starts. Without `preempt`, running jobs
    go first. `prefer` is a type for each job (-1: none) that it gets where there is room."""
    if not len(view.jobs):
        return Selection.empty()
    selection = _taken(view, key, backfill, preempt, valid_until, prefer)
    # A new selection; `replace` is too slow for every round.
    selection.__dict__.update(order=(view.jobs.number, key), strict=not backfill)
    return selection


def _taken(
    view: Snapshot,
    key: Floats | Ints | None,
    backfill: bool,
    preempt: bool,
    valid_until: float | None,
    prefer: Ints | None,
) -> Selection:
    jobs, protected = view.jobs, view.protected if preempt else None
    if protected is not None:
        valid_until = None if valid_until is None else min(valid_until, view.protection_ends)
    if len(view.capacity) > 1:
        first = protected if preempt else jobs.running
        if first is not None:
            key = np.where(first, -math.inf, 0.0 if key is None else key)
            prefer = None if prefer is None else np.where(first, -1, prefer)
        return _several_types(view, key, backfill, valid_until, prefer)
    capacity = int(view.capacity[0])
    if not preempt:
        key = None if key is None else key[~jobs.running]
        return _one_type(jobs.runners, jobs.waiters, key, capacity, backfill, valid_until)
    if protected is not None:
        key = None if key is None else key[~protected]
        return _one_type(jobs.only(protected), jobs.only(~protected), key, capacity, backfill, valid_until)
    return _one_type(None, jobs, key, capacity, backfill, valid_until)


def first_crossing(now: float, key: Floats, growing: Ints, growth: Floats | Ints, margin: float = 0.0) -> float:
    """The time until which no growing key (at these positions, `growth` per second) reaches a constant one, or exceeds it by a
    part of it (`margin`)."""
    if not len(growing) or len(growing) == len(key):
        return math.inf
    standing, moving = key.copy(), key[growing]
    standing[growing] = INFINITY  # growing keys do not block; the end of the queue is open
    standing.sort()
    waits = (standing[standing.searchsorted(moving)] * (1 + margin) - moving) / growth
    wait: float = waits.item(waits.argmin())
    return now + wait * (1 - 1e-13) - 1e-9


def smallest_first(key: Floats | Ints, enough: int) -> Ints:
    """Positions by ascending key, ties by position; at least the first `enough`, and never half of a tie."""
    if enough >= len(key) or len(key) < 64:
        return key.argsort(kind="stable")
    split = key.copy()
    split.partition(enough)
    candidates = (key <= split[enough : enough + 1]).nonzero()[0]
    return np.asarray(candidates[key[candidates].argsort(kind="stable")])


def _one_type(
    ahead: JobColumns | None,
    rest: JobColumns,
    key: Floats | Ints | None,
    capacity: int,
    backfill: bool,
    valid_until: float | None,
) -> Selection:
    """The jobs `ahead` keep what they hold; the rest share, by their key, what is left."""
    if ahead is not None:
        capacity -= int(ahead.held.sum())
    if key is None and not backfill:  # every job takes at least one: the first jobs, up to the capacity, are enough
        rest = rest.only(slice(max(capacity, 0) + 1))
    enough = 2 * max(capacity, 0)
    if ahead is None and len(rest) > enough:  # of a long line hardly more can run than do now
        enough = min(enough, 2 * len(rest.runners))
    chosen, head = _take_by(key, rest.workers, capacity, backfill, enough)
    jobs, sizes = rest.numbers_at(chosen), rest.workers[chosen]
    if ahead is not None:
        jobs, sizes = np.concatenate((ahead.number, jobs)), np.concatenate((ahead.held, sizes))
    stopped = None if head is None else int(rest.number[head])
    return Selection.of(jobs, np.zeros(len(jobs), np.int64), sizes, valid_until, stopped)


def _take_by(key: Floats | Ints | None, want: Ints, capacity: int, backfill: bool, enough: int) -> tuple[Ints, int | None]:
    """Positions that fit, by ascending key, and where strict order stopped; most likely among the first `enough`."""
    if key is None:
        return take(want, capacity, backfill)
    order = smallest_first(key, enough)
    taken, head = take(want[order], capacity, backfill)
    if len(order) < len(key) and head is None and (not backfill or int(want[order[taken]].sum()) < capacity):
        order = np.argsort(key, kind="stable")  # a smaller job may come further back
        taken, head = take(want[order], capacity, backfill)
    return order[taken], None if head is None else int(order[head])


def take(workers: Ints, capacity: int, backfill: bool) -> tuple[Ints, int | None]:
    """Which of the jobs, in this order, fit into `capacity`; and the first that did not, where order is strict."""
    count = len(workers)
    reach = np.add.accumulate(workers[: max(capacity, 0)])  # every job takes at least one: the rest cannot be reached
    fits = int(reach.searchsorted(capacity, side="right"))
    taken = np.arange(fits)
    if fits == count:
        return taken, None
    if not backfill:
        return taken, fits
    smaller = _small_enough(workers, fits, capacity - (int(reach[fits - 1]) if fits else 0))
    return (np.concatenate((taken, smaller)) if smaller else taken), None


_NEAR = 128


def _small_enough(workers: Ints, at: int, free: int) -> list[int]:
    """The jobs from a position on that fit into what is left: found by search where they are far away, then one by one."""
    found: list[int] = []
    while at < len(workers) and free > 0:
        small = workers[at:] <= np.array(free)
        jump = int(small.argmax())
        if not small[jump]:
            break
        at += jump
        for position, want in enumerate(workers[at : at + _NEAR].tolist(), at):
            if want <= free:
                found.append(position)
                free -= want
                if not free:
                    break
        at += _NEAR
    return found


def _several_types(
    view: Snapshot, key: Floats | Ints | None, backfill: bool, valid_until: float | None, prefer: Ints | None
) -> Selection:
    jobs, rates = view.jobs, view.rates
    order = np.arange(len(jobs)) if key is None else key.argsort(kind="stable")
    preferred = rates.preferred_types
    free = view.capacity.tolist()
    rows, fits, workers = rates.row[order].tolist(), jobs.fits[order].tolist(), jobs.workers[order].tolist()
    present = np.where(jobs.running, jobs.type, -1)
    if prefer is not None:
        present = np.where((prefer >= 0) & (view.capacity[prefer] >= jobs.workers), prefer, present)
    present = present[order].tolist()
    protected = view.protected
    bound = set() if protected is None else set(protected[order].nonzero()[0].tolist())
    given = [-1] * len(rows)  # by position in the order: a type
    passed: list[int] = []
    below = False  # whether any job has another type than its fastest
    head, left = None, sum(free)
    for at, (row, mask, want, choice) in enumerate(zip(rows, fits, workers, present)):
        if choice < 0 or free[choice] < want:
            choice = _first_free(preferred[row], mask, free, want)
        if choice >= 0:
            given[at] = choice
            free[choice] -= want
            left -= want
            below = below or choice != preferred[row][0]
            if not left:
                break
        elif backfill:
            passed.append(at)
        else:
            head = at
            break
    while below and any(free) and _move_up(given, bound, rows, fits, workers, preferred, free):
        if valid_until is not None:  # a job that was passed over may fit there: decide again at once
            valid_until = view.time
        # The freed accelerators may fit a job that was passed over, or the head and the jobs behind it.
        for at in passed if head is None else range(head, len(rows)):
            if given[at] >= 0:
                continue
            choice = present[at] if head is not None else -1
            if choice < 0 or free[choice] < workers[at]:
                choice = _first_free(preferred[rows[at]], fits[at], free, workers[at])
            if choice >= 0:
                given[at] = choice
                free[choice] -= workers[at]
            elif head is not None:
                head = at
                break
        else:
            head = None
    stopped = None if head is None else int(jobs.number[order[head]])
    types = np.array(given, dtype=np.int64)
    if -1 in given:
        chosen = (types >= 0).nonzero()[0]
        order, types = order[chosen], types[chosen]
    return Selection.of(jobs.numbers_at(order), types, jobs.workers[order], valid_until, stopped)


def _first_free(preferred: tuple[int, ...], mask: int, free: list[int], want: int) -> int:
    for t in preferred:
        if free[t] >= want and mask >> t & 1:
            return t
    return -1


def _move_up(
    given: list[int],
    bound: set[int],
    rows: list[int],
    fits: list[int],
    workers: list[int],
    preferred: Sequence[tuple[int, ...]],
    free: list[int],
) -> bool:
    """Move jobs that are not protected from a slower type to a faster idle one; return whether any moved."""
    moved = False
    for at, (type_, row) in enumerate(zip(given, rows)):
        if type_ < 0 or type_ == preferred[row][0] or at in bound:
            continue
        mine = preferred[row]
        choice = _first_free(mine, fits[at], free, workers[at])
        if choice >= 0 and mine.index(choice) < mine.index(type_):
            free[type_] += workers[at]
            free[choice] -= workers[at]
            given[at] = choice
            moved = True
    return moved
