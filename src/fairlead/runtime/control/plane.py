"""One control plane: a journal, the loop in a thread of its own, agents' streams and people's requests in an event loop. It
puts together; what each part does is said where it stands."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.stages import Stages
from fairlead.engine.journal import Journal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.runtime.control.clock import WallClock
from fairlead.runtime.control.hub import Hub
from fairlead.runtime.control.live import Live
from fairlead.runtime.tasks import task_of

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Plane:
    """Give it a journal and the state that the journal holds (None: it is new). `compose` makes the stages of a scheduler from
    its description."""

    cluster: Cluster
    scheduler: Mapping[str, Any]
    compose: Callable[[Mapping[str, Any]], Stages]
    journal: Journal
    state: State | None = None
    term_s: float = 15.0
    grace_s: float = 35.0
    checkpoints: str = ""  # where jobs save, seen by all nodes
    may_join: Callable[[str], bool] = lambda token: True
    origin: float = field(default_factory=time.time)  # Unix time of second 0

    def __post_init__(self) -> None:
        recovered = self.state is not None
        state = self.state or State(self.cluster)
        self.hub = Hub(self.cluster, self.term_s, self.grace_s, self.may_join)
        clock = WallClock(self.origin, state.time)
        self.live = Live(self.cluster, self.hub, clock, task_of, state.next_number, self.checkpoints)
        self.hub.live = self.live
        stages = self.compose(state.scheduler if recovered else self.scheduler)
        self.loop = Loop(state, self.live, stages, journal=self.journal, compose=self.compose, patient=True)
        self.loop.stopwatch = time.perf_counter
        self._recovered = recovered
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._ended: asyncio.Event | None = None
        self._events: asyncio.AbstractEventLoop | None = None

    async def start(self, address: str = "127.0.0.1:0") -> int:
        """Begin; returns the port that agents connect to."""
        self._events, self._ended = asyncio.get_running_loop(), asyncio.Event()
        if self._recovered:
            for node in sorted(set(self.cluster.node_of[self.loop.state.up].tolist())):
                self.hub.expect(node)
        self._server, port = await self.hub.serve(address)
        self._watching = asyncio.create_task(self.hub.watch())
        self._thread.start()
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
        self.live.stop()
        await asyncio.to_thread(self._thread.join)
        self._watching.cancel()
        await self._server.stop(0.2)
        self.journal.close()

    def _run(self) -> None:
        """The loop's thread. It holds the lock but while it waits, so that whoever else has it sees a state at rest."""
        loop = self.loop
        try:
            with self.live.lock:
                if self._recovered:
                    for event in self.live.reconcile(loop.state.snapshot(max(loop.state.time, self.live.now))):
                        loop.record(event)
                else:
                    loop.record(ev.Opened(0.0, self.cluster, dict(self.scheduler)))
                    for node in range(len(self.cluster.nodes)):
                        loop.record(ev.NodeLost(0.0, node))
                self.journal.commit()
                loop.run(stop=lambda state: self.live.stopped)
        except FairleadError as problem:  # such as a journal that cannot be written: whoever started it tells
            self.failure = problem
        except BaseException as problem:
            self.failure = problem
            log.exception("the loop has failed")
        finally:
            if self._events is not None and self._ended is not None:
                self._events.call_soon_threadsafe(self._ended.set)
