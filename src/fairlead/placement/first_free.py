"""First free: the accelerators with the lowest numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.packing import Room, from_the_front, pack


@dataclass(frozen=True)
class FirstFree:
    """Take the free accelerators with the lowest numbers, wherever they stand."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, from_the_front(Room.free_of_type), Room.free_of_type, sticky=False)
