"""A client that knows several control planes finds the active one, and never submits a job twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fairlead.runtime import http_client
from fairlead.runtime.http_client import STANDBY_HEADER, ControlPlaneClient, RefusedRequest, Unreachable
from foundry import free_port

Behaviour = Callable[[BaseHTTPRequestHandler], None]


def active(request: BaseHTTPRequestHandler) -> None:
    request.rfile.read(int(request.headers.get("Content-Length", 0)))
    body = b'{"jobs": [{"name": "a", "number": 0}]}'
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def standby(request: BaseHTTPRequestHandler) -> None:
    request.send_response(503)
    request.send_header(STANDBY_HEADER, "waiting")
    request.send_header("Content-Length", "7")
    request.end_headers()
    request.wfile.write(b"standby")


def dying(request: BaseHTTPRequestHandler) -> None:
    """It takes the request, and is killed before it answers."""
    request.rfile.read(int(request.headers.get("Content-Length", 0)))
    request.connection.close()


class Server:
    def __init__(self) -> None:
        self.behaviour: Behaviour = active
        self.requests = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                server.requests += 1
                server.behaviour(self)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def two(one: Behaviour, other: Behaviour) -> Iterator[tuple[Server, Server, ControlPlaneClient]]:
    servers = Server(), Server()
    servers[0].behaviour, servers[1].behaviour = one, other
    try:
        yield *servers, ControlPlaneClient(f"{servers[0].url}, {servers[1].url}/", "token", timeout_s=60.0)
    finally:
        for server in servers:
            server.close()


def test_the_first_that_is_no_standby_is_asked_and_then_asked_first() -> None:
    with two(standby, active) as (one, other, client):
        for _ in range(3):
            assert [job["name"] for job in client.jobs()] == ["a"]
        assert (one.requests, other.requests) == (1, 3)
        one.behaviour, other.behaviour = active, standby
        assert client.submit([{"run": "x"}])[0]["number"] == 0, "what a standby refuses was not accepted"


def test_an_address_at_which_nothing_listens_is_passed_over() -> None:
    server = Server()
    client = ControlPlaneClient(f"http://127.0.0.1:{free_port()},{server.url}", "token")
    assert client.submit([{"run": "x"}])[0]["name"] == "a"
    server.close()
    with pytest.raises(Unreachable, match="is the control plane running"):
        client.jobs()


def test_a_submission_that_may_be_accepted_is_not_sent_again() -> None:
    with two(dying, active) as (one, other, client):
        with pytest.raises(Unreachable):
            client.submit([{"run": "x"}])
        assert (one.requests, other.requests) == (1, 0)
        assert [job["name"] for job in client.jobs()] == ["a"], "reading is repeated"


def test_a_request_waits_for_a_standby_that_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with two(standby, standby) as (_, other, client):

        def pause(seconds: float) -> None:
            if other.requests >= 2:
                other.behaviour = active

        monkeypatch.setattr(http_client.time, "sleep", pause)
        assert client.submit([{"run": "x"}])[0]["name"] == "a"
        other.behaviour = standby
        monkeypatch.setattr(http_client, "TAKEOVER_WITHIN_S", 0.0)
        with pytest.raises(RefusedRequest, match="standby") as refused:
            client.jobs()
        assert refused.value.status == 503
