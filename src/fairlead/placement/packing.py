"""What every placement shares: who stays, what is free, gangs before single workers, nobody left half placed. *Which* nodes a
job gets is the one thing the placements differ in."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.holdings import NONE
from fairlead.core.plan import NO_LAUNCHES, Launches, Placed, Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot

ChooseGang: TypeAlias = Callable[["Room", int, int, int], Ints]
"""(room, job, type, workers) → accelerators taken from the room: as many as workers, or none at all."""
OrderSingles: TypeAlias = Callable[["Room", int], Ints]
"""(room, type) → the type's free accelerators, the one to give away first in front."""


class Room:
    """The accelerators that are free while a placement works.

    Gangs look for nodes by how many accelerators they have free. Those counts are kept in buckets, so that a gang's search
    depends on the size of a node and not on the number of nodes. Between `open_to_gangs()` and `close_to_gangs()`, what is
    free is counted by node in plain lists (a gang touches a handful of nodes, too few for numpy) and not in `free`: of a
    node's free accelerators the first ones go first, so that those left are a stretch of one column.
    """

    def __init__(self, view: Snapshot, kept: Ints) -> None:
        self.view, self.cluster = view, view.cluster
        self.free: Bools = view.up.copy()
        if len(kept):
            self.free[view.holdings.held_by(kept)] = False
        self.counts: list[int] = []  # free accelerators by node; empty until `open_to_gangs`
        self._places: Ints = NONE  # which they are, node after node
        self._starts: list[int] = []  # by node: where the first that is left stands among them
        self._buckets: list[list[list[int]]] = []  # by type and count: a heap of nodes; stale entries are skipped

    # For gangs.

    def open_to_gangs(self) -> None:
        if self.counts:  # by the gang before
            return
        counts = self.free_per_node()
        self.counts = counts.tolist()
        self._places, self._starts = self.free.nonzero()[0], (np.add.accumulate(counts) - counts).tolist()
        buckets: list[list[list[int]]] = [[[] for _ in range(most + 1)] for most in self.cluster.largest_node_of_type.tolist()]
        for node, (count, kind) in enumerate(zip(self.counts, self.cluster.kind_of_node)):
            if count:
                buckets[kind][count].append(node)  # ascending, hence a heap already
        self._buckets = buckets

    def fullest_with(self, kind: int, least: int) -> int:
        """The node of a type with the fewest, but at least so many, free accelerators; the first of equals; -1: none."""
        return self._first_with(kind, range(least, len(self._buckets[kind])))

    def emptiest(self, kind: int) -> int:
        """The node of a type with the most free accelerators; -1 where all are taken."""
        return self._first_with(kind, range(len(self._buckets[kind]) - 1, 0, -1))

    def take_on_node(self, node: int, count: int) -> Ints:
        """Take the first `count` free accelerators of a node, or all it has."""
        start, left = self._starts[node], self.counts[node] - count
        end = start + count
        if left > 0:
            heapq.heappush(self._buckets[self.cluster.kind_of_node[node]][left], node)
        elif left < 0:
            end, left = end + left, 0
        self._starts[node], self.counts[node] = end, left
        return self._places[start:end]

    def take(self, accelerators: Ints) -> Ints:
        """Take exactly these, which are free."""
        self.free[accelerators] = False
        return accelerators

    def give_back(self, node: int, count: int) -> None:
        """Undo the last `take_on_node`: a gang found less than it would accept."""
        self._starts[node] -= count
        self.counts[node] += count
        heapq.heappush(self._buckets[self.cluster.kind_of_node[node]][self.counts[node]], node)

    def close_to_gangs(self, taken: Ints) -> None:
        """All gangs are placed; this is what they took."""
        self.free[taken] = False
        self.counts = []

    def last_node(self, job: int, kind: int) -> int:
        """The node of a type on which a job last ran; -1 where it did not."""
        last: int = self.view.holdings.last.item(job)
        if last < 0:
            return -1
        node = self.cluster.node_of_accelerator[last]
        return node if self.cluster.kind_of_node[node] == kind else -1

    # For all.

    def free_of_type(self, kind: int) -> Ints:
        if len(self.cluster.types) == 1:
            return np.asarray(self.free.nonzero()[0])
        mine = self.cluster.accelerators_of_type[kind]
        return mine[self.free[mine]]

    def free_per_node(self) -> Ints:
        return np.bincount(self.cluster.node_of[self.free], minlength=len(self.cluster.nodes))

    def left(self) -> tuple[int, ...]:
        if len(self.cluster.types) == 1:
            return (int(np.count_nonzero(self.free)),)
        return tuple(int(np.count_nonzero(self.free[mine])) for mine in self.cluster.accelerators_of_type)

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
    placed, places, unplaced = _place_new(room, jobs, types, workers, selection, gang, singles, sticky)
    if len(placed) < len(jobs):
        jobs, types, workers = jobs[placed], types[placed], workers[placed]
        sizes = None if sizes is None else sizes[placed]
    return Placed(kept, _launches(jobs, types, workers, places, sizes), room.left(), unplaced)


def _can_stay(selection: Selection, view: Snapshot) -> Bools:
    """Runs already, with the same type, size and (where it is given) batch size and place."""
    jobs = view.jobs.of(selection.jobs)
    stays: Bools = jobs.held == selection.workers
    if len(view.cluster.types) > 1:
        stays &= jobs.type == selection.types
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
) -> tuple[Ints, Ints, dict[int, Reason]]:
    """The positions in `jobs` of those who found a place, their accelerators one after the other, and why others did not."""
    unplaced: dict[int, Reason] = {}
    given: dict[int, Ints] = {}  # by position: those who are placed one by one
    for index, job in enumerate(jobs.tolist()) if selection.pinned else ():
        if job in selection.pinned:
            wanted = selection.pinned[job]
            if room.free[wanted].all():
                given[index] = room.take(wanted)
            else:
                unplaced[job] = Unplaced.no_place("its pinned accelerators are not free")
    large = (workers > 1).nonzero()[0]
    if len(large):
        order = large[(-workers[large]).argsort(kind="stable")]
        for index, job, kind, want in zip(order.tolist(), jobs[order].tolist(), types[order].tolist(), workers[order].tolist()):
            if index in given or job in unplaced:
                continue
            found = gang(room, job, kind, want)
            if len(found):
                given[index] = found
            else:
                name = room.cluster.type_names[kind]
                unplaced[job] = Unplaced.no_place(f"{want} accelerators of type {name} as it needs them")
    ahead = sorted(given)
    theirs = np.concatenate([given[index] for index in ahead]) if ahead else NONE
    room.close_to_gangs(theirs)
    if len(large) == len(jobs):
        return np.array(ahead, dtype=np.int64), theirs, unplaced
    small = workers == 1
    if selection.pinned:
        small[ahead] = False
        small &= ~np.isin(jobs, list(unplaced))
    single = small.nonzero()[0]
    spots = _singles(room, jobs[single], types[single], singles, sticky)
    if len(spots) and spots[spots.argmin()] < 0:
        unlucky = spots < 0
        for job in jobs[single[unlucky]].tolist():
            unplaced[job] = Unplaced.no_place("every accelerator of its type is taken")
        single, spots = single[~unlucky], spots[~unlucky]
    if not ahead:
        return single, spots, unplaced
    return *_interleaved(np.array(ahead, dtype=np.int64), theirs, single, spots, workers), unplaced


def _interleaved(ahead: Ints, theirs: Ints, single: Ints, spots: Ints, workers: Ints) -> tuple[Ints, Ints]:
    """Two groups with their accelerators, as one in the order of the positions."""
    one_by_one = np.zeros(len(workers), dtype=np.bool_)
    one_by_one[ahead] = True
    placed = np.concatenate((ahead, single))
    placed.sort()
    from_theirs = one_by_one[placed].repeat(workers[placed])
    places = np.empty(len(from_theirs), dtype=np.int64)
    places[from_theirs] = theirs
    places[~from_theirs] = spots
    return placed, places


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
    rest = (spots < 0).nonzero()[0]
    wanted_types = types[rest]
    for kind in sorted(set(wanted_types.tolist())):
        mine = rest[wanted_types == kind]
        given = order(room, kind)[: len(mine)]
        spots[mine[: len(given)]] = given
        room.free[given] = False
    return spots


def _launches(jobs: Ints, types: Ints, workers: Ints, places: Ints, sizes: Ints | None) -> Launches:
    if not len(jobs):
        return NO_LAUNCHES
    if len(places) == len(jobs):
        return Launches(jobs, types, np.arange(len(jobs) + 1), places, sizes)
    offsets = np.zeros(len(jobs) + 1, dtype=np.int64)
    np.add.accumulate(workers, out=offsets[1:])
    return Launches(jobs, types, offsets, places, sizes)


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
        placed, places, unplaced = _place_new(room, jobs, types, workers, selection, gang, singles, True)
        bounds = np.concatenate(([0], workers[placed].cumsum())).tolist()
        spots = places.tolist()
        for group, begin, end in zip(selection.combination[new[placed]].tolist(), bounds, bounds[1:]):
            anchors[group] = tuple(spots[begin:end])
    staying_put = set(keep)
    start: list[int] = []
    flat: list[int] = []
    ends = [0]
    for index, job in enumerate(selection.jobs.tolist()):
        if index in staying_put:
            continue
        anchor = anchors.get(groups[index])
        if anchor is None:
            unplaced.setdefault(job, Unplaced.no_place("its combination has no accelerators"))
            continue
        start.append(index)
        flat += anchor
        ends.append(len(flat))
    launches = NO_LAUNCHES
    if start:
        sizes = None if selection.batch_sizes is None else selection.batch_sizes[start]
        launches = Launches(selection.jobs[start], selection.types[start], np.array(ends), np.array(flat), sizes)
    return Placed(kept, launches, room.left(), unplaced)


def _bound(selection: Selection, view: Snapshot) -> set[int]:
    """The combinations with a member that must be left alone for now."""
    if view.protected is None or selection.combination is None:
        return set()
    kept = view.jobs.number[view.protected]
    return set(selection.combination[np.isin(selection.jobs, kept)].tolist())


def _share(jobs: Ints, view: Snapshot) -> bool:
    """Whether two of these running jobs stand on one accelerator."""
    return view.holdings.shared and bool((np.bincount(view.holdings.places(jobs)[1], minlength=1) > 1).any())


def _places(jobs: Ints, view: Snapshot) -> list[tuple[int, ...]]:
    """What running jobs hold, each in ascending order."""
    owner, place = view.holdings.places(jobs)
    held: dict[int, list[int]] = {}
    for number, accelerator in zip(owner.tolist(), place.tolist()):
        held.setdefault(number, []).append(accelerator)
    return [tuple(held[number]) for number in jobs.tolist()]
