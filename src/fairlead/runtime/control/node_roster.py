"""The nodes of a running cluster as its backend knows them: requests to drain, add and remove nodes become events here, and so
do agents that come and leave. It is ahead of the state by the events of the present commit, and knows neither agents' streams
nor threads."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from fairlead.core import events as ev
from fairlead.core.cluster import MAX_TYPES, NO_DRAIN, AcceleratorType, Cluster, Drain, Node, is_type_name
from fairlead.engine.node_changes import addition_problem
from fairlead.runtime.control.inbox import Refusal
from fairlead.runtime.protocol.messages import BadMessage, Hello
from fairlead.runtime.protocol.task_file import is_job_name
from fairlead.workloads.catalogue import accelerator_type

AGENT = "agent"  # drains a node while its agent leaves, and before its allocation ends; such a drain ends when an agent joins
LEAVING, ALLOCATION_ENDS = "its agent is leaving", "its allocation ends at "
AGENT_LEAVES = Drain(LEAVING, AGENT)
MAX_NODE_ACCELERATORS = 10_000
MAX_LEFT_S = 1e9  # three decades
SAME_END_S = 5.0  # the end of an allocation that an agent reports again may differ by this much


class AgentStay(NamedTuple):
    """How long an agent stays on its node, as it says when it joins."""

    left_s: float = 0.0  # until an engine takes the machine away; 0: not known
    grace_s: float = 0.0  # that its jobs need before that
    leaving: bool = False
    temporary: bool = False  # the node is removed afterwards


def stay_of(hello: Hello, grace_s: float) -> AgentStay:
    """Return what an agent's first message says, where jobs have `grace_s` to save."""
    return AgentStay(hello.left_s, grace_s, hello.leaving, hello.temporary)


def reported_node(hello: Hello) -> tuple[Node, AcceleratorType]:
    """The node that an agent describes, and its GPU type. Raises `BadMessage`: no node can have its name, its rack
    or so many GPUs."""
    for what, name, valid in (
        ("node", hello.node, is_job_name(hello.node)),
        ("GPU type", hello.type, is_type_name(hello.type)),
        ("rack", hello.rack, not hello.rack or is_job_name(hello.rack)),
    ):
        if not valid:
            raise BadMessage(f"a {what} cannot have the name {name[:80]!r}: use letters, digits, '.', '_' and '-'")
    if hello.accelerators > MAX_NODE_ACCELERATORS:
        raise BadMessage(f"a node cannot have {hello.accelerators:,} GPUs: at most {MAX_NODE_ACCELERATORS:,}")
    type_ = accelerator_type(hello.type.lower(), hello.gpu_memory_gb)
    about = (hello.accelerators, hello.cpus or math.inf, hello.memory_gb or math.inf)
    return Node(hello.node, type_.name, *about, temporary=hello.temporary, rack=hello.rack), type_


STAYS = AgentStay()
"""The stay of an agent on a machine of the cluster's own."""


@dataclass
class NodeRoster:
    """The cluster with all nodes that were added and removed so far, and their drains, which may begin and end by
    themselves."""

    cluster: Cluster
    max_nodes: int = 10_000  # no more are added
    drains: dict[int, Drain] = field(default_factory=dict)  # by node; those with `from_s` are announced, others in effect
    departed: set[int] = field(default_factory=set)  # temporary nodes without an agent, to be removed

    def __post_init__(self) -> None:
        self._temporary: set[int] = set()  # as agents say; a node's own property counts too
        self._replaced: dict[int, Drain] = {}  # an operator's announced drain, while an agent's is in its place

    def restore(self, drains: Mapping[int, Drain], drained: Collection[int], present: Collection[int]) -> None:
        """Continue the drains of a journal after a restart. `drained` and `present`: nodes with a drain in effect, and those
        that were up."""
        self.drains = {**dict.fromkeys(drained, NO_DRAIN), **drains}
        self.departed = {n for n, one in enumerate(self.cluster.nodes) if one.temporary and not one.removed} - set(present)

    def is_removed(self, node: int) -> bool:
        return self.cluster.nodes[node].removed

    def drain(self, now: float, node: int, undo: bool, drain: Drain) -> Sequence[ev.Event]:
        """Drain a node, announce its drain, or end it. A later drain replaces a former one."""
        if self.is_removed(node):
            return Refusal(f"node {self.cluster.nodes[node].name!r} was removed")
        self._forget_drain(node)
        return [self._undrained(now, node, drain.by) if undo else self._drained(now, node, drain)]

    def agent_joined(self, now: float, node: int, stay: AgentStay, round_s: float, unix_s: float) -> list[ev.Event]:
        """An agent says how long it stays. Drains because of a former agent end. Where the end of its allocation is known,
        the node is drained the grace period and a round before. `unix_s` is the present time for users."""
        self.departed.discard(node)
        if stay.temporary:
            self._temporary.add(node)
        wanted = AGENT_LEAVES if stay.leaving else None
        if wanted is None and stay.left_s:
            drain_s = now + stay.left_s - stay.grace_s - round_s
            at = datetime.fromtimestamp(unix_s + min(stay.left_s, MAX_LEFT_S)).strftime("%H:%M")
            wanted = Drain(ALLOCATION_ENDS + at, AGENT, from_s=drain_s if drain_s > now else None)
        events: list[ev.Event] = []
        if (current := self.drains.get(node)) is not None and _is_of_agent(current):
            if wanted is not None and _is_same(current, wanted):
                return []
            del self.drains[node]
            former = self._replaced.pop(node, None)
            events.append(self._undrained(now, node, AGENT) if former is None else self._drained(now, node, former))
        return [*events, *self.agent_drains(now, node, wanted)] if wanted is not None else events

    def agent_drains(self, now: float, node: int, drain: Drain = AGENT_LEAVES) -> list[ev.Event]:
        """Drain a node for its agent, unless an operator's drain is in effect or begins before."""
        current = self.drains.get(node)
        if self.is_removed(node) or current == drain:
            return []
        if current is not None and not _is_of_agent(current):
            if current.from_s is None or (drain.from_s is not None and current.from_s <= drain.from_s):
                return []
            self._replaced[node] = current
        return [self._drained(now, node, drain)]

    def agent_gone(self, node: int) -> None:
        """Nothing runs on a node, and it has no agent."""
        if (node in self._temporary or self.cluster.nodes[node].temporary) and not self.is_removed(node):
            self.departed.add(node)

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
        self._temporary.discard(node)
        self.departed.discard(node)
        return [ev.NodeRemoved(now, node)]

    @property
    def next_s(self) -> float:
        """When the next drain begins or ends."""
        return min((_next_s(drain) for drain in self.drains.values()), default=math.inf)

    def due_drains(self, now: float) -> list[ev.Event]:
        """The events of drains that begin or end by now."""
        due = sorted((drain.from_s is None, node) for node, drain in self.drains.items() if _next_s(drain) <= now)
        events: list[ev.Event] = []
        for ends, node in due:
            if not ends:
                events.append(self._drained(now, node, self.drains[node]))
            if _next_s(self.drains[node]) <= now:
                del self.drains[node]
                events.append(self._undrained(now, node))
        return events

    def _drained(self, now: float, node: int, drain: Drain) -> ev.NodeDrained:
        self.drains[node] = drain if drain.from_s is not None and drain.from_s > now else drain._replace(from_s=None)
        return ev.NodeDrained(now, node, False, *self.drains[node])

    def _undrained(self, now: float, node: int, by: str = "") -> ev.NodeDrained:
        return ev.NodeDrained(now, node, True, by=by)

    def _forget_drain(self, node: int) -> None:
        self.drains.pop(node, None)
        self._replaced.pop(node, None)


def _next_s(drain: Drain) -> float:
    """When a drain begins or, if it is in effect, ends."""
    moment = drain.until_s if drain.from_s is None else drain.from_s
    return math.inf if moment is None else moment


def _is_of_agent(drain: Drain) -> bool:
    return drain.by == AGENT and (drain.reason == LEAVING or drain.reason.startswith(ALLOCATION_ENDS))


def _is_same(drain: Drain, other: Drain) -> bool:
    if drain.from_s is None or other.from_s is None:
        return drain == other
    return abs(drain.from_s - other.from_s) <= SAME_END_S
