"""The control planes of a simulated cluster: one, or an active one and a standby, on one simulated database. The control plane
is the real one; how it waits for the journal is written again here, since the real code for that uses threads and signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.core.cluster import Cluster
from fairlead.core.errors import JournalError, JournalInUse, JournalUnreachable
from fairlead.core.stages import Stages
from fairlead.journal.recovery import is_new, recover
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.journal_term import JournalTerm
from fairlead.runtime.control.tokens import Tokens
from fairlead.runtime.host import Host
from fairlead.testing.runtime_simulation.simulated_database import (
    DatabaseServer,
    SimulatedDatabase,
    SimulatedJournal,
    SimulatedTerms,
)
from fairlead.testing.runtime_simulation.simulated_network import Network
from fairlead.testing.runtime_simulation.virtual_world import EPOCH_S, MachineClock, SimulatedHost, SimulatedProgram

AGENT_TOKEN = "fl_agents"  # with which every agent connects first
_CLOCK_SLACK_S = 0.1
_RESTARTED_AFTER_S = 2.0  # by an init system


@dataclass(frozen=True)
class ControlPlaneSettings:
    """What the control planes of a cluster have in common."""

    cluster: Cluster
    scheduler: Mapping[str, Any]
    compose: Callable[[Mapping[str, Any]], Stages]
    tokens: Tokens  # in the database
    lease_s: float
    grace_s: float
    journal_timeout_s: float


class SimulatedControlPlane:
    """A machine with a control plane, which waits for the journal, and is started again after it ends."""

    def __init__(self, name: str, server: DatabaseServer, network: Network, settings: ControlPlaneSettings) -> None:
        self.name, self._server, self._network, self._settings = name, server, network, settings
        self._world = server.world
        self.plane: ControlPlane | None = None
        self.journal: SimulatedJournal | None = None
        self.program: SimulatedProgram | None = None
        self._terms: SimulatedTerms | None = None
        self.clock = MachineClock(self._world, self._world.random(f"drift {name}").uniform(-2e-4, 2e-4))
        self._starts = 0

    @property
    def runs(self) -> bool:
        return self.program is not None and self.program.alive

    @property
    def has_journal(self) -> bool:
        """Whether it is the active one, by the lock of the database."""
        holder = self._server.holder()
        return self.plane is not None and self.runs and holder is not None and holder.program is self.program

    @property
    def leads(self) -> bool:
        """Whether it is the active one. An idle one may have lost its session, and takes the lock again with its next write."""
        return self.has_journal or (self.plane is not None and self.runs and self._server.holder() is None)

    def listening(self) -> tuple[AgentHub, SimulatedProgram] | None:
        """Its hub, once it is the active one; also when it does not know that another one is."""
        if self.plane is None or self.program is None or not self.program.alive:
            return None
        return self.plane.hub, self.program

    def start(self) -> None:
        """Start a control plane, unless one runs."""
        if self.runs:
            return
        self._starts += 1
        self._world.note(self.name, f"starts ({self._starts})")
        program = self.program = SimulatedProgram(self._world, f"{self.name} ({self._starts})")
        self.plane = self.journal = None
        self._world.start(program, lambda: self._serve(program, SimulatedHost(program, self.clock)))

    def crash(self, *, known: bool) -> bool:
        """Kill it; False if none runs. `known`: agents see their streams end."""
        if self.program is None or not self.program.alive:
            return False
        self._world.note(self.name, "is killed")
        self.program.kill()
        self._network.drop_all(self.program, known=known)
        return True

    def check_renewal(self, program: SimulatedProgram) -> None:
        """A lease is renewed only by a control plane that has lately confirmed that the journal is its own."""
        if program is self.program and self._terms is not None:
            ago_s = self._world.now - self._terms.confirmed_s
            if ago_s > self._settings.journal_timeout_s + _CLOCK_SLACK_S:
                self._world.violate(f"{program.name} renews a lease {ago_s:.1f} s after it confirmed the journal")

    def _serve(self, program: SimulatedProgram, host: Host) -> None:
        settings = self._settings
        terms = self._terms = SimulatedTerms(self._server, self.name, host)
        lease_s, grace_s = settings.lease_s, settings.grace_s
        while True:
            try:
                journal = SimulatedJournal(SimulatedDatabase(self._server, self.name, program, host))
                term = JournalTerm(terms, settings.journal_timeout_s, host)
                former = terms.begin(settings.journal_timeout_s, lease_s, grace_s)
                break
            except JournalUnreachable:
                host.sleep(1.0)
            except JournalInUse:
                try:
                    terms.end_stuck_writer()
                except JournalUnreachable:
                    host.sleep(1.0)
        try:
            state = None if is_new(journal.stored) else recover(journal.stored)[0]
        except JournalUnreachable as why:
            self._start_again(program, why)
            return
        plane = ControlPlane(
            settings.cluster,
            settings.scheduler,
            settings.compose,
            journal,
            state,
            lease_s=lease_s,
            grace_s=grace_s,
            host=host,
            origin=EPOCH_S,
            tokens=settings.tokens,
            term=term,
            former=former,
        )
        self._world.note(self.name, "is active")
        plane.hub.post = lambda call: program.call(self._world.now, call)
        plane.on_end = lambda: self._end(plane, program)
        plane.expect_nodes()
        self.plane, self.journal = plane, journal
        plane.run()
        host.spawn("watch", lambda: self._watch(plane, host))

    def _end(self, plane: ControlPlane, program: SimulatedProgram) -> None:
        """A control plane that is active ends by itself only when another has the journal. It is started again, and waits."""
        why = plane.failure
        if not isinstance(why, JournalError) or isinstance(why, JournalUnreachable):
            self._world.violate(f"{program.name} failed: {type(why).__name__}: {why}")
        self._start_again(program, why)

    def _start_again(self, program: SimulatedProgram, why: BaseException | None) -> None:
        """As a service manager does."""
        self._world.note(self.name, f"ends: {why}")
        program.kill()
        self._network.drop_all(program, known=True)
        self._world.after(_RESTARTED_AFTER_S, self.start)

    def _watch(self, plane: ControlPlane, host: Host) -> None:
        while True:
            host.sleep(plane.hub.expire())
