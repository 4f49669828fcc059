"""One control plane: a journal, the loop in a thread of its own, agents' streams and people's requests in an event loop. It
puts together; what each part does is said where it stands."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.stages import Stages
from fairlead.engine.journal import Journal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.async_decider import AsyncDecider, DecisionHealth
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.code_store import WEEK_S, Cleaner, CodeStore
from fairlead.runtime.control.event_log import EventLog, ObservedJournal, RecentDecisions
from fairlead.runtime.control.policy_timeout import with_timeout
from fairlead.runtime.control.prometheus import ControlPlaneMetrics
from fairlead.runtime.control.snapshotter import Retention, RetryingJournal, Snapshotter, check_serializable
from fairlead.runtime.control.wall_clock import WallClock
from fairlead.runtime.protocol.task_file import task_of

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ControlPlane:
    """Give it a journal and the state that the journal holds (None: it is new). `compose` makes the stages of a scheduler from
    its description."""

    cluster: Cluster
    scheduler: Mapping[str, Any]
    compose: Callable[[Mapping[str, Any]], Stages]
    journal: Journal
    state: State | None = None
    lease_s: float = 15.0
    grace_s: float = 35.0
    checkpoints: str = ""  # where jobs save, seen by all nodes
    code: CodeStore | None = None  # what people sent along with jobs; None: they cannot
    may_join: Callable[[str], bool] = lambda token: True
    keep_ended_s: float = WEEK_S  # checkpoints of jobs that have ended
    origin: float = field(default_factory=time.time)  # Unix time of second 0
    retention: Retention = field(default_factory=Retention)
    metrics: ControlPlaneMetrics = field(default_factory=ControlPlaneMetrics)

    def __post_init__(self) -> None:
        recovered = self.state is not None
        state = self.state or State(self.cluster)
        self.name = state.journal if recovered else secrets.token_hex(8)  # of the journal
        self.hub = AgentHub(self.cluster, self.lease_s, self.grace_s, self.may_join, code=self.code, journal=self.name)
        clock = WallClock(self.origin, state.time)
        self.backend = ClusterBackend(self.cluster, self.hub, clock, task_of, state.next_number, self._checkpoints())
        self.backend.scheduler = state.scheduler or self.scheduler
        self.hub.backend = self.backend
        self.decision_health = DecisionHealth(self.metrics.stood)
        stages = self._composed(state.scheduler if recovered else self.scheduler)
        chronicle = EventLog(lambda: self.loop.state, lambda: self.loop.stages.round_s)
        patient = RetryingJournal(self.journal, lambda: self.stopping)
        watched = ObservedJournal(patient, (self.metrics.watch, chronicle.watch))
        self.loop = Loop(state, self.backend, stages, journal=watched, compose=self._composed, allow_stalls=True)
        self.loop.stopwatch = time.perf_counter
        self.decisions = RecentDecisions(self.cluster)
        self.loop.on_decision = self.decisions.note
        self.cleaner = Cleaner(self.loop, self.backend, self.code, self.keep_ended_s)
        self.loop.async_decider = AsyncDecider(
            self.backend.wake, (self.metrics.decided, chronicle.decided), self.decision_health
        )
        self.metrics.stand_under(self.loop, lambda: len(self.hub.connected), self.backend.lock, lambda: patient.away_s)
        self.keeper: Snapshotter | None = None
        if isinstance(self.journal, DatabaseJournal):
            lock, rules = self.backend.lock, self.retention
            self.keeper = Snapshotter(self.journal, lambda: self.loop.state, lambda: self.backend.now, lock, rules)
        self._recovered = recovered
        self.heard_s = state.time if recovered else math.inf  # until agents have told what became of their jobs
        self.failure: BaseException | None = None
        self.stopping = False  # it is to stop: nothing is waited for any more that may never come
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._ended: asyncio.Event | None = None
        self._events: asyncio.AbstractEventLoop | None = None

    async def start(self, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> int:
        """Begin; returns the port that agents connect to, encrypted where there are credentials."""
        self._events, self._ended = asyncio.get_running_loop(), asyncio.Event()
        if self._recovered:
            for node in sorted(set(self.cluster.node_of[self.loop.state.present].tolist())):
                self.hub.expect(node)
        self._server, port = await self.hub.serve(address, credentials)
        self._watching = [asyncio.create_task(self.hub.watch()), asyncio.create_task(self.cleaner.watch())]
        self._thread.start()
        if self.keeper is not None:
            self.keeper.start()
        return port

    async def ended(self) -> None:
        """Returns when the loop has ended; raises what ended it, where that was a failure."""
        await self.over()
        if self.failure is not None:
            raise self.failure

    async def over(self) -> None:
        """Returns when the loop has ended, for whatever reason."""
        assert self._ended is not None, "start it first"
        await self._ended.wait()

    async def stop(self) -> None:
        """The loop ends at once, what is in the journal stays, and jobs go on under their agents' leases."""
        self.stopping = True
        self.backend.stop()
        await asyncio.to_thread(self._thread.join)
        if self.keeper is not None:
            await asyncio.to_thread(self.keeper.stop)
        for watching in self._watching:
            watching.cancel()
        self.hub.close()
        await self._server.stop(0.2)
        self.journal.close()

    @property
    def scheduler_in_use(self) -> Mapping[str, Any]:
        """The scheduler that decides."""
        return self.loop.state.scheduler or self.scheduler

    def switch(
        self,
        scheduler: Mapping[str, Any],
        why: str,
        answered: Callable[[Sequence[ev.Event]], None] = lambda events: None,
    ) -> None:
        """Another scheduler from the next round on; raises what is wrong with it, and then the old one stays."""
        self.check(scheduler)
        self.backend.switch(scheduler, why, answered)

    def check(self, scheduler: Mapping[str, Any]) -> None:
        """Raises what is wrong with a scheduler, before anybody switches to it."""
        check_serializable(scheduler)
        self.compose(scheduler)

    def _composed(self, scheduler: Mapping[str, Any]) -> Stages:
        return with_timeout(self.compose(scheduler), self.decision_health)

    def _checkpoints(self) -> str:
        """A journal's own: another one in the same place must not find what this one's jobs saved."""
        return f"{self.checkpoints}/{self.name}" if self.checkpoints and self.name else self.checkpoints

    def _keep(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            self.loop.record(event)
        self.loop.journal.commit()

    def _run(self) -> None:
        """The loop's thread. It holds the lock but while it waits, so that whoever else has it sees a state at rest."""
        loop = self.loop
        try:
            with self.backend.lock:
                if self._recovered:
                    view = loop.state.snapshot(max(loop.state.time, self.backend.now))
                    self._keep(self.backend.reconcile(view, self._keep))
                    self.heard_s = math.inf
                else:
                    loop.record(ev.JournalOpened(0.0, self.cluster, dict(self.scheduler), journal=self.name))
                    for node in range(len(self.cluster.nodes)):
                        loop.record(ev.NodeLost(0.0, node))
                    loop.journal.commit()
                loop.run(stop=lambda state: self.backend.stopped)
        except FairleadError as problem:  # such as a journal that cannot be written: whoever started it tells
            self.failure = problem
        except BaseException as problem:
            self.failure = problem
            log.exception("the loop has failed")
        finally:
            self.stopping = True  # whoever serves people waits for those who ask
            if self._events is not None and self._ended is not None:
                self._events.call_soon_threadsafe(self._ended.set)
