"""Shared by placements: running jobs stay, gangs are placed before single workers, and a gang is placed completely or not
at all; sessions go before all of them. Each placement (`basic.py` and others) chooses the nodes, by the searches of
`free_by_node.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.columns import FALSE, NO, ONE
from fairlead.core.device_map import NONE, offsets_of, ragged
from fairlead.core.errors import InvalidPlan
from fairlead.core.plan import NO_LAUNCHES, Launches, Placed, Selection, unchecked
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import Snapshot
from fairlead.placement.free_by_node import FreeByNode, FreeByRack

PlaceGangs: TypeAlias = Callable[["FreeDevices", Ints, Ints, Ints], list[list[int]]]
"""(devices, jobs, types, workers), from large to small → accelerators for each gang: one for each worker, or none at all. The
caller takes them from `devices` when all gangs are placed."""
OrderSingles: TypeAlias = Callable[["FreeDevices", int], Ints]
"""(devices, type) → the type's free accelerators, the one to use first in front."""


class FreeDevices:
    """The accelerators that are free during a placement; `kept` are the jobs that stay where they are."""

    condition = "as it needs them"  # for the reason of a gang that found no accelerators

    def __init__(self, view: Snapshot, kept: Ints) -> None:
        self.view, self.cluster, self.kept = view, view.cluster, kept
        self.given: list[tuple[int, Ints]] = []  # pinned jobs that got their accelerators
        self.free: Bools = view.up > view.device_map.held_by(kept) if len(kept) else view.up.copy()  # up, and not held
        self._per_node: Ints | None = None

    def by_node(self, *, wait_for_rack: bool = False) -> FreeByNode:
        """The free accelerators counted by node, and by rack if there are several."""
        if not self.cluster.nodes_of_rack:
            return FreeByNode(self.cluster, self.free)
        return FreeByRack(self.cluster, self.free, wait=wait_for_rack)

    def last_nodes(self, jobs: Ints, types: Ints) -> list[int]:
        """For each job the node on which it last ran; -1 where there is none, or where it is of another type."""
        node_of, kind_of = self.cluster.node_of_accelerator, self.cluster.kind_of_node
        nodes = [node_of[last] if last >= 0 else -1 for last in self.view.device_map.last[jobs].tolist()]
        if len(self.cluster.types) == 1:
            return nodes
        return [node if node >= 0 and kind_of[node] == type_ else -1 for node, type_ in zip(nodes, types.tolist())]

    def take(self, accelerators: Ints) -> None:
        """Mark accelerators as used."""
        self.free[accelerators] = FALSE
        self._per_node = None

    def give(self, job: int, accelerators: Ints) -> bool:
        """Give a pinned job its accelerators, if they are free; return whether they are."""
        if not self.free[accelerators].all():
            return False
        self.take(accelerators)
        self.given.append((job, accelerators))
        return True

    def can_join(self, job: int, accelerators: tuple[int, ...]) -> bool:
        """Whether a job may be co-located with the others of its combination on these accelerators."""
        return True

    def free_of_type(self, type_: int) -> Ints:
        """The free accelerators of a type, in ascending order."""
        if len(self.cluster.types) == 1:
            return np.asarray(self.free.nonzero()[0])
        mine = self.cluster.accelerators_of_type[type_]
        return mine[self.free[mine]]

    def free_per_node(self) -> Ints:
        """The number of free accelerators by node, counted once until the next `take`."""
        if self._per_node is None:
            self._per_node = np.bincount(self.cluster.node_of[self.free], minlength=len(self.cluster.nodes))
        return self._per_node

    def left(self) -> tuple[int, ...]:
        """The number of free accelerators by type."""
        if len(self.cluster.types) == 1:
            return (int(np.count_nonzero(self.free)),)
        return tuple(np.bincount(self.cluster.type_of[self.free], minlength=len(self.cluster.types)).tolist())


def gangs_from_order(order: OrderSingles) -> PlaceGangs:
    """Let gangs take the first accelerators of the order for single workers, on any nodes."""

    def gangs(devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        found: list[list[int]] = []
        for type_, want in zip(types.tolist(), workers.tolist()):
            free = order(devices, type_)
            mine = free[:want] if len(free) >= want else NONE
            devices.take(mine)
            found.append(mine.tolist())
        return found

    return gangs


def place_jobs(
    selection: Selection,
    view: Snapshot,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    *,
    sticky: bool = True,
    make_devices: Callable[[Snapshot, Ints], FreeDevices] = FreeDevices,
) -> Placed:
    """Place a selection: sessions by their routes; then jobs that can stay; then gangs from large to small; then all single
    workers at once.

    Args:
        singles: None places single workers last among the gangs.
        sticky: Whether single workers return to their last accelerator if it is free.
    """
    if selection.routes:
        rest = partial(place_jobs, gangs=gangs, singles=singles, sticky=sticky, make_devices=make_devices)
        return place_sessions_first(selection, view, rest)
    if selection.combination is not None:
        return _place_combinations(selection, view, gangs, singles, make_devices)
    stays = _can_stay(selection, view)
    kept = selection.jobs[stays]
    if _share(kept, view):  # jobs that share accelerators now and are selected alone must be separated
        apart = replace(selection, combination=np.arange(len(selection)))
        return _place_combinations(apart, view, gangs, singles, make_devices)
    if len(kept) == len(selection):
        taken = np.bincount(selection.types, selection.workers, len(view.capacity))
        return Placed(kept, NO_LAUNCHES, tuple((view.capacity - taken).astype(np.int64).tolist()))
    coming = (~stays).nonzero()[0]
    jobs, types, workers = selection.jobs[coming], selection.types[coming], selection.workers[coming]
    sizes = None if selection.batch_sizes is None else selection.batch_sizes[coming]
    devices, offsets = make_devices(view, kept), offsets_of(workers)
    placed, places, unplaced = _place_new(devices, jobs, types, workers, offsets, selection, gangs, singles, sticky)
    if unplaced and selection.strict:
        devices = make_devices(view, kept)
        placed, places, unplaced = _place_until_one_waits(devices, jobs, types, workers, selection, gangs, singles, sticky)
    if len(placed) < len(jobs):
        jobs, types, workers = jobs[placed], types[placed], workers[placed]
        offsets, sizes = offsets_of(workers), None if sizes is None else sizes[placed]
    launches = Launches.alone(jobs, types, workers, offsets, places, sizes) if len(jobs) else NO_LAUNCHES
    return unchecked(Placed, kept=kept, launches=launches, free=devices.left(), unplaced=unplaced)


def _can_stay(selection: Selection, view: Snapshot) -> Bools:
    """Whether each job already runs with the same type, size, batch size and devices, on nodes not drained."""
    jobs = view.jobs.of(selection.jobs)
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
    devices: FreeDevices,
    jobs: Ints,
    types: Ints,
    workers: Ints,
    offsets: Ints,
    selection: Selection,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    sticky: bool,
) -> tuple[Ints, Ints, dict[int, Reason]]:
    """The positions in `jobs` of placed jobs, their accelerators as one column, and the reasons of the others."""
    unplaced: dict[int, Reason] = {}
    starts = offsets[:-1]
    flat = [-1] * offsets.item(-1)
    pinned: set[int] = set()
    for index, job in enumerate(jobs.tolist()) if selection.pinned else ():
        if job in selection.pinned:
            pinned.add(index)
            wanted = selection.pinned[job]
            if len(wanted) != workers[index]:
                raise InvalidPlan(f"job {job} asks for {workers[index]} GPUs and is pinned to {len(wanted)}")
            if devices.give(job, wanted):
                flat[starts.item(index) : starts.item(index) + len(wanted)] = wanted.tolist()
            else:
                unplaced[job] = Reasons.not_placed("its pinned GPUs are not free")
    large = np.arange(len(jobs)) if singles is None else (workers > ONE).nonzero()[0]
    if len(large):
        order = large[(-workers[large]).argsort(kind="stable")]
        if pinned:
            order = order[[index not in pinned for index in order.tolist()]]
        for index, start, found in zip(
            order.tolist(), starts[order].tolist(), gangs(devices, jobs[order], types[order], workers[order])
        ):
            if found:
                flat[start : start + len(found)] = found
            else:
                name = devices.cluster.type_names[types.item(index)]
                some = "a GPU" if workers.item(index) == 1 else f"{workers.item(index)} GPUs"
                unplaced[jobs.item(index)] = Reasons.not_placed(f"{some} of type {name} {devices.condition}")
    places = np.array(flat, dtype=np.int64)
    if len(large):
        devices.take(places[places >= NO])
    if singles is not None and len(large) < len(jobs):
        single = (workers == ONE).nonzero()[0]
        if pinned:
            single = single[[index not in pinned for index in single.tolist()]]
        places[starts[single]] = slots = _singles(devices, jobs[single], types[single], singles, sticky)
        if len(slots) and slots[slots.argmin()] < 0:
            for job in jobs[single[slots < 0]].tolist():
                unplaced[job] = Reasons.not_placed("every GPU of its type is taken")
    if not unplaced:
        return np.arange(len(jobs)), places, unplaced
    return (places[starts] >= 0).nonzero()[0], places[places >= 0], unplaced


def _place_until_one_waits(
    devices: FreeDevices,
    jobs: Ints,
    types: Ints,
    workers: Ints,
    selection: Selection,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    sticky: bool,
) -> tuple[Ints, Ints, dict[int, Reason]]:
    """As `_place_new`, one job after the other in their order, up to the first that finds no place."""
    places, unplaced = [NONE], dict[int, Reason]()
    for at in range(len(jobs)):
        one = slice(at, at + 1)
        want = workers[one]
        _, found, unplaced = _place_new(
            devices, jobs[one], types[one], want, offsets_of(want), selection, gangs, singles, sticky
        )
        if unplaced:
            break
        places.append(found)
    return np.arange(len(places) - 1), np.concatenate(places), unplaced


def _singles(devices: FreeDevices, jobs: Ints, types: Ints, order: OrderSingles, sticky: bool) -> Ints:
    """An accelerator for each single worker; -1 where none is left. Jobs whose last one is free come first."""
    slots = np.full(len(jobs), -1, dtype=np.int64)
    if sticky:
        last = devices.view.device_map.last[jobs]
        free = (last >= NO) & devices.free[last]
        if len(devices.cluster.types) > 1:
            free &= devices.cluster.type_of[last] == types
        returning = free.nonzero()[0]
        if len(returning):
            wanted = last[returning]
            claim = np.empty(devices.cluster.size, dtype=np.int64)
            claim[wanted[::-1]] = returning[::-1]  # the first selected of equals: the last write counts
            first = claim[wanted] == returning
            slots[returning[first]] = wanted[first]
            devices.take(wanted)
    rest = (slots < NO).nonzero()[0]
    needed = sorted(set(types[rest].tolist()))
    used: list[Ints] = []
    for type_ in needed:
        mine = rest[types[rest] == type_] if len(needed) > 1 else rest
        given = order(devices, type_)[: len(mine)]
        slots[mine[: len(given)]] = given
        used.append(given)
    if used:  # all at once: types have no nodes in common
        devices.take(used[0] if len(used) == 1 else np.concatenate(used))
    return slots


def _place_combinations(
    selection: Selection,
    view: Snapshot,
    gangs: PlaceGangs,
    singles: OrderSingles | None,
    make_devices: Callable[[Snapshot, Ints], FreeDevices],
) -> Placed:
    """Place combinations: all members on the same accelerators: the accelerators of a member that can stay, if there is one."""
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
        # Two combinations must not get the same accelerator; one with a protected job keeps it.
        if taken.isdisjoint(place):
            taken.update(place)
        else:
            del anchors[combination]
    keep = [index for index in keep if groups[index] in anchors]
    kept = selection.jobs[keep]
    devices = make_devices(view, kept)
    _, heads = np.unique(selection.combination, return_index=True)
    new = np.array([i for i in np.sort(heads).tolist() if groups[i] not in anchors], dtype=np.int64)
    unplaced: dict[int, Reason] = {}
    if len(new):
        jobs, types, workers = selection.jobs[new], selection.types[new], selection.workers[new]
        offsets = offsets_of(workers)
        placed, places, unplaced = _place_new(devices, jobs, types, workers, offsets, selection, gangs, singles, True)
        if unplaced and selection.strict:
            devices = make_devices(view, kept)
            placed, places, unplaced = _place_until_one_waits(devices, jobs, types, workers, selection, gangs, singles, True)
        bounds = offsets_of(workers[placed]).tolist()
        slots = places.tolist()
        for group, begin, end in zip(selection.combination[new[placed]].tolist(), bounds, bounds[1:]):
            anchors[group] = tuple(slots[begin:end])
    staying_put = set(keep)
    start: list[int] = []
    flat: list[int] = []
    ends = [0]
    for index, job in enumerate(selection.jobs.tolist()):
        if index in staying_put:
            continue
        anchor = anchors.get(groups[index])
        if anchor is None:
            unplaced.setdefault(job, Reasons.not_placed("its combination has no GPUs"))
            continue
        if not devices.can_join(job, anchor):
            unplaced[job] = Reasons.not_placed(f"with the others of its combination, {devices.condition}")
            continue
        start.append(index)
        flat += anchor
        ends.append(len(flat))
    launches = NO_LAUNCHES
    if start:
        sizes = None if selection.batch_sizes is None else selection.batch_sizes[start]
        launches = Launches(selection.jobs[start], selection.types[start], np.array(ends), np.array(flat), sizes)
    return Placed(kept, launches, devices.left(), unplaced)


def _bound(selection: Selection, view: Snapshot) -> set[int]:
    """The combinations with a member that is protected from preemption now."""
    if view.protected is None or selection.combination is None:
        return set()
    kept = view.jobs.number[view.protected]
    return set(selection.combination[np.isin(selection.jobs, kept)].tolist())


def _share(jobs: Ints, view: Snapshot) -> bool:
    """Whether two of these running jobs share an accelerator."""
    return view.device_map.shared and bool((np.bincount(view.device_map.places(jobs)[1], minlength=1) > 1).any())


def _places(jobs: Ints, view: Snapshot) -> list[tuple[int, ...]]:
    """The accelerators of running jobs, each in ascending order."""
    owner, place = view.device_map.places(jobs)
    held: dict[int, list[int]] = {}
    for number, accelerator in zip(owner.tolist(), place.tolist()):
        held.setdefault(number, []).append(accelerator)
    return [tuple(held[number]) for number in jobs.tolist()]


def place_sessions_first(selection: Selection, view: Snapshot, place_rest: Callable[[Selection, Snapshot], Placed]) -> Placed:
    """Place the sessions of a selection by their routes, and the rest with `place_rest` on what is left."""
    serves = np.isin(selection.jobs, list(selection.routes))
    sessions = selection.only(serves)
    routes = {job: np.array(selection.routes[job].accelerators, dtype=np.int64) for job in sessions.jobs.tolist()}
    taken: Bools = np.zeros(view.cluster.size, dtype=np.bool_)
    starts, unplaced, kept = list[int](), dict[int, Reason](), list[int]()
    jobs = view.jobs.of(sessions.jobs)
    for row, (job, place) in enumerate(routes.items()):
        if not view.up[place].all():
            unplaced[job] = Reasons.not_placed("GPUs of its route are down")
            continue
        taken[place] = True
        same = jobs.held[row] == len(place) and np.array_equal(view.device_map.of(job), place)
        if same and (sessions.batch_sizes is None or sessions.batch_sizes[row] in (0, jobs.batch_size[row])):
            kept.append(job)
        else:
            starts.append(row)
    some = sessions.only(np.isin(np.arange(len(sessions)), starts))
    offsets, places = ragged(routes[job] for job in some.jobs.tolist())
    launches = Launches(some.jobs, some.types, offsets, places, some.batch_sizes)
    without_sessions = view.with_changes(
        up=view.up & ~taken,
        drained=view.drained | taken,  # other jobs leave these accelerators
        any_drained=view.any_drained or bool(taken.any()),
        capacity=np.bincount(view.cluster.type_of[view.up & ~taken], minlength=len(view.capacity)),
    )
    rest = place_rest(selection.only(~serves), without_sessions)
    all_kept = np.concatenate((np.array(kept, dtype=np.int64), rest.kept))
    return Placed(all_kept, _joined(launches, rest.launches), rest.free, {**rest.unplaced, **unplaced})


def _joined(one: Launches, other: Launches) -> Launches:
    """Both, without CPUs and memory of hosts, which are set later."""
    if not len(one):
        return other
    if not len(other):
        return one
    sizes: Ints | None = None
    if one.batch_sizes is not None or other.batch_sizes is not None:
        columns = ((each.batch_sizes, len(each)) for each in (one, other))
        sizes = np.concatenate([np.zeros(many, np.int64) if column is None else column for column, many in columns])
    return Launches(
        np.concatenate((one.jobs, other.jobs)),
        np.concatenate((one.types, other.types)),
        np.concatenate((one.offsets, one.offsets[-1] + other.offsets[1:])),
        np.concatenate((one.accelerators, other.accelerators)),
        sizes,
    )
