"""The free accelerators by node and by rack, and the search for as few of both as possible. It knows neither jobs nor the order
in which gangs are placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from fairlead.core.cluster import Bools, Cluster


class FreeByNode:
    """The free accelerators of each node while gangs are placed; a node's first ones are taken first. The nodes of a type with
    a given count are the bits of an integer, so that a search does not depend on the number of nodes."""

    def __init__(self, cluster: Cluster, free: Bools) -> None:
        places = free.nonzero()[0]
        per_node = np.bincount(cluster.node_of[places], minlength=len(cluster.nodes))
        self.counts: list[int] = per_node.tolist()
        self._kind_of_node = cluster.kind_of_node
        self._places: list[int] = places.tolist()  # node after node
        self._starts = list(accumulate(self.counts, initial=0))
        self._having = [[0] * (size + 1) for size in cluster.largest_node_of_type.tolist()]  # by type and count
        for node in per_node.nonzero()[0].tolist():
            self._having[self._kind_of_node[node]][self.counts[node]] |= 1 << node

    def fewest(self, type_: int, want: int, max_nodes: int) -> list[int]:
        """Take accelerators of a type on as few nodes as possible, from the fullest node that has enough, else from the
        emptiest; nothing where there are too few, or on more than `max_nodes`."""
        having, counts, starts, places = self._having[type_], self.counts, self._starts, self._places
        found, used = list[int](), list[tuple[int, int]]()  # a node, and how many of its accelerators
        missing, top = want, len(having) - 1  # no node has more than `top`
        while missing and len(used) < max_nodes:
            had = missing
            while had <= top and not having[had]:
                had += 1
            if had > top:  # no node has enough
                had = top if top < missing else missing - 1
                while had and not having[had]:
                    had -= 1
                if not had:
                    break
                top = had
            bits = having[had]
            bit = bits & -bits
            node, part = bit.bit_length() - 1, had if had < missing else missing
            having[had] = bits ^ bit
            having[had - part] |= bit
            start = starts[node]
            counts[node], starts[node] = had - part, start + part
            if part == want:  # one node has enough, as in most cases
                return places[start : start + part]
            found += places[start : start + part]
            used.append((node, part))
            missing -= part
        if not missing:
            return found
        for node, part in used:  # give them back
            left = counts[node]
            having[left] ^= 1 << node
            having[left + part] |= 1 << node
            counts[node], starts[node] = left + part, starts[node] - part
        return []

    def last_or_fewest(self, last: int, type_: int, want: int, max_nodes: int) -> list[int]:
        """Take accelerators of the job's last node (-1: none) if it has enough, else as `fewest`."""
        if last >= 0 and self.counts[last] >= want:
            return self.take(last, want)
        return self.fewest(type_, want, max_nodes)

    def fragments(self, type_: int, want: int) -> list[int]:
        """Take accelerators from the nodes with the fewest free ones, so that whole nodes stay free; [] if too few."""
        having = self._having[type_]
        found: list[int] = []
        if sum(had * having[had].bit_count() for had in range(1, len(having))) < want:
            return []
        had = 1
        while len(found) < want:
            bits = having[had]
            if bits:
                found += self.take((bits & -bits).bit_length() - 1, min(had, want - len(found)))
            else:
                had += 1
        return found

    def take(self, node: int, count: int) -> list[int]:
        """Take the first `count` free accelerators of a node, which has as many."""
        had, start = self.counts[node], self._starts[node]
        left = had - count
        having, bit = self._having[self._kind_of_node[node]], 1 << node
        having[had] ^= bit
        having[left] |= bit
        self.counts[node], self._starts[node] = left, start + count
        return self._places[start : start + count]


class FreeByRack(FreeByNode):
    """The same for a cluster with several racks: one node, else one rack, else as few racks as possible.

    With `wait`, a gang that would be on more racks than it needs gets nothing."""

    def __init__(self, cluster: Cluster, free: Bools, *, wait: bool = False) -> None:
        super().__init__(cluster, free)
        self._cluster, self._wait = cluster, wait
        self._racks: dict[int, list[list[int]]] = {}  # by type, as in `choose_racks`; counted when they are needed first

    def fewest(self, type_: int, want: int, max_nodes: int) -> list[int]:
        """Take accelerators of a type on the fewest racks, and there on as few nodes as possible; nothing where there are too
        few, or on more than `max_nodes`."""
        if (found := super().fewest(type_, want, 1)) or max_nodes == 1:
            return self._counted(found)
        having, nodes_of = self._having[type_], self._cluster.nodes_of_rack
        if type_ not in self._racks:
            self._racks[type_] = [[(bits & nodes).bit_count() for bits in having] for nodes in nodes_of]
        chosen = choose_racks(self._racks[type_], want)
        if self._wait and len(chosen) > self._cluster.racks_needed(type_, want):
            return []
        inside = sum(nodes_of[rack] for rack in chosen)
        self._having[type_] = [bits & inside for bits in having]
        found = super().fewest(type_, want, max_nodes)
        self._having[type_] = [rest & ~inside | bits for rest, bits in zip(having, self._having[type_])]
        return self._counted(found if found or self._wait else super().fewest(type_, want, max_nodes))

    def take(self, node: int, count: int) -> list[int]:
        return self._counted(super().take(node, count))

    def _counted(self, places: list[int]) -> list[int]:
        if self._racks:
            for node, taken in Counter(self._cluster.node_of_accelerator[place] for place in places).items():
                if racks := self._racks.get(self._kind_of_node[node]):
                    rack, left = racks[self._cluster.rack_of_node[node]], self.counts[node]
                    rack[left + taken] -= 1
                    rack[left] += 1
        return places


def choose_racks(racks: Sequence[Sequence[int]], want: int) -> list[int]:
    """The fewest racks that have `want` free accelerators in all; none where all racks have too few.

    The ones with the most are taken until another has the rest: of these, the one that needs the fewest nodes, and then the one
    with the least free.

    Args:
        racks: Of each rack, how many nodes have 0, 1, 2, ... free accelerators.
    """
    free = [sum(had * nodes for had, nodes in enumerate(rack)) for rack in racks]
    left = sorted(filter(free.__getitem__, range(len(racks))), key=lambda rack: -free[rack])
    chosen: list[int] = []
    while left:
        if free[left[0]] >= want:
            enough = [rack for rack in left if free[rack] >= want]
            return [*chosen, min(enough, key=lambda rack: (_nodes_needed(racks[rack], want), free[rack], rack))]
        chosen.append(left.pop(0))
        want -= free[chosen[-1]]
    return []


def _nodes_needed(rack: Sequence[int], want: int) -> int:
    """How many nodes of a rack, the emptiest first, have as many free accelerators."""
    needed = 0
    for had in range(len(rack) - 1, 0, -1):
        some = min(rack[had], -(-want // had))
        needed, want = needed + some, want - some * had
        if want <= 0:
            break
    return needed


def in_fewest_racks(cluster: Cluster, nodes: Sequence[int], free: Sequence[int], want: int) -> list[int]:
    """Those of these nodes that are in the fewest racks with `want` free accelerators; none where all nodes are in one rack, or
    have too few. `free` is by node."""
    if not (racks := cluster.nodes_of_rack):
        return []
    by_size = [[0] * (max(free) + 1) for _ in racks]
    rack_of = cluster.rack_of_node
    for node in nodes:
        by_size[rack_of[node]][free[node]] += 1
    chosen = set(choose_racks(by_size, want))
    return [node for node in nodes if rack_of[node] in chosen]
