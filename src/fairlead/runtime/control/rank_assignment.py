"""Translate a plan's launches for agents: the ranks on each node, the ports of a gang, and the launch parameters. It knows the
cluster's numbering, and no state of launches."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np

from fairlead.core.cluster import Cluster, Ints
from fairlead.core.plan import Launches
from fairlead.core.routes import Route, Routes
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.launches import Key, NodeRanks
from fairlead.runtime.protocol.orders import LaunchParameters, RequestRouting

FIRST_PORT, PORTS = 20_000, 10_000  # for gangs; below the range that the system assigns


class RankAssignment:
    """Assigns ranks to nodes: worker i gets accelerator i of a launch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._first_of_node: list[int] = np.searchsorted(cluster.node_of, np.arange(len(cluster.nodes))).tolist()

    def of(self, accelerators: Ints) -> tuple[NodeRanks, ...]:
        """Return the ranks by node, the node of rank 0 first."""
        by_node: dict[int, list[tuple[int, int]]] = {}
        for rank, place in enumerate(accelerators.tolist()):
            node = int(self._cluster.node_of[place])
            by_node.setdefault(node, []).append((rank, place - self._first_of_node[node]))
        return tuple(NodeRanks(node, tuple(r for r, _ in here), tuple(p for _, p in here)) for node, here in by_node.items())

    def all_of(self, node: int) -> tuple[int, ...]:
        """Return all accelerators of a node, counted from 0."""
        return tuple(range(self._cluster.nodes[node].accelerators))


def gang_ports(launch: Key, checkpoints: str) -> tuple[int, int]:
    """Return two ports for a gang. They differ between launches, and between control planes on one machine."""
    first = FIRST_PORT + 2 * ((crc32(checkpoints.encode()) + 7919 * launch[0] + launch[1]) % (PORTS // 2))
    return first, first + 1


def planned_parameters(launches: Launches, routes: Routes) -> list[LaunchParameters]:
    """Return the parameters of each launch of a plan."""
    zeros = [0] * len(launches)
    columns = (launches.batch_sizes, launches.cpus, launches.host_memory_gb)
    shared = np.bincount(launches.accelerators)[launches.accelerators] > 1
    colocated = np.logical_or.reduceat(shared, launches.offsets[:-1]).tolist() if len(launches) else []
    rows = zip(*(zeros if column is None else column.tolist() for column in columns), colocated)
    parameters = [LaunchParameters(*row) for row in rows]
    if not routes:
        return parameters
    mine = [routes.get(number) for number in launches.jobs.tolist()]
    return [one if route is None else replace(one, routing=routing(route)) for one, route in zip(parameters, mine)]


def running_parameters(view: Snapshot) -> dict[int, LaunchParameters]:
    """Return the parameters that running jobs were launched with, by number."""
    runners, colocated = view.jobs.runners, set(view.device_map.on(view.device_map.occupancy > 1).tolist())
    columns = (runners.number, runners.batch_size, runners.cpus_given, runners.memory_given_gb)
    rows = zip(*(column.tolist() for column in columns))
    parameters = {number: LaunchParameters(size, cpus, memory, number in colocated) for number, size, cpus, memory in rows}
    return parameters | {number: replace(parameters[number], routing=routing(route)) for number, route in view.routes.items()}


def routing(route: Route) -> RequestRouting:
    """Return a route for agents; its accelerators are in the order of ranks."""
    return RequestRouting(route.batch, route.rate, route.parts)
