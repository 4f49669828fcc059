"""Agents for benchmarks: real gRPC streams, each on a connection of its own, that start nothing. As a process of its own it
joins for some nodes, beats for some seconds and says how often:

    python benchmarks/fake_agents.py ADDRESS CLUSTER FIRST LAST SECONDS < token
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from fairlead.core.cluster import Cluster
from fairlead.runtime.protocol.messages import (
    METHOD,
    SERVICE,
    FromAgent,
    Heartbeat,
    Hello,
    LeaseRenewed,
    Message,
    Refused,
    Welcome,
    decode_message,
    encode_message,
)

BEAT_S = 5.0
JOINING_AT_ONCE = 20


class PlayedAgent:
    def __init__(self, address: str, cluster: Cluster, node: int, token: str) -> None:
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address, options=own_connection)
        self._stream = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=(("authorization", f"Bearer {token}"),))
        self._writing = asyncio.Lock()  # one message at a time
        machine = cluster.nodes[node]
        self._hello = Hello(machine.name, machine.type, machine.accelerators, 1)

    async def join(self) -> None:
        await self.say(self._hello)
        answer = await self.hear()
        if not isinstance(answer, Welcome):
            raise RuntimeError(answer.why if isinstance(answer, Refused) else str(answer))

    async def say(self, message: FromAgent) -> None:
        async with self._writing:
            await self._stream.write(encode_message(message))

    async def hear(self) -> Message:
        data = await self._stream.read()
        if data is grpc.aio.EOF:
            raise RuntimeError("the control plane has closed the stream")
        return decode_message(data)

    async def close(self) -> None:
        await self._channel.close()


@asynccontextmanager
async def joined(address: str, cluster: Cluster, nodes: range, token: str) -> AsyncIterator[list[PlayedAgent]]:
    agents = [PlayedAgent(address, cluster, node, token) for node in nodes]
    try:
        for some in range(0, len(agents), JOINING_AT_ONCE):
            await asyncio.gather(*(agent.join() for agent in agents[some : some + JOINING_AT_ONCE]))
        yield agents
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))


async def _beat(agent: PlayedAgent, first_s: float, until: float) -> int:
    clock, beats = asyncio.get_running_loop().time, 0
    await asyncio.sleep(first_s)
    while clock() < until:
        await agent.say(Heartbeat())
        if not isinstance(await agent.hear(), LeaseRenewed):
            raise RuntimeError("a beat was not answered")
        beats += 1
        await asyncio.sleep(BEAT_S)
    return beats


async def idle(address: str, cluster: Cluster, nodes: range, token: str, seconds: float) -> None:
    async with joined(address, cluster, nodes, token) as agents:
        print("joined", flush=True)
        until = asyncio.get_running_loop().time() + seconds
        beats = await asyncio.gather(*(_beat(agent, BEAT_S * n / len(agents), until) for n, agent in enumerate(agents)))
        print(sum(beats), flush=True)


if __name__ == "__main__":
    where, machines, first, last, length = sys.argv[1:]
    word = sys.stdin.read().strip()
    asyncio.run(idle(where, Cluster.parse(machines), range(int(first), int(last)), word, float(length)))
