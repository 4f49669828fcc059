"""Connections of the HTTP server: those that send nothing do not keep others out, and none keeps the agents waiting."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Response
from serving import Served, served

from fairlead.runtime.control.http_server import ConnectionLimits, HttpServer, LimitedConnection
from fairlead.runtime.protocol.network import bind_sockets

PATIENCE_S = 30.0
REQUEST = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def control() -> Served:
    with served("v100:1", limits=ConnectionLimits(from_address=20, request_s=0.5)) as one:
        yield one


def connect(control: Served) -> socket.socket:
    host, _, port = control.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def closed(wire: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with suppress(ConnectionResetError):
        while wire.recv(1 << 16):
            pass
    return True


@pytest.mark.parametrize("begin", [b"", b"GET /v1/hea", REQUEST + b"GET", b"x" * 20 + b"\r\n"])
def test_a_connection_without_a_complete_request_is_closed(control, begin):
    with connect(control) as wire:
        wire.sendall(begin)
        assert closed(wire)


def test_many_idle_connections_leave_room_for_a_request():
    limits = ConnectionLimits(from_address=20, request_s=3600)
    with served("v100:1", limits=limits) as control, ExitStack() as held:
        idle = [held.enter_context(connect(control)) for _ in range(100)]
        for _ in range(3):
            assert httpx.get(f"{control.url}/v1/health", trust_env=False).status_code == 200
        assert all(closed(wire) for wire in idle[:15])


def test_a_request_that_waits_to_be_read_is_not_closed_for_connections_behind_it():
    app, reached, over = FastAPI(), threading.Event(), threading.Event()

    @app.get("/block")
    async def block() -> str:
        reached.set()
        return str(over.wait(PATIENCE_S))  # the event loop reads nothing meanwhile

    @app.get("/")
    async def answer() -> str:
        return "here"

    with serving(app, ConnectionLimits(from_address=5)) as address, ExitStack() as held:
        first, second = (held.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(2))
        first.sendall(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reached.wait(PATIENCE_S)
        second.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(50):
            held.enter_context(socket.create_connection(address, PATIENCE_S))
        over.set()
        assert b" 200 " in second.recv(1 << 12)


def test_many_connections_that_come_at_once_cost_no_more_than_one_by_one(monkeypatch):
    app, reached, over, looked = FastAPI(), threading.Event(), threading.Event(), list[object]()
    has_unread = LimitedConnection._has_unread
    monkeypatch.setattr(LimitedConnection, "_has_unread", lambda self: looked.append(self) or has_unread(self))

    @app.get("/block")
    async def block() -> str:
        reached.set()
        return str(over.wait(PATIENCE_S))

    with serving(app, ConnectionLimits(from_address=5, request_s=3600)) as address, ExitStack() as held:
        first = held.enter_context(socket.create_connection(address, PATIENCE_S))
        first.sendall(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reached.wait(PATIENCE_S)
        wires = [held.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(400)]
        for wire in wires:
            wire.sendall(b"GET /")
        over.set()
        assert all(closed(wire) for wire in wires[:390])
    assert len(looked) < 10 * len(wires)


def test_a_connection_too_many_is_refused_if_all_have_requests():
    limits = ConnectionLimits(in_all=3)
    head = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\nAuthorization: Bearer %b\r\n\r\n"
    )
    with served("v100:1", limits=limits) as control, ExitStack() as held:
        for _ in range(3):
            wire = held.enter_context(connect(control))
            wire.sendall(head % control.token.encode())
            assert b"100" in wire.recv(1 << 10)  # it is being read
        answer = httpx.get(f"{control.url}/v1/health", trust_env=False)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "too many connections" in answer.json()["detail"]


def test_a_client_that_does_not_read_its_answer_is_disconnected():
    app = FastAPI()

    @app.get("/")
    def large() -> str:
        return "x" * (64 << 20)

    with serving(app, ConnectionLimits(read_s=0.5)) as (host, port), socket.create_connection((host, port), PATIENCE_S) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        cut = threading.Event()
        threading.Thread(target=lambda: (wait_for_end(wire), cut.set()), daemon=True).start()
        assert cut.wait(PATIENCE_S)


@pytest.mark.parametrize("size", [8 << 20, 48 << 10], ids=["parts", "one part"])
def test_a_client_that_reads_slowly_gets_its_whole_answer(monkeypatch, size):
    app, looked, made, close_idle = (
        FastAPI(),
        threading.Event(),
        LimitedConnection.connection_made,
        LimitedConnection._close_idle,
    )

    def made_small(self: LimitedConnection, transport: Any) -> None:
        """The system takes only some kilobytes for a client that does not read."""
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(LimitedConnection, "connection_made", made_small)
    monkeypatch.setattr(LimitedConnection, "_close_idle", lambda self, *waited: (close_idle(self, *waited), looked.set()))

    @app.get("/")
    def large() -> Response:
        return Response(b"x" * size)

    with serving(app, ConnectionLimits(request_s=1.0)) as address, socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(PATIENCE_S)
        wire.connect(address)
        wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = wire.recv(1 << 10).partition(b"\r\n\r\n")
        assert looked.wait(PATIENCE_S)  # the client is slow: the time for a request is over before it reads on
        read = len(body)
        with suppress(ConnectionResetError):
            while read < size and (data := wire.recv(1 << 20)):
                read += len(data)
        assert (b" 200 " in head, read) == (True, size)


def wait_for_end(wire: socket.socket) -> None:
    """Without reading: an end shows when something is sent."""
    with suppress(OSError):
        while True:
            wire.send(b"\n")
            threading.Event().wait(0.05)


def test_a_request_without_an_end_does_not_keep_the_server_from_stopping():
    app, reached = FastAPI(), threading.Event()

    @app.get("/")
    async def endless() -> None:
        reached.set()
        await asyncio.Event().wait()

    run = serving(app, ConnectionLimits(stop_s=0.1))
    with run as (host, port), socket.create_connection((host, port), PATIENCE_S) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reached.wait(PATIENCE_S)
        run.server.stop()
        run.thread.join(PATIENCE_S)
        assert not run.thread.is_alive()


class serving:
    """An application on a free port, in a thread."""

    def __init__(self, app: FastAPI, limits: ConnectionLimits | None = None) -> None:
        self.server, self.listeners = HttpServer(app, limits=limits), bind_sockets("--http", "127.0.0.1:0")

    def __enter__(self) -> tuple[str, int]:
        self.thread = threading.Thread(target=self.server.run, args=(self.listeners,), daemon=True)
        self.thread.start()
        while not self.server.started:
            threading.Event().wait(0.01)
        host, port = self.listeners[0].getsockname()[:2]
        return host, port

    def __exit__(self, *problem: object) -> None:
        self.server.stop()
        self.thread.join(PATIENCE_S)


def test_a_request_that_blocks_the_server_does_not_block_the_agents_event_loop():
    app, reached, over = FastAPI(), threading.Event(), threading.Event()

    @app.get("/")
    async def block() -> str:
        reached.set()
        return str(over.wait(PATIENCE_S))

    async def agents(url: str) -> str:
        answer = asyncio.create_task(asyncio.to_thread(httpx.get, url, timeout=PATIENCE_S, trust_env=False))
        while not reached.is_set():
            await asyncio.sleep(0.01)
        over.set()  # reached only if this loop runs meanwhile
        return (await answer).text

    with serving(app) as (host, port):
        assert asyncio.run(agents(f"http://{host}:{port}")) == '"True"'
