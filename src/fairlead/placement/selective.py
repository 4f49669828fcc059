"""Some gangs on as few nodes as possible, the others where there are fragments: what Tiresias' placement and its kin share.
They differ in how they know a gang that gains by standing together, which is not known here."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.consolidated import fullest_node_first
from fairlead.placement.nodes import FreeByNode
from fairlead.placement.packing import Room, pack


class Wish(IntEnum):
    """What a gang gains by."""

    ANYWHERE = 0  # it may stand in fragments
    TOGETHER = 1  # on as few nodes as can be
    TOGETHER_OR_LATER = 2  # on as few nodes as it needs, and otherwise it waits


Wishes: TypeAlias = Callable[[Snapshot, Ints, Ints], list[Wish]]
"""(view, jobs, types) → a wish for each gang."""


def pack_selectively(selection: Selection, view: Snapshot, wishes: Wishes) -> Placed:
    """Who gains by standing together goes first, and back to its last node if that has room; then the others fill the nodes
    that have the fewest accelerators left."""

    def gangs(room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        nodes, wished = room.by_node(), wishes(view, jobs, types)
        largest = room.cluster.largest_node_of_type.tolist()
        entries = list(zip(wished, room.last_nodes(jobs, types), types.tolist(), workers.tolist()))
        found: list[list[int]] = [[] for _ in entries]
        for index in sorted(range(len(entries)), key=lambda index: wished[index] is Wish.ANYWHERE):
            wish, home, kind, want = entries[index]
            if wish is Wish.ANYWHERE:
                found[index] = nodes.fragments(kind, want)
            else:
                most = -(-want // largest[kind]) if wish is Wish.TOGETHER_OR_LATER else len(room.cluster.nodes)
                found[index] = _together(nodes, home, kind, want, most)
        return found

    return pack(selection, view, gangs, fullest_node_first)


def _together(nodes: FreeByNode, home: int, kind: int, want: int, most_nodes: int) -> list[int]:
    if home >= 0 and nodes.counts[home] >= want:
        return nodes.take(home, want)
    return nodes.fewest(kind, want, most_nodes)
