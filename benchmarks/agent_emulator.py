"""Thousands of emulated agents in one process: each has a connection and a gRPC stream of its own, sends and answers what a
real agent does, and starts nothing. Frames of HTTP/2 are written and read here: a gRPC channel for each agent takes more CPU
time than the control plane that is measured.

    python benchmarks/agent_emulator.py ADDRESS CLUSTER FIRST LAST < token

It prints a line of JSON every second, and ends with its standard input. A job runs for a random time (exponential, with the
mean that its command names), wherever it runs and however often it is preempted.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
from collections import Counter
from typing import Any

from fairlead.core.cluster import Cluster
from fairlead.runtime.agent.agent_service import AgentLease, ReportThrottle, retry_pause_s
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od

SLOTS = 20  # of a second; each agent is polled in one of them
FIRST_STEP_S, SAVE_EVERY_S, SAVING_S = 3.0, 60.0, 1.0
FIRST_ANSWER_S, MAX_ANSWER_S = 15.0, 60.0  # how long the first welcome may take, as for real agents, and a later one
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
LARGE = 2**31 - 1  # the largest window: the control plane never waits for one


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _length(value: int) -> bytes:
    """An integer of HPACK with a prefix of 7 bits."""
    if value < 127:
        return bytes([value])
    rest, out = value - 127, b"\x7f"
    while rest >= 128:
        out, rest = out + bytes([rest % 128 + 128]), rest // 128
    return out + bytes([rest])


def _headers(fields: dict[str, str]) -> bytes:
    """Headers in HPACK, as literals that are not indexed."""
    pairs = ((name.encode(), value.encode()) for name, value in fields.items())
    return b"".join(b"\x00" + _length(len(name)) + name + _length(len(value)) + value for name, value in pairs)


def _data(message: ms.FromAgent) -> bytes:
    content = ms.encode_message(message)
    return _frame(DATA, 0, 1, b"\x00" + len(content).to_bytes(4, "big") + content)


RENEWED = ms.encode_message(ms.LeaseRenewed())


class _Running:
    """A launch that an emulated agent has."""

    def __init__(self, order: od.Launch, now: float) -> None:
        self.job, self.generation = order.key
        self.began, self.rate = now + FIRST_STEP_S, 1.0 + self.job % 10
        mean_s = float(order.task.command[-1])
        luck = random.Random(f"{self.job} {self.generation}")  # the nodes of a gang end together
        self.ends_at, self.stops_at = now + FIRST_STEP_S + luck.expovariate(1 / mean_s), float("inf")

    def steps(self, now: float) -> int:
        return max(0, int((now - self.began) * self.rate))

    def saved(self, now: float) -> int:
        return self.steps(self.began + (now - self.began) // SAVE_EVERY_S * SAVE_EVERY_S) if now > self.began else 0

    def progress(self, now: float) -> od.Progress:
        rate = self.rate * random.uniform(0.99, 1.01) if self.steps(now) > 1 else 0.0
        return od.Progress(self.job, self.generation, self.steps(now), self.saved(now), rate)

    def end(self, now: float, code: int = 0, yielded: bool = False) -> od.Ended:
        return od.Ended(self.job, self.generation, code, yielded, self.steps(now), self.steps(now))


class EmulatedAgent(asyncio.Protocol):
    """One agent, over any number of connections."""

    def __init__(self, emulator: Emulator, node: int) -> None:
        self._all, machine = emulator, emulator.cluster.nodes[node]
        self._node, self._type, self._gpus = machine.name, machine.type, machine.accelerators
        self._token, self._journal = emulator.token, ""
        self._transport: asyncio.Transport | None = None
        self._read = b""
        self._message = b""
        self._lease: AgentLease | None = None
        self._beats: list[float] = []  # times of heartbeats without an answer
        self._next_beat = 0.0
        self._lost_at: float | None = None
        self._fenced = False
        self._throttle = ReportThrottle()
        self._sequence = 0
        self._unacknowledged: dict[int, ms.ReportBatch] = {}
        self.running: dict[tuple[int, int], _Running] = {}
        self.welcomed = False
        self._unanswered = 0

    async def connect(self) -> None:
        """Connect, and again after each loss of the connection."""
        pause_s, loop = 0.1, asyncio.get_running_loop()
        while True:
            self._closed = loop.create_future()
            try:
                await loop.create_connection(lambda: self, *self._all.address)
                await self._closed
            except OSError:
                pass
            pause_s = 0.1 if self.welcomed else retry_pause_s(pause_s, self._lease)
            self.welcomed = False
            await asyncio.sleep(pause_s * random.uniform(0.9, 1.1))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._read, self._message = transport, b"", b""
        now = self._all.now()
        self._beats = [now]
        headers = _headers(
            {
                ":method": "POST",
                ":scheme": "http",
                ":path": f"/{ms.SERVICE}/{ms.METHOD}",
                ":authority": "localhost",
                "content-type": "application/grpc",
                "te": "trailers",
                "authorization": f"Bearer {self._token}",
            }
        )
        hello = ms.Hello(
            self._node,
            self._type,
            self._gpus,
            1,
            running=tuple(sorted({*self.running, *(r.key for b in self._unacknowledged.values() for r in b.reports)})),
            journal=self._journal,
            identity=f"root of {self._node}",
            keeps_credential=True,
        )
        settings = _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, LARGE))
        window = _frame(WINDOW, 0, 0, struct.pack(">I", LARGE - 65_535))
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        transport.write(preface + settings + window + _frame(HEADERS, END_HEADERS, 1, headers) + _data(hello))

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport, self._beats = None, []
        if self.welcomed:
            self._lost_at = self._all.now()
            self._all.counts["lost"] += 1
        if not self._closed.done():
            self._closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= 9 and len(self._read) >= 9 + (size := int.from_bytes(self._read[:3], "big")):
            kind, flags, payload = self._read[3], self._read[4], self._read[9 : 9 + size]
            self._read = self._read[9 + size :]
            if kind == DATA:
                self._message += payload
                while len(self._message) >= 5 and len(self._message) >= 5 + (
                    length := int.from_bytes(self._message[1:5], "big")
                ):
                    content, self._message = self._message[5 : 5 + length], self._message[5 + length :]
                    self._receive(content)
            elif kind == SETTINGS and not flags & ACK:
                self._write(_frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                self._write(_frame(PING, ACK, 0, payload))
            if kind in (RESET, GOAWAY) or (kind in (HEADERS, DATA) and flags & END_STREAM):
                self._close()

    def _receive(self, content: bytes) -> None:
        now = self._all.now()
        self._all.counts["received"] += 1
        if content == RENEWED:
            if not self._beats:
                return  # it has hung up
            asked = self._beats.pop(0)
            self._all.answer_s.append(now - asked)
            if self._lease is not None:
                self._lease, self._fenced = self._lease.renewed(asked), False
            return
        message = ms.decode_message(content)
        if isinstance(message, ms.Welcome) and self._beats:
            self._lease = (self._lease or AgentLease(message.lease_s)).renewed(self._beats.pop(0))
            self._journal, self._token = message.journal, message.credential or self._token
            self._all.counts["credentials"] += bool(message.credential)
            self.welcomed, self._fenced, self._unanswered = True, False, 0
            self._next_beat = now + random.random() * message.lease_s / 3
            if self._lost_at is not None:
                self._all.away_s.append(now - self._lost_at)
                self._lost_at = None
            for batch in self._unacknowledged.values():
                self._send(batch)
        elif isinstance(message, ms.OrderBatch):
            for order in message.orders:
                self._carry_out(order, now)
        elif isinstance(message, ms.Acknowledged):
            self._unacknowledged.pop(message.sequence, None)
        elif isinstance(message, ms.Refused):
            self._all.counts["refused"] += 1
            self._all.why = message.why

    def _carry_out(self, order: od.Order, now: float) -> None:
        self._all.counts[type(order).__name__] += 1
        if isinstance(order, od.Launch):
            self.running.setdefault(order.key, _Running(order, now))
        elif (run := self.running.get(order.key)) is None:
            self._report([od.Ended(*order.key, 125, False, 0, 0, "the launch did not reach this node")])
        elif isinstance(order, od.Revoke):
            run.stops_at = min(run.stops_at, now + SAVING_S)
        elif isinstance(order, od.Kill):
            self._report([self.running.pop(order.key).end(now, -9, True)])

    def poll(self, now: float) -> None:
        """What a real agent does every moment: reports, a heartbeat, and a look at its lease."""
        if self._lease is not None and self._lease.is_over(now) and not self._fenced:
            self._fenced = True
            self._all.counts["fenced"] += 1
        within_s = FIRST_ANSWER_S if self._lease is None else self._lease.lease_s
        if not self.welcomed:
            within_s = min(within_s * 2**self._unanswered, MAX_ANSWER_S)
        if self._beats and now - self._beats[0] > within_s:
            self._beats = []
            self._unanswered += not self.welcomed
            self._all.counts["unanswered"] += 1
            self._close()
        connected = self.welcomed and self._transport is not None
        if connected and self._lease is not None and now >= self._next_beat:
            self._next_beat = now + self._lease.lease_s / 3
            self._beats.append(now)
            self._send(ms.Heartbeat(self._gpus * (0.9,), self._gpus * (12.0,), "cpu,memory"))
        if not self.running:
            return
        reports: list[od.Report] = []
        for key, run in list(self.running.items()):
            reports.append(run.progress(now))
            if now >= min(run.ends_at, run.stops_at):
                reports.append(self.running.pop(key).end(now, yielded=run.stops_at < run.ends_at))
        self._report(self._throttle.add(reports, now, connected=connected))

    def _report(self, reports: list[od.Report]) -> None:
        if not reports:
            return
        self._sequence += 1
        batch = ms.ReportBatch(self._sequence, tuple(reports))
        if any(isinstance(report, od.Ended) for report in reports):
            self._unacknowledged[self._sequence] = batch
        if self.welcomed:
            self._send(batch)

    def _send(self, message: ms.FromAgent) -> None:
        self._all.counts["sent"] += 1
        self._all.counts[type(message).__name__] += 1
        self._write(_data(message))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Emulator:
    """The emulated agents of a process."""

    def __init__(self, address: str, cluster: Cluster, token: str) -> None:
        host, _, port = address.rpartition(":")
        self.address, self.cluster, self.token = (host, int(port)), cluster, token
        self.counts: Counter[str] = Counter()
        self.answer_s: list[float] = []  # how long heartbeats took
        self.away_s: list[float] = []  # how long connections were lost
        self.why = ""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self, nodes: range) -> None:
        agents = [EmulatedAgent(self, node) for node in nodes]
        tasks = [asyncio.create_task(agent.connect()) for agent in agents]
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        slot = 0
        began = self.now()
        while not ended.done():
            for agent in agents[slot % SLOTS :: SLOTS]:
                agent.poll(self.now())
            slot += 1
            if slot % SLOTS == 0:
                print(json.dumps(self._status(agents)), flush=True)
            await asyncio.sleep(max(0.0, began + slot / SLOTS - self.now()))
            began = max(began, self.now() - slot / SLOTS - 1.0)  # it does not make up for more than a second
        for task in tasks:
            task.cancel()
        os._exit(0)

    def _status(self, agents: list[EmulatedAgent]) -> dict[str, Any]:
        answers, self.answer_s = self.answer_s, []
        return {
            "joined": sum(agent.welcomed for agent in agents),
            "launches": len({key for agent in agents for key in agent.running}),
            "busy": sum(bool(agent.running) for agent in agents),
            "slowest_answer_s": max(answers, default=0.0),
            "longest_away_s": max(self.away_s, default=0.0),
            "why": self.why,
            **self.counts,
        }


if __name__ == "__main__":
    where, machines, first, last = sys.argv[1:]
    emulator = Emulator(where, Cluster.parse(machines), sys.stdin.readline().strip())
    asyncio.run(emulator.run(range(int(first), int(last))))
