"""Bandwidth aware: nodes as `consolidated` chooses them, and within a node the accelerators with the most bandwidth between
them.

    aggregate(S) = Σ over pairs i < j of S of the bandwidth between i and j;  take the S with the most

Of several such S the one that leaves the most bandwidth between the free accelerators is taken, for the next gang. A node whose
links are not known gives its first free accelerators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import ClassVar, TypeAlias

import numpy as np

from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.plan import Placed, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.placement.base import FreeDevices, place_jobs
from fairlead.placement.basic import fullest_node_first, on_fewest_nodes

Links: TypeAlias = tuple[tuple[float, ...], ...]
Choose: TypeAlias = Callable[[Links, tuple[int, ...], int, int], tuple[int, ...]]
"""(links, free, want, job) → the chosen accelerators, numbered within their node."""

MAX_SETS = 20_000
"""Up to this many sets are compared: all sets of a node of 16. Beyond that, a greedy removal is used."""


def aggregate_bandwidth(links: Links, chosen: Sequence[int]) -> float:
    """Σ over pairs, in Gb/s; the two directions of a link count half each."""
    return sum((links[i][j] + links[j][i]) / 2 for i, j in combinations(chosen, 2))


@lru_cache(maxsize=16_384)
def best_devices(links: Links, free: tuple[int, ...], want: int) -> tuple[int, ...]:
    """The `want` free accelerators with the most bandwidth between them; exact up to `MAX_SETS` sets."""
    if want >= len(free):
        return free
    between: Floats = np.array(links, dtype=np.float64)[np.ix_(free, free)]
    np.fill_diagonal(between, 0.0)
    between = (between + between.T) / 2
    if comb(len(free), want) > MAX_SETS:
        stay = list(range(len(free)))
        while len(stay) > want:
            sums = between[np.ix_(stay, stay)].sum(axis=1)
            del stay[len(stay) - 1 - int(sums[::-1].argmin())]  # the last of equals
        return tuple(free[at] for at in stay)
    sets = np.array(list(combinations(range(len(free)), want)), dtype=np.int64)
    inside = between[sets[:, :, None], sets[:, None, :]].sum(axis=(1, 2)) / 2
    incident = between.sum(axis=1)[sets].sum(axis=1)
    outside = between.sum() / 2 - incident + inside
    return tuple(free[at] for at in sets[np.lexsort((-outside, -inside))[0]].tolist())


@lru_cache(maxsize=16_384)
def release_order(links: Links, free: tuple[int, ...]) -> tuple[int, ...]:
    """Free accelerators in the order in which single workers, which use no link, should take them."""
    order: list[int] = []
    while free:
        (one,) = best_devices(links, free, 1)
        order.append(one)
        free = tuple(other for other in free if other != one)
    return tuple(order)


def choose_within_nodes(devices: FreeDevices, jobs: Sequence[int], gangs: list[list[int]], choose: Choose) -> list[list[int]]:
    """The same gangs on the same nodes, with other accelerators of these nodes where their links are known."""
    cluster = devices.cluster
    if not any_links(cluster):
        return gangs
    left: dict[int, list[int]] = {}  # by node: free accelerators, numbered within it
    chosen: list[list[int]] = []
    for job, places in zip(jobs, gangs):
        mine: list[int] = []
        for node, many in Counter(cluster.node_of_accelerator[place] for place in places).items():
            first, end = cluster.bounds_of_node[node]
            if node not in left:
                left[node] = np.flatnonzero(devices.free[first:end]).tolist()
            links, free = cluster.nodes[node].links, left[node]
            taken = choose(links, tuple(free), many, job) if links else tuple(free[:many])
            left[node] = [at for at in free if at not in taken]
            mine += [first + at for at in taken]
        chosen.append(mine)
    return chosen


def any_links(cluster: Cluster) -> bool:
    """Whether the links of any node are known."""
    return any(node.links for node in cluster.nodes)


@dataclass(frozen=True)
class BandwidthAware:
    """Consolidate, and within a node take the GPUs with the most bandwidth between them (Blox §5.3).

    With `wait`, a gang that would be spread over more nodes than it needs waits instead; with `wait_for_rack`, one that would
    be on more racks than it needs.
    """

    wait: bool = False  # a gang that cannot be consolidated waits
    wait_for_rack: bool = False  # a gang that would be on more racks than it needs waits
    paper: ClassVar[str] = "Blox §5.3"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return place_jobs(selection, view, self._gangs, _least_missed_first)

    def _gangs(self, devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        found = on_fewest_nodes(devices, jobs, types, workers, wait=self.wait, wait_for_rack=self.wait_for_rack)
        return choose_within_nodes(devices, jobs.tolist(), found, lambda links, free, want, _: best_devices(links, free, want))


def _least_missed_first(devices: FreeDevices, type_: int) -> Ints:
    """The fullest node first, and within a node the accelerators that the next gang needs least."""
    free = fullest_node_first(devices, type_)
    if len(free) < 2 or not any_links(devices.cluster):
        return free
    ordered: list[int] = []
    for places in np.split(free, np.flatnonzero(np.diff(devices.cluster.node_of[free])) + 1):
        node = devices.cluster.node_of.item(places[0])
        first, links = devices.cluster.first_of.item(node), devices.cluster.nodes[node].links
        mine = tuple((places - first).tolist())
        ordered += [first + at for at in (release_order(links, mine) if links else mine)]
    return np.array(ordered, dtype=np.int64)
