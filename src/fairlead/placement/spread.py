"""Spread: workers over as many nodes as possible, so that they share a node's CPUs and links with few others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.packing import Room, from_the_front, pack


@dataclass(frozen=True)
class Spread:
    """One worker to each node before any gets a second; nodes with the most free accelerators first."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, from_the_front(_round_robin), _round_robin)


def _round_robin(room: Room, kind: int) -> Ints:
    """Free accelerators, first one of each node (the emptiest first), then a second of each, and so on."""
    free = room.free_of_type(kind)
    if len(free) < 2:
        return free
    node = room.cluster.node_of[free]
    per_node = room.free_per_node()
    starts = np.searchsorted(node, node)  # nodes are in order, so the turn is the distance from the node's first
    turn = np.arange(len(free)) - starts
    return free[np.lexsort((free, -per_node[node], turn))]
