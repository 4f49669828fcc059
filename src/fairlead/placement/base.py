"""What every placement shares: who stays, what is free, gangs before single workers, nobody left half placed. *Which* nodes a
job gets is the one thing the placements differ in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Cluster, Ints
from fairlead.core.columns import FALSE, NO, ONE
from fairlead.core.device_map import NONE, offsets_of
from fairlead.core.errors import InvalidPlan
from fairlead.core.plan import NO_LAUNCHES, Launches, Placed, Selection, unchecked
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.placement.session_slots import sessions_first

# What is free, counted by node, for placements that look for nodes and not for single accelerators.


class FreeByNode:
    """How many accelerators each node has free, while gangs are placed.

    Of a node's free accelerators the first ones go first, so that those left are a stretch of one column. A gang touches a
    handful of nodes, too few for numpy: counts are plain lists, and the nodes of a type with a given count are the bits of a
    whole number, so that a search depends on the size of a node and not on the number of nodes.
    """

    def __init__(self, cluster: Cluster, free: Bools) -> None:
        places = free.nonzero()[0]
        per_node = np.bincount(cluster.node_of[places], minlength=len(cluster.nodes))
        self.counts: list[int] = per_node.tolist()
        self._kind_of_node = cluster.kind_of_node
        self._places: list[int] = places.tolist()  # node after node
        self._starts = list(accumulate(self.counts, initial=0))
        self._having = [[0] * (most + 1) for most in cluster.largest_node_of_type.tolist()]  # by type and count
        for node in per_node.nonzero()[0].tolist():
            self._having[self._kind_of_node[node]][self.counts[node]] |= 1 << node

    def fewest(self, kind: int, want: int, most_nodes: int) -> list[int]:
        """Accelerators of a type on as few nodes as can be: of the fullest node that holds them all, the first of equals. Where
        none does, the emptiest gives all it has, and the rest is sought in the same way. None at all where there are not so
        many, or where they would be on more than `most_nodes`."""
        having, counts, starts, places = self._having[kind], self.counts, self._starts, self._places
        most = len(having) - 1
        had = want
        while had <= most and not having[had]:
            had += 1
        if had <= most:  # one node holds them all, which is how it mostly ends
            bits = having[had]
            bit = bits & -bits
            node, left = bit.bit_length() - 1, had - want
            having[had] = bits ^ bit
            having[left] |= bit
            start = starts[node]
            counts[node], starts[node] = left, start + want
            return places[start : start + want]
        return self._over_several(kind, want, most_nodes)

    def _over_several(self, kind: int, want: int, most_nodes: int) -> list[int]:
        having, counts, starts, places = self._having[kind], self.counts, self._starts, self._places
        found: list[int] = []
        used: list[tuple[int, int]] = []  # a node, and how many of its accelerators
        missing, top = want, min(want - 1, len(having) - 1)  # nobody has more than `top`: else one would hold them all
        while missing and len(used) < most_nodes:
            had = missing
            while had <= top and not having[had]:
                had += 1
            if had > top:
                had = top if top < missing else missing - 1
                while had and not having[had]:
                    had -= 1
                if not had:
                    break
                top = had
            bits = having[had]
            bit = bits & -bits
            node, part = bit.bit_length() - 1, had if had < missing else missing
            having[had] = bits ^ bit
            having[had - part] |= bit
            start = starts[node]
            counts[node], starts[node] = had - part, start + part
            found += places[start : start + part]
            used.append((node, part))
            missing -= part
        if not missing:
            return found
        for node, part in used:
            self._give_back(node, part)
        return []

    def fragments(self, kind: int, want: int) -> list[int]:
        """Accelerators of a type from the nodes that have the fewest free, so that whole nodes stay free; the first of equals.
        None at all where there are not so many."""
        having = self._having[kind]
        found: list[int] = []
        if sum(had * having[had].bit_count() for had in range(1, len(having))) < want:
            return []
        had = 1
        while len(found) < want:
            bits = having[had]
            if bits:
                found += self.take((bits & -bits).bit_length() - 1, min(had, want - len(found)))
            else:
                had += 1
        return found

    def take(self, node: int, count: int) -> list[int]:
        """Take the first `count` free accelerators of a node, which has as many."""
        had, start = self.counts[node], self._starts[node]
        left = had - count
        having, bit = self._having[self._kind_of_node[node]], 1 << node
        having[had] ^= bit
        having[left] |= bit
        self.counts[node], self._starts[node] = left, start + count
        return self._places[start : start + count]

    def _give_back(self, node: int, count: int) -> None:
        """Undo what was last taken from a node."""
        had = self.counts[node]
        having, bit = self._having[self._kind_of_node[node]], 1 << node
        having[had] &= ~bit
        having[had + count] |= bit
        self.counts[node] = had + count
        self._starts[node] -= count


PlaceGangs: TypeAlias = Callable[["Room", Ints, Ints, Ints], list[list[int]]]
"""(room, jobs, types, workers), from large to small → accelerators for each in this order: as many as it has workers, or none
at all. They are taken from the room when all gangs are placed."""
OrderSingles: TypeAlias = Callable[["Room", int], Ints]
"""(room, type) → the type's free accelerators, the one to give away first in front."""


class Room:
    """The accelerators that are free while a placement works; `kept` are the jobs that stay where they are."""

    as_needed = "as it needs them"  # what to say of accelerators that a gang did not find

    def __init__(self, view: Snapshot, kept: Ints) -> None:
        self.view, self.cluster, self.kept = view, view.cluster, kept
        self.given: list[tuple[int, Ints]] = []  # who is pinned, and got it
        self.free: Bools = view.up > view.device_map.held_by(kept) if len(kept) else view.up.copy()  # up, and not held
        self._per_node: Ints | None = None

    def by_node(self) -> FreeByNode:
        """What is free now, counted by node."""
        return FreeByNode(self.cluster, self.free)

    def last_nodes(self, jobs: Ints, types: Ints) -> list[int]:
        """For each job the node on which it last ran; -1 where it did not, or where that is of another type."""
        node_of, kind_of = self.cluster.node_of_accelerator, self.cluster.kind_of_node
        nodes = [node_of[last] if last >= 0 else -1 for last in self.view.device_map.last[jobs].tolist()]
        if len(self.cluster.types) == 1:
            return nodes
        return [node if node >= 0 and kind_of[node] == kind else -1 for node, kind in zip(nodes, types.tolist())]

    def take(self, accelerators: Ints) -> None:
        self.free[accelerators] = FALSE
        self._per_node = None

    def give(self, job: int, accelerators: Ints) -> bool:
        """Give a job these very accelerators, if it may have them."""
        if not self.free[accelerators].all():
            return False
        self.take(accelerators)
        self.given.append((job, accelerators))
        return True

    def lets_join(self, job: int, accelerators: tuple[int, ...]) -> bool:
        """Whether a job may run beside the others of its combination, which have these accelerators."""
        return True

    def free_of_type(self, kind: int) -> Ints:
        if len(self.cluster.types) == 1:
            return np.asarray(self.free.nonzero()[0])
        mine = self.cluster.accelerators_of_type[kind]
        return mine[self.free[mine]]

    def free_per_node(self) -> Ints:
        """Counted once for all types that are asked for before somebody takes something."""
        if self._per_node is None:
            self._per_node = np.bincount(self.cluster.node_of[self.free], minlength=len(self.cluster.nodes))
        return self._per_node

    def left(self) -> tuple[int, ...]:
        if len(self.cluster.types) == 1:
            return (int(np.count_nonzero(self.free)),)
        return tuple(np.bincount(self.cluster.type_of[self.free], minlength=len(self.cluster.types)).tolist())


def from_the_front(order: OrderSingles) -> PlaceGangs:
    """Gangs take what single workers would be given, whichever nodes that is on."""

    def gangs(room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        found: list[list[int]] = []
        for kind, want in zip(types.tolist(), workers.tolist()):
            free = order(room, kind)
            mine = free[:want] if len(free) >= want else NONE
            room.take(mine)
            found.append(mine.tolist())
        return found

    return gangs


def pack(
    selection: Selection,
    view: Snapshot,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    *,
    sticky: bool = True,
    make_room: Callable[[Snapshot, Ints], Room] = Room,
) -> Placed:
    """Place a selection: who serves requests as its route says, then keep who can stay, then gangs from large to small, then
    single workers all at once. Where `singles` is None, single workers come last among the gangs."""
    if selection.routes:
        serving, rest, beside = sessions_first(selection, view)
        return serving.joined(pack(rest, beside, gangs, singles, sticky=sticky, make_room=make_room))
    if selection.combination is not None:
        return _pack_shared(selection, view, gangs, singles, make_room)
    stays = _can_stay(selection, view)
    kept = selection.jobs[stays]
    if _share(kept, view):  # who shares now and is selected alone does not stay together
        apart = replace(selection, combination=np.arange(len(selection)))
        return _pack_shared(apart, view, gangs, singles, make_room)
    if len(kept) == len(selection):
        taken = np.bincount(selection.types, selection.workers, len(view.capacity))
        return Placed(kept, NO_LAUNCHES, tuple((view.capacity - taken).astype(np.int64).tolist()))
    coming = (~stays).nonzero()[0]
    jobs, types, workers = selection.jobs[coming], selection.types[coming], selection.workers[coming]
    sizes = None if selection.batch_sizes is None else selection.batch_sizes[coming]
    room, offsets = make_room(view, kept), offsets_of(workers)
    placed, places, unplaced = _place_new(room, jobs, types, workers, offsets, selection, gangs, singles, sticky)
    if len(placed) < len(jobs):
        jobs, types, workers = jobs[placed], types[placed], workers[placed]
        offsets, sizes = offsets_of(workers), None if sizes is None else sizes[placed]
    launches = Launches.alone(jobs, types, workers, offsets, places, sizes) if len(jobs) else NO_LAUNCHES
    return unchecked(Placed, kept=kept, launches=launches, free=room.left(), unplaced=unplaced)


def _can_stay(selection: Selection, view: Snapshot) -> Bools:
    """Runs already, with the same type, size and (where it is given) batch size and place, on nodes that are not to be left."""
    jobs = view.jobs.of(selection.jobs)  # of a long line only these
    stays: Bools = jobs.held == selection.workers
    if len(view.cluster.types) > 1:
        stays &= jobs.type == selection.types
    if selection.batch_sizes is not None:
        stays &= (selection.batch_sizes == 0) | (jobs.batch_size == selection.batch_sizes)
    if view.any_drained:
        stays &= ~np.isin(selection.jobs, view.device_map.on(view.drained))
    for job, place in selection.pinned.items():
        index = np.flatnonzero(selection.jobs == job)
        if len(index):
            stays[index] &= np.array_equal(np.sort(view.device_map.of(job)), np.sort(place))
    return stays


def _place_new(
    room: Room,
    jobs: Ints,
    types: Ints,
    workers: Ints,
    offsets: Ints,
    selection: Selection,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    sticky: bool,
) -> tuple[Ints, Ints, dict[int, Reason]]:
    """The positions in `jobs` of those who found a place, their accelerators one after the other, and why others did not."""
    unplaced: dict[int, Reason] = {}
    starts = offsets[:-1]
    flat = [-1] * offsets.item(-1)  # by job, in their order
    pinned: set[int] = set()
    for index, job in enumerate(jobs.tolist()) if selection.pinned else ():
        if job in selection.pinned:
            pinned.add(index)
            wanted = selection.pinned[job]
            if len(wanted) != workers[index]:
                raise InvalidPlan(f"job {job} asks for {workers[index]} accelerators and is pinned to {len(wanted)}")
            if room.give(job, wanted):
                flat[starts.item(index) : starts.item(index) + len(wanted)] = wanted.tolist()
            else:
                unplaced[job] = Unplaced.not_placed("its pinned accelerators are not free")
    large = np.arange(len(jobs)) if singles is None else (workers > ONE).nonzero()[0]
    if len(large):
        order = large[(-workers[large]).argsort(kind="stable")]
        if pinned:
            order = order[[index not in pinned for index in order.tolist()]]
        for index, start, found in zip(
            order.tolist(), starts[order].tolist(), gangs(room, jobs[order], types[order], workers[order])
        ):
            if found:
                flat[start : start + len(found)] = found
            else:
                name = room.cluster.type_names[types.item(index)]
                some = "an accelerator" if workers.item(index) == 1 else f"{workers.item(index)} accelerators"
                unplaced[jobs.item(index)] = Unplaced.not_placed(f"{some} of type {name} {room.as_needed}")
    places = np.array(flat, dtype=np.int64)
    if len(large):
        room.take(places[places >= NO])
    if singles is not None and len(large) < len(jobs):
        single = (workers == ONE).nonzero()[0]
        if pinned:
            single = single[[index not in pinned for index in single.tolist()]]
        places[starts[single]] = spots = _singles(room, jobs[single], types[single], singles, sticky)
        if len(spots) and spots[spots.argmin()] < 0:
            for job in jobs[single[spots < 0]].tolist():
                unplaced[job] = Unplaced.not_placed("every accelerator of its type is taken")
    if not unplaced:
        return np.arange(len(jobs)), places, unplaced
    return (places[starts] >= 0).nonzero()[0], places[places >= 0], unplaced


def _singles(room: Room, jobs: Ints, types: Ints, order: OrderSingles, sticky: bool) -> Ints:
    """An accelerator for each single worker; -1 where none is left. First those whose last one is free."""
    spots = np.full(len(jobs), -1, dtype=np.int64)
    if sticky:
        last = room.view.device_map.last[jobs]
        free = (last >= NO) & room.free[last]
        if len(room.cluster.types) > 1:
            free &= room.cluster.type_of[last] == types
        wish = free.nonzero()[0]
        if len(wish):
            wanted = last[wish]
            claim = np.empty(room.cluster.size, dtype=np.int64)
            claim[wanted[::-1]] = wish[::-1]  # of two that want the same, the one selected first: the last write counts
            first = claim[wanted] == wish
            spots[wish[first]] = wanted[first]
            room.take(wanted)
    rest = (spots < NO).nonzero()[0]
    kinds = sorted(set(types[rest].tolist()))
    dealt: list[Ints] = []
    for kind in kinds:
        mine = rest[types[rest] == kind] if len(kinds) > 1 else rest
        given = order(room, kind)[: len(mine)]
        spots[mine[: len(given)]] = given
        dealt.append(given)
    if dealt:  # all at once: types have no nodes in common
        room.take(dealt[0] if len(dealt) == 1 else np.concatenate(dealt))
    return spots


def _pack_shared(
    selection: Selection,
    view: Snapshot,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    make_room: Callable[[Snapshot, Ints], Room],
) -> Placed:
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
    room = make_room(view, kept)
    _, heads = np.unique(selection.combination, return_index=True)
    new = np.array([i for i in np.sort(heads).tolist() if groups[i] not in anchors], dtype=np.int64)
    unplaced: dict[int, Reason] = {}
    if len(new):
        jobs, types, workers = selection.jobs[new], selection.types[new], selection.workers[new]
        offsets = offsets_of(workers)
        placed, places, unplaced = _place_new(room, jobs, types, workers, offsets, selection, gangs, singles, True)
        bounds = offsets_of(workers[placed]).tolist()
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
            unplaced.setdefault(job, Unplaced.not_placed("its combination has no accelerators"))
            continue
        if not room.lets_join(job, anchor):
            unplaced[job] = Unplaced.not_placed(f"beside the others of its combination, {room.as_needed}")
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
    return view.device_map.shared and bool((np.bincount(view.device_map.places(jobs)[1], minlength=1) > 1).any())


def _places(jobs: Ints, view: Snapshot) -> list[tuple[int, ...]]:
    """What running jobs hold, each in ascending order."""
    owner, place = view.device_map.places(jobs)
    held: dict[int, list[int]] = {}
    for number, accelerator in zip(owner.tolist(), place.tolist()):
        held.setdefault(number, []).append(accelerator)
    return [tuple(held[number]) for number in jobs.tolist()]
