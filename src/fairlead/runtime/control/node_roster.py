"""The nodes of a running cluster as its backend knows them: requests to drain, add and remove nodes become events here. It is
ahead of the state by the events of the present commit, and knows neither agents nor threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Drain, Node
from fairlead.engine.node_changes import addition_problem
from fairlead.runtime.control.inbox import Refusal


@dataclass
class NodeRoster:
    """The cluster with all nodes that were added and removed so far, and when drains end by themselves."""

    cluster: Cluster
    drain_ends: dict[int, float] = field(default_factory=dict)  # by node

    def restore(self, drains: Mapping[int, Drain]) -> None:
        """Continue the drains of a journal after a restart."""
        self.drain_ends = {node: drain.until_s for node, drain in drains.items() if drain.until_s is not None}

    def is_removed(self, node: int) -> bool:
        return self.cluster.nodes[node].removed

    def drain(self, now: float, node: int, undo: bool, drain: Drain) -> Sequence[ev.Event]:
        """Drain a node, or end its drain. A later drain replaces reason and time."""
        if self.is_removed(node):
            return Refusal(f"node {self.cluster.nodes[node].name!r} was removed")
        self.drain_ends.pop(node, None)
        if not undo and drain.until_s is not None:
            self.drain_ends[node] = drain.until_s
        return [ev.NodeDrained(now, node, undo, *(("", drain.by, None) if undo else drain))]

    def add(self, now: float, spec: Node, type_: AcceleratorType | None) -> Sequence[ev.Event]:
        """Add a node; `type_` has the properties of its GPU type, which count where the cluster does not have the type."""
        new = None if spec.type in self.cluster.type_code else type_
        event = ev.NodeAdded(now, self.cluster.number_for(spec), spec, new)
        if problem := addition_problem(self.cluster, event):
            return Refusal(problem)
        self.cluster = self.cluster.with_node(event.node, spec, new)
        return [event]

    def remove(self, now: float, node: int, in_use: bool) -> Sequence[ev.Event]:
        """Remove a node on which nothing runs."""
        spec = self.cluster.nodes[node]
        if spec.removed:
            return Refusal(f"node {spec.name!r} was already removed")
        if in_use:
            return Refusal(f"jobs run on node {spec.name!r}: drain it, and remove it when its jobs have left")
        self.cluster = self.cluster.with_node(node, replace(spec, removed=True))
        self.drain_ends.pop(node, None)
        return [ev.NodeRemoved(now, node)]

    @property
    def next_s(self) -> float:
        """When the next drain ends."""
        return min(self.drain_ends.values(), default=math.inf)

    def end_drains(self, now: float) -> list[ev.Event]:
        """The events of drains that end by now."""
        ended = sorted(node for node, until_s in self.drain_ends.items() if until_s <= now)
        for node in ended:
            del self.drain_ends[node]
        return [ev.NodeDrained(now, node, undo=True) for node in ended]
