"""Bandwidth aware: nodes as `consolidated` chooses them, and inside a node the accelerators with the most bandwidth between
them (`links.py` has the objective). Nodes whose links are not known give their first free ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.consolidated import fullest_node_first, on_fewest_nodes
from fairlead.placement.links import Links, any_links, best, inside_nodes, leaving_order
from fairlead.placement.packing import Room, pack


@dataclass(frozen=True)
class BandwidthAware:
    """Consolidated, and inside a node the accelerators with the most bandwidth between them (Blox §5.3).

    With `wait`, a gang that would have to spread over more nodes than it needs waits for a better moment instead.
    """

    wait: bool = False
    paper: ClassVar[str] = "Blox §5.3"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, self._gangs, _least_missed_first)

    def _gangs(self, room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        found = on_fewest_nodes(room, jobs, types, workers, wait=self.wait)
        return inside_nodes(room, jobs.tolist(), found, _best)


def _best(links: Links, free: tuple[int, ...], want: int, job: int) -> tuple[int, ...]:
    return best(links, free, want)


def _least_missed_first(room: Room, kind: int) -> Ints:
    """The fullest node first, and of a node the accelerators that the next gang will miss least."""
    free = fullest_node_first(room, kind)
    if len(free) < 2 or not any_links(room.cluster):
        return free
    ordered: list[int] = []
    for places in np.split(free, np.flatnonzero(np.diff(room.cluster.node_of[free])) + 1):
        node = room.cluster.node_of.item(places[0])
        first, links = room.cluster.first_of.item(node), room.cluster.nodes[node].links
        mine = tuple((places - first).tolist())
        ordered += [first + at for at in (leaving_order(links, mine) if links else mine)]
    return np.array(ordered, dtype=np.int64)
