"""What the live console costs a control plane: the first event of a page, changes with 0, 1 and 20 open pages, and all of it
at a real `fairlead serve` with emulated agents.

    python benchmarks/console_feed.py
    python benchmarks/console_feed.py --serve --agents 5000 --jobs 10000

It prints JSON. CPU seconds are those of the control plane's process. Pages are sockets in another process, which reads them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.console.web_console import Console
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.journal import NoJournal
from fairlead.experiments.lookahead_process import warm_processes
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.http_server import HttpServer
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.network import bind_sockets

SCHEDULER = {"policy": "las", "estimator": "measured", "rounds": 60.0}
WORKERS, ROUNDS, ROUND_S, CHANGED = 4, 12, 1.0, 1000
USERS = 20
PATIENCE_S = 120.0


def read_pages(port: int, count: int, tokens: list[str]) -> None:
    """Open pages and read them until standard input ends; a line says how many bytes came, each second."""
    waiting, total, pages = selectors.DefaultSelector(), 0, []
    for number in range(count):
        wire = socket.create_connection(("127.0.0.1", port))
        head = f"GET /v1/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tokens[number % len(tokens)]}\r\n\r\n"
        wire.sendall(head.encode())
        waiting.register(wire, selectors.EVENT_READ)
        pages.append(wire)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    told = 0.0
    while True:
        for key, _ in waiting.select(1.0):
            if key.fileobj is sys.stdin:
                return
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(1 << 20)
            if not data:
                raise RuntimeError("a page was dropped")
            total += len(data)
        if time.monotonic() > told + 0.5:
            told = time.monotonic()
            print(total, flush=True)


@contextmanager
def open_pages(port: int, count: int, tokens: list[str]) -> Iterator[list[int]]:
    """Pages in another process; the list has the bytes that they got."""
    if not count:
        yield [0]
        return
    command = [sys.executable, __file__, "--read", str(port), str(count), *tokens]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    got, lines = [0], process.stdout

    def follow() -> None:
        for line in lines:
            got[0] = int(line)

    threading.Thread(target=follow, daemon=True).start()
    try:
        yield got
        if process.poll() is not None:
            raise RuntimeError("the process with the pages has ended")
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def _await_first_events(got: list[int], count: int) -> None:
    """Wait until all pages have their first events, which are large, or a while where there is no page."""
    before, deadline = -1, time.monotonic() + PATIENCE_S
    while count and (not got[0] or got[0] - before > 1 << 20) and time.monotonic() < deadline:
        before = got[0]
        time.sleep(2.0)
    time.sleep(5.0)


class ManyJobs:
    """A control plane whose loop is this program: events are recorded here, as the loop would."""

    def __init__(self, nodes: int, jobs: int) -> None:
        self._draw = random.Random(1)
        cluster = Cluster.parse(f"{8 * nodes}xv100:8")
        build = lambda data: SchedulerConfig.from_data(dict(data)).build(None, Registry.installed())  # noqa: E731
        self.plane = ControlPlane(cluster, SCHEDULER, build, NoJournal())
        self._record([ev.JournalOpened(0.0, cluster, dict(SCHEDULER))])
        self.second, self._free = 1.0, list(range(cluster.size // WORKERS))  # blocks of GPUs
        self._block: dict[int, int] = {}
        self._waiting: list[int] = []
        self._submit(jobs)
        self._launch(min(len(self._free), jobs * 7 // 10))
        self.beat()

    def _record(self, events: list[ev.Event]) -> None:
        with self.plane.backend.lock:
            for event in events:
                self.plane.loop.record(event)
            self.plane.loop.journal.commit()

    def _submit(self, count: int) -> None:
        first = self.plane.loop.state.next_number
        numbers = range(first, first + count)
        jobs = (
            Job(f"train-{n}", self.second, 1e5, "ResNet-50 (batch size 64)", WORKERS, user=f"user-{n % USERS}") for n in numbers
        )
        self._record([ev.JobSubmitted(self.second, number, job) for number, job in zip(numbers, jobs)])
        self._plan(RoundPlan(self.second, admitted=np.array(numbers)))
        self._waiting.extend(numbers)

    def _plan(self, plan: RoundPlan) -> None:
        self._record([ev.RoundPlanned(plan)])
        self.plane.loop.plan = plan
        self.plane.decisions.add(plan)

    def _launch(self, count: int) -> None:
        started, self._waiting = self._waiting[:count], self._waiting[count:]
        blocks = [self._free.pop() for _ in started]
        self._block.update(zip(started, blocks))
        places = np.array([WORKERS * block + n for block in blocks for n in range(WORKERS)], dtype=np.int64)
        zeros, offsets = np.zeros(len(started), dtype=np.int64), np.arange(len(started) + 1) * WORKERS
        self._plan(RoundPlan(self.second, launches=Launches(np.array(started), zeros, offsets, places)))
        numbers, times = np.array(started), np.full(len(started), self.second)
        self._record([ev.ProgressReported(self.second, numbers, np.zeros(len(started)), np.full(len(started), 10.0), times)])

    def _finish(self, numbers: list[int]) -> None:
        self._free.extend(self._block.pop(number) for number in numbers)
        self._record([ev.JobsFinished(self.second, np.array(numbers), np.full(len(numbers), self.second))])

    def _suspend(self, numbers: list[int]) -> None:
        self._free.extend(self._block.pop(number) for number in numbers)
        self._plan(RoundPlan(self.second, suspended=np.array(numbers)))
        self._waiting.extend(numbers)

    def change(self, count: int) -> None:
        """Change so many jobs: a fifth is preempted, a fifth finishes, two fifths start, a fifth is submitted."""
        self.second += 1.0
        part, running = count // 5, list(self._block)
        chosen = self._draw.sample(running, 2 * part)
        self._suspend(chosen[:part])
        self._finish(chosen[part:])
        self._launch(2 * part)
        self._submit(part)

    def beat(self) -> None:
        """What all nodes measure, about as before."""
        for node in range(len(self.plane.cluster.nodes)):
            base = self._draw.random()
            use = tuple(min(1.0, base + n / 200) for n in range(8))
            self.plane.hub.heartbeats[node] = Heartbeat(use, tuple(70 * one for one in use))

    @contextmanager
    def serving(self, what_if: bool = False) -> Iterator[tuple[int, Console, list[str]]]:
        tokens = Tokens()
        users = [tokens.issue(Role.USER, f"user-{number}") for number in range(3)]
        issued = [tokens.issue(Role.ADMIN, "root"), tokens.issue(Role.ADMIN, "operator"), *users]
        console = Console(self.plane, tokens)
        server = HttpServer(create_app(self.plane, tokens, console=console, lookahead=warm_processes() if what_if else None))
        listeners = bind_sockets("--http", "127.0.0.1:0")
        thread = threading.Thread(target=server.run, args=(listeners,), daemon=True)
        thread.start()
        try:
            yield listeners[0].getsockname()[1], console, issued
        finally:
            server.stop()
            thread.join(60)


def first_event(many: ManyJobs) -> dict[str, Any]:
    """All rows, as at the first page, and a reset of an admin and of a user."""
    feed, told = Console(many.plane, Tokens()).pages._feed, dict[str, Any]()
    began = time.process_time()
    feed.wake()
    told["all_rows_cpu_s"] = time.process_time() - began
    for name, sight in (("admin", None), ("user", "user-1")):
        began = time.process_time()
        message = feed.message(sight)
        told |= {f"reset_{name}_cpu_s": time.process_time() - began, f"reset_{name}_bytes": len(message)}
    feed.sleep()
    return told


def changes(many: ManyJobs, readers: int) -> dict[str, float]:
    """CPU seconds of rounds in which jobs change, with so many pages; some of them are of users."""
    with many.serving() as (port, console, tokens), open_pages(port, readers, tokens) as got:
        deadline = time.monotonic() + PATIENCE_S
        while len(console.pages) < readers or (readers and not got[0]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(2.0)
        before, began = got[0], time.process_time()
        for number in range(ROUNDS):
            due = time.monotonic() + ROUND_S
            if number % 5 == 0:
                many.beat()
            many.change(CHANGED)
            time.sleep(max(0.0, due - time.monotonic()))
        cpu_s, size = time.process_time() - began, got[0] - before
    return {"cpu_s_per_1000_jobs": cpu_s / ROUNDS / CHANGED * 1000, "bytes_per_1000_jobs": size / ROUNDS / CHANGED * 1000}


def of_a_real_control_plane(agents: int, jobs: int, pages: int, seconds: float, turns: int) -> dict[str, Any]:
    """CPU of `fairlead serve` with emulated agents of eight GPUs each, in turns without pages and with them."""
    from control_plane_process import serving
    from runtime_control import Emulators, Load, _Work

    load = Load(agents, f"{8 * agents}xv100:8", "las", jobs, mean_s=1200.0, round_s=30.0)
    options = ["--policy", load.policy, "--round", f"{load.round_s:g}", "--request-rate", "0"]
    told: dict[str, Any] = {"agents": agents, "jobs": jobs, "pages": pages, "load_average": os.getloadavg()[0]}
    Path("out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="out") as folder, serving(Path(folder), load.nodes, *options) as plane:
        emulators = Emulators(plane, load.nodes, agents)
        try:
            emulators.until("joined", agents)
            work = _Work(plane, load)
            work.begin()
            time.sleep(3 * load.round_s)
            told["launches"], start = emulators["launches"], time.monotonic()
            cores: dict[int, list[float]] = {0: [], pages: []}
            for turn in range(2 * turns):
                count = pages * (turn % 2)
                with open_pages(plane.http_port, count, [plane.token("admin").strip()]) as got:
                    _await_first_events(got, count)
                    began, cpu_s, size = time.monotonic(), plane.cpu_s, got[0]
                    while time.monotonic() < began + seconds:
                        work.renew(time.monotonic() - start)
                        time.sleep(1.0)
                    took = time.monotonic() - began
                    cores[count].append((plane.cpu_s - cpu_s) / took)
                    told["bytes_per_s"] = (got[0] - size) / took
            told["memory_mb"] = plane.memory_mb
        finally:
            emulators.close()
    rises = [busy / quiet - 1 for quiet, busy in zip(cores[0], cores[pages])]
    told |= {"cores_without_pages": cores[0], "cores_with_pages": cores[pages], "load_average_at_end": os.getloadavg()[0]}
    return told | {"rise_median": statistics.median(rises), "rise_of_sums": sum(cores[pages]) / sum(cores[0]) - 1}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=5000, help="nodes of eight GPUs")
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--pages", type=int, default=20)
    options.add_argument("--seconds", type=float, default=20.0, help="of each turn, with --serve")
    options.add_argument("--turns", type=int, default=6, help="without pages and with them, with --serve")
    options.add_argument("--serve", action="store_true", help="a real control plane with emulated agents")
    options.add_argument("--read", nargs="+", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.read:
        read_pages(int(given.read[0]), int(given.read[1]), given.read[2:])
        return
    if given.serve:
        told = of_a_real_control_plane(given.agents, given.jobs, given.pages, given.seconds, given.turns)
    else:
        many = ManyJobs(given.agents, given.jobs)
        told = {"nodes": given.agents, "jobs": given.jobs, "load_average": os.getloadavg()[0], **first_event(many)}
        for readers in (0, 1, given.pages):
            told[f"{readers}_readers"] = changes(many, readers)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
