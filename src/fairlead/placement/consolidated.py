"""Consolidated: a gang on as few nodes as possible, single workers where they leave whole nodes free, everybody where they
last were if that is free."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.nodes import FreeByNode
from fairlead.placement.packing import Room, pack


@dataclass(frozen=True)
class Consolidated:
    """Fewest nodes, the fullest that still fits (best fit); sticky to the last place.

    With `wait`, a gang that would have to spread over more nodes than it needs waits for a better moment instead.
    """

    wait: bool = False

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, self._gangs, _fullest_node_first)

    def _gangs(self, room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        nodes, found = room.by_node(), list[list[int]]()
        for home, kind, want in zip(room.last_nodes(jobs, types), types.tolist(), workers.tolist()):
            if home < 0 or nodes.counts[home] < want:
                home = nodes.fullest_with(kind, want)
            found.append(nodes.take(home, want) if home >= 0 else self._over_several(nodes, kind, want, room))
        return found

    def _over_several(self, nodes: FreeByNode, kind: int, workers: int, room: Room) -> list[int]:
        """No node holds it. The emptiest first give the fewest; the last is the fullest that holds the rest."""
        used: list[tuple[int, int]] = []  # a node, and how many of its accelerators
        found: list[int] = []
        missing, node = workers, -1
        while missing:
            if node < 0:
                node = nodes.emptiest(kind)
            if node < 0:
                break
            part = nodes.take(node, missing)
            used.append((node, len(part)))
            found += part
            missing -= len(part)
            node = nodes.fullest_with(kind, missing) if missing else -1
        if missing or (self.wait and len(used) > -(-workers // int(room.cluster.largest_node_of_type[kind]))):
            for node, count in used:
                nodes.give_back(node, count)
            return []
        return found


def _fullest_node_first(room: Room, kind: int) -> Ints:
    free = room.free_of_type(kind)
    if len(free) < 2:
        return free
    per_node = room.free_per_node()
    return free[per_node[room.cluster.node_of[free]].argsort(kind="stable")]
