"""The gRPC server of the agents' streams: it turns bytes into messages for `AgentHub`, in an event loop. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from fairlead.core.errors import FairleadError
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.agent_sessions import AgentSession, PartSession
from fairlead.runtime.protocol import messages as ms

log = logging.getLogger(__name__)

HELLO_WITHIN_S = 10.0  # a stream without a first message is closed after this
ANSWER_WITHIN_S = 10.0  # how long a request to an agent waits for the answer


class AgentServer:
    """Serves a hub by gRPC, in an event loop."""

    def __init__(self, hub: AgentHub) -> None:
        self._hub = hub

    async def serve(self, address: str, credentials: grpc.ServerCredentials | None = None) -> tuple[grpc.aio.Server, int]:
        """Start to listen; return the server and its port."""
        self._hub.post = asyncio.get_running_loop().call_soon_threadsafe
        limits = [("grpc.max_receive_message_length", ms.MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", 64 << 20)]
        server = grpc.aio.server(options=[*limits, ("grpc.so_reuseport", 0)])
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ms.SERVICE, {ms.METHOD: handler}),))
        try:
            port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError:
            raise FairleadError(f"{address}: cannot listen for agents there; is the address in use?") from None
        await server.start()
        return server, port

    async def watch(self) -> None:
        """Give up nodes without heartbeats, until cancelled."""
        while True:
            try:
                wait_s = self._hub.expire()
            except Exception:  # without this, no lease would ever end
                log.exception("leases could not be checked")
                wait_s = 1.0
            await asyncio.sleep(wait_s)

    async def read_log(self, node: int, request: ms.LogRequest) -> ms.LogChunk | None:
        """Return an agent's answer; None if it is not connected or does not answer."""
        answer: asyncio.Future[ms.LogChunk] = asyncio.get_running_loop().create_future()
        number = self._hub.request_log(node, request, lambda chunk: None if answer.done() else answer.set_result(chunk))
        try:
            return await asyncio.wait_for(answer, ANSWER_WITHIN_S) if number else None
        except TimeoutError:
            return None
        finally:
            self._hub.transfers.forget(number)

    async def read_output(self, request: ms.LogRequest) -> bytes | None:
        """Return an engine's answer; None if no engine has this log, or it does not answer."""
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def read(data: bytes | None) -> None:
            self._hub.post(lambda: None if answer.done() else answer.set_result(data))

        if not self._hub.engines.request_output(request, read):
            return None
        try:
            return await asyncio.wait_for(answer, ANSWER_WITHIN_S)
        except TimeoutError:
            return None

    async def _stream(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        out: asyncio.Queue[ms.FromControl | None] = asyncio.Queue()
        try:
            token = str(dict(context.invocation_metadata() or ()).get("authorization", "")).removeprefix("Bearer ")
            in_database = self._hub.tokens is not None and self._hub.tokens.remote  # it may have to be asked
            bearer = await asyncio.to_thread(self._hub.admit, token) if in_database else self._hub.admit(token)
            session = self._hub.welcome(await asyncio.wait_for(_first(requests), HELLO_WITHIN_S), out.put_nowait, bearer)
        except (ms.BadMessage, TimeoutError) as problem:
            why = str(problem) or f"the agent sent nothing within {HELLO_WITHIN_S:g} s after it connected"
            log.warning("agent refused", extra={"why": why, "peer": context.peer()})
            yield ms.encode_message(ms.Refused(why))
            return
        if session is None:
            yield ms.encode_message(ms.JournalMismatch(self._hub.journal))
            return
        listening = asyncio.create_task(self._listen(session, requests))
        try:
            while (message := await out.get()) is not None:
                yield ms.encode_message(message)
                if isinstance(message, ms.Refused):
                    return
        finally:
            listening.cancel()
            self._hub.leave(session)

    async def _listen(self, session: AgentSession | PartSession, requests: AsyncIterator[bytes]) -> None:
        try:
            async for data in requests:
                if not self._hub.receive(session, ms.decode_message(data)):
                    return
        except ms.BadMessage as problem:
            session.out(ms.Refused(str(problem)))
        finally:
            session.out(None)


async def _first(requests: AsyncIterator[bytes]) -> ms.Message:
    async for data in requests:
        return ms.decode_message(data)
    raise ms.BadMessage("the stream ended without a message")
