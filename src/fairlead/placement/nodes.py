"""What is free, counted by node, for placements that look for nodes and not for single accelerators."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from fairlead.core.cluster import Bools, Cluster


class FreeByNode:
    """How many accelerators each node has free, while gangs are placed.

    Of a node's free accelerators the first ones go first, so that those left are a stretch of one column. A gang touches a
    handful of nodes, too few for numpy: counts are plain lists, and the nodes of a type with a given count are the bits of a
    whole number, so that a search depends on the size of a node and not on the number of nodes.
    """

    def __init__(self, cluster: Cluster, free: Bools) -> None:
        places = free.nonzero()[0]
        per_node = np.bincount(cluster.node_of[places], minlength=len(cluster.nodes))
        self.counts: list[int] = per_node.tolist()
        self._kind_of_node = cluster.kind_of_node
        self._places: list[int] = places.tolist()  # node after node
        self._starts = list(accumulate(self.counts, initial=0))
        self._having = [[0] * (most + 1) for most in cluster.largest_node_of_type.tolist()]  # by type and count
        for node in per_node.nonzero()[0].tolist():
            self._having[self._kind_of_node[node]][self.counts[node]] |= 1 << node

    def fewest(self, kind: int, want: int, most_nodes: int) -> list[int]:
        """Accelerators of a type on as few nodes as can be: of the fullest node that holds them all, the first of equals. Where
        none does, the emptiest gives all it has, and the rest is sought in the same way. None at all where there are not so
        many, or where they would be on more than `most_nodes`."""
        having, counts, starts, places = self._having[kind], self.counts, self._starts, self._places
        most = len(having) - 1
        had = want
        while had <= most and not having[had]:
            had += 1
        if had <= most:  # one node holds them all, which is how it mostly ends
            bits = having[had]
            bit = bits & -bits
            node, left = bit.bit_length() - 1, had - want
            having[had] = bits ^ bit
            having[left] |= bit
            start = starts[node]
            counts[node], starts[node] = left, start + want
            return places[start : start + want]
        return self._over_several(kind, want, most_nodes)

    def _over_several(self, kind: int, want: int, most_nodes: int) -> list[int]:
        having, counts, starts, places = self._having[kind], self.counts, self._starts, self._places
        found: list[int] = []
        used: list[tuple[int, int]] = []  # a node, and how many of its accelerators
        missing, top = want, min(want - 1, len(having) - 1)  # nobody has more than `top`: else one would hold them all
        while missing and len(used) < most_nodes:
            had = missing
            while had <= top and not having[had]:
                had += 1
            if had > top:
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
            found += places[start : start + part]
            used.append((node, part))
            missing -= part
        if not missing:
            return found
        for node, part in used:
            self._give_back(node, part)
        return []

    def fragments(self, kind: int, want: int) -> list[int]:
        """Accelerators of a type from the nodes that have the fewest free, so that whole nodes stay free; the first of equals.
        None at all where there are not so many."""
        having = self._having[kind]
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

    def _give_back(self, node: int, count: int) -> None:
        """Undo what was last taken from a node."""
        had = self.counts[node]
        having, bit = self._having[self._kind_of_node[node]], 1 << node
        having[had] &= ~bit
        having[had + count] |= bit
        self.counts[node] = had + count
        self._starts[node] -= count
