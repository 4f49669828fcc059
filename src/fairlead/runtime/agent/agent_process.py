"""The process of an agent: which signals end it, and what happens to its jobs then."""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from fairlead.core.errors import FairleadError
from fairlead.runtime.agent.agent_errors import AgentRefused, DirectoryInUse
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.agent_stream import AgentStream
from fairlead.runtime.agent.departure import RECONNECT_WITHIN_S, Departure
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od
from fairlead.runtime.protocol.orders import Ended

_PRINT_BYTES = 1 << 16  # at once, of each worker
LEASHED_RETRY_S = 120.0  # for how long an agent of `up` connects again after it was refused


def end_with_stdin(end: Callable[[], object]) -> None:
    """Call `end` when standard input is closed. The parent process holds it, so that a killed parent takes this one along."""

    def follow() -> None:
        while os.read(0, 1 << 10):
            pass
        end()

    threading.Thread(target=follow, daemon=True).start()


def run_agent(
    supervise: Callable[[], Supervisor],
    connect: Callable[[Supervisor, Departure], Agent],
    *,
    leashed: bool,
    end_jobs: bool,
    report: Callable[[str], None],
    until: float = math.inf,
    grace_s: float | None = None,
) -> bool:
    """Run the agent that `connect` creates until SIGTERM or SIGINT ends it. A `leashed` agent ends with standard input, and
    waits for an earlier agent that is still ending, or whose lease is not over, as after a restored backup. With `end_jobs` it
    leaves at a signal, also at SIGUSR1: jobs save and end first; `report` receives a sentence for each. It also leaves before
    the Unix time `until`. Jobs have `grace_s` to save, or what their tasks say. Returns whether the control plane knows that it
    has left: then nothing needs its folder any more."""
    stopping, leaving = threading.Event(), threading.Event()
    end = leaving if end_jobs else stopping
    ending = (
        signal.SIGTERM,
        signal.SIGINT,
        *((signal.SIGUSR1,) if end_jobs else ()),
    )  # as from sbatch --signal=USR1@N
    for number in ending:
        signal.signal(number, lambda *_: end.set())
    for number in (signal.SIGUSR2, *(() if end_jobs else (signal.SIGUSR1,))):
        signal.signal(number, signal.SIG_IGN)
    if leashed:
        end_with_stdin(end.set)
    while True:
        try:
            supervisor = supervise()
            break
        except DirectoryInUse:
            if not leashed:
                raise
            if end.wait(0.2):
                return False
    again_until = time.monotonic() + LEASHED_RETRY_S
    away_s = 0.0 if leashed else RECONNECT_WITHIN_S  # with `up`, the control plane ends before its agents
    departure = Departure(supervisor, until, grace_s, away_s, lambda name, ended: report(f"{name} {_how_it_ended(ended)}"))
    try:
        while True:
            try:
                agent = connect(supervisor, departure)
                agent.stopping, agent.leaving = stopping, leaving
                agent.run()
                break
            except AgentRefused:
                if leaving.is_set() or departure.has_begun:
                    break  # what it could not report is reported by the next agent
                if not leashed or time.monotonic() > again_until:
                    raise
                if end.wait(5.0):
                    break
        if end_jobs or departure.has_begun:
            _end_jobs(supervisor, departure)
            supervisor.mps.close()
    finally:
        supervisor.close()
        for number in ending:  # Python's own end would make a late one fatal, and the pilot's job failed in Slurm
            signal.signal(number, signal.SIG_IGN)
    return departure.is_acknowledged


@dataclass(eq=False)
class LaunchAgent(Agent):
    """An agent for one launch, which an engine such as Slurm or Kubernetes has started. It gets its launch from the control
    plane, prints the output of the workers, and ends when the end of the launch is acknowledged. `failed`: how that ended."""

    launch: tuple[int, int] = (0, 0)
    failed: bool = field(default=False, init=False)

    is_last_reader = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._printed: dict[int, int] = {}  # bytes, by rank
        self._ranks: tuple[int, ...] = ()
        self._over = False

    def _hello(self) -> ms.Hello:
        return replace(super()._hello(), launch=self.launch, keeps_credential=False)

    def _receive(self, stream: AgentStream) -> None:
        super()._receive(stream)
        if self._over and not self._unacknowledged:
            self.leaving.set()

    def _carry_out(self, order: od.Order) -> od.Ended | None:
        if isinstance(order, od.Launch):
            self._ranks = order.ranks
        return super()._carry_out(order)

    def _batch(self, reports: list[od.Report]) -> ms.ReportBatch:
        for one in reports:
            if isinstance(one, od.Ended):
                self._over, self.failed = True, bool(one.code) and not one.yielded
        return super()._batch(reports)

    def _poll(self, *, connected: bool = True) -> list[od.Report]:
        reports = super()._poll(connected=connected)
        self._print()
        return reports

    def _print(self) -> None:
        """Print what the workers have written since the last call; of several, each line begins with the rank."""
        for rank in self._ranks:
            while True:
                offset = self._printed.get(rank, 0)
                try:
                    found = self.supervisor.read_log(*self.launch, rank, offset, _PRINT_BYTES)
                except FairleadError:  # it has not begun
                    break
                data = found.data
                if len(self._ranks) > 1:  # whole lines, unless one is very long
                    data = data[: data.rfind(b"\n") + 1] or (data if len(data) == _PRINT_BYTES or self._over else b"")
                if not data:
                    break
                self._printed[rank] = found.offset + len(data)
                text = data if len(self._ranks) == 1 else b"".join(b"[%d] " % rank + line for line in data.splitlines(True))
                sys.stdout.buffer.write(text)
                sys.stdout.buffer.flush()


def run_launch_agent(
    devices: NodeAccelerators,
    settings: AgentSettings,
    node: str,
    control: str,
    token: str,
    address: str,
    trust: grpc.ChannelCredentials | None,
    launch: tuple[int, int],
    report: Callable[[str], None],
) -> int:
    """Run the agent of one launch, in a folder that is removed at its end. Return its exit status: 1 if the job failed. One
    that is not needed, because the engine has started it twice or too late, ends at once, without a failure."""
    agents: list[LaunchAgent] = []

    def connect(supervisor: Supervisor, departure: Departure) -> LaunchAgent:
        agents.append(LaunchAgent(supervisor, node, control, token, address, trust, departure=departure, launch=launch))
        return agents[-1]

    with tempfile.TemporaryDirectory(prefix="fairlead-", ignore_cleanup_errors=True) as root:
        try:
            run_agent(lambda: Supervisor(Path(root), devices, settings), connect, leashed=False, end_jobs=True, report=report)
        except AgentRefused as why:
            report(f"job {launch[0]} is not started here: {why}")
    return int(any(agent.failed for agent in agents))


def _end_jobs(supervisor: Supervisor, departure: Departure) -> None:
    """Let jobs save and end without the control plane, which has refused the agent."""
    if not departure.has_begun:
        departure.begin(time.monotonic())
    while supervisor.running():
        departure.advance(time.monotonic())
        supervisor.wait(0.1)
        departure.record(supervisor.poll())


def _how_it_ended(ended: Ended) -> str:
    if ended.yielded and ended.code:
        return f"did not stop in time and was {ended.why}"
    if ended.yielded:
        return f"has stopped with {ended.saved:,} steps saved" if ended.saved else "has stopped"
    return f"has failed: {ended.why}" if ended.code else "has finished"
