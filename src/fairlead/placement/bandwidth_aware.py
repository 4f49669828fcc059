"""Bandwidth aware: nodes as `consolidated` chooses them, and inside a node the accelerators with the most bandwidth between
them (`links.py` has the objective). Nodes whose links are not known give their first free ones."""

from __future__ import annotations

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
from fairlead.placement.base import Room, pack
from fairlead.placement.basic import fullest_node_first, on_fewest_nodes

# Which accelerators of a node to take, by the links between them. It knows one node at a time; which nodes a job gets is
# somebody else's choice.
#
# aggregate(S) = Σ over pairs i < j of S of the bandwidth between i and j;  take the S that has the most
#
# and of several such S the one that leaves the most to those that are still free, so that the next gang finds good links too.

Links: TypeAlias = tuple[tuple[float, ...], ...]
Choose: TypeAlias = Callable[[Links, tuple[int, ...], int, int], tuple[int, ...]]
"""(links, free, want, job) → so many of the free ones, numbered within their node."""

MOST_SETS = 20_000
"""So many are compared one by one: all sets of a node of 16. Beyond that, whoever adds least is left out in turn."""


def aggregate(links: Links, chosen: Sequence[int]) -> float:
    """Σ over pairs, in Gb/s; the two ways of a link count half each."""
    return sum((links[i][j] + links[j][i]) / 2 for i, j in combinations(chosen, 2))


@lru_cache(maxsize=16_384)
def best(links: Links, free: tuple[int, ...], want: int) -> tuple[int, ...]:
    """The `want` of the free accelerators with the most bandwidth among them; exact up to `MOST_SETS` sets."""
    if want >= len(free):
        return free
    between = _between(links, free)
    if comb(len(free), want) > MOST_SETS:
        return tuple(free[at] for at in _peeled(between, want))
    sets = np.array(list(combinations(range(len(free)), want)), dtype=np.int64)
    inside = between[sets[:, :, None], sets[:, None, :]].sum(axis=(1, 2)) / 2
    beside = between.sum(axis=1)[sets].sum(axis=1)
    outside = between.sum() / 2 - beside + inside
    return tuple(free[at] for at in sets[np.lexsort((-outside, -inside))[0]].tolist())


@lru_cache(maxsize=16_384)
def leaving_order(links: Links, free: tuple[int, ...]) -> tuple[int, ...]:
    """Single workers, who use no link, in the order in which their accelerators are missed least."""
    order: list[int] = []
    while free:
        (one,) = best(links, free, 1)
        order.append(one)
        free = tuple(other for other in free if other != one)
    return tuple(order)


def inside_nodes(room: Room, jobs: Sequence[int], gangs: list[list[int]], choose: Choose) -> list[list[int]]:
    """The same gangs on the same nodes, with as many accelerators of each, but chosen anew where a node's links are known."""
    cluster = room.cluster
    if not any_links(cluster):
        return gangs
    left: dict[int, list[int]] = {}  # of a node, what is free: numbered within it
    chosen: list[list[int]] = []
    for job, places in zip(jobs, gangs):
        mine: list[int] = []
        for node, many in _by_node(cluster, places):
            first, end = cluster.bounds_of_node[node]
            if node not in left:
                left[node] = np.flatnonzero(room.free[first:end]).tolist()
            links, free = cluster.nodes[node].links, left[node]
            taken = choose(links, tuple(free), many, job) if links else tuple(free[:many])
            left[node] = [at for at in free if at not in taken]
            mine += [first + at for at in taken]
        chosen.append(mine)
    return chosen


def any_links(cluster: Cluster) -> bool:
    return any(node.links for node in cluster.nodes)


def _by_node(cluster: Cluster, places: list[int]) -> list[tuple[int, int]]:
    """Nodes in their order of appearance, with how many of their accelerators there are."""
    many: dict[int, int] = {}
    for place in places:
        node = cluster.node_of_accelerator[place]
        many[node] = many.get(node, 0) + 1
    return list(many.items())


def _between(links: Links, free: tuple[int, ...]) -> Floats:
    whole = np.array(links, dtype=np.float64)[np.ix_(free, free)]
    np.fill_diagonal(whole, 0.0)
    return (whole + whole.T) / 2


def _peeled(between: Floats, want: int) -> list[int]:
    stay = list(range(len(between)))
    while len(stay) > want:
        sums = between[np.ix_(stay, stay)].sum(axis=1)
        del stay[len(stay) - 1 - int(sums[::-1].argmin())]  # of equals the last, so that the first stay
    return stay


@dataclass(frozen=True)
class BandwidthAware:
    """Consolidated, and inside a node the accelerators with the most bandwidth between them (Blox §5.3).

    With `wait`, a gang that would have to spread over more nodes than it needs waits for a better moment instead.
    """

    wait: bool = False
    paper: ClassVar[str] = "Blox §5.3"

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return pack(selection, view, self._gangs, _least_missed_first)

    def _gangs(self, room: Room, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        found = on_fewest_nodes(room, jobs, types, workers, wait=self.wait)
        return inside_nodes(room, jobs.tolist(), found, _best)


def _best(links: Links, free: tuple[int, ...], want: int, job: int) -> tuple[int, ...]:
    return best(links, free, want)


def _least_missed_first(room: Room, kind: int) -> Ints:
    """The fullest node first, and of a node the accelerators that the next gang will miss least."""
    free = fullest_node_first(room, kind)
    if len(free) < 2 or not any_links(room.cluster):
        return free
    ordered: list[int] = []
    for places in np.split(free, np.flatnonzero(np.diff(room.cluster.node_of[free])) + 1):
        node = room.cluster.node_of.item(places[0])
        first, links = room.cluster.first_of.item(node), room.cluster.nodes[node].links
        mine = tuple((places - first).tolist())
        ordered += [first + at for at in (leaving_order(links, mine) if links else mine)]
    return np.array(ordered, dtype=np.int64)
