"""Agents for benchmarks: real gRPC streams, each on a connection of its own, that start nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from fairlead.core.cluster import Cluster
from fairlead.runtime.protocol.messages import (
    METHOD,
    SERVICE,
    FromAgent,
    Hello,
    Message,
    Refused,
    Welcome,
    decode_message,
    encode_message,
)

JOINING_AT_ONCE = 20


class PlayedAgent:
    def __init__(self, address: str, cluster: Cluster, node: int, token: str) -> None:
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address, options=own_connection)
        self._token = token
        self._writing = asyncio.Lock()  # one message at a time
        machine = cluster.nodes[node]
        self._hello = Hello(machine.name, machine.type, machine.accelerators, 1)

    async def join(self) -> None:
        call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._stream = call(metadata=(("authorization", f"Bearer {self._token}"),))  # a stream has to begin with hello at once
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
