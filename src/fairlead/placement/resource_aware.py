"""Resource aware: CPUs and host memory beside accelerators. No node is given more workers than it has CPUs and memory for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import Room, pack

# Room on hosts: what the jobs on a node leave of its CPUs and its memory, beside its accelerators, while a placement works.

ROUNDING = 1e-9
"""Shares such as a third of a CPU add up to a little more than they should."""


class HostRoom(Room):
    """A room that knows the CPUs and the memory of nodes too. A worker needs what its job says, on the node it stands on, and
    who shares accelerators does not share those."""

    as_needed = "on nodes with CPUs and memory left for its workers"

    def __init__(self, view: Snapshot, kept: Ints, selection: Selection) -> None:
        super().__init__(view, kept)
        self.selection = selection
        self.spare: Floats = np.array([self.cluster.node_cpus, self.cluster.node_memory_gb])  # by resource and node
        self.idle: Ints = self.free_per_node().copy()
        self._counted: set[int] = set()  # new jobs whose needs are counted
        owner, place = view.device_map.places(kept)
        jobs, node = view.jobs.only(view.jobs.number.searchsorted(owner)), self.cluster.node_of[place]
        for resource, needs in enumerate((jobs.cpus, jobs.host_memory_gb)):
            self.spare[resource] -= np.bincount(node, needs, len(self.cluster.nodes))
        for job, route in selection.routes.items():  # they were placed before
            self._use(np.array(route.accelerators, dtype=np.int64), self.needs(np.array([job], dtype=np.int64)))

    def companies(self, job: int) -> tuple[Ints, ...]:
        """Who is to be placed at once, in order of preference: a job with the others of its combination, or, where no host has
        room for all, the job alone. The others then join it if they can."""
        alone, combination = np.array([job], dtype=np.int64), self.selection.combination
        if combination is None:
            return (alone,)
        mine = combination[self.selection.jobs == job]
        return self.selection.jobs[combination == mine[0]], alone

    def needs(self, jobs: Ints) -> Floats:
        """What one worker of each needs, together: CPUs, and GB of memory."""
        rows = self.view.jobs.only(self.view.jobs.number.searchsorted(jobs))
        return np.array([rows.cpus.sum(), rows.host_memory_gb.sum()])

    def holds(self, kind: int, needs: Floats) -> Ints:
        """By node, how many workers with these needs there is room for; none on nodes of another type."""
        holds = np.where(self.cluster.node_type == kind, self.idle, 0)
        for need, spare in zip(needs.tolist(), self.spare):
            if need > 0:
                holds = np.minimum(holds, np.floor(spare / need + ROUNDING))
        return np.maximum(holds, 0).astype(np.int64)

    def settle(self, jobs: Ints, accelerators: Ints, needs: Floats) -> None:
        """Count what these jobs need, and take the accelerators they share."""
        self._counted.update(jobs.tolist())
        self._use(accelerators, needs)
        self.idle -= np.bincount(self.cluster.node_of[accelerators], minlength=len(self.cluster.nodes))
        self.take(accelerators)

    def give(self, job: int, accelerators: Ints) -> bool:
        for jobs in self.companies(job) if self.free[accelerators].all() else ():
            needs = self.needs(jobs)
            if self._suffices(accelerators, needs):
                self.settle(jobs, accelerators, needs)
                return True
        return False

    def lets_join(self, job: int, accelerators: tuple[int, ...]) -> bool:
        if job in self._counted:
            return True
        places, needs = np.array(accelerators, dtype=np.int64), self.needs(np.array([job]))
        if not self._suffices(places, needs):
            return False
        self._counted.add(job)
        self._use(places, needs)
        return True

    def _suffices(self, accelerators: Ints, needs: Floats) -> bool:
        workers = np.bincount(self.cluster.node_of[accelerators], minlength=len(self.cluster.nodes))
        return bool((needs[:, None] * workers <= np.maximum(self.spare, 0) * (1 + ROUNDING)).all())

    def _use(self, accelerators: Ints, needs: Floats) -> None:
        workers = np.bincount(self.cluster.node_of[accelerators], minlength=len(self.cluster.nodes))
        self.spare -= needs[:, None] * workers


@dataclass(frozen=True)
class ResourceAware:
    """Fewest nodes, as `consolidated`, of those with CPUs and host memory left for every worker (Synergy; Blox Table 7).

    A job that finds accelerators but no CPUs or memory waits, and says so. Whoever runs stays, even where another placement has
    put too much on a node; nobody is added there.
    """

    paper: ClassVar[str] = "Synergy (Mohan et al., OSDI'22); Blox Table 7"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, _one_by_one, None, make_room=partial(HostRoom, selection=selection))


def _one_by_one(room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
    assert isinstance(room, HostRoom)
    found: list[list[int]] = []
    last = room.view.device_map.last[jobs].tolist()
    for job, at, home, kind, want in zip(jobs.tolist(), last, room.last_nodes(jobs, types), types.tolist(), workers.tolist()):
        places: list[int] = []
        for jobs_there in room.companies(job):
            needs = room.needs(jobs_there)
            for node, part in _fewest(room.holds(kind, needs), room.idle, home, want):
                places += _of_node(room, node, part, at)
            if places:
                room.settle(jobs_there, np.array(places, dtype=np.int64), needs)
                break
        found.append(places)
    return found


def _fewest(holds: Ints, idle: Ints, home: int, want: int) -> list[tuple[int, int]]:
    """Nodes, and how many workers for each: the last node if it holds all of them, or the one with the fewest idle
    accelerators that does. Where none does, the one that holds most gets as many, and so on."""
    if home >= 0 and holds[home] >= want:
        return [(home, want)]
    if holds.sum() < want:
        return []
    parts: list[tuple[int, int]] = []
    while True:
        enough = (holds >= want).nonzero()[0]
        if len(enough):
            parts.append((enough.item(np.lexsort((holds[enough], idle[enough]))[0]), want))
            return parts
        node = int(holds.argmax())
        parts.append((node, holds.item(node)))
        want -= holds.item(node)
        holds[node] = 0


def _of_node(room: Room, node: int, many: int, last: int) -> list[int]:
    """So many free accelerators of a node, beginning with the one that a job had last."""
    first, end = room.cluster.bounds_of_node[node]
    free = (first + room.free[first:end].nonzero()[0]).tolist()
    return sorted(free, key=lambda place: (place != last, place))[:many]
