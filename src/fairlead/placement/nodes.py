"""What is free, counted by node, for placements that look for nodes and not for single accelerators."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Bools, Cluster


class FreeByNode:
    """How many accelerators each node has free, while gangs are placed.

    Of a node's free accelerators the first ones go first, so that those left are a stretch of one column. A gang touches a
    handful of nodes, too few for numpy: counts are plain lists, and the nodes of a type with a given count are the bits of a
    whole number, so that a search depends on the size of a node and not on the number of nodes.
    """

    def __init__(self, cluster: Cluster, free: Bools) -> None:
        per_node = np.bincount(cluster.node_of[free], minlength=len(cluster.nodes))
        self.counts: list[int] = per_node.tolist()
        self._kind_of_node = cluster.kind_of_node
        self._places: list[int] = free.nonzero()[0].tolist()  # node after node
        self._starts: list[int] = (np.add.accumulate(per_node) - per_node).tolist()
        self._having = [[0] * (most + 1) for most in cluster.largest_node_of_type.tolist()]  # by type and count
        for node in per_node.nonzero()[0].tolist():
            self._having[self._kind_of_node[node]][self.counts[node]] |= 1 << node

    def fullest_with(self, kind: int, least: int) -> int:
        """The node of a type with the fewest, but at least so many, free accelerators; the first of equals; -1: none."""
        for nodes in self._having[kind][least:]:
            if nodes:
                return (nodes & -nodes).bit_length() - 1
        return -1

    def emptiest(self, kind: int) -> int:
        """The node of a type with the most free accelerators; -1 where all are taken."""
        for nodes in self._having[kind][:0:-1]:
            if nodes:
                return (nodes & -nodes).bit_length() - 1
        return -1

    def take(self, node: int, count: int) -> list[int]:
        """Take the first `count` free accelerators of a node, or all it has."""
        had, start = self.counts[node], self._starts[node]
        left = had - count
        if left < 0:
            count, left = had, 0
        having, bit = self._having[self._kind_of_node[node]], 1 << node
        having[had] ^= bit
        having[left] |= bit
        self.counts[node], self._starts[node] = left, start + count
        return self._places[start : start + count]

    def give_back(self, node: int, count: int) -> None:
        """Undo the last `take` from a node."""
        had = self.counts[node]
        having, bit = self._having[self._kind_of_node[node]], 1 << node
        having[had] &= ~bit
        having[had + count] |= bit
        self.counts[node] = had + count
        self._starts[node] -= count
