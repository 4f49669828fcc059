"""First free: the accelerators with the lowest numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.cluster import Ints
from fairlead.core.holdings import NONE
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.packing import Room, pack


@dataclass(frozen=True)
class FirstFree:
    """Take the free accelerators with the lowest numbers, wherever they stand."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, _gang, Room.free_of_type, sticky=False)


def _gang(room: Room, job: int, kind: int, workers: int) -> Ints:
    free = room.free_of_type(kind)
    return room.take(free[:workers]) if len(free) >= workers else NONE
