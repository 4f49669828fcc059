"""Faults: what goes wrong in a run, when, where and for how long. They are plain data, so that a failing run can be repeated
with fewer of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from fairlead.testing.runtime_simulation.control import SimulatedControlPlane
from fairlead.testing.runtime_simulation.simulated_database import DatabaseServer
from fairlead.testing.runtime_simulation.simulated_network import Network
from fairlead.testing.runtime_simulation.virtual_world import FaultWindow, MachineClock, VirtualWorld

_SOON_S, _LATER_S = 3.0, 30.0  # how long a fault waits for something that it can happen to
_AWAY_S = 15.0  # longer than a lease and a grace: a node is given up meanwhile
_LATE_FOR_S = 60.0  # messages of a stream are late for so long


class FaultTarget(Protocol):
    """The cluster that faults happen to."""

    world: VirtualWorld
    network: Network
    database: DatabaseServer
    controls: list[SimulatedControlPlane]
    nodes: Any  # each with a machine, a root, and an agent that can be started and killed

    def active(self, odd: bool) -> SimulatedControlPlane | None:
        """The control plane that has the journal, or, if `odd`, another one that runs; None if there is none."""
        ...

    def double(self, node: int) -> Any:
        """Another machine with the name of a node."""
        ...

    def took_effect(self, fault: Fault) -> bool:
        """Note that a fault has changed what happens; always true."""
        ...


@dataclass(frozen=True)
class Fault:
    """One fault. What `where` and `amount` mean depends on its kind."""

    kind: str
    at_s: float
    where: int  # the node, or a number that chooses a process
    amount: float  # how long it lasts, in seconds, or how much

    def apply(self, scene: FaultTarget, attempts: int = 20) -> None:
        """Let it happen; where there is nothing that it could happen to, such as a dead agent, a little later."""
        if KINDS[self.kind](scene, self):
            scene.world.note("FAULT", str(self))
        elif attempts > 1:
            scene.world.after(1.0, lambda: self.apply(scene, attempts - 1))

    @property
    def odd(self) -> bool:
        """A choice between two variants of the fault."""
        return int(self.amount * 100) % 2 == 1

    def window(self, scene: FaultTarget, seconds: float | None = None, within_s: float = 0.0) -> FaultWindow:
        """The time that it lasts. It takes effect when something meets it."""
        length_s = self.amount if seconds is None else seconds
        return FaultWindow(scene.world, length_s, lambda: scene.took_effect(self), within_s)

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.2f} s, where={self.where}, amount={self.amount:.2f}"


def choose_faults(random: Random, nodes: int, until_s: float, kinds: Collection[str] = ()) -> list[Fault]:
    """The faults of a run, in the order of their times: of these kinds, or of some that are chosen. A run has only some of the
    kinds, but those more than once: with all of them, each would hide what others do. Most faults come in a few storms, with
    quiet times in between."""
    storms = [random.uniform(3.0, until_s - 5.0) for _ in range(random.randint(2, 4))]
    faults = []
    share = random.choice((0.2, 0.5, 0.6))  # of the kinds; with few of them, jobs of a lost node soon start elsewhere
    for kind in kinds or [kind for kind in KINDS if random.random() < share]:
        for _ in range(random.choice((2, 2, 2, 3)) + (kind in _REPEATED)):
            in_storm = random.random() < 0.7
            at_s = random.choice(storms) + random.expovariate(0.5) if in_storm else random.uniform(2.0, until_s)
            # Lengths from a moment to more than a lease and a grace; many end about when a node is given up.
            low, high = random.choice(((0.05, 1.0), (1.0, 8.0), (8.0, 25.0), (13.0, 18.0)))
            amount = random.uniform(low, high)
            faults.append(Fault(kind, round(min(at_s, until_s), 3), random.randrange(nodes), round(amount, 3)))
    return sorted(faults, key=lambda fault: fault.at_s)


def _agent_killed(scene: FaultTarget, fault: Fault, longer_s: float = 0.0) -> bool:
    node = scene.nodes[fault.where]
    if not node.kill():
        return False
    scene.world.after(fault.amount + longer_s, node.start)
    return scene.took_effect(fault)


def _agent_gone(scene: FaultTarget, fault: Fault) -> bool:
    """Its shims lose their agent for good: the node is given up before an agent comes back."""
    return _agent_killed(scene, fault, _AWAY_S)


def _at_launch(scene: FaultTarget, fault: Fault, pause: Callable[[float], bool]) -> bool:
    """Pause now, or (half of the faults) when the next launch is under way, until after the node was given up."""
    if not fault.odd:
        return pause(fault.amount)
    until_s = scene.world.now + _LATER_S
    scene.network.on_launch[scene.nodes[fault.where].name] = lambda: scene.world.now < until_s and pause(fault.amount + _AWAY_S)
    return True


def _agent_paused(scene: FaultTarget, fault: Fault) -> bool:
    def pause(seconds: float) -> bool:
        program = scene.nodes[fault.where].program
        if program is None or not program.alive:
            return False
        program.pause(seconds)
        return scene.took_effect(fault)

    return _at_launch(scene, fault, pause)


def _machine_paused(scene: FaultTarget, fault: Fault) -> bool:
    def pause(seconds: float) -> bool:
        node = scene.nodes[fault.where]
        programs = [*([node.program] if node.program is not None and node.program.alive else []), *node.machine.programs()]
        for program in programs:
            program.pause(seconds)
        node.machine.resumed_s = max(node.machine.resumed_s, scene.world.now + seconds)
        return bool(programs) and scene.took_effect(fault)

    return _at_launch(scene, fault, pause)


def _machine_lost(scene: FaultTarget, fault: Fault) -> bool:
    node = scene.nodes[fault.where]
    if not node.kill() and not node.machine.programs():
        return False
    node.machine.lose_power()
    scene.world.after(fault.amount, node.start)
    return scene.took_effect(fault)


_UNSYNCED = {"fencing-deadline", "lease", "reports", "reports.read", "settled", "exit.json"}


def _unsynced_lost(scene: FaultTarget, fault: Fault) -> bool:
    """A machine loses power, and some of what was written without fsync: marks, lease pages, the entries of folders."""
    if not _machine_lost(scene, fault):
        return False
    random = scene.world.random(f"unsynced {fault}")
    root: Path = scene.nodes[fault.where].root
    for path in sorted(root.rglob("*")):
        if path.name not in _UNSYNCED or random.random() < 0.5:
            continue
        if path.name in ("settled", "exit.json") or random.random() < 0.3:
            path.unlink()
        else:
            os.truncate(path, random.randint(0, path.stat().st_size))
    return True


def _torn_write(scene: FaultTarget, fault: Fault) -> bool:
    """The agent dies in the middle of its next write, and leaves a part of a file."""
    scene.nodes[fault.where].machine.torn_write = fault.window(scene, 30.0)
    return True


def _control_killed(scene: FaultTarget, fault: Fault) -> bool:
    control = scene.active(odd=fault.odd and fault.amount < 2.0)
    if control is None or not control.crash(known=fault.where % 2 == 0):
        return False
    scene.world.after(fault.amount, control.start)
    return scene.took_effect(fault)


def _control_paused(scene: FaultTarget, fault: Fault) -> bool:
    """For at most 33 s: longer than the timeout of the journal, a lease and a grace together."""
    control = scene.active(odd=False)
    if control is None or control.program is None:
        return False
    control.program.pause(fault.amount * 1.3)
    return scene.took_effect(fault)


def _control_cut_off(scene: FaultTarget, fault: Fault) -> bool:
    """The active one loses the database, but not its agents, for at most 40 s. Half of the times the network is split: it also
    loses one node, which may reach the other control plane, and the database ends its session at once."""
    control = scene.active(odd=False)
    if control is None:
        return False
    cut = scene.database.cut[control.name] = fault.window(scene, fault.amount * 1.6)
    if fault.odd:
        if (holder := scene.database.holder()) is not None and holder.machine == control.name:
            holder.ended = True
        scene.network.split[scene.nodes[fault.where].name, scene.controls.index(control)] = cut
    return True


def _database_failover(scene: FaultTarget, fault: Fault) -> bool:
    scene.database.failover = fault.window(scene, within_s=_LATER_S)
    return True


def _partition(scene: FaultTarget, fault: Fault) -> bool:
    name = scene.nodes[fault.where].name
    scene.network.up[name] = scene.network.down[name] = fault.window(scene, within_s=_SOON_S)
    return True


def _one_way_partition(scene: FaultTarget, fault: Fault) -> bool:
    direction = scene.network.up if fault.odd else scene.network.down
    direction[scene.nodes[fault.where].name] = fault.window(scene, within_s=_SOON_S)
    return True


def _slow_network(scene: FaultTarget, fault: Fault) -> bool:
    scene.network.slow[scene.nodes[fault.where].name] = (fault.window(scene, 10.0, _SOON_S), min(fault.amount, 5.0))
    return True


def _late_messages(scene: FaultTarget, fault: Fault) -> bool:
    """What is sent on the present stream may arrive after what is sent on the next one."""
    streams = scene.network.streams_of(scene.nodes[fault.where].name)
    for stream in streams:
        stream.late_s = fault.amount

    def on_time() -> None:  # also where the fault came after the last reset
        for stream in streams:
            stream.late_s = 0.0

    scene.world.after(_LATE_FOR_S, on_time)
    return bool(streams) and scene.took_effect(fault)


def _connection_reset(scene: FaultTarget, fault: Fault) -> bool:
    streams = scene.network.streams_of(scene.nodes[fault.where].name)
    for stream in streams:
        stream.end_at_agent("connection reset")
        stream.end_at_control()
    return bool(streams) and scene.took_effect(fault)


def _half_open(scene: FaultTarget, fault: Fault) -> bool:
    streams = scene.network.streams_of(scene.nodes[fault.where].name)
    for stream in streams:
        if fault.odd:
            stream.end_at_agent("connection reset")
        else:
            stream.end_at_control()
    return bool(streams) and scene.took_effect(fault)


def _database_away(scene: FaultTarget, fault: Fault) -> bool:
    scene.database.away = fault.window(scene, within_s=_SOON_S)
    return True


def _database_slow(scene: FaultTarget, fault: Fault) -> bool:
    scene.database.slow = fault.window(scene, within_s=_SOON_S)
    return True


def _shim_killed(scene: FaultTarget, fault: Fault, *, alone: bool = False) -> bool:
    shims = [shim for node in scene.nodes for shim in node.machine.processes.values() if shim.status is None]
    if not shims:
        return False
    shims[int(fault.amount * 100) % len(shims)].die(-9, alone=alone)
    return scene.took_effect(fault)


def _command_orphaned(scene: FaultTarget, fault: Fault) -> bool:
    """A shim is killed, and what its command has started goes on."""
    return _shim_killed(scene, fault, alone=True)


def _start_fails(scene: FaultTarget, fault: Fault) -> bool:
    scene.nodes[fault.where].machine.cannot_start = fault.window(scene, within_s=_LATER_S)
    return True


def _clock(scene: FaultTarget, fault: Fault) -> MachineClock:
    machines: list[MachineClock] = [
        *(control.clock for control in scene.controls),
        *(node.machine.clock for node in scene.nodes),
    ]
    return machines[int(fault.amount * 100) % len(machines)]


def _clock_jumps(scene: FaultTarget, fault: Fault) -> bool:
    clock = _clock(scene, fault)
    clock.error_s = (fault.amount - 10.0) * 600.0
    return scene.took_effect(fault)


def _clock_drifts(scene: FaultTarget, fault: Fault) -> bool:
    """A clock runs too fast or too slow, by at most 1 in 1,000: twice what NTP corrects."""
    clock = _clock(scene, fault)
    clock.set_drift((fault.amount - 12.5) / 12.5 * 1e-3)
    return scene.took_effect(fault)


def _second_agent(scene: FaultTarget, fault: Fault) -> bool:
    """Another machine claims the name of a node, for a while."""
    double = scene.double(fault.where)
    double.start()
    scene.world.after(fault.amount + _AWAY_S, double.remove)
    return scene.took_effect(fault)


def _deadline_damaged(scene: FaultTarget, fault: Fault) -> bool:
    """The file with the fencing deadline is damaged, and its agent dies."""
    path = scene.nodes[fault.where].root / "fencing-deadline"
    if not path.exists() or not _agent_killed(scene, fault, _AWAY_S * (int(fault.amount * 10) % 2)):
        return False
    if fault.odd:
        path.unlink()
    else:
        path.write_bytes(b"")
    return True


def _disk_full(scene: FaultTarget, fault: Fault) -> bool:
    scene.nodes[fault.where].machine.disk_fault = (fault.window(scene, within_s=_LATER_S), errno.ENOSPC)
    return True


def _disk_error(scene: FaultTarget, fault: Fault) -> bool:
    scene.nodes[fault.where].machine.disk_fault = (fault.window(scene, within_s=_LATER_S), errno.EIO)
    return True


KINDS: dict[str, Callable[[FaultTarget, Fault], bool]] = {
    "agent-killed": _agent_killed,
    "agent-gone": _agent_gone,
    "agent-paused": _agent_paused,
    "machine-paused": _machine_paused,
    "machine-lost": _machine_lost,
    "unsynced-files-lost": _unsynced_lost,
    "torn-write": _torn_write,
    "control-plane-killed": _control_killed,
    "control-plane-paused": _control_paused,
    "control-plane-cut-off": _control_cut_off,
    "partition": _partition,
    "one-way-partition": _one_way_partition,
    "slow-network": _slow_network,
    "late-messages": _late_messages,
    "connection-reset": _connection_reset,
    "half-open-connection": _half_open,
    "database-unreachable": _database_away,
    "database-slow": _database_slow,
    "database-failover": _database_failover,
    "shim-killed": _shim_killed,
    "command-orphaned": _command_orphaned,
    "start-fails": _start_fails,
    "clock-jumps": _clock_jumps,
    "clock-drifts": _clock_drifts,
    "second-agent": _second_agent,
    "deadline-damaged": _deadline_damaged,
    "disk-full": _disk_full,
    "disk-error": _disk_error,
}

_REPEATED = {"shim-killed", "command-orphaned", "start-fails"}  # which often find no job that they could happen to
