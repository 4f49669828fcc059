"""Consolidated: a gang on as few nodes as possible, single workers where they leave whole nodes free, everybody where they
last were if that is free."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.packing import Room, pack


@dataclass(frozen=True)
class Consolidated:
    """Fewest nodes, the fullest that still fits (best fit); sticky to the last place.

    With `wait`, a gang that would have to spread over more nodes than it needs waits for a better moment instead.
    """

    wait: bool = False

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, self._gang, _fullest_node_first)

    def _gang(self, room: Room, job: int, kind: int, workers: int) -> list[int]:
        room.open_to_gangs()
        home = room.last_node(job, kind)
        if home >= 0 and room.counts[home] >= workers:
            return room.take_on_node(home, workers)
        found: list[int] = []
        missing, nodes = workers, 0
        while missing:  # the emptiest nodes first give the fewest; the last is the fullest that holds the rest
            node = room.fullest_with(kind, missing)
            if node < 0:
                node = room.emptiest(kind)
            if node < 0:
                break
            found += room.take_on_node(node, missing)
            missing, nodes = workers - len(found), nodes + 1
        if missing or (self.wait and nodes > -(-workers // int(room.cluster.largest_node_of_type[kind]))):
            room.give_back(found)
            return []
        return found


def _fullest_node_first(room: Room, kind: int) -> Ints:
    free = room.free_of_type(kind)
    if len(free) < 2:
        return free
    per_node = room.free_per_node()
    return free[per_node[room.cluster.node_of[free]].argsort(kind="stable")]
