"""An agent's end of its stream to the control plane, by gRPC. It knows messages, not what they mean."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Protocol

import grpc

from fairlead.runtime.protocol import messages as ms


class ConnectionLost(Exception):
    """The stream is gone."""


class AgentStream(Protocol):
    """An agent's end of its stream to the control plane."""

    def send(self, message: ms.FromAgent) -> None: ...

    def receive(self) -> list[bytes]:
        """What has arrived since the last call. Raises `ConnectionLost`."""
        ...

    def close(self) -> None: ...


class GrpcStream:
    """A stream by gRPC, with threads for sending and receiving."""

    def __init__(self, control: str, token: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._outgoing: queue.Queue[ms.FromAgent | None] = queue.Queue()
        self._incoming: queue.Queue[bytes | ConnectionLost] = queue.Queue()
        self._channel = grpc.insecure_channel(control) if credentials is None else grpc.secure_channel(control, credentials)
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"/{ms.SERVICE}/{ms.METHOD}")
        self._stream = call(self._encoded(), metadata=(("authorization", f"Bearer {token}"),))
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, message: ms.FromAgent) -> None:
        self._outgoing.put(message)

    def receive(self) -> list[bytes]:
        arrived: list[bytes] = []
        while not self._incoming.empty():
            data = self._incoming.get()
            if isinstance(data, ConnectionLost):
                if arrived:  # first what came before
                    self._incoming.put(data)
                    break
                raise data
            arrived.append(data)
        return arrived

    def close(self) -> None:
        self._outgoing.put(None)
        self._stream.cancel()
        self._channel.close()

    def _listen(self) -> None:
        try:
            for data in self._stream:
                self._incoming.put(data)
            self._incoming.put(ConnectionLost("the stream was closed"))
        except grpc.RpcError as problem:
            self._incoming.put(ConnectionLost(problem.details() if hasattr(problem, "details") else str(problem)))

    def _encoded(self) -> Iterator[bytes]:
        while (message := self._outgoing.get()) is not None:
            yield ms.encode_message(message)
