"""The machines of an engine as nodes of the cluster: they are added, used, drained and removed as the engine says."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.core.cluster import Drain, Node, is_type_name
from fairlead.runtime.control.agent_sessions import HubServices
from fairlead.runtime.drivers.base import Machine, MachineState
from fairlead.runtime.protocol.task_file import MAX_NAME, is_job_name
from fairlead.workloads.catalogue import accelerator_type

log = logging.getLogger(__name__)

SAME_S = 10.0  # an end that moves by less is the same: engines compute it from the time that is left
DECIDE_S = 60.0  # for a round to move jobs, before the time that they need to save


@dataclass(eq=False)
class EngineNodes:
    """The nodes of one engine. `join` lets the backend use one; `uses` tells whether parts of launches may run there."""

    engine: str
    hub: HubServices
    observe_soon: Callable[[], None]
    join: Callable[[int], None]
    uses: Callable[[int], bool]

    def __post_init__(self) -> None:
        self.machines: dict[str, Machine] = {}  # as last observed, by name
        self.up: set[int] = set()  # nodes that the backend uses
        self._adding: set[str] = set()
        self._drained: dict[int, tuple[str, float]] = {}  # reason and end
        self._warned: set[str] = set()

    def owns(self, node: int) -> bool:
        """Whether a node is a machine of this engine: it uses it now, or has added it."""
        nodes = self.hub.cluster.nodes
        return node in self.up or (0 <= node < len(nodes) and nodes[node].engine == self.engine)

    def address_of(self, node: int) -> str:
        machine = self.machines.get(self.hub.cluster.nodes[node].name)
        return machine.address if machine is not None and machine.address else "127.0.0.1"

    def observe(self, machines: Sequence[Machine]) -> None:
        """Follow the machines. One that is unreachable or gone is given up when nothing can run there any more."""
        self.machines = {machine.name: machine for machine in machines}
        self.up -= {node for node in self.up if self.hub.cluster.nodes[node].removed}  # by an operator
        for machine in machines:
            self._observe_machine(machine)
        self._remove_gone()
        for node in list(self.up):
            name = self.hub.cluster.nodes[node].name
            gone = name not in self.machines
            lost = gone or self.machines[name].state is MachineState.UNREACHABLE
            if lost and not self.uses(node):
                self.up.discard(node)
                self.hub.backend.agent_lost(node)
                if gone:
                    self._drained.pop(node, None)
                    self.hub.backend.remove_node(node)

    def _remove_gone(self) -> None:
        """Remove nodes whose machines the engine took away while no control plane ran, once nothing can run there any more."""
        if self.hub.engines.named(self.engine) != 1:
            return  # they may be those of another cluster
        cluster = self.hub.cluster
        for name, node in cluster.number_of_node.items():
            gone = cluster.nodes[node].engine == self.engine and name not in self.machines and node not in self.up
            if gone and not self.hub.is_kept(node):
                self.hub.backend.remove_node(node)

    def _observe_machine(self, machine: Machine) -> None:
        node = self.hub.cluster.number_of_node.get(machine.name, -1)
        if node < 0:
            if machine.name not in self._adding and machine.accelerators > 0:
                self._add(machine)
            return
        spec = self.hub.cluster.nodes[node]
        owner = self.hub.engines.name_for(node, spec)
        if node not in self.up and owner != self.engine and (owner or (self.hub.is_kept(node) and not self.uses(node))):
            whose = f"is a machine of {owner}" if owner else "has an agent of its own, or had one"
            change = f"run 'fairlead nodes remove {machine.name}' to change that"
            self._warn(f"node {machine.name} {whose}: {self.engine} does not use it; {change}")
            return
        if (spec.type.lower(), spec.accelerators) != (machine.type, machine.accelerators):
            self._warn(
                f"{machine.name} has {spec.accelerators} × {spec.type}, but {self.engine} reports {machine.accelerators} × "
                f"{machine.type}: it is not used; run 'fairlead nodes remove {machine.name}', and it is added again"
            )
            return
        self._follow_drain(node, machine)
        if machine.state is not MachineState.UNREACHABLE and node not in self.up:
            self.join(node)

    def _add(self, machine: Machine) -> None:
        if not (is_job_name(machine.name) and is_type_name(machine.type)):
            which = f"{self.engine}: machine {machine.name[:80]!r} with GPUs of type {machine.type[:80]!r} is not used"
            self._warn(f"{which}: names have letters, digits, '.', '_' and '-', at most {MAX_NAME}")
            return
        self._adding.add(machine.name)
        type_ = accelerator_type(machine.type, machine.gpu_memory_gb)
        about = (machine.accelerators, machine.cpus or math.inf, machine.memory_gb or math.inf)
        spec = Node(machine.name, type_.name, *about, engine=self.engine)

        def added(events: Sequence[object]) -> None:
            if (why := getattr(events, "why", "")) and machine.name not in self.hub.cluster.number_of_node:
                self._warn(f"machine {machine.name} cannot be added: {why}")  # and is not asked for again
            else:
                self._adding.discard(machine.name)
                self.observe_soon()

        self.hub.backend.add_node(spec, type_, added)

    def _follow_drain(self, node: int, machine: Machine) -> None:
        """Drain a node that the engine wants empty. Before the engine takes one away, its jobs have the time to save."""
        cordoned = machine.state is MachineState.CORDONED
        wanted = (machine.reason or "cordoned", -math.inf) if cordoned else ("", machine.until)
        if wanted == ("", math.inf):
            if self._drained.pop(node, None) is not None or self.hub.drained_by(node) == self.engine:
                self.hub.backend.drain(node, True, drain=Drain(by=self.engine))
            return
        reason, until = self._drained.get(node, ("", math.nan))
        if (reason, until) == wanted or (reason == wanted[0] and abs(until - wanted[1]) < SAME_S):
            return
        self._drained[node] = wanted
        from_s = None
        if not cordoned:
            left_s = machine.until - self.hub.host.time() - self.hub.grace_s - DECIDE_S
            from_s = self.hub.backend.now + left_s if left_s > 0 else None
        reason = f"{self.engine}: {wanted[0] or 'the machine leaves the cluster soon after'}"
        self.hub.backend.drain(node, False, drain=Drain(reason, self.engine, None, from_s))

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)
