"""A Ray cluster of a few small nodes on this machine, each with a loopback address of its own; for tests and benchmarks."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MEMORY = 80 * 1024 * 1024
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def node_arguments(address: str, **given: Any) -> dict[str, Any]:
    """Of a node. Its helpers get fixed ports: otherwise Ray gives up when they take longer than 15 s, as under load."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    return {"num_cpus": 1, "object_store_memory": MEMORY, "node_ip_address": address, **ports, **given}


@contextmanager
def ray_cluster(nodes: int, **given: Any) -> Iterator[Any]:
    """A cluster of `nodes` nodes at 127.0.0.2, 127.0.0.3 and so on; it is a `ray.cluster_utils.Cluster`."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for number in range(nodes):
            extra = {"include_dashboard": False} if number == 0 else {}
            cluster.add_node(**node_arguments(f"127.0.0.{2 + number}", **extra, **given))
        yield cluster
    finally:
        cluster.shutdown()


def fairlead_command(*words: str) -> list[str]:
    """The command `fairlead` of this Python."""
    return [sys.executable, "-c", "from fairlead.cli.main import run; run()", *words]
