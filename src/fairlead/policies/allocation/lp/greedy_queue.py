"""A greedy queue: each job in turn takes a whole gang of its fastest type with room, for all of the time. No program is
needed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats, Ints
from fairlead.core.snapshot import Snapshot
from fairlead.policies.allocation.lp.colocation_columns import spread_gain
from fairlead.policies.allocation.lp.job_classes import JobClasses


def greedy_types(
    view: Snapshot,
    classes: JobClasses,
    line: Ints,
    *,
    strict: bool,
    held: Mapping[int, int] | None = None,
    placement_sensitive: bool = False,
) -> Ints:
    """By row of the view, the type that the job takes, or -1. `held` (row → type) come first where there is room. `strict`: the
    queue stops at the first job without room."""
    room, kinds = view.capacity.tolist(), classes.of.tolist()
    nodes = [1.0 + 1e-9] * len(room)  # by type: the part of its nodes on which gangs can still stand together
    workers = view.jobs.workers.tolist()
    wishes = _wishes(view, classes, placement_sensitive)
    got = np.full(len(view.jobs), -1, dtype=np.int64)

    def find(row: int, among: list[tuple[int, float]]) -> bool:
        want = workers[row]
        for kind, part in among:
            if room[kind] >= want and nodes[kind] >= part:
                room[kind] -= want
                nodes[kind] -= part
                got[row] = kind
                return True
        return False

    for row, kind in (held or {}).items():
        if kinds[row] >= 0:
            find(row, [wish for wish in wishes[kinds[row]] if wish[0] == kind])
    for row in line.tolist():
        if kinds[row] >= 0 and got[row] < 0 and not find(row, wishes[kinds[row]]) and strict:
            break
    return got


def _wishes(view: Snapshot, classes: JobClasses, placement_sensitive: bool) -> list[list[tuple[int, float]]]:
    """By class, fastest first: a type, and the part of its nodes that a consolidated gang takes there."""
    rates, types = classes.rates, classes.rates.shape[1]
    parts = np.zeros_like(rates)
    if placement_sensitive:
        spread = spread_gain(classes, view, rates)
        parts = np.where((classes.workers > 1)[:, None], spread.use, 0.0)
        rates, parts = np.concatenate((rates, spread.gain), axis=1), np.concatenate((parts, np.zeros_like(parts)), axis=1)
    order = np.argsort(-rates, axis=1, kind="stable").tolist()
    return [
        [(way % types, part[way]) for way in mine if rate[way] > 0]
        for mine, rate, part in zip(order, rates.tolist(), parts.tolist())
    ]


def colocate_waiting(view: Snapshot, got: Ints, line: Ints, mates: Mapping[int, int]) -> dict[int, int]:
    """Map jobs without room to the jobs that host them, as rows of the view. `mates` stay co-located where possible; the others
    go by the queue, each to the host with the highest combined throughput relative to both alone, if above one."""
    rates, workers = view.rates, view.jobs.workers
    free = got >= 0  # hosts that are alone yet
    found: dict[int, int] = {}

    def worth(guest: int, hosts: Ints) -> Floats:
        kind, mine, theirs = got[hosts], rates.row[guest], rates.row[hosts]
        alone = rates.alone[mine, kind] * rates.alone[theirs, kind]
        together = rates.paired[mine, theirs, kind] * rates.alone[theirs, kind]
        together = together + rates.paired[theirs, mine, kind] * rates.alone[mine, kind]
        both = (
            (rates.paired[mine, theirs, kind] > 0) & (rates.paired[theirs, mine, kind] > 0) & (workers[hosts] == workers[guest])
        )
        fits = (view.jobs.fits[guest] >> kind) & 1
        return np.where(both & (fits > 0), together / np.maximum(alone, 1e-300), 0.0)

    for guest, host in mates.items():
        if got[guest] < 0 and free[host] and worth(guest, np.array([host]))[0] > 1.0:
            found[guest], free[host] = host, False
    for guest in line.tolist():
        if got[guest] >= 0 or guest in found:
            continue
        hosts = free.nonzero()[0]
        if not len(hosts):
            break
        value = worth(guest, hosts)
        best = int(value.argmax())
        if value[best] > 1.0:
            found[guest], free[hosts[best]] = int(hosts[best]), False
    return found


def pair_allocation(view: Snapshot, got: Ints, mates: Mapping[int, int]) -> Allocation:
    """All of the time on the type taken; a host shares it with its guest (guest → host, rows of the view)."""
    number = view.jobs.number
    row = (got >= 0).nonzero()[0]
    mate = np.full(len(view.jobs), -1, dtype=np.int64)
    mate[list(mates.values())] = number[list(mates)]
    first, second = number[row], mate[row]
    turned = (second >= 0) & (second < first)
    first, second = np.where(turned, second, first), np.where(turned, first, second)
    return Allocation(first, second, got[row], np.ones(len(row)))


def whole_shares(got: Ints, types: int) -> Floats:
    """All of the time on the type taken: rows × types."""
    shares: Floats = (got[:, None] == np.arange(types)).astype(np.float64)
    return shares
