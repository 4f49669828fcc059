"""A control plane whose HTTP side is a real server on loopback, for tests that speak to it as strangers do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.console.web_console import Console
from fairlead.core.events import ObservationsRecorded
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.experiments.lookahead_process import WarmLookahead, forecast_in_process
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.http_server import ConnectionLimits, HttpServer
from fairlead.runtime.control.lookahead_service import Ask, Lookahead, SimulationProcesses
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.runtime.protocol.network import bind_sockets
from fairlead.testing.builders import cluster

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Served:
    url: str
    token: str
    user: str  # the token of somebody who sees their own jobs alone
    agent: str  # the token of agents
    agents: str  # where they connect
    plane: ControlPlane
    journal: MemoryJournal
    tokens: Tokens
    console: Console | None = None


@contextmanager
def served(
    machines: str = "v100:4",
    state: State | None = None,
    lookahead: Lookahead = forecast_in_process,
    ask: Ask | None = None,
    limits: ConnectionLimits | None = None,
    console: bool = False,
) -> Iterator[Served]:
    """In two threads with event loops of their own, as `fairlead serve` has them; with a state, one that is started again."""
    up, over = threading.Event(), threading.Event()
    found: list[Any] = []

    async def run() -> None:
        journal, tokens = MemoryJournal(), Tokens()
        admin, user = tokens.issue(Role.ADMIN, "root"), tokens.issue(Role.USER, "ann")
        agent = tokens.issue(Role.AGENT, "agent")
        plane = ControlPlane(
            cluster(machines),
            {"policy": "las", "estimator": "measured", "rounds": 0.2},
            lambda data: SchedulerConfig.from_data(dict(data)).build(None, Registry.installed()),
            journal,
            state,
            tokens=tokens,
        )
        agents = await plane.start()
        pages = Console(plane, tokens) if console else None
        warm = [WarmLookahead(60.0) for _ in range(2)]
        asks = [ask or one.ask for one in warm]
        simulations = SimulationProcesses(lookahead, *asks)
        told = create_app(plane, tokens, lookahead=simulations, agents_loop=asyncio.get_running_loop(), console=pages)
        limited = limits or ConnectionLimits(request_s=PATIENCE_S)  # a machine may stall between a connection and its request
        server, listeners = HttpServer(told, limits=limited), bind_sockets("--http", "127.0.0.1:0")
        serving = asyncio.create_task(asyncio.to_thread(server.run, listeners))
        while not server.started:
            await asyncio.sleep(0.01)
        port = listeners[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        found.append(Served(url, admin, user, agent, f"127.0.0.1:{agents}", plane, journal, tokens, pages))
        up.set()
        await asyncio.to_thread(over.wait)
        server.stop()
        await serving
        await plane.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert up.wait(PATIENCE_S), "the control plane did not start"
    try:
        yield found[0]
    finally:
        over.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the control plane did not stop"
    assert found[0].plane.failure is None


FIFO = {"policy": "fifo", "estimator": "measured", "rounds": 0.2}


def until(found: Callable[[], Any], what: str = "it did not happen") -> Any:
    patience = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < patience, what
        time.sleep(0.05)
    return value


def filled(up: Served) -> None:
    """Four GPUs, held by an admin's gang for an hour; behind it another of theirs, and a user's job."""
    plane, user = ControlPlaneClient(up.url, up.token), ControlPlaneClient(up.url, up.user)
    up.plane.backend.agent_joined(0, ())
    plane.switch(FIFO)
    rates = {f"measured {workers} × time on v100": 1.0 for workers in (1, 4)}
    up.plane.backend.inbox.put(lambda now: [ObservationsRecorded(now, rates)])
    until(lambda: plane.rates()["rates"])
    plane.submit([{"name": "secret", "run": "sleep 99", "workers": 4, "kind": "time", "steps": 3600}])
    until(lambda: plane.job("secret")["phase"] == "running")
    plane.submit([{"name": "next", "run": "sleep 9", "workers": 4, "kind": "time", "steps": 3600}])
    user.submit([{"name": "mine", "run": "sleep 1", "kind": "time", "steps": 60}])
