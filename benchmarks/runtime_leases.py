"""What leases cost: a look at one, as a training loop does in every step, and a renewal by the control plane instead (Blox
Fig. 19). Part of `runtime.py`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest import mock

from control_plane_process import Served, serving
from fake_agents import PlayedAgent, joined

from fairlead.client import lease
from fairlead.client.lease_page import Page
from fairlead.core.cluster import Cluster
from fairlead.runtime.protocol.messages import OrderBatch, ReportBatch
from fairlead.runtime.protocol.orders import Extend, Launch, RenewalRequest

STEPS, REPEATS = 500_000, 7
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RENEWALS = 30  # of each worker
PER_NODE = 4

TRACED = """
import sys
from itertools import repeat
from fairlead.client import lease
for _ in lease(repeat(0, int(sys.argv[1]))):
    pass
"""


def look() -> dict[str, Any]:
    """The same empty loop is walked bare and under a lease with a real page, alone and as a worker of a gang; the difference is
    the cost, in CPU time, the best of some tries. System calls are counted with strace, where it is there: those of two runs
    of different length, subtracted."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        page = Path(folder) / "lease"
        Page.create(page)
        with mock.patch.dict(os.environ, {"FAIRLEAD_LEASE": str(page)}):
            bare = min(_bare_ns() for _ in range(REPEATS))
            return {
                "alone_ns": min(_leased_ns() for _ in range(REPEATS)) - bare,
                "gang_ns": min(_in_gang_ns() for _ in range(REPEATS)) - bare,
                "system_calls_per_step": _system_calls_per_step(),
            }


def _bare_ns() -> float:
    began = time.thread_time_ns()
    for _ in repeat(0, STEPS):
        pass
    return (time.thread_time_ns() - began) / STEPS


def _leased_ns() -> float:
    walk = iter(lease(repeat(0, STEPS + 1)))
    next(walk)  # the first one joins the gang
    began = time.thread_time_ns()
    for _ in walk:
        pass
    return (time.thread_time_ns() - began) / STEPS


def _in_gang_ns() -> float:
    """As rank 0 of two. The other is a thread of this process that walks slowly enough to be out of the way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    common = {"WORLD_SIZE": "2", "FAIRLEAD_GANG_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}
    with mock.patch.dict(os.environ, {**common, "RANK": "1", "FAIRLEAD_LEASE": ""}):
        other = lease(repeat(0, 0))
    thread = threading.Thread(target=lambda: list(other))
    thread.start()
    with mock.patch.dict(os.environ, {**common, "RANK": "0"}):
        measured = _leased_ns()
    thread.join()
    return measured


def _system_calls_per_step() -> float | None:
    if shutil.which("strace") is None:
        return None
    counts = []
    for steps in (1_000, 201_000):
        with tempfile.NamedTemporaryFile("r") as table:
            command = ["strace", "-f", "-c", "-o", table.name, sys.executable, "-c", TRACED, str(steps)]
            if subprocess.run(command, check=False).returncode:
                return None
            total = table.read().splitlines()[-1].split()
            counts.append(int(total[3] if total[0].startswith("100") else total[2]))
    return (counts[1] - counts[0]) / 200_000


def renewals(folder: Path) -> list[dict[str, Any]]:
    """Blox Fig. 19. Workers of as many jobs come to their bound in the same moment, ask, and go on when they are answered.
    Played agents with four workers each ask a real control plane for them. That leaves the way from a worker to its agent
    out, in favour of central renewal. Optimistic renewal is a look at one's own page, of as many."""
    cluster = f"{max(WORKERS)}xv100:{PER_NODE}"
    with serving(folder, cluster, "--policy", "fifo", "--round", "0.2", "--lease", "600") as plane:
        rows = asyncio.run(_ask_all(plane, Cluster.parse(cluster)))
    return [{"workers": row["workers"], "optimistic_us": _optimistic_us(row["workers"]), **row} for row in rows]


def _optimistic_us(workers: int) -> float:
    """Workers with a page each take turns; nobody else has a part in it."""
    turns = max(1, STEPS // workers // 5)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        walks = []
        for number in range(workers):
            page = Path(folder) / str(number)
            Page.create(page)
            with mock.patch.dict(os.environ, {"FAIRLEAD_LEASE": str(page)}):
                walks.append(iter(lease(repeat(0))))
        bare = [repeat(0) for _ in walks]
        for walk in walks:
            next(walk)
        return min(_turns_us(walks, turns) - _turns_us(bare, turns) for _ in range(REPEATS))


def _turns_us(walks: Sequence[Iterator[int]], turns: int) -> float:
    began = time.thread_time_ns()
    for _ in range(turns):
        for walk in walks:
            next(walk)
    return (time.thread_time_ns() - began) / turns / len(walks) / 1e3


async def _ask_all(plane: Served, cluster: Cluster) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    address = f"127.0.0.1:{plane.agents_port}"
    async with joined(address, cluster, range(len(cluster.nodes)), plane.token("agent")) as agents:
        workers = _Workers(agents)
        hearing = [asyncio.create_task(workers.hear(number)) for number in range(len(agents))]
        for count in WORKERS:
            await asyncio.to_thread(_submit, plane, count - len(workers.of_job))
            await workers.until(count)
            waits, cpu_s = [], plane.cpu_s
            for _ in range(RENEWALS):
                waits += await asyncio.gather(*(workers.renew(job) for job in workers.of_job))
            rows.append(
                {
                    "workers": count,
                    "central_mean_us": 1e6 * statistics.mean(waits),
                    "central_slowest_us": 1e6 * max(waits),
                    "control_plane_cpu_us_per_renewal": 1e6 * (plane.cpu_s - cpu_s) / len(waits),
                }
            )
        for task in hearing:
            task.cancel()
        await asyncio.gather(*hearing, return_exceptions=True)
    return rows


class _Workers:
    """One for each job that was launched; it does nothing but ask."""

    def __init__(self, agents: list[PlayedAgent]) -> None:
        self.of_job: dict[int, tuple[PlayedAgent, int]] = {}  # its agent and its generation
        self._agents = agents
        self._renewals: dict[int, int] = {}
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._launched = asyncio.Event()

    async def hear(self, number: int) -> None:
        agent = self._agents[number]
        while True:
            message = await agent.hear()
            for order in message.orders if isinstance(message, OrderBatch) else ():
                if isinstance(order, Launch):
                    self.of_job[order.job] = (agent, order.generation)
                    self._launched.set()
                elif isinstance(order, Extend):
                    self._answers[order.job].set_result(None)

    async def until(self, count: int) -> None:
        while len(self.of_job) < count:
            self._launched.clear()
            await asyncio.wait_for(self._launched.wait(), 60)

    async def renew(self, job: int) -> float:
        agent, generation = self.of_job[job]
        self._renewals[job] = self._renewals.get(job, 0) + 1
        self._answers[job] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await agent.say(ReportBatch(self._renewals[job], (RenewalRequest(job, generation, self._renewals[job]),)))
        await self._answers[job]
        return time.perf_counter() - began


def _submit(plane: Served, count: int) -> None:
    task = {"run": "true", "lease": {"max_steps": 1, "renewal": "central"}}
    headers = {"Authorization": f"Bearer {plane.token('admin')}", "Content-Type": "application/json"}
    connection = plane.connection()
    connection.request("POST", "/v1/jobs", json.dumps({"jobs": count * [task]}), headers)
    answer = connection.getresponse()
    if answer.status != 201:
        raise RuntimeError(answer.read().decode())
    connection.close()


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    workers = [row["workers"] for row in rows]
    axes.plot(workers, [row["central_slowest_us"] for row in rows], "o--", color="#d08770", label="central, the slowest")
    axes.plot(workers, [row["central_mean_us"] for row in rows], "o-", color="#bf5040", label="central, mean")
    axes.plot(workers, [row["optimistic_us"] for row in rows], "s-", color="#3b6ea5", label="optimistic")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(workers, [str(count) for count in workers])
    axes.set_xlabel("workers that come to the end of a lease at once")
    axes.set_ylabel("time to know, µs")
    axes.set_title("Renewal of leases (as Blox, Fig. 19)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": None})
