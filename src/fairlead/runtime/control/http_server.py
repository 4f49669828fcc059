"""The HTTP server of a control plane, in a thread with its own event loop: the agents' streams, which renew leases, never wait
for it. Connections are limited, and those that send or read nothing are closed. It knows no routes."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import sys
import termios
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_FILES = 16_384  # open files of the process, if the system allows them
HANDSHAKE_S = 10.0
LINGER_S, LINGER_BYTES = 2.0, 256 << 10  # of a body that is not read: a client gets its answer before the connection ends
JUST_OPENED_S = 1.0  # such a connection may have sent a request that was not read yet: it is not closed …
SWEEP_S = 0.05  # from the first connection too many until some are closed
MOST_OVER = 4  # … unless there are so many times the limit
READ_AT_STOP_S = 2.0  # without reading an answer, when the server stops
PART_BYTES = 64 << 10  # of an answer that are written at once
SWITCH_S = 0.001  # how long one thread computes while others wait: the event loops need many short turns


class ConnectionLimits(NamedTuple):
    """How many connections there are in all and from one address, and how long they may send or read nothing."""

    in_all: int = 1024
    from_address: int = 256
    request_s: float = 10.0  # until the head of the next request is complete
    read_s: float = 60.0  # without reading an answer
    stop_s: float = 45.0  # for open requests to be answered when the server stops; then they are cancelled


class LimitedConnection(H11Protocol):
    """One connection. If there are too many, the one that has been without a request for longest is closed; if all have a
    request, the new one."""

    limits = ConnectionLimits()
    everywhere: dict[LimitedConnection, None] = {}  # noqa: RUF012 (each server has its own), in the order of their last request
    by_address: dict[str, dict[LimitedConnection, None]] = {}  # noqa: RUF012
    sweep: asyncio.TimerHandle | None = None  # of all connections of a server

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._discarded = -1  # bytes of a body behind its answer; below 0 as long as there is none
        super().connection_made(_LingeringTransport(transport, self))  # type: ignore[arg-type]
        self._stuck: asyncio.TimerHandle | None = None
        self._read_s = self.limits.read_s
        self._timer = self.loop.call_later(self.limits.request_s, self._close_idle)
        self._mark()
        near = self.by_address[self._address]
        among = near if len(near) > self.limits.from_address else self.everywhere
        if among is not near and len(among) <= self.limits.in_all:
            return
        if all(one.busy for one in islice(among, len(among) - 1)):  # all but this one
            detail = b'{"detail":"too many connections; try again later"}'
            head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            self.transport.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(detail), detail))
            self.transport.close()
        elif self.sweep is None:  # once for many: the event loop opens thousands in one turn
            type(self).sweep = self.loop.call_later(SWEEP_S, self._close_oldest)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _mark(self) -> None:
        """Note that it has been without a request since now."""
        self._idle_since = self.loop.time()
        for among in (self.everywhere, self.by_address.setdefault(self._address, {})):
            among.pop(self, None)
            among[self] = None

    def _unmark(self) -> None:
        near = self.by_address.get(self._address, {})
        for among in (self.everywhere, near):
            among.pop(self, None)
        if not near:
            self.by_address.pop(self._address, None)

    def _close_oldest(self) -> None:
        """Close connections beyond the limits that have no request, the oldest first; of very recent ones, some later."""
        now, limits, over = self.loop.time(), self.limits, False
        for among, limit in [
            *((near, limits.from_address) for near in self.by_address.values()),
            (self.everywhere, limits.in_all),
        ]:
            before = now - JUST_OPENED_S if len(among) <= MOST_OVER * limit else now
            closing: list[LimitedConnection] = []
            for one in among if len(among) > limit else ():
                if one._idle_since > before or len(closing) == len(among) - limit:
                    break
                if not one.busy and not one._has_unread():
                    closing.append(one)
            over = over or len(among) - len(closing) > limit
            for one in closing:
                one.transport.abort()  # it is unmarked when it is lost, a turn later
        type(self).sweep = self.loop.call_later(4 * SWEEP_S, self._close_oldest) if over else None

    def _has_unread(self) -> bool:
        """Whether the client has sent what the event loop has not read yet, and will read."""
        if self._discarded >= 0:
            return False
        found = self.transport.get_extra_info("socket")
        return found.fileno() >= 0 and fcntl.ioctl(found.fileno(), termios.FIONREAD, b"\0" * 4) != b"\0" * 4

    def data_received(self, data: bytes) -> None:
        if self._discarded < 0:
            super().data_received(data)
            return
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self.transport.pause_reading()

    def linger(self) -> bool:
        """Whether an answer came before the end of its request's body: the connection ends a little later, so that its
        client, which is still sending, can read the answer."""
        if self._discarded >= 0 or self.conn.their_state is not h11.SEND_BODY:
            return False
        self._discarded = 0
        self.loop.call_later(LINGER_S, self.transport.abort)
        return True

    def _close_idle(self, waited: bool = False) -> None:
        if self.busy:
            return
        if waited or not self.transport.get_write_buffer_size():
            self.transport.abort()
        else:  # its client may still read the end of an answer
            self._timer = self.loop.call_later(self._read_s, self._close_idle, True)

    def on_response_complete(self) -> None:
        self._mark()
        self._timer.cancel()  # data that arrives does not set it again: a request may arrive byte by byte
        self._timer = self.loop.call_later(self.limits.request_s, self._close_idle)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(self._read_s, self.transport.abort)

    def shutdown(self) -> None:
        super().shutdown()
        self._read_s = READ_AT_STOP_S
        if self._stuck is not None:
            self._unset_stuck()
            self._stuck = self.loop.call_later(self._read_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unset_stuck()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unmark()
        self._timer.cancel()
        self._unset_stuck()
        super().connection_lost(exc)

    def _unset_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


class _LingeringTransport:
    """A transport whose `close` may wait until a client can read its answer."""

    def __init__(self, transport: asyncio.Transport, connection: LimitedConnection) -> None:
        self._transport, self._connection, self._lingers = transport, connection, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        if self._connection.linger():
            self._lingers = True
            if self._transport.can_write_eof():
                self._transport.write_eof()
        elif not self._lingers:
            self._transport.close()


class _HttpLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait long for handshakes."""

    async def create_server(self, *arguments: Any, ssl: Any = None, **options: Any) -> Any:
        if ssl is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE_S
        return await super().create_server(*arguments, ssl=ssl, **options)


class _InParts:
    """An application whose answers are written in parts, each when the client has read the one before: a connection is busy,
    and not closed, as long as its client reads. An answer without an end looks at `scope["stopping"]` at times."""

    def __init__(self, app: ASGIApp, stopping: Callable[[], bool]) -> None:
        self._app, self._stopping = app, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            body, more = message.get("body", b""), message.get("more_body", False)
            for begin in range(0, len(body) - PART_BYTES, PART_BYTES):
                await send({**message, "body": body[begin : begin + PART_BYTES], "more_body": True})
            rest = body[-(len(body) % PART_BYTES or PART_BYTES) :]
            await send({**message, "body": rest, "more_body": more} if body else message)

        await self._app({**scope, "stopping": self._stopping}, receive, send_parts)


class HttpServer:
    """Serves an application on open sockets until `stop`. `certificate` and `key` are files, both empty without TLS."""

    def __init__(self, app: ASGIApp, certificate: str = "", key: str = "", limits: ConnectionLimits | None = None) -> None:
        limits = limits or ConnectionLimits()
        connection = type("Connection", (LimitedConnection,), {"limits": limits, "everywhere": {}, "by_address": {}})
        served = _InParts(app, lambda: self._server.should_exit)
        config = uvicorn.Config(served, log_config=None, log_level="warning", lifespan="off", http=connection, ws="none")
        config.timeout_graceful_shutdown = limits.stop_s  # type: ignore[assignment]  # it takes fractions too
        if certificate:
            config.ssl_certfile, config.ssl_keyfile = certificate, key
        self._server = uvicorn.Server(config)

    @property
    def started(self) -> bool:
        """Whether it accepts connections."""
        return self._server.started

    def run(self, listeners: list[socket.socket]) -> None:
        """Serve in this thread until another one calls `stop`."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        sys.setswitchinterval(SWITCH_S)
        with asyncio.Runner(loop_factory=_HttpLoop) as runner:
            runner.run(self._server.serve(listeners))

    def stop(self) -> None:
        """Answer open requests, those that take long excepted, and end."""
        self._server.should_exit = True
