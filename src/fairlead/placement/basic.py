"""The placements first-free, consolidated and spread, which use only free accelerators and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import FreeDevices, gangs_from_order, place_jobs


@dataclass(frozen=True)
class FirstFree:
    """Take the free GPUs with the lowest numbers, on any nodes."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return place_jobs(selection, view, gangs_from_order(FreeDevices.free_of_type), FreeDevices.free_of_type, sticky=False)


@dataclass(frozen=True)
class Consolidated:
    """Use as few nodes as possible, the fullest that still fits (best fit); a job returns to its last node if that is free.

    Where nodes are in racks: one node, else one rack, else as few racks as possible. With `wait`, a gang that would be spread
    over more nodes than it needs waits instead; with `wait_for_rack`, one that would be on more racks than it needs.
    """

    wait: bool = False  # a gang that cannot be consolidated waits
    wait_for_rack: bool = False  # a gang that would be on more racks than it needs waits

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        gangs = partial(on_fewest_nodes, wait=self.wait, wait_for_rack=self.wait_for_rack)
        return place_jobs(selection, view, gangs, fullest_node_first)


def on_fewest_nodes(
    devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints, *, wait: bool, wait_for_rack: bool = False
) -> list[list[int]]:
    """Place gangs on their last nodes, or else on as few racks and nodes as possible."""
    nodes = devices.by_node(wait_for_rack=wait_for_rack)
    if wait_for_rack and devices.cluster.nodes_of_rack:
        devices.condition = "on as few racks as it needs"
    largest, anywhere = devices.cluster.largest_node_of_type.tolist(), len(devices.cluster.nodes)
    return [
        nodes.last_or_fewest(last, type_, want, -(-want // largest[type_]) if wait else anywhere)
        for last, type_, want in zip(devices.last_nodes(jobs, types), types.tolist(), workers.tolist())
    ]


def fullest_node_first(devices: FreeDevices, type_: int) -> Ints:
    """Free accelerators, by ascending number of free ones on their node."""
    free = devices.free_of_type(type_)
    if len(free) < 2:
        return free
    per_node = devices.free_per_node()
    return free[per_node[devices.cluster.node_of[free]].argsort(kind="stable")]


@dataclass(frozen=True)
class SpreadPlacement:
    """Place one worker on each node before any node gets a second; nodes with the most free GPUs first."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return place_jobs(selection, view, gangs_from_order(_round_robin), _round_robin)


def _round_robin(devices: FreeDevices, type_: int) -> Ints:
    """Free accelerators, first one of each node (the emptiest first), then a second of each, and so on."""
    free = devices.free_of_type(type_)
    if len(free) < 2:
        return free
    node = devices.cluster.node_of[free]
    per_node = devices.free_per_node()
    starts = np.searchsorted(node, node)  # nodes are in order
    turn = np.arange(len(free)) - starts
    return free[np.lexsort((free, -per_node[node], turn))]
