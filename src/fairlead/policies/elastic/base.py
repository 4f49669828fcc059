"""Helpers of elastic policies: which accelerators jobs of given sizes get on the nodes of one type, and the best size of each
job under one capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.core.cluster import Floats, Ints


@dataclass
class Nodes:
    """Free accelerators and residents by node of one type. A job that keeps its size stays, a node holds at most one job that
    spans several nodes, and small jobs move to make room for larger ones. `node_of` is by accelerator."""

    node_of: Sequence[int]
    free: dict[int, list[int]]
    fixed: frozenset[int] = frozenset()  # jobs that must not be moved
    places: dict[int, list[int]] = field(default_factory=dict)  # by job
    residents: dict[int, set[int]] = field(default_factory=dict)  # by node
    wide: dict[int, int] = field(default_factory=dict)  # by node, the job there that spans several nodes

    def keep(self, job: int, places: Sequence[int]) -> None:
        """Keep a job where it is."""
        for place in places:
            self.free[self.node_of[place]].remove(place)
        self._settle(job, list(places))

    def place(self, sizes: Mapping[int, int]) -> None:
        """Place jobs of these sizes, large ones first; a job without room gets no places."""
        waiting = sorted(sizes.items(), key=lambda one: (-one[1], one[0]))
        while waiting:
            job, size = waiting.pop(0)
            moved = self._on_one(job, size) if size <= self._largest else self._on_several(job, size)
            if moved is None:  # the rest, on nodes without another job that spans several
                nodes = sorted(self.free.keys() - self.wide.keys(), key=lambda node: (-len(self.free[node]), node))
                if sum(len(self.free[node]) for node in nodes) >= size:
                    self._take(job, size, nodes)
            if moved:
                waiting = sorted((*waiting, *moved.items()), key=lambda one: (-one[1], one[0]))

    @property
    def _largest(self) -> int:
        return max((len(self.free[node]) + self._held_on(node) for node in self.free), default=0)

    def _held_on(self, node: int) -> int:
        return sum(self.node_of[place] == node for job in self.residents.get(node, ()) for place in self.places[job])

    def _on_one(self, job: int, size: int) -> dict[int, int] | None:
        """The fullest node with room, or else the one where the fewest accelerators have to be given up."""
        roomy = [node for node, free in self.free.items() if len(free) >= size]
        if roomy:
            self._take(job, size, [min(roomy, key=lambda node: (len(self.free[node]), node))])
            return {}
        rooms = ((node, self._making_room(node, size)) for node in self.free)
        found = [(sum(len(self.places[other]) for other in gone), node, gone) for node, gone in rooms if gone is not None]
        if not found:
            return None
        _, node, gone = min(found)
        moved = self._move(gone)
        self._take(job, size, [node])
        return moved

    def _on_several(self, job: int, size: int) -> dict[int, int] | None:
        """The nodes where the fewest jobs have to move, whole ones as far as possible."""
        open_ = [node for node in self.free if node not in self.wide and not self.residents.get(node, set()) & self.fixed]
        open_.sort(key=lambda node: (-len(self.free[node]), node))
        chosen, count = list[int](), 0
        for node in open_:
            chosen.append(node)
            count += len(self.free[node]) + self._held_on(node)
            if count >= size:
                moved = self._move([other for node in chosen for other in sorted(self.residents.get(node, ()))])
                self._take(job, size, chosen)
                return moved
        return None

    def _making_room(self, node: int, size: int) -> list[int] | None:
        """The jobs to move from a node, small ones first, so that a larger job fits."""
        gone, room = list[int](), len(self.free[node])
        here = sorted(self.residents.get(node, ()), key=lambda other: (len(self.places[other]), other))
        for other in here:
            if room >= size:
                break
            if other in self.fixed or len(self.places[other]) >= size:
                return None
            gone.append(other)
            room += len(self.places[other])
        return gone if room >= size else None

    def _move(self, jobs: Sequence[int]) -> dict[int, int]:
        """Remove jobs; they have yet to find another place."""
        sizes = {job: len(self.places[job]) for job in jobs}
        for job in sizes:
            for place in self.places.pop(job):
                self.free[self.node_of[place]].append(place)
                self.residents[self.node_of[place]].discard(job)
            self.wide = {node: other for node, other in self.wide.items() if other != job}
        return sizes

    def _take(self, job: int, size: int, nodes: Sequence[int]) -> None:
        taken: list[int] = []
        for node in nodes:
            self.free[node].sort()
            part = min(size - len(taken), len(self.free[node]))
            taken += self.free[node][:part]
            self.free[node] = self.free[node][part:]
        self._settle(job, taken)

    def _settle(self, job: int, places: list[int]) -> None:
        self.places[job] = places
        nodes = {self.node_of[place] for place in places}
        for node in nodes:
            self.residents.setdefault(node, set()).add(job)
            if len(nodes) > 1:
                self.wide[node] = job


_ROUNDING = 1e-12


def least_cost(sizes: Ints, costs: Floats, capacity: int) -> Ints:
    """The option of each job at the least total cost, by dynamic programming over the capacity. `sizes` and `costs` are jobs ×
    options, one of size 0. Of equal sums, the last job has its first such option, then the one before it, and so on."""
    count = len(sizes)
    room = np.arange(capacity + 1)
    least: Floats = np.zeros(capacity + 1)
    choice = np.zeros((count, capacity + 1), dtype=np.int64)
    for job in range(count):
        useful = np.isfinite(costs[job]).nonzero()[0]
        before = room[None, :] - sizes[job, useful][:, None]
        sums = np.where(before >= 0, least[np.maximum(before, 0)], np.inf) + costs[job, useful][:, None]
        lowest = sums.min(axis=0)
        best = (sums <= lowest + _ROUNDING * np.abs(lowest)).argmax(axis=0)
        choice[job], least = useful[best], sums[best, room]
    chosen = np.zeros(count, dtype=np.int64)
    left = capacity
    for job in range(count - 1, -1, -1):
        chosen[job] = choice[job, left]
        left -= int(sizes[job, chosen[job]])
    return chosen


def sizes_on(node: int, capacity: int) -> list[int]:
    """Numbers of workers that fill nodes exactly: halves of a node, and whole nodes."""
    parts = [node >> shift for shift in range(node.bit_length()) if node % (1 << shift) == 0 or node >> shift == 1]
    return [size for size in sorted({1, *parts}) if size <= capacity] + list(range(2 * node, capacity + 1, node))
