"""Least network: as few pairs of gangs as possible that use one node's network link.

    cost of a placement = Σ over its nodes of the gangs that use the node's link; a gang on one node uses none

Large gangs are placed first. A gang that does not fit into one node gets the placement of least cost, and of these one on the
fewest racks and nodes. The traffic of jobs is not known here: all gangs on several nodes count alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import FreeDevices, place_jobs
from fairlead.placement.basic import fullest_node_first
from fairlead.placement.free_by_node import in_fewest_racks


@dataclass(frozen=True)
class LeastNetwork:
    """Let as few gangs as possible share a node's network link (Blox Table 1, after Pollux' avoidance of interference).

    With `wait`, a gang that would share a link waits instead: no node ever has two gangs that use the network.
    """

    wait: bool = False  # a gang waits if another gang that spans nodes uses one of its nodes
    paper: ClassVar[str] = "Blox Table 1; Pollux"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return place_jobs(selection, view, self._gangs, fullest_node_first)

    def _gangs(self, devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        nodes, kind_of_node = devices.by_node(), devices.cluster.kind_of_node
        users: list[int] = []  # by node; computed for the first gang that needs several nodes
        found: list[list[int]] = []
        for last, type_, want in zip(devices.last_nodes(jobs, types), types.tolist(), workers.tolist()):
            places = nodes.last_or_fewest(last, type_, want, 1)
            if not places:
                users = users or _users(devices).tolist()
                some = [node for node, free in enumerate(nodes.counts) if free and kind_of_node[node] == type_]
                if self.wait:
                    some = [node for node in some if not users[node]]
                unused = [node for node in some if not users[node]]
                some = in_fewest_racks(devices.cluster, unused, nodes.counts, want) or some
                for node, part in cheapest_nodes(some, nodes.counts, users, want):
                    places += nodes.take(node, part)
                    users[node] += 1
            found.append(places)
        return found


def cheapest_nodes(among: list[int], free: list[int], users: list[int], want: int) -> list[tuple[int, int]]:
    """Nodes and the number to take of each: the fewest users of their links, then the fewest nodes; empty if too few."""
    unused = [node for node in among if not users[node]]
    if sum(free[node] for node in unused) >= want:
        return _largest_first(unused, free, want)
    if sum(free[node] for node in among) < want:
        return []
    return _largest_first(_fewest_users(among, free, users, want), free, want)


def _largest_first(nodes: list[int], free: list[int], want: int) -> list[tuple[int, int]]:
    """The fewest of these nodes: the largest ones, and last the smallest that has the rest."""
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
    """A covering knapsack by dynamic programming: the best for every number up to `want`, node after node."""
    items: list[int] = []
    alike: dict[tuple[int, int], int] = {}
    for node in sorted(among, key=lambda node: (users[node], -free[node], node)):
        demand = (users[node], free[node])
        alike[demand] = alike.get(demand, 0) + 1
        if (alike[demand] - 1) * free[node] < want:
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


def _users(devices: FreeDevices) -> Ints:
    """By node, the number of kept or pinned gangs that are on other nodes, too."""
    owner, place = devices.view.device_map.places(devices.kept)
    if devices.given:
        owner = np.concatenate((owner, *(np.full(len(places), job, dtype=np.int64) for job, places in devices.given)))
        place = np.concatenate((place, *(places for _, places in devices.given)))
    many = len(devices.cluster.nodes)
    stands = np.unique(owner * many + devices.cluster.node_of[place])
    gang, node = stands // many, stands % many
    _, of, on_nodes = np.unique(gang, return_inverse=True, return_counts=True)
    return np.bincount(node[on_nodes[of] > 1], minlength=many)
