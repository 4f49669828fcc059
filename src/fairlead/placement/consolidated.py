"""Consolidated: a gang on as few nodes as possible, single workers where they leave whole nodes free, everybody where they
last were if that is free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.holdings import NONE
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

    def _gang(self, room: Room, job: int, kind: int, workers: int) -> Ints:
        room.open_to_gangs()
        home = room.last_node(job, kind)
        if home >= 0 and room.counts[home] >= workers:
            return room.take_on_node(home, workers)
        node = room.fullest_with(kind, workers)
        if node >= 0:
            return room.take_on_node(node, workers)
        used: list[int] = []
        found: list[Ints] = []
        missing = workers
        while missing:  # the emptiest nodes first give the fewest; the last is the fullest that holds the rest
            node = room.fullest_with(kind, missing)
            if node < 0:
                node = room.emptiest(kind)
            if node < 0:
                break
            used.append(node)
            found.append(room.take_on_node(node, missing))
            missing -= len(found[-1])
        if missing or (self.wait and len(used) > -(-workers // int(room.cluster.largest_node_of_type[kind]))):
            for node, part in zip(used, found):
                room.give_back(node, len(part))
            return NONE
        return np.concatenate(found)


def _fullest_node_first(room: Room, kind: int) -> Ints:
    free = room.free_of_type(kind)
    if len(free) < 2:
        return free
    per_node = room.free_per_node()
    return free[per_node[room.cluster.node_of[free]].argsort(kind="stable")]
