"""The control plane of a simulated cluster: the real one, on a simulated journal that a crash cuts off and a failing database
delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairlead.core.cluster import Cluster
from fairlead.core.errors import JournalUnreachable
from fairlead.core.events import Event
from fairlead.core.stages import Stages
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.host import Host
from fairlead.testing.runtime_simulation.simulated_network import Network
from fairlead.testing.runtime_simulation.virtual_world import (
    EPOCH_S,
    FaultWindow,
    MachineClock,
    SimulatedHost,
    SimulatedProgram,
    VirtualWorld,
)

AGENT_TOKEN = "fl_agents"  # with which every agent connects first


class JournalStore:
    """What a database has stored. `away`: it does not answer; `slow`: a commit takes up to two seconds."""

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.lines: list[bytes] = []
        self.away = self.slow = FaultWindow(world)
        self.on_event: Callable[[Event], None] = lambda event: None

    def events(self) -> list[Event]:
        return [decode(line) for line in self.lines]


class SimulatedJournal:
    """A program's connection to the store."""

    def __init__(self, store: JournalStore, host: Host, random: Any) -> None:
        self._store, self._host, self._random = store, host, random
        self.uncommitted: list[Event] = []

    def append(self, event: Event) -> None:
        self.uncommitted.append(event)

    def commit(self) -> None:
        store = self._store
        if self.uncommitted and store.slow.active():
            self._host.sleep(self._random.uniform(0.0, 2.0))
        if self.uncommitted and store.away.active():
            raise JournalUnreachable("the database does not answer")
        for event in self.uncommitted:
            store.lines.append(encode(event))
            store.on_event(event)
        self.uncommitted = []

    def __iter__(self) -> Iterator[Event]:
        return iter(self._store.events())

    def close(self) -> None:
        pass


class SimulatedControlPlane:
    """Control planes one after the other on one journal."""

    def __init__(
        self,
        world: VirtualWorld,
        network: Network,
        cluster: Cluster,
        scheduler: Mapping[str, Any],
        compose: Callable[[Mapping[str, Any]], Stages],
        lease_s: float,
        grace_s: float,
    ) -> None:
        self._world, self._network, self._cluster, self._scheduler = world, network, cluster, scheduler
        self._compose, self._lease_s, self._grace_s = compose, lease_s, grace_s
        self.store = JournalStore(world)
        self.plane: ControlPlane | None = None
        self.program: SimulatedProgram | None = None
        self.starts = 0
        self.clock = MachineClock(world, world.random("control drift").uniform(-2e-4, 2e-4))
        self._tokens = Tokens()  # stored: control planes that follow have the same
        self._tokens.accept(AGENT_TOKEN, Role.AGENT, "agent")
        network.hub = self.listening

    def listening(self) -> tuple[AgentHub, SimulatedProgram] | None:
        if self.plane is None or self.program is None or not self.program.alive:
            return None
        return self.plane.hub, self.program

    def start(self) -> None:
        """Start a control plane, unless one runs."""
        if self.listening() is not None:
            return
        self.starts += 1
        self._world.note("control plane", f"starts ({self.starts})")
        program = self.program = SimulatedProgram(self._world, f"control plane {self.starts}")
        host = SimulatedHost(program, self.clock)
        journal = SimulatedJournal(self.store, host, self._world.random(f"commits {self.starts}"))
        state = replay_events(self.store.events()) if self.store.lines else None
        plane = self.plane = ControlPlane(
            self._cluster,
            self._scheduler,
            self._compose,
            journal,
            state,
            lease_s=self._lease_s,
            grace_s=self._grace_s,
            host=host,
            origin=EPOCH_S,
            tokens=self._tokens,
        )
        plane.hub.post = lambda call: program.call(self._world.now, call)
        plane.on_end = lambda: self._ended(plane)
        plane.expect_nodes()
        plane.run()
        host.spawn("watch", lambda: self._watch(plane, host))

    def crash(self, *, known: bool) -> bool:
        """Kill it; False if none runs. `known`: agents see their streams end."""
        if self.program is None or not self.program.alive:
            return False
        self._world.note("control plane", "is killed")
        self.program.kill()
        self._network.drop_all(known=known)
        return True

    def _ended(self, plane: ControlPlane) -> None:
        """A control plane never fails by itself."""
        if plane.failure is not None:
            self._world.violate(f"the control plane failed: {type(plane.failure).__name__}: {plane.failure}")

    def _watch(self, plane: ControlPlane, host: Host) -> None:
        while True:
            host.sleep(plane.hub.expire())
