"""Faults: what goes wrong in a run, when, where and for how long. They are plain data, so that a failing run can be repeated
with fewer of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from fairlead.testing.runtime_simulation.control import SimulatedControlPlane
from fairlead.testing.runtime_simulation.simulated_network import Network
from fairlead.testing.runtime_simulation.virtual_world import VirtualWorld


class FaultTarget(Protocol):
    """The cluster that faults happen to."""

    world: VirtualWorld
    network: Network
    control: SimulatedControlPlane
    nodes: Any  # each with a machine, a root, and an agent that can be started and killed

    def double(self, node: int) -> Any:
        """Another machine with the name of a node."""
        ...


@dataclass(frozen=True)
class Fault:
    """One fault. What `where` and `amount` mean depends on its kind."""

    kind: str
    at_s: float
    where: int  # the node, or a number that chooses a process
    amount: float  # how long it lasts, in seconds, or how much

    def apply(self, scene: FaultTarget) -> None:
        scene.world.note("FAULT", str(self))
        KINDS[self.kind](scene, self)

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.2f} s, where={self.where}, amount={self.amount:.2f}"


def choose_faults(random: Random, nodes: int, until_s: float) -> list[Fault]:
    """The faults of a run, in the order of their times."""
    count = random.randint(4, 14)
    kinds = list(KINDS)
    faults = []
    for _ in range(count):
        # Lengths from a moment to more than a lease and a grace.
        amount = random.choice((random.uniform(0.05, 1.0), random.uniform(1.0, 8.0), random.uniform(8.0, 25.0)))
        faults.append(
            Fault(random.choice(kinds), round(random.uniform(2.0, until_s), 3), random.randrange(nodes), round(amount, 3))
        )
    return sorted(faults, key=lambda fault: fault.at_s)


def _agent_killed(scene: FaultTarget, fault: Fault) -> None:
    node = scene.nodes[fault.where]
    node.kill()
    scene.world.after(fault.amount, node.start)


def _agent_paused(scene: FaultTarget, fault: Fault) -> None:
    if (program := scene.nodes[fault.where].program) is not None:
        program.pause(fault.amount)


def _machine_paused(scene: FaultTarget, fault: Fault) -> None:
    node = scene.nodes[fault.where]
    for program in [*([node.program] if node.program is not None else []), *node.machine.programs()]:
        program.pause(fault.amount)
    node.machine.resumed_s = scene.world.now + fault.amount


def _machine_lost(scene: FaultTarget, fault: Fault) -> None:
    node = scene.nodes[fault.where]
    node.kill()
    node.machine.lose_power()
    scene.world.after(fault.amount, node.start)


def _control_killed(scene: FaultTarget, fault: Fault) -> None:
    scene.control.crash(known=fault.where % 2 == 0)
    scene.world.after(fault.amount, scene.control.start)


def _control_paused(scene: FaultTarget, fault: Fault) -> None:
    if scene.control.program is not None:
        scene.control.program.pause(fault.amount)


def _partition(scene: FaultTarget, fault: Fault) -> None:
    name, until = scene.nodes[fault.where].name, scene.world.now + fault.amount
    scene.network.up[name] = scene.network.down[name] = until


def _one_way_partition(scene: FaultTarget, fault: Fault) -> None:
    direction = scene.network.up if int(fault.amount * 100) % 2 else scene.network.down
    direction[scene.nodes[fault.where].name] = scene.world.now + fault.amount


def _slow_network(scene: FaultTarget, fault: Fault) -> None:
    scene.network.slow[scene.nodes[fault.where].name] = (scene.world.now + 10.0, min(fault.amount, 5.0))


def _connection_reset(scene: FaultTarget, fault: Fault) -> None:
    for stream in [one for one in scene.network.streams if one.node == scene.nodes[fault.where].name]:
        stream.end_at_agent("connection reset")
        stream.end_at_control()


def _half_open(scene: FaultTarget, fault: Fault) -> None:
    for stream in [one for one in scene.network.streams if one.node == scene.nodes[fault.where].name]:
        if int(fault.amount * 100) % 2:
            stream.end_at_agent("connection reset")
        else:
            stream.end_at_control()


def _journal_away(scene: FaultTarget, fault: Fault) -> None:
    scene.control.store.away_until = scene.world.now + fault.amount


def _journal_slow(scene: FaultTarget, fault: Fault) -> None:
    scene.control.store.slow_until = scene.world.now + fault.amount


def _shim_killed(scene: FaultTarget, fault: Fault) -> None:
    shims = [shim for shim in scene.nodes[fault.where].machine.processes.values() if shim.status is None]
    if shims:
        shims[int(fault.amount * 100) % len(shims)].die(-9)


def _start_fails(scene: FaultTarget, fault: Fault) -> None:
    scene.nodes[fault.where].machine.cannot_start_until = scene.world.now + fault.amount


def _clock_jumps(scene: FaultTarget, fault: Fault) -> None:
    error_s = (fault.amount - 10.0) * 600.0
    if fault.where == 0:
        scene.control.clock_error_s = error_s
    scene.nodes[fault.where].machine.clock_error_s = error_s


def _second_agent(scene: FaultTarget, fault: Fault) -> None:
    """Another machine claims the name of a node, for a while."""
    double = scene.double(fault.where)
    double.start()
    scene.world.after(fault.amount, double.remove)


def _deadline_damaged(scene: FaultTarget, fault: Fault) -> None:
    """The file with the fencing deadline is damaged, and its agent dies."""
    _agent_killed(scene, fault)
    path = scene.nodes[fault.where].root / "fencing-deadline"
    if path.exists():
        if int(fault.amount * 100) % 2:
            path.unlink()
        else:
            path.write_bytes(b"")


def _disk_full(scene: FaultTarget, fault: Fault) -> None:
    scene.nodes[fault.where].machine.disk_fault = (scene.world.now + fault.amount, errno.ENOSPC)


def _disk_error(scene: FaultTarget, fault: Fault) -> None:
    scene.nodes[fault.where].machine.disk_fault = (scene.world.now + fault.amount, errno.EIO)


KINDS: dict[str, Callable[[FaultTarget, Fault], None]] = {
    "agent-killed": _agent_killed,
    "agent-paused": _agent_paused,
    "machine-paused": _machine_paused,
    "machine-lost": _machine_lost,
    "control-plane-killed": _control_killed,
    "control-plane-paused": _control_paused,
    "partition": _partition,
    "one-way-partition": _one_way_partition,
    "slow-network": _slow_network,
    "connection-reset": _connection_reset,
    "half-open-connection": _half_open,
    "journal-unreachable": _journal_away,
    "journal-slow": _journal_slow,
    "shim-killed": _shim_killed,
    "start-fails": _start_fails,
    "clock-jumps": _clock_jumps,
    "second-agent": _second_agent,
    "deadline-damaged": _deadline_damaged,
    "disk-full": _disk_full,
    "disk-error": _disk_error,
}
