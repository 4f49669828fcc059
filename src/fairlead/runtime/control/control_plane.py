"""One control plane: the loop in a thread, with its journal, its backend, the agents' streams and the snapshotter. It composes
these parts, and starts and stops them. The HTTP API and the command line are built on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from fairlead.core import events as ev
from fairlead.core.cluster import NO_DRAIN, Cluster
from fairlead.core.errors import FairleadError, JournalError, JournalInUse
from fairlead.core.stages import Stages
from fairlead.engine.fairness_ledger import FairnessLedger
from fairlead.engine.journal import Journal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.journal.control_files import ControlFiles
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.agent_server import AgentServer
from fairlead.runtime.control.async_decider import AsyncDecider, DecisionHealth, with_timeout
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.code_store import WEEK_S, Cleaner, CodeStore
from fairlead.runtime.control.engine_hub import EngineHub
from fairlead.runtime.control.engines import Engines
from fairlead.runtime.control.event_log import EventLog, RecentDecisions
from fairlead.runtime.control.journal_term import FormerControlPlane, JournalTerm
from fairlead.runtime.control.kept_logs import KeptLogs
from fairlead.runtime.control.prometheus import ControlPlaneMetrics
from fairlead.runtime.control.snapshotter import ObservedJournal, Retention, Snapshotter, check_serializable
from fairlead.runtime.control.tokens import Tokens
from fairlead.runtime.control.wall_clock import AliveMark, WallClock
from fairlead.runtime.drivers.base import EngineDriver
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.messages import HostUsage
from fairlead.runtime.protocol.network import reachable_address
from fairlead.runtime.protocol.task_file import task_of

log = logging.getLogger(__name__)

END_WITHIN_S = 5.0  # for the database to record an orderly end


@dataclass(eq=False)
class ControlPlane:
    """A control plane on a journal and the state recovered from it (None: the journal is new). A new journal begins with
    `first_cluster`. `compose` creates the stages of a scheduler from its description."""

    first_cluster: Cluster
    scheduler: Mapping[str, Any]
    compose: Callable[[Mapping[str, Any]], Stages]
    journal: Journal
    state: State | None = None
    lease_s: float = 15.0
    grace_s: float = 35.0
    checkpoints: str = ""  # a folder that all nodes see
    code: CodeStore | None = None  # None: users cannot send code
    files: ControlFiles | None = None  # None: ends of logs of nodes that leave are not stored
    tokens: Tokens | None = None  # None: any agent may connect
    keep_ended_s: float = WEEK_S  # checkpoints of ended jobs
    host: Host = field(default_factory=Host)
    origin: float = 0.0  # Unix time of second 0; 0: now
    alive: AliveMark = field(default_factory=AliveMark)
    term: JournalTerm | None = None  # None: no other control plane can take over the journal
    former: FormerControlPlane = field(default_factory=FormerControlPlane)
    retention: Retention = field(default_factory=Retention)
    metrics: ControlPlaneMetrics = field(default_factory=ControlPlaneMetrics)
    first_number: int = 0  # of new jobs, at least
    drivers: Sequence[EngineDriver] = ()  # of engines that start agents, besides agents that join by themselves
    advertise: str = ""  # the address at which agents of engines reach this control plane; empty: where it listens
    agent_options: tuple[str, ...] = ()  # of these agents

    def __post_init__(self) -> None:
        recovered = self.state is not None
        host = self.host
        self.origin = self.origin or host.time()
        state = self.state or State(self.first_cluster)
        self.name = state.journal if recovered else host.token(8)  # of the journal
        self.hub = AgentHub(lambda: self.backend.cluster, self.lease_s, self.grace_s, self.tokens, host, self.code, self.name)
        if self.term is not None:
            self.hub.may_renew = self.term.may_renew
            self.term.on_lost, self.term.marked = self._lose_journal, lambda: self.alive.mark(self.hub.silent_nodes())
        self.agents = AgentServer(self.hub)
        state.origin = state.origin or self.origin  # snapshots of journals that began without it keep it
        clock = WallClock(self.origin, state.time, host.time, host.monotonic)
        self.backend = ClusterBackend(
            state.cluster, self.hub, clock, task_of, max(state.next_number, self.first_number), self._checkpoints(), host=host
        )
        self.backend.last_alive_s = min(max(state.time, self.alive.last_s(self.origin)), clock.now())
        self.backend.scheduler = state.scheduler or self.scheduler
        self.hub.backend = self.backend
        token_of = self.tokens.launch_token if self.tokens is not None else lambda launch: ""
        self.hub.engines = Engines(
            [EngineHub(driver, self.hub, lambda key: token_of(key.text), self.agent_options) for driver in self.drivers]
        )
        self.hub.drained_by = lambda node: self.loop.state.drains.get(node, NO_DRAIN).by
        self.decision_health = DecisionHealth(self.metrics.skipped)
        stages = self._composed(state.scheduler if recovered else self.scheduler)
        event_log = EventLog(lambda: self.loop.state, lambda: self.loop.stages.round_s)
        self.observers = [self.metrics.observe_commit, event_log.observe]  # of commits; changed under the backend's lock
        observed = self._observed = ObservedJournal(
            self.journal,
            self.observers,
            lambda: self.stopping,
            host,
            quiet=self.term is not None,
        )
        self.loop = Loop(state, self.backend, stages, journal=observed, compose=self._composed, allow_stalls=True)
        self.loop.stopwatch = host.monotonic
        self.backend.changes.state = lambda: self.loop.state
        self.decisions = RecentDecisions()
        self.loop.on_decision = self.decisions.add
        if self.files is not None:
            self.hub.transfers.logs = KeptLogs(self.files, self.name, self._starts_of)
        self.cleaner = Cleaner(self.loop, self.backend, self.code, self.keep_ended_s, self.hub.transfers.logs)
        self.loop.decision_runner = AsyncDecider(
            self.backend.wake, (self.metrics.observe_decision, event_log.observe_decision), self.decision_health, host
        )
        connected, unreachable_s = lambda: len(self.hub.connected), lambda: observed.unreachable_s
        silent = self.hub.silent_nodes
        self.metrics.attach(self.loop, connected, self.backend.lock, unreachable_s, self.fairness_ledger, silent, self.hosts)
        self.snapshotter: Snapshotter | None = None
        if isinstance(self.journal, DatabaseJournal):
            lock, rules = self.backend.lock, self.retention
            self.snapshotter = Snapshotter(self.journal, lambda: self.loop.state, lambda: self.backend.now, lock, rules, host)
        self._recovered = recovered
        self.progress_until_s = self.backend.last_alive_s if recovered else math.inf  # jobs ran as reported until then
        self.failure: BaseException | None = None
        self.stopping = False  # waits that may never end are given up
        self.on_end: Callable[[], object] = lambda: None  # called in the loop's thread at its end
        self._ended: asyncio.Event | None = None

    async def start(self, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> int:
        """Start; return the port that agents connect to, encrypted if there are credentials."""
        loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        ended = self._ended.set
        self.on_end = lambda: loop.call_soon_threadsafe(ended)
        self.expect_nodes()
        self._server, port = await self.agents.serve(address, credentials)
        for engine in self.hub.engines.all:
            engine.control = self.advertise or reachable_address(address, port)
        watches = [self.agents.watch(), self.cleaner.watch()]
        if self.term is None:
            watches.append(self.alive.keep(self.hub.silent_nodes))
        self._watching = [asyncio.create_task(each) for each in watches]
        self.run()
        return port

    def expect_nodes(self) -> None:
        """After a restart, wait for the agents of all nodes that were up."""
        if self._recovered:
            silent_s = self.alive.silent_s()
            for node in sorted(set(self.cluster.node_of[self.loop.state.present].tolist())):
                known_s = silent_s.get(self.cluster.nodes[node].name, 0.0)
                self.hub.expect(node, self.former.silence_s(known_s, self.lease_s, self.grace_s))

    def run(self) -> None:
        """Start the threads; agents can connect."""
        self.host.spawn("loop", self._run)
        if self.term is not None:
            self.term.start()
            if self.term.lost:  # before it was started here
                self._lose_journal()
        if self.snapshotter is not None:
            self.snapshotter.start()
        for engine in self.hub.engines.all:
            self.host.spawn(engine.driver.name, engine.thread.run)

    async def ended(self) -> None:
        """Wait for the end of the loop; raise the failure that ended it, if any."""
        await self.wait_ended()
        if self.failure is not None:
            raise self.failure

    async def wait_ended(self) -> None:
        assert self._ended is not None, "start it first"
        await self._ended.wait()

    async def stop(self) -> None:
        """End the loop; jobs keep running under their agents' leases."""
        self.stopping = True
        self.backend.stop()
        await self.wait_ended()
        if self.snapshotter is not None:
            await asyncio.to_thread(self.snapshotter.stop)
        for watching in self._watching:
            watching.cancel()
        for engine in self.hub.engines.all:
            engine.thread.close()
        self.hub.close()
        await self._server.stop(0.2)
        if self.term is not None:
            await self._end_term(self.term)
        self.journal.close()

    async def _end_term(self, term: JournalTerm) -> None:
        """Say that this control plane renews nothing any more; a database that does not answer is not waited for."""
        loop, said = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            with contextlib.suppress(JournalError):
                term.end()
            with contextlib.suppress(RuntimeError):  # it was not waited for
                loop.call_soon_threadsafe(said.set)

        self.host.spawn("end-term", end)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(said.wait(), END_WITHIN_S)

    def _lose_journal(self) -> None:
        """Another control plane has taken over: end, without waiting for the journal."""
        self.failure = JournalInUse(f"another control plane has taken over the journal {getattr(self.journal, 'where', '')}")
        self.stopping = True
        self.backend.stop()

    @property
    def cluster(self) -> Cluster:
        """The present cluster."""
        return self.loop.state.cluster

    @property
    def healthy(self) -> bool:
        """Whether the loop runs and decides, and its journal can be written."""
        return not (self.stopping or self.decision_health.message or self._observed.unreachable_s)

    def hosts(self) -> dict[str, HostUsage]:
        """Return what is used of the CPUs, memory and disks of nodes whose agents are connected and say so."""
        connected, beats = self.hub.connected, list(self.hub.heartbeats.items())
        names = ((self.cluster.nodes[node].name, beat.host) for node, beat in beats if node in connected)
        return {name: host for name, host in names if host is not None}

    def fairness_ledger(self) -> FairnessLedger:
        """Return the ledger up to now, in which a job that runs has received its GPU time so far. Hold the lock."""
        state = self.loop.state
        ledger = state.ledger or FairnessLedger.beginning_with(state)
        return ledger.up_to(state, min(self.backend.now, self.progress_until_s))

    @property
    def scheduler_in_use(self) -> Mapping[str, Any]:
        return self.loop.state.scheduler or self.scheduler

    def switch(
        self, scheduler: Mapping[str, Any], why: str, answer: Callable[[Sequence[ev.Event]], None] = lambda events: None
    ) -> None:
        """Switch the scheduler from the next round on; raise an error and keep the old one if it is invalid."""
        self.check(scheduler)
        self.backend.switch(scheduler, why, answer)

    def check(self, scheduler: Mapping[str, Any]) -> Stages:
        """Return the stages of a scheduler; raise an error if it is invalid or shares GPUs that an engine cannot share."""
        check_serializable(scheduler)
        stages = self.compose(scheduler)
        alone = [driver.name for driver in self.drivers if not driver.capabilities.can_share]
        if alone and shares_accelerators(getattr(stages.policy, "allocator", stages.policy)):
            policy = scheduler.get("policy")
            name = policy.get("name") if isinstance(policy, Mapping) else policy
            raise FairleadError(
                f"{name} lets jobs share GPUs, and {' and '.join(alone)} cannot: choose another policy, or serve without "
                f"--engine and run agents on the machines"
            )
        return stages

    def _composed(self, scheduler: Mapping[str, Any]) -> Stages:
        stages = self.check(scheduler)
        policy = getattr(stages.policy, "allocator", stages.policy)
        self.preempts = not stages.run_to_completion and bool(getattr(policy, "preempt", True))
        return with_timeout(stages, self.decision_health, self.host)

    def _checkpoints(self) -> str:
        """A folder for this journal: its job numbers mean nothing to another journal."""
        return f"{self.checkpoints}/{self.name}" if self.checkpoints and self.name else self.checkpoints

    def _starts_of(self, number: int) -> int:
        """How often a job was launched; 0 if there is no such job."""
        with self.backend.at_rest():
            state = self.loop.state
            return int(state.columns["starts"][number]) if number < state.next_number else 0

    def _record(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            self.loop.record(event)
        self.loop.journal.commit()

    def _run(self) -> None:
        """The loop's thread. It releases the lock only while it waits, so that other threads see a consistent state."""
        loop = self.loop
        try:
            with self.backend.lock:
                if self._recovered:
                    now = max(loop.state.time, self.backend.now)
                    self._record([ev.ControlPlaneRestarted(now, min(self.backend.last_alive_s, now))])
                    view = loop.state.snapshot(now)
                    self._record(self.backend.reconcile(view, self._record))
                    self.progress_until_s = math.inf
                else:
                    loop.record(
                        ev.JournalOpened(0.0, self.cluster, dict(self.scheduler), journal=self.name, origin=self.origin)
                    )
                    for node in range(len(self.cluster.nodes)):
                        loop.record(ev.NodeLost(0.0, node))
                    loop.journal.commit()
                loop.run(stop=lambda state: self.backend.stopped)
        except FairleadError as problem:  # such as a journal that cannot be written: `ended` raises it
            self.failure = self.failure or problem
        except BaseException as problem:
            self.failure = self.failure or problem
            log.exception("the scheduling loop failed")
        finally:
            self.stopping = True  # open requests must not wait for the loop
            self.on_end()


def shares_accelerators(policy: object) -> bool:
    """Return whether a policy lets jobs share GPUs: it has `space_sharing`, or says so by `colocates`."""
    colocates = type(policy).__module__.startswith(("fairlead.policies.colocation", "fairlead.policies.serving"))
    return bool(getattr(policy, "space_sharing", False) or getattr(policy, "colocates", colocates))
