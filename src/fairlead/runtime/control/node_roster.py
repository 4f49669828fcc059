"""The nodes of a running cluster as its backend knows them: requests to drain, add and remove nodes become events here. It is
ahead of the state by the events of the present commit, and knows neither agents nor threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fairlead.core import events as ev
from fairlead.core.cluster import MAX_TYPES, AcceleratorType, Cluster, Drain, Node
from fairlead.engine.node_changes import addition_problem
from fairlead.runtime.control.inbox import Refusal


@dataclass
class NodeRoster:
    """The cluster with all nodes that were added and removed so far, and when drains begin and end by themselves."""

    cluster: Cluster
    max_nodes: int = 10_000  # no more are added
    drain_ends: dict[int, float] = field(default_factory=dict)  # by node
    announced: dict[int, Drain] = field(default_factory=dict)  # drains that have not begun, by node

    def restore(self, drains: Mapping[int, Drain]) -> None:
        """Continue the drains of a journal after a restart."""
        self.announced = {node: drain for node, drain in drains.items() if drain.from_s is not None}
        ends = {node: drain.until_s for node, drain in drains.items() if node not in self.announced}
        self.drain_ends = {node: until_s for node, until_s in ends.items() if until_s is not None}

    def is_removed(self, node: int) -> bool:
        return self.cluster.nodes[node].removed

    def drain(self, now: float, node: int, undo: bool, drain: Drain) -> Sequence[ev.Event]:
        """Drain a node, announce its drain, or end it. A later drain replaces a former one."""
        if self.is_removed(node):
            return Refusal(f"node {self.cluster.nodes[node].name!r} was removed")
        self._forget_drain(node)
        if undo:
            return [ev.NodeDrained(now, node, True, by=drain.by)]
        if drain.from_s is not None and drain.from_s > now:
            self.announced[node] = drain
        else:
            drain = drain._replace(from_s=None)
            if drain.until_s is not None:
                self.drain_ends[node] = drain.until_s
        return [ev.NodeDrained(now, node, False, *drain)]

    def add(self, now: float, spec: Node, type_: AcceleratorType | None, max_types: int = MAX_TYPES) -> Sequence[ev.Event]:
        """Add a node; `type_` has the properties of its GPU type, which count where the cluster does not have the type. A new
        type is refused if there are `max_types` already."""
        new = None if spec.type in self.cluster.type_code else type_
        if len(self.cluster.number_of_node) >= self.max_nodes:
            return Refusal(f"the cluster has {self.max_nodes:,} nodes: to add more, start 'fairlead serve' with --max-nodes")
        if new is not None and max_types <= len(self.cluster.types) < MAX_TYPES:
            what = f"{spec.name} {spec.type}:{spec.accelerators}"
            return Refusal(
                f"the cluster has {len(self.cluster.types)} GPU types, and {spec.type!r} is a new one: an operator can add the "
                f"node with 'fairlead nodes add {what}'"
            )
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
            return Refusal(
                f"jobs run on node {spec.name!r}: drain it first, or use 'fairlead nodes remove {spec.name} --drain'"
            )
        self.cluster = self.cluster.with_node(node, replace(spec, removed=True))
        self._forget_drain(node)
        return [ev.NodeRemoved(now, node)]

    @property
    def next_s(self) -> float:
        """When the next drain begins or ends."""
        begins = (drain.from_s for drain in self.announced.values() if drain.from_s is not None)
        return min([*self.drain_ends.values(), *begins], default=math.inf)

    def due_drains(self, now: float) -> list[ev.Event]:
        """The events of drains that begin or end by now."""
        begun = sorted(node for node, drain in self.announced.items() if drain.from_s is not None and drain.from_s <= now)
        events = [event for node in begun for event in self.drain(now, node, False, self.announced[node])]
        ended = sorted(node for node, until_s in self.drain_ends.items() if until_s <= now)
        for node in ended:
            del self.drain_ends[node]
        return [*events, *(ev.NodeDrained(now, node, undo=True) for node in ended)]

    def _forget_drain(self, node: int) -> None:
        self.drain_ends.pop(node, None)
        self.announced.pop(node, None)
