"""A Ray cluster of a few small nodes on this machine, each with a loopback address of its own; for tests and benchmarks."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

from foundry import environment

MEMORY = 80 * 1024 * 1024
STARTS = 8  # of a node that Ray gives up, as it does under load
GONE_S = 120.0
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


def ray_environment() -> dict[str, str]:
    """Variables of the process that starts a cluster: workers of Ray, and so agents, get its environment."""
    return {**environment(), "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def add_node(cluster: Any, address: str, **given: Any) -> Any:
    """Start a node; again when Ray gives it up, as it does after 30 s under load."""
    import psutil  # comes with Ray

    for start in range(1, STARTS + 1):
        # Its helpers get fixed ports: otherwise Ray gives up when they take longer than 15 s.
        ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        before, known = psutil.Process().children(), cluster.list_all_nodes()
        try:
            return cluster.add_node(
                **{"num_cpus": 1, "object_store_memory": MEMORY, "node_ip_address": address, **ports, **given}
            )
        except Exception:  # Ray raises no other class
            if start == STARTS:
                raise
            for node in [one for one in cluster.list_all_nodes() if one not in known]:
                cluster.remove_node(node, allow_graceful=False)
            for process in [one for one in psutil.Process().children() if one not in before]:
                _kill(process)
            if known:
                cluster.wait_for_nodes(GONE_S)  # not one that joined late


def _kill(process: Any) -> None:
    """End a process with its children, which would otherwise join the cluster late."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


@contextlib.contextmanager
def ray_cluster(nodes: int, **given: Any) -> Iterator[Any]:
    """A cluster of `nodes` nodes at 127.0.0.2, 127.0.0.3 and so on; it is a `ray.cluster_utils.Cluster`."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for number in range(nodes):
            extra = {"include_dashboard": False} if number == 0 else {}
            add_node(cluster, f"127.0.0.{2 + number}", **extra, **given)
        yield cluster
    finally:
        cluster.shutdown()


def fairlead_command(*words: str) -> list[str]:
    """The command `fairlead` of this Python."""
    return [sys.executable, "-c", "from fairlead.cli.main import run; run()", *words]
