"""Least network: as few pairs of gangs as possible that send through one node's network link.

    a gang that stands on several nodes uses the link of each;  cost of a place = Σ over its nodes of the gangs whose link it is

Gangs one after another, large ones first: who fits into one node uses no network; who does not gets the place of least cost,
and of those one on the fewest nodes. What a job sends is not known here: all gangs that cross nodes count alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import Room, pack
from fairlead.placement.basic import fullest_node_first


@dataclass(frozen=True)
class LeastNetwork:
    """As few gangs as possible share a node's network link (Blox Table 1, after Pollux' avoidance of interference).

    With `wait`, a gang that would have to share a link waits instead: no node ever has two gangs that use the network.
    """

    wait: bool = False
    paper: ClassVar[str] = "Blox Table 1; Pollux"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, self._gangs, fullest_node_first)

    def _gangs(self, room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        nodes, kind_of_node = room.by_node(), room.cluster.kind_of_node
        users: list[int] = []  # by node; asked for when the first gang must cross nodes
        found: list[list[int]] = []
        for home, kind, want in zip(room.last_nodes(jobs, types), types.tolist(), workers.tolist()):
            if home >= 0 and nodes.counts[home] >= want:
                found.append(nodes.take(home, want))
                continue
            places = nodes.fewest(kind, want, 1)
            if not places:
                users = users or _users(room).tolist()
                some = [node for node, free in enumerate(nodes.counts) if free and kind_of_node[node] == kind]
                if self.wait:
                    some = [node for node in some if not users[node]]
                for node, part in cheapest(some, nodes.counts, users, want):
                    places += nodes.take(node, part)
                    users[node] += 1
            found.append(places)
        return found


def cheapest(among: list[int], free: list[int], users: list[int], want: int) -> list[tuple[int, int]]:
    """Nodes that have `want` accelerators free together, and how many to take of each: those whose links have the fewest
    users in sum, and of those the fewest nodes. Nothing where there are not so many."""
    unused = [node for node in among if not users[node]]
    if sum(free[node] for node in unused) >= want:
        return _largest_first(unused, free, want)
    if sum(free[node] for node in among) < want:
        return []
    return _largest_first(_fewest_users(among, free, users, want), free, want)


def _largest_first(nodes: list[int], free: list[int], want: int) -> list[tuple[int, int]]:
    """The fewest of these nodes: the largest, and last the smallest that has the rest."""
    parts: list[tuple[int, int]] = []
    left = sorted(nodes, key=lambda node: -free[node])
    for node in left:
        if free[node] >= want:
            parts.append((min((n for n in left[len(parts) :] if free[n] >= want), key=free.__getitem__), want))
            break
        parts.append((node, free[node]))
        want -= free[node]
    return parts


def _fewest_users(among: list[int], free: list[int], users: list[int], want: int) -> list[int]:
    """A knapsack that must be filled: the best for every number up to `want`, node after node. Of nodes that are alike, no more
    are looked at than could be of use."""
    items: list[int] = []
    alike: dict[tuple[int, int], int] = {}
    for node in sorted(among, key=lambda node: (users[node], -free[node], node)):
        look = (users[node], free[node])
        alike[look] = alike.get(look, 0) + 1
        if (alike[look] - 1) * free[node] < want:
            items.append(node)
    sharing = len(items) + 1  # one more user costs more than any number of nodes
    best = np.full(want + 1, np.iinfo(np.int64).max // 2)
    best[0] = 0
    needed = np.arange(want + 1)
    taken = np.zeros((len(items), want + 1), dtype=np.bool_)
    for index, node in enumerate(items):
        with_it = best[np.maximum(needed - free[node], 0)] + users[node] * sharing + 1
        taken[index] = with_it < best
        best = np.minimum(best, with_it)
    chosen: list[int] = []
    missing = want
    for index in range(len(items) - 1, -1, -1):
        if missing and taken[index, missing]:
            chosen.append(items[index])
            missing = max(missing - free[items[index]], 0)
    return chosen


def _users(room: Room) -> Ints:
    """By node, the gangs that stay or are pinned, and stand on other nodes too."""
    owner, place = room.view.device_map.places(room.kept)
    if room.given:
        owner = np.concatenate((owner, *(np.full(len(places), job, dtype=np.int64) for job, places in room.given)))
        place = np.concatenate((place, *(places for _, places in room.given)))
    many = len(room.cluster.nodes)
    stands = np.unique(owner * many + room.cluster.node_of[place])
    gang, node = stands // many, stands % many
    _, of, on_nodes = np.unique(gang, return_inverse=True, return_counts=True)
    return np.bincount(node[on_nodes[of] > 1], minlength=many)
