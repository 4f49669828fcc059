"""What every placement shares: who stays, what is free, gangs before single workers, nobody left half placed. *Which* nodes a
job gets is the one thing the placements differ in."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.errors import InvalidPlan
from fairlead.core.plan import NO_LAUNCHES, Launches, Placed, Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot

ChooseGang: TypeAlias = Callable[["Room", int, int, int], list[int]]
"""(room, job, type, workers) → accelerators taken from the room: as many as workers, or none at all."""
OrderSingles: TypeAlias = Callable[["Room", int], Ints]
"""(room, type) → the type's free accelerators, the one to give away first in front."""


class Room:
    """The accelerators that are free while a placement works.

    Gangs look for nodes by how many accelerators they have free. Those counts are kept in buckets, so that a gang's search
    depends on the size of a node and not on the number of nodes. `free` is up to date after `settle()`.
    """

    def __init__(self, view: Snapshot, kept: Ints) -> None:
        self.view, self.cluster = view, view.cluster
        self.free: Bools = view.up.copy()
        if len(kept):
            self.free[view.holdings.flat(kept)] = False
        self.counts: list[int] = []  # free accelerators by node; empty until a gang asks
        self._slots: dict[int, list[int]] = {}  # the free accelerators of the nodes that were touched
        self._buckets: dict[int, list[list[int]]] = {}  # by type and count: a heap of nodes; stale entries are skipped
        self._taken: list[int] = []

    # For gangs.

    def open_to_gangs(self) -> None:
        if not self.counts:
            self.counts = self.free_per_node().tolist()

    def fullest_with(self, kind: int, least: int) -> int:
        """The node of a type with the fewest, but at least so many, free accelerators; the first of equals; -1: none."""
        buckets, counts = self._nodes_by_count(kind), self.counts
        for count in range(least, len(buckets)):
            heap = buckets[count]
            while heap:
                if counts[heap[0]] == count:
                    return heap[0]
                heapq.heappop(heap)
        return -1

    def emptiest(self, kind: int) -> int:
        """The node of a type with the most free accelerators; -1 where all are taken."""
        buckets, counts = self._nodes_by_count(kind), self.counts
        for count in range(len(buckets) - 1, 0, -1):
            heap = buckets[count]
            while heap:
                if counts[heap[0]] == count:
                    return heap[0]
                heapq.heappop(heap)
        return -1

    def take_on_node(self, node: int, count: int) -> list[int]:
        """Take the first `count` free accelerators of a node, or all it has."""
        slots = self._slots.get(node)
        if slots is None:
            first, end = self.cluster.bounds_of_node[node]
            slots = self._slots[node] = [first + i for i in self.free[first:end].nonzero()[0].tolist()]
        taken = slots[:count]
        del slots[:count]
        left = self.counts[node] = len(slots)
        if left:
            heapq.heappush(self._nodes_by_count(self.cluster.kind_of_node[node])[left], node)
        self._taken += taken
        return taken

    def take(self, accelerators: list[int]) -> list[int]:
        """Take exactly these, which are free."""
        self.settle()
        self.free[accelerators] = False
        return accelerators

    def give_back(self, accelerators: list[int]) -> None:
        """Undo: a gang found less than it would accept."""
        self.settle()
        self.free[accelerators] = True
        self.open_to_gangs()

    def settle(self) -> None:
        if self._taken:
            self.free[self._taken] = False
        self._taken, self.counts, self._slots, self._buckets = [], [], {}, {}

    def last_node(self, job: int, kind: int) -> int:
        """The node of a type on which a job last ran; -1 where it did not."""
        last = int(self.view.holdings.last[job])
        if last < 0:
            return -1
        node = self.cluster.node_of_accelerator[last]
        return node if self.cluster.kind_of_node[node] == kind else -1

    # For all.

    def free_of_type(self, kind: int) -> Ints:
        mine = self.free if len(self.cluster.types) == 1 else self.free & (self.cluster.type_of == kind)
        return np.asarray(mine.nonzero()[0])

    def free_per_node(self) -> Ints:
        return np.bincount(self.cluster.node_of[self.free], minlength=len(self.cluster.nodes))

    def left(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.cluster.type_of[self.free], minlength=len(self.cluster.types)).tolist())

    def _nodes_by_count(self, kind: int) -> list[list[int]]:
        buckets = self._buckets.get(kind)
        if buckets is None:
            buckets = self._buckets[kind] = [[] for _ in range(int(self.cluster.largest_node_of_type[kind]) + 1)]
            for node, (mine, count) in enumerate(zip(self.cluster.kind_of_node, self.counts)):
                if mine == kind:
                    buckets[count].append(node)  # ascending, hence a heap already
        return buckets


def pack(selection: Selection, view: Snapshot, gang: ChooseGang, singles: OrderSingles, *, sticky: bool = True) -> Placed:
    """Place a selection: keep who can stay, then gangs from large to small, then single workers all at once."""
    if selection.combination is not None:
        return _pack_shared(selection, view, gang, singles)
    stays = _can_stay(selection, view)
    kept = selection.jobs[stays]
    if len(kept) == len(selection):
        return Placed(kept, NO_LAUNCHES, Room(view, kept).left())
    coming = ~stays
    jobs, types, workers = selection.jobs[coming], selection.types[coming], selection.workers[coming]
    sizes = None if selection.batch_sizes is None else selection.batch_sizes[coming]
    room = Room(view, kept)
    places, unplaced = _place_new(room, jobs, types, workers, selection, gang, singles, sticky)
    return Placed(kept, _launches(jobs, types, sizes, places), room.left(), unplaced)


def _can_stay(selection: Selection, view: Snapshot) -> Bools:
    """Runs already, with the same type, size and (where it is given) batch size and place."""
    jobs = view.jobs
    at = jobs.position_of(selection.jobs)
    if len(at) and (at.max() >= len(jobs) or (jobs.number[at] != selection.jobs).any()):
        raise InvalidPlan("a selection names a job that is not among the admitted ones")
    stays: Bools = (jobs.held[at] == selection.workers) & (jobs.type[at] == selection.types)
    if selection.batch_sizes is not None:
        stays &= (selection.batch_sizes == 0) | (jobs.batch_size[at] == selection.batch_sizes)
    for job, place in selection.pinned.items():
        index = np.flatnonzero(selection.jobs == job)
        if len(index):
            stays[index] &= np.array_equal(np.sort(view.holdings.of(job)), np.sort(place))
    return stays


def _place_new(
    room: Room,
    jobs: Ints,
    types: Ints,
    workers: Ints,
    selection: Selection,
    gang: ChooseGang,
    singles: OrderSingles,
    sticky: bool,
) -> tuple[dict[int, list[int]] | Ints, dict[int, Reason]]:
    """Places by position in `jobs`: an array where all are single workers, else a dictionary."""
    unplaced: dict[int, Reason] = {}
    places: dict[int, list[int]] = {}
    for index, job in enumerate(jobs.tolist()) if selection.pinned else ():
        if job in selection.pinned:
            wanted = selection.pinned[job]
            if room.free[wanted].all():
                places[index] = room.take(wanted.tolist())
            else:
                unplaced[job] = Unplaced.no_place("its pinned accelerators are not free")
    large = (workers > 1).nonzero()[0]
    if len(large):
        order = large[np.argsort(-workers[large], kind="stable")]
        room.open_to_gangs()
        for index, job, kind, want in zip(*(c.tolist() for c in (order, jobs[order], types[order], workers[order]))):
            if index in places or job in unplaced:
                continue
            found = gang(room, job, kind, want)
            if found:
                places[index] = found
            else:
                name = room.cluster.type_names[kind]
                unplaced[job] = Unplaced.no_place(f"{want} accelerators of type {name} as it needs them")
        room.settle()
    if len(large) == len(jobs):
        return places, unplaced
    small = workers == 1
    if selection.pinned:
        small[list(places)] = False
        small &= ~np.isin(jobs, list(unplaced))
    single = small.nonzero()[0]
    spots = _singles(room, jobs[single], types[single], singles, sticky)
    if len(single) == len(jobs) and spots.min(initial=0) >= 0:
        return spots, unplaced
    for index, spot in zip(single.tolist(), spots.tolist()):
        if spot < 0:
            unplaced[int(jobs[index])] = Unplaced.no_place("every accelerator of its type is taken")
        else:
            places[index] = [spot]
    return places, unplaced


def _singles(room: Room, jobs: Ints, types: Ints, order: OrderSingles, sticky: bool) -> Ints:
    """An accelerator for each single worker; -1 where none is left. First those whose last one is free."""
    spots = np.full(len(jobs), -1, dtype=np.int64)
    if sticky:
        last = room.view.holdings.last[jobs]
        wish = np.flatnonzero((last >= 0) & room.free[last] & (room.cluster.type_of[last] == types))
        if len(wish):
            _, first = np.unique(last[wish], return_index=True)  # of two that want the same, the one selected first
            spots[wish[first]] = last[wish[first]]
            room.free[last[wish[first]]] = False
    for kind in range(len(room.cluster.types)):
        mine = np.flatnonzero((spots < 0) & (types == kind))
        if len(mine):
            given = order(room, kind)[: len(mine)]
            spots[mine[: len(given)]] = given
            room.free[given] = False
    return spots


def _launches(jobs: Ints, types: Ints, sizes: Ints | None, places: dict[int, list[int]] | Ints) -> Launches:
    if not isinstance(places, dict):
        return Launches(jobs, types, np.arange(len(jobs) + 1), places, sizes)
    if not places:
        return NO_LAUNCHES
    placed = sorted(places)
    bounds = [0]
    flat: list[int] = []
    for index in placed:
        flat += places[index]
        bounds.append(len(flat))
    at = slice(None) if len(placed) == len(jobs) else placed
    return Launches(
        jobs[at],
        types[at],
        np.array(bounds, dtype=np.int64),
        np.array(flat, dtype=np.int64),
        None if sizes is None else sizes[at],
    )


def _pack_shared(selection: Selection, view: Snapshot, gang: ChooseGang, singles: OrderSingles) -> Placed:
    """Combinations: all members on the same accelerators. A member that can stay is the anchor of the others."""
    assert selection.combination is not None
    stays = _can_stay(selection, view)
    anchors: dict[int, Ints] = {}
    keep: list[int] = []
    for index in np.flatnonzero(stays).tolist():
        combination, place = int(selection.combination[index]), view.holdings.of(int(selection.jobs[index]))
        if combination not in anchors:
            anchors[combination] = np.sort(place)
            keep.append(index)
        elif np.array_equal(anchors[combination], np.sort(place)):
            keep.append(index)
    taken: set[int] = set()
    for combination, place in list(anchors.items()):  # two combinations may not end on one accelerator
        if taken & set(place.tolist()):
            del anchors[combination]
            keep = [index for index in keep if int(selection.combination[index]) != combination]
        else:
            taken |= set(place.tolist())
    kept = selection.jobs[keep]
    room = Room(view, kept)
    _, heads = np.unique(selection.combination, return_index=True)
    new = np.array([i for i in np.sort(heads).tolist() if int(selection.combination[i]) not in anchors], dtype=np.int64)
    unplaced: dict[int, Reason] = {}
    if len(new):
        jobs, types, workers = selection.jobs[new], selection.types[new], selection.workers[new]
        places, unplaced = _place_new(room, jobs, types, workers, selection, gang, singles, True)
        found = places if isinstance(places, dict) else {i: [spot] for i, spot in enumerate(places.tolist())}
        anchors.update({int(selection.combination[new[i]]): np.array(place) for i, place in found.items()})
    rest = [i for i in range(len(selection)) if i not in set(keep)]
    spots = {i: anchors[c].tolist() for i in rest if (c := int(selection.combination[i])) in anchors}
    for index in rest:
        if index not in spots:
            unplaced.setdefault(int(selection.jobs[index]), Unplaced.no_place("its combination has no accelerators"))
    launches = _launches(selection.jobs, selection.types, selection.batch_sizes, spots)
    return Placed(kept, launches, room.left(), unplaced)
