"""Resource aware: CPUs and host memory beside accelerators. No node is given more workers than it has CPUs and memory for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.hosts import HostRoom
from fairlead.placement.packing import Room, pack


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
    last = room.view.holdings.last[jobs].tolist()
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
