"""What every placement shares: who stays, what is free, gangs before single workers, nobody left half placed. *Which* nodes a
job gets is the one thing the placements differ in."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Ints
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
    depends on the size of a node and not on the number of nodes. While gangs are placed, what is free lives in plain lists
    by node (a gang touches a handful of accelerators, too few for numpy); `free` is up to date after `settle()`.
    """

    def __init__(self, view: Snapshot, kept: Ints) -> None:
        self.view, self.cluster = view, view.cluster
        self.free: Bools = view.up.copy()
        if len(kept):
            self.free[view.holdings.flat(kept)] = False
        self.counts: list[int] = []  # free accelerators by node; empty until `open_to_gangs`
        self._slots: dict[int, list[int]] = {}  # which they are
        self._buckets: list[list[list[int]]] = []  # by type and count: a heap of nodes; stale entries are skipped
        self._taken: list[int] = []

    # For gangs.

    def open_to_gangs(self) -> None:
        if self.counts:
            return
        self.counts = self.free_per_node().tolist()
        self._buckets = [[[] for _ in range(most + 1)] for most in self.cluster.largest_node_of_type.tolist()]
        places, end = self.free.nonzero()[0].tolist(), 0
        for node, (count, kind) in enumerate(zip(self.counts, self.cluster.kind_of_node)):
            if count:
                start, end = end, end + count
                self._slots[node] = places[start:end]
                self._buckets[kind][count].append(node)  # ascending, hence a heap already

    def fullest_with(self, kind: int, least: int) -> int:
        """The node of a type with the fewest, but at least so many, free accelerators; the first of equals; -1: none."""
        return self._first_with(kind, range(least, len(self._buckets[kind])))

    def emptiest(self, kind: int) -> int:
        """The node of a type with the most free accelerators; -1 where all are taken."""
        return self._first_with(kind, range(len(self._buckets[kind]) - 1, 0, -1))

    def take_on_node(self, node: int, count: int) -> list[int]:
        """Take the first `count` free accelerators of a node, or all it has."""
        slots = self._slots[node]
        taken = slots[:count]
        del slots[:count]
        left = self.counts[node] = len(slots)
        if left:
            heapq.heappush(self._buckets[self.cluster.kind_of_node[node]][left], node)
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
        self._taken, self.counts, self._slots, self._buckets = [], [], {}, []

    def last_node(self, job: int, kind: int) -> int:
        """The node of a type on which a job last ran; -1 where it did not."""
        last: int = self.view.holdings.last.item(job)
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

    def _first_with(self, kind: int, tries: range) -> int:
        """The first node of a type with one of these counts, tried in this order; -1: none."""
        buckets, counts = self._buckets[kind], self.counts
        for count in tries:
            heap = buckets[count]
            while heap:
                if counts[heap[0]] == count:
                    return heap[0]
                heapq.heappop(heap)
        return -1


def pack(selection: Selection, view: Snapshot, gang: ChooseGang, singles: OrderSingles, *, sticky: bool = True) -> Placed:
    """Place a selection: keep who can stay, then gangs from large to small, then single workers all at once."""
    if selection.combination is not None:
        return _pack_shared(selection, view, gang, singles)
    stays = _can_stay(selection, view)
    kept = selection.jobs[stays]
    if _share(kept, view):  # who shares now and is selected alone does not stay together
        return _pack_shared(replace(selection, combination=np.arange(len(selection))), view, gang, singles)
    if len(kept) == len(selection):
        return Placed(kept, NO_LAUNCHES, Room(view, kept).left())
    coming = (~stays).nonzero()[0]
    jobs, types, workers = selection.jobs[coming], selection.types[coming], selection.workers[coming]
    sizes = None if selection.batch_sizes is None else selection.batch_sizes[coming]
    room = Room(view, kept)
    places, unplaced = _place_new(room, jobs, types, workers, selection, gang, singles, sticky)
    return Placed(kept, _launches(jobs, types, sizes, places), room.left(), unplaced)


def _can_stay(selection: Selection, view: Snapshot) -> Bools:
    """Runs already, with the same type, size and (where it is given) batch size and place."""
    jobs = view.jobs.of(selection.jobs)
    stays: Bools = (jobs.held == selection.workers) & (jobs.type == selection.types)
    if selection.batch_sizes is not None:
        stays &= (selection.batch_sizes == 0) | (jobs.batch_size == selection.batch_sizes)
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
) -> tuple[list[list[int]] | Ints, dict[int, Reason]]:
    """Places by position in `jobs`: an array where all are single workers, else a list, empty for who found none."""
    unplaced: dict[int, Reason] = {}
    places: list[list[int]] = [[]] * len(jobs)
    for index, job in enumerate(jobs.tolist()) if selection.pinned else ():
        if job in selection.pinned:
            wanted = selection.pinned[job]
            if room.free[wanted].all():
                places[index] = room.take(wanted.tolist())
            else:
                unplaced[job] = Unplaced.no_place("its pinned accelerators are not free")
    large = (workers > 1).nonzero()[0]
    if len(large):
        order = large[(-workers[large]).argsort(kind="stable")]
        room.open_to_gangs()
        for index, job, kind, want in zip(*(c.tolist() for c in (order, jobs[order], types[order], workers[order]))):
            if places[index] or job in unplaced:
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
        small[[bool(place) for place in places]] = False
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
        wish = ((last >= 0) & room.free[last] & (room.cluster.type_of[last] == types)).nonzero()[0]
        if len(wish):
            wanted = last[wish]
            claim = np.empty(room.cluster.size, dtype=np.int64)
            claim[wanted[::-1]] = wish[::-1]  # of two that want the same, the one selected first: the last write counts
            first = claim[wanted] == wish
            spots[wish[first]] = wanted[first]
            room.free[wanted] = False
    for kind in range(len(room.cluster.types)):
        mine = ((spots < 0) & (types == kind)).nonzero()[0]
        if len(mine):
            given = order(room, kind)[: len(mine)]
            spots[mine[: len(given)]] = given
            room.free[given] = False
    return spots


def _launches(jobs: Ints, types: Ints, sizes: Ints | None, places: list[list[int]] | Ints) -> Launches:
    if not isinstance(places, list):
        return Launches(jobs, types, np.arange(len(jobs) + 1), places, sizes)
    placed = [index for index, place in enumerate(places) if place]
    if not placed:
        return NO_LAUNCHES
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
    groups = selection.combination.tolist()
    staying = _can_stay(selection, view).nonzero()[0]
    anchors: dict[int, tuple[int, ...]] = {}
    keep: list[int] = []
    for index, place in zip(staying.tolist(), _places(selection.jobs[staying], view)):
        if anchors.setdefault(groups[index], place) == place:
            keep.append(index)
    taken: set[int] = set()
    bound = _bound(selection, view)
    for combination, place in sorted(anchors.items(), key=lambda one: one[0] not in bound):
        # Two combinations may not end on one accelerator; who must be left alone does not give way.
        if taken.isdisjoint(place):
            taken.update(place)
        else:
            del anchors[combination]
    keep = [index for index in keep if groups[index] in anchors]
    kept = selection.jobs[keep]
    room = Room(view, kept)
    _, heads = np.unique(selection.combination, return_index=True)
    new = np.array([i for i in np.sort(heads).tolist() if groups[i] not in anchors], dtype=np.int64)
    unplaced: dict[int, Reason] = {}
    if len(new):
        jobs, types, workers = selection.jobs[new], selection.types[new], selection.workers[new]
        places, unplaced = _place_new(room, jobs, types, workers, selection, gang, singles, True)
        found = places if isinstance(places, list) else [[spot] for spot in places.tolist()]
        anchors.update({groups[new[i]]: tuple(place) for i, place in enumerate(found) if place})
    spots: list[list[int]] = [[]] * len(selection)
    staying_put = set(keep)
    for index, job in enumerate(selection.jobs.tolist()):
        if index in staying_put:
            continue
        anchor = anchors.get(groups[index])
        if anchor is not None:
            spots[index] = list(anchor)
        else:
            unplaced.setdefault(job, Unplaced.no_place("its combination has no accelerators"))
    launches = _launches(selection.jobs, selection.types, selection.batch_sizes, spots)
    return Placed(kept, launches, room.left(), unplaced)


def _bound(selection: Selection, view: Snapshot) -> set[int]:
    """The combinations with a member that must be left alone for now."""
    if view.protected is None or selection.combination is None:
        return set()
    kept = view.jobs.number[view.protected]
    return set(selection.combination[np.isin(selection.jobs, kept)].tolist())


def _share(jobs: Ints, view: Snapshot) -> bool:
    """Whether two of these running jobs stand on one accelerator."""
    taken = np.zeros(view.cluster.size, dtype=np.bool_)
    held = view.holdings.flat(jobs)
    taken[held] = True
    return bool(np.count_nonzero(taken) < len(held))


def _places(jobs: Ints, view: Snapshot) -> list[tuple[int, ...]]:
    """What running jobs hold, each in ascending order."""
    sizes, flat = view.holdings.size[jobs], view.holdings.flat(jobs)
    if len(flat) == len(jobs):
        return [(place,) for place in flat.tolist()]
    held = flat[np.lexsort((flat, np.arange(len(jobs)).repeat(sizes)))].tolist()
    ends = sizes.cumsum().tolist()
    return [tuple(held[end - size : end]) for end, size in zip(ends, sizes.tolist())]
