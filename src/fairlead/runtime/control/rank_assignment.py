"""What a plan gives its launches, as agents are told it: on which nodes workers sit, where a gang meets, what else they get."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np

from fairlead.core.cluster import Cluster, Ints
from fairlead.core.plan import Launches as Starts
from fairlead.core.routes import Route, Routes
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.launches import Key, NodeRanks
from fairlead.runtime.protocol.orders import LaunchParameters, RequestRouting

FIRST_PORT, PORTS = 20_000, 10_000
"""For gangs to find each other."""


class RankAssignment:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._first_of_node: list[int] = np.searchsorted(cluster.node_of, np.arange(len(cluster.nodes))).tolist()

    def assignment(self, accelerators: Ints) -> tuple[NodeRanks, ...]:
        """By node, in the order of ranks: the first worker stands on the first accelerator."""
        by_node: dict[int, list[tuple[int, int]]] = {}
        for rank, place in enumerate(accelerators.tolist()):
            node = int(self._cluster.node_of[place])
            by_node.setdefault(node, []).append((rank, place - self._first_of_node[node]))
        return tuple(NodeRanks(node, tuple(r for r, _ in here), tuple(p for _, p in here)) for node, here in by_node.items())

    def places(self, node: int) -> tuple[int, ...]:
        """All accelerators of a node, counted on it."""
        return tuple(range(self._cluster.nodes[node].accelerators))


def gang_ports(launch: Key, checkpoints: str) -> tuple[int, int]:
    """Two for each launch of a gang, out of reach of those that the system gives away, not soon the same again, and others
    than those of a second control plane on this machine, whose jobs save elsewhere."""
    first = FIRST_PORT + 2 * ((crc32(checkpoints.encode()) + 7919 * launch[0] + launch[1]) % (PORTS // 2))
    return first, first + 1


def given_by(starts: Starts, routes: Routes) -> list[LaunchParameters]:
    """What a plan gives each of its launches besides accelerators."""
    zeros = [0] * len(starts)
    columns = (starts.batch_sizes, starts.cpus, starts.host_memory_gb)
    shared = np.bincount(starts.accelerators)[starts.accelerators] > 1
    company = np.logical_or.reduceat(shared, starts.offsets[:-1]).tolist() if len(starts) else []
    given = [
        LaunchParameters(*each) for each in zip(*(zeros if column is None else column.tolist() for column in columns), company)
    ]
    if not routes:
        return given
    mine = [routes.get(number) for number in starts.jobs.tolist()]
    return [one if route is None else replace(one, routing=routed(route)) for one, route in zip(given, mine)]


def given_before(view: Snapshot) -> dict[int, LaunchParameters]:
    """What those who run were given, by number."""
    there, crowded = view.jobs.runners, set(view.device_map.on(view.device_map.occupancy > 1).tolist())
    columns = (there.number, there.batch_size, there.cpus_given, there.memory_given_gb)
    rows = zip(*(column.tolist() for column in columns))
    given = {number: LaunchParameters(size, cpus, memory, number in crowded) for number, size, cpus, memory in rows}
    return given | {number: replace(given[number], routing=routed(route)) for number, route in view.routes.items()}


def routed(route: Route) -> RequestRouting:
    """Workers stand on the accelerators of a route in their order."""
    return RequestRouting(route.batch, route.rate, route.parts)
