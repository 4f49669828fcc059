"""First free: the accelerators with the lowest numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import Room, from_the_front, pack


@dataclass(frozen=True)
class FirstFree:
    """Take the free accelerators with the lowest numbers, wherever they stand."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, from_the_front(Room.free_of_type), Room.free_of_type, sticky=False)


# Consolidated: a gang on as few nodes as possible, single workers where they leave whole nodes free, everybody where they
# last were if that is free.


@dataclass(frozen=True)
class Consolidated:
    """Fewest nodes, the fullest that still fits (best fit); sticky to the last place.

    With `wait`, a gang that would have to spread over more nodes than it needs waits for a better moment instead.
    """

    wait: bool = False

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, partial(on_fewest_nodes, wait=self.wait), fullest_node_first)


def on_fewest_nodes(room: Room, jobs: Ints, types: Ints, workers: Ints, *, wait: bool) -> list[list[int]]:
    """Gangs where they last were, or else on as few nodes as can be."""
    nodes = room.by_node()
    found: list[list[int]] = []
    largest, anywhere = room.cluster.largest_node_of_type.tolist(), len(room.cluster.nodes)
    for home, kind, want in zip(room.last_nodes(jobs, types), types.tolist(), workers.tolist()):
        if home >= 0 and nodes.counts[home] >= want:
            found.append(nodes.take(home, want))
        else:
            found.append(nodes.fewest(kind, want, -(-want // largest[kind]) if wait else anywhere))
    return found


def fullest_node_first(room: Room, kind: int) -> Ints:
    free = room.free_of_type(kind)
    if len(free) < 2:
        return free
    per_node = room.free_per_node()
    return free[per_node[room.cluster.node_of[free]].argsort(kind="stable")]


# Spread: workers over as many nodes as possible, so that they share a node's CPUs and links with few others.


@dataclass(frozen=True)
class SpreadPlacement:
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
