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
from fairlead.placement.consolidated import fullest_node_first
from fairlead.placement.packing import Room, pack


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
        nodes, users = room.by_node(), _users(room).tolist()
        nodes_of_type = [np.flatnonzero(room.cluster.node_type == kind).tolist() for kind in range(len(room.cluster.types))]
        found: list[list[int]] = []
        for home, kind, want in zip(room.last_nodes(jobs, types), types.tolist(), workers.tolist()):
            if home >= 0 and nodes.counts[home] >= want:
                found.append(nodes.take(home, want))
                continue
            places = nodes.fewest(kind, want, 1)
            if not places:
                open_ones = [node for node in nodes_of_type[kind] if nodes.counts[node] and not (self.wait and users[node])]
                for node, part in cheapest(open_ones, nodes.counts, users, want):
                    places += nodes.take(node, part)
                    users[node] += 1
            found.append(places)
        return found


def cheapest(among: list[int], free: list[int], users: list[int], want: int) -> list[tuple[int, int]]:
    """Nodes that have `want` accelerators free together, and how many to take of each: those whose links have the fewest
    users in sum, and of those the fewest nodes. Nothing where there are not so many.

    The best for every number up to `want`, node after node: a knapsack that must be filled. Nodes that are alike and more than
    could be of use are left out first.
    """
    left = dict[tuple[int, int], int]()
    items: list[int] = []
    for node in sorted(among, key=lambda node: (users[node], -free[node], node)):
        alike = (users[node], free[node])
        left[alike] = left.get(alike, -(-want // free[node])) - 1
        if left[alike] >= 0:
            items.append(node)
    sharing = len(items) + 1  # one more user costs more than any number of nodes
    never = (sum(users[node] for node in items) + 1) * sharing + 1
    best = np.full(want + 1, never, dtype=np.int64)
    best[0] = 0
    needed = np.arange(want + 1)
    taken = np.zeros((len(items), want + 1), dtype=np.bool_)
    for index, node in enumerate(items):
        with_it = best[np.maximum(needed - free[node], 0)] + users[node] * sharing + 1
        taken[index] = with_it < best
        best = np.minimum(best, with_it)
    if best[want] >= never:
        return []
    chosen: list[int] = []
    missing = want
    for index in range(len(items) - 1, -1, -1):
        if missing and taken[index, missing]:
            chosen.append(items[index])
            missing = max(missing - free[items[index]], 0)
    parts: list[tuple[int, int]] = []
    missing = want
    for node in sorted(chosen, key=lambda node: -free[node]):
        parts.append((node, min(free[node], missing)))
        missing -= parts[-1][1]
    return parts


def _users(room: Room) -> Ints:
    """By node, the gangs that stay or are pinned, and stand on other nodes too."""
    owner, place = room.view.holdings.places(room.kept)
    if room.given:
        owner = np.concatenate((owner, *(np.full(len(places), job, dtype=np.int64) for job, places in room.given)))
        place = np.concatenate((place, *(places for _, places in room.given)))
    many = len(room.cluster.nodes)
    stands = np.unique(owner * many + room.cluster.node_of[place])
    gang, node = stands // many, stands % many
    _, of, on_nodes = np.unique(gang, return_inverse=True, return_counts=True)
    return np.bincount(node[on_nodes[of] > 1], minlength=many)
