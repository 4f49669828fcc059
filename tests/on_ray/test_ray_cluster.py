"""The Ray cluster of the tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from ray_cluster import ray_cluster


def test_nodes_that_ray_gives_up_are_started_again(monkeypatch: pytest.MonkeyPatch):
    """Ray gives up each node twice: before and after it has joined."""
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

    starts, start, wait = Counter[str](), Node.start_ray_processes, Cluster._wait_for_node

    def give_up_first_start(node: Any) -> None:
        start(node)
        starts[node.node_ip_address] += 1
        if starts[node.node_ip_address] == 1:
            raise Exception("The current node timed out during startup.")

    def give_up_second_start(cluster: Any, node: Any, *given: Any) -> None:
        wait(cluster, node, *given)
        if starts[node.node_ip_address] == 2:
            raise TimeoutError

    monkeypatch.setattr(Node, "start_ray_processes", give_up_first_start)
    monkeypatch.setattr(Cluster, "_wait_for_node", give_up_second_start)
    with ray_cluster(2) as cluster:
        assert min(starts["127.0.0.2"], starts["127.0.0.3"]) >= 3
        alive = [row["NodeManagerAddress"] for row in cluster.global_state.node_table() if row["Alive"]]
        assert sorted(alive) == ["127.0.0.2", "127.0.0.3"]
