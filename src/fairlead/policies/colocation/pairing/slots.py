"""Slots for new jobs while one decision is made: co-located groups, idle accelerators, and the host resources left. Finds the
cheapest slot of a job and turns the result into a selection. It decides neither the order of jobs nor which jobs must leave.

Jobs share all of their accelerators or none, so only gangs of one size share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.observed_slowdowns import ROUNDING
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.colocation_cost import ColocationCost, JobSignature


@dataclass
class ColocatedGroup:
    """Jobs that share some accelerators, by number, in the order of their start."""

    type: int
    places: tuple[int, ...]
    members: list[int]
    signatures: tuple[JobSignature, ...]
    new: bool = False  # no member runs there yet

    def without(self, jobs: set[int]) -> ColocatedGroup | None:
        """The group without some jobs; None where none is left."""
        if jobs.isdisjoint(self.members):
            return self
        left = [(number, job) for number, job in zip(self.members, self.signatures) if number not in jobs]
        if not left:
            return None
        return replace(self, members=[number for number, _ in left], signatures=tuple(job for _, job in left))


class Slot(NamedTuple):
    """Accelerators for a new job; the smallest slot is the best."""

    extra_nodes: int  # beyond the fewest possible, where locality counts before cost
    cost: float
    joins: bool
    first: int  # accelerator, as a tie-break
    places: tuple[int, ...]
    type: int
    group: ColocatedGroup | None


@dataclass
class SlotFinder:
    """The accelerators of a view with the groups on them. Gangs from `local_from` workers on prefer few nodes over low cost."""

    view: Snapshot
    costs: ColocationCost
    local_from: int
    groups: list[ColocatedGroup] = field(default_factory=list)
    _joinable: dict[tuple[int, int, tuple[JobSignature, ...]], list[ColocatedGroup]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cluster = self.view.cluster
        self.idle: Bools = self.view.up.copy()
        self._host_left = [cluster.node_cpus.tolist(), cluster.node_memory_gb.tolist()]
        self._node_of = cluster.node_of_accelerator
        self._largest = cluster.largest_node_of_type.tolist()
        self.reserved: set[int] = set()  # closed to new jobs
        self._frozen: set[int] = set()  # closed to co-location
        self.colocate = True  # whether new jobs may join groups
        self.separated = self.view.separated  # pairs of job numbers that must not meet, lower one first
        groups, self.groups = self.groups, []
        for group in groups:
            self._add(group)
            for job in group.signatures:
                self._use_host(job, group.places)

    def freeze(self, places: Iterable[int]) -> None:
        """Let no job join the groups on these accelerators."""
        self._frozen.update(places)

    def best(self, job: JobSignature, number: int = -1) -> Slot | None:
        """The cheapest slot for a job; its number matters where it was separated from others."""
        slots = [*self._in_groups(job, number)]
        for type_ in self.types_of(job):
            cost, places = self.costs.cost((job,), type_), self._idle_places(type_, job)
            if cost is not None and places and (slot := self._slot(job, cost, places, type_, None)):
                slots.append(slot)
        return min(slots, key=lambda slot: slot[:4], default=None)

    def excess_slowdown(self, job: JobSignature, slot: Slot) -> float:
        """The mean slowdown in a slot less the typical one of the job; an idle slot is best."""
        if slot.group is None:
            return -math.inf
        slowdowns = self.costs.slowdowns((*slot.group.signatures, job), slot.type)
        return sum(slowdowns) / len(slowdowns) - float(self.costs.typical[0][job.row, slot.type])

    def put(self, number: int, job: JobSignature, slot: Slot) -> None:
        """Place a job into a slot."""
        self._use_host(job, slot.places)
        if slot.group is None:
            self._add(ColocatedGroup(slot.type, slot.places, [number], (job,), new=True))
            return
        group = slot.group
        self._joinable[self._key(group)].remove(group)
        group.members.append(number)
        group.signatures = (*group.signatures, job)
        self._offer(group)

    def reserve_for(self, job: JobSignature) -> None:
        """Close as many accelerators as a job needs: on one node if possible, and with the fewest jobs on them."""
        cluster, residents = self.view.cluster, self._residents()
        choices = list[list[int]]()
        for type_ in self.types_of(job):
            there = cluster.accelerators_of_type[type_]
            there = there[self.view.up[there]]
            ranked = there[np.lexsort((there, residents[there]))].tolist()
            choices += [places for places in self._by_node(ranked).values() if len(places) >= job.workers]
            if job.workers > self._largest[type_] and len(ranked) >= job.workers:
                choices.append(ranked)
        chosen = [places[: job.workers] for places in choices]
        self.reserved = set(min(((int(residents[places].sum()), places) for places in chosen), default=(0, []))[1])

    def types_of(self, job: JobSignature) -> Iterable[int]:
        """The types that a job can run on."""
        mask = job.fits & int(self.view.rates.runs_on[job.row])
        return (type_ for type_ in range(len(self.view.capacity)) if mask >> type_ & 1)

    def joinable(self, job: JobSignature) -> Iterable[tuple[int, tuple[JobSignature, ...], list[ColocatedGroup]]]:
        """Groups of the right size with room for one more job: type, signatures, and all groups with these signatures."""
        allowed = set(self.types_of(job))
        for (type_, workers, signatures), groups in self._joinable.items():
            if workers == job.workers and type_ in allowed and groups:
                yield type_, signatures, groups

    def _add(self, group: ColocatedGroup) -> None:
        self.groups.append(group)
        self.idle[list(group.places)] = False
        self._offer(group)

    def _offer(self, group: ColocatedGroup) -> None:
        if len(group.members) < self.costs.limits.jobs and not any(map(self.costs.runs_alone, group.signatures)):
            same = self._joinable.setdefault(self._key(group), [])
            same.append(group)
            same.sort(key=lambda one: one.places)

    def _key(self, group: ColocatedGroup) -> tuple[int, int, tuple[JobSignature, ...]]:
        return group.type, len(group.places), group.signatures

    def _residents(self) -> Ints:
        """The number of jobs on each accelerator."""
        count: Ints = np.zeros(self.view.cluster.size, dtype=np.int64)
        for group in self.groups:
            count[list(group.places)] += len(group.members)
        return count

    def _by_node(self, places: Iterable[int]) -> dict[int, list[int]]:
        by_node: dict[int, list[int]] = {}
        for place in places:
            by_node.setdefault(self._node_of[place], []).append(place)
        return by_node

    def _in_groups(self, job: JobSignature, number: int) -> Iterable[Slot]:
        if not self.colocate or self.costs.runs_alone(job):
            return
        for type_, signatures, groups in self.joinable(job):
            cost = self.costs.cost((*signatures, job), type_)
            if cost is None:
                continue
            for group in groups:
                closed = not (self.reserved | self._frozen).isdisjoint(group.places) or not self._host_fits(job, group.places)
                if closed or any((min(number, other), max(number, other)) in self.separated for other in group.members):
                    continue
                if slot := self._slot(job, cost, group.places, type_, group):
                    yield slot
                    if not self._extra_nodes(job, group.places, type_):
                        break  # others with the same signatures are no better

    def _slot(
        self, job: JobSignature, cost: float, places: tuple[int, ...], type_: int, group: ColocatedGroup | None
    ) -> Slot | None:
        extra = self._extra_nodes(job, places, type_)
        type_cost = self.costs.type_cost(job, type_, spread=extra > 0)
        if type_cost is None:
            return None
        first = extra if job.workers >= self.local_from else 0
        return Slot(first, cost + type_cost, group is not None, places[0], places, type_, group)

    def _extra_nodes(self, job: JobSignature, places: tuple[int, ...], type_: int) -> int:
        """The number of nodes beyond the fewest possible."""
        fewest: int = -(-job.workers // self._largest[type_])
        return len({self._node_of[place] for place in places}) - fewest

    def _idle_places(self, type_: int, job: JobSignature) -> tuple[int, ...]:
        """Idle accelerators on as few nodes as possible: of the fullest node that holds all, or of the emptiest ones."""
        mine = self.view.cluster.accelerators_of_type[type_]
        free = [place for place in mine[self.idle[mine]].tolist() if place not in self.reserved]
        if len(free) < job.workers:
            return ()
        by_node = self._by_node(free)
        for node, places in by_node.items():
            by_node[node] = places[: self._workers_hosted(job, node, len(places))]
        found: list[int] = []
        while by_node:
            left = job.workers - len(found)
            enough = [node for node, places in by_node.items() if len(places) >= left]
            if enough:
                node = min(enough, key=lambda node: (len(by_node[node]), node))
                return tuple(sorted(found + by_node[node][:left]))
            found += by_node.pop(max(by_node, key=lambda node: (len(by_node[node]), -node)))
        return ()

    def _workers_hosted(self, job: JobSignature, node: int, count: int) -> int:
        """How many of `count` workers the CPUs and memory of a node can host; nodes without these numbers host all."""
        for need, left in zip((job.cpus, job.host_memory_gb), self._host_left):
            if need > 0:
                count = int(min(count, max(left[node], 0.0) / need + ROUNDING))
        return count

    def _host_fits(self, job: JobSignature, places: tuple[int, ...]) -> bool:
        if not (job.cpus or job.host_memory_gb):
            return True
        by_node = self._by_node(places)
        return all(self._workers_hosted(job, node, len(there)) >= len(there) for node, there in by_node.items())

    def _use_host(self, job: JobSignature, places: tuple[int, ...]) -> None:
        for need, left in zip((job.cpus, job.host_memory_gb), self._host_left):
            if need > 0:
                for place in places:
                    left[self._node_of[place]] -= need


def running_groups(view: Snapshot, signatures: Mapping[int, JobSignature]) -> list[ColocatedGroup]:
    """The groups of running jobs, members in the order of their start."""
    jobs = view.jobs.runners
    owner, place = view.device_map.places(jobs.number)
    held: dict[int, list[int]] = {}
    for number, accelerator in zip(owner.tolist(), place.tolist()):
        held.setdefault(number, []).append(accelerator)
    started = dict(zip(jobs.number.tolist(), jobs.run_started_s.tolist()))
    type_of_job = dict(zip(jobs.number.tolist(), jobs.type.tolist()))
    sharing: dict[tuple[int, ...], list[int]] = {}
    for number in sorted(held, key=lambda one: (started[one], one)):
        sharing.setdefault(tuple(held[number]), []).append(number)
    return [
        ColocatedGroup(type_of_job[members[0]], places, members, tuple(signatures[number] for number in members))
        for places, members in sorted(sharing.items())
    ]


def on_drained_nodes(view: Snapshot, groups: Iterable[ColocatedGroup]) -> set[int]:
    """Running jobs that must leave their nodes."""
    if not view.any_drained:
        return set()
    return {number for group in groups if not view.up[list(group.places)].all() for number in group.members}


def place_in_order(
    slots: SlotFinder, signatures: Mapping[int, JobSignature], jobs: Iterable[int], *, starving: int = 0
) -> list[int]:
    """Give jobs the cheapest slots, in order; return the jobs that found one. Reserve for the first `starving` job."""
    without_slot: set[JobSignature] = set()
    found: list[int] = []
    for at, number in enumerate(jobs):
        job = signatures[number]
        if job in without_slot:
            continue
        if (slot := slots.best(job)) is not None:
            slots.put(number, job, slot)
            found.append(number)
            continue
        without_slot.add(job)  # slots only become fewer
        if at < starving and not slots.reserved:
            slots.reserve_for(job)
    return found


def place_by_match(slots: SlotFinder, signatures: Mapping[int, JobSignature], jobs: Iterable[int], buffer: int) -> list[int]:
    """The same, but of the first `buffer` waiting jobs the one with the least excess slowdown goes first."""
    queue, chosen, found, without_slot = iter(jobs), list[int](), list[int](), set[JobSignature]()
    while True:
        chosen = [number for number in chosen if signatures[number] not in without_slot]
        chosen += islice((number for number in queue if signatures[number] not in without_slot), buffer - len(chosen))
        if not chosen:
            return found
        best = {job: slots.best(job) for job in {signatures[number] for number in chosen}}
        without_slot |= {job for job, slot in best.items() if slot is None}
        ranked = [
            (slots.excess_slowdown(signatures[n], slot), at, n, slot)
            for at, n in enumerate(chosen)
            if (slot := best[signatures[n]])
        ]
        if ranked:
            _, at, number, slot = min(ranked, key=lambda one: one[:2])
            slots.put(number, signatures[number], slot)
            found.append(chosen.pop(at))


def to_selection(slots: SlotFinder, valid_until: float | None = math.inf) -> Selection:
    """The groups as a selection, running ones first, as others join them."""
    groups = sorted(slots.groups, key=lambda group: group.new)
    jobs = [number for group in groups for number in group.members]
    size: Ints = np.array([len(group.members) for group in groups], dtype=np.int64)
    types: Ints = np.array([group.type for group in groups], dtype=np.int64)
    workers: Ints = np.array([len(group.places) for group in groups], dtype=np.int64)
    pinned = {group.members[0]: np.array(group.places, dtype=np.int64) for group in groups if group.new}
    shared = bool((size > 1).any())
    return Selection(
        np.array(jobs, dtype=np.int64),
        types.repeat(size),
        workers.repeat(size),
        np.arange(len(groups)).repeat(size) if shared else None,
        pinned=pinned,
        valid_until=valid_until,
    )
