"""Resource aware: a node gets no more workers than it has CPUs and host memory for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import FreeDevices, place_jobs
from fairlead.placement.free_by_node import in_fewest_racks

ROUNDING = 1e-9
"""Shares such as a third of a CPU add up to slightly more than they should."""


class FreeHosts(FreeDevices):
    """Free accelerators, CPUs and memory of nodes; co-located jobs do not share CPUs and memory."""

    condition = "on nodes with CPUs and memory left for its workers"

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
        for job, route in selection.routes.items():  # placed before
            self._use(np.array(route.accelerators, dtype=np.int64), self.needs(np.array([job], dtype=np.int64)))

    def candidate_groups(self, job: int) -> tuple[Ints, ...]:
        """The jobs to place together, in order of preference: all of the job's combination, or the job alone."""
        alone, combination = np.array([job], dtype=np.int64), self.selection.combination
        if combination is None:
            return (alone,)
        mine = combination[self.selection.jobs == job]
        return self.selection.jobs[combination == mine[0]], alone

    def needs(self, jobs: Ints) -> Floats:
        """The sum of the needs of one worker of each job: CPUs, and GB of memory."""
        rows = self.view.jobs.only(self.view.jobs.number.searchsorted(jobs))
        return np.array([rows.cpus.sum(), rows.host_memory_gb.sum()])

    def holds(self, type_: int, needs: Floats) -> Ints:
        """By node, the number of workers with these needs that fit; 0 on nodes of another type."""
        holds = np.where(self.cluster.node_type == type_, self.idle, 0)
        for need, spare in zip(needs.tolist(), self.spare):
            if need > 0:
                holds = np.minimum(holds, np.floor(spare / need + ROUNDING))
        return np.maximum(holds, 0).astype(np.int64)

    def settle(self, jobs: Ints, accelerators: Ints, needs: Floats) -> None:
        """Use what these jobs need, and take the accelerators that they share."""
        self._counted.update(jobs.tolist())
        self._use(accelerators, needs)
        self.idle -= np.bincount(self.cluster.node_of[accelerators], minlength=len(self.cluster.nodes))
        self.take(accelerators)

    def give(self, job: int, accelerators: Ints) -> bool:
        """Also check CPUs and memory."""
        for jobs in self.candidate_groups(job) if self.free[accelerators].all() else ():
            needs = self.needs(jobs)
            if self._suffices(accelerators, needs):
                self.settle(jobs, accelerators, needs)
                return True
        return False

    def can_join(self, job: int, accelerators: tuple[int, ...]) -> bool:
        """Check CPUs and memory, and use them."""
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

    A job that finds accelerators but no CPUs or memory waits with that reason. Running jobs stay, even where another placement
    has put too many workers on a node; no job is added there.
    """

    paper: ClassVar[str] = "Synergy (Mohan et al., OSDI'22); Blox Table 7"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return place_jobs(selection, view, _one_by_one, None, make_devices=partial(FreeHosts, selection=selection))


def _one_by_one(devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
    assert isinstance(devices, FreeHosts)
    found: list[list[int]] = []
    last = devices.view.device_map.last[jobs].tolist()
    for job, at, home, type_, want in zip(
        jobs.tolist(), last, devices.last_nodes(jobs, types), types.tolist(), workers.tolist()
    ):
        places: list[int] = []
        for group in devices.candidate_groups(job):
            needs = devices.needs(group)
            holds = _on_fewest_racks(devices.cluster, devices.holds(type_, needs), want)
            for node, part in _fewest(holds, devices.idle, home, want):
                first, end = devices.cluster.bounds_of_node[node]
                free = (first + devices.free[first:end].nonzero()[0]).tolist()
                places += sorted(free, key=lambda place: (place != at, place))[:part]  # first the one that it had last
            if places:
                devices.settle(group, np.array(places, dtype=np.int64), needs)
                break
        found.append(places)
    return found


def _on_fewest_racks(cluster: Cluster, holds: Ints, want: int) -> Ints:
    """The workers that nodes hold, without those outside of the fewest racks, for a gang that needs several nodes."""
    if not cluster.nodes_of_rack or (holds >= want).any():
        return holds
    nodes = in_fewest_racks(cluster, holds.nonzero()[0].tolist(), holds.tolist(), want)
    inside = np.zeros_like(holds)
    inside[nodes] = holds[nodes]
    return inside


def _fewest(holds: Ints, idle: Ints, home: int, want: int) -> list[tuple[int, int]]:
    """Nodes, and the workers for each: the last node, or the one with the fewest idle accelerators, or several."""
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
