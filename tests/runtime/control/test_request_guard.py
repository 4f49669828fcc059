"""What a request passes before the application sees it: its token, its user's rate, and the size of its body."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from functools import partial
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from serving import PATIENCE_S, Served, served
from test_api import with_plane

from fairlead.runtime.control import request_guard
from fairlead.runtime.control.agent_server import AgentServer
from fairlead.runtime.control.http_api import create_app
from fairlead.runtime.control.request_guard import RateLimiter, RequestGuard, RequestRate, in_worker
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.protocol.messages import BadMessage, Refused, encode_message


@pytest.fixture(scope="module")
def control() -> Served:
    with served("v100:4") as one:
        yield one


def exchange(control: Served, head: str, body: bytes = b"", token: str | None = None) -> tuple[int, str]:
    """Send these bytes and no more; return the status and the text of the answer."""
    host, _, port = control.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as wire:
        authorization = (
            f"Authorization: Bearer {control.token if token is None else token}\r\nContent-Type: application/json\r\n"
        )
        wire.sendall(f"{head}\r\nHost: x\r\n{authorization}\r\n".encode() + body)
        answer = wire.makefile("rb")
        status = int(answer.readline().split()[1])
        size = 0
        while line := answer.readline().strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        return status, answer.read(size).decode()


SUBMISSION = b'{"jobs": [{"run": "true"}]}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SUBMISSION), SUBMISSION)


@pytest.mark.parametrize("path", ["POST /v1/jobs", "PATCH /v1/jobs/a", "PUT /v1/code/" + "0" * 64, "DELETE /v1/jobs/a"])
def test_a_body_with_two_lengths_is_refused(control, path):
    before = control.plane.loop.state.next_number
    status, text = exchange(control, f"{path} HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked", CHUNKED)
    assert (status, "not both" in text) == (400, True)
    assert control.plane.loop.state.next_number == before


@pytest.mark.parametrize("path", ["POST /v1/jobs", "GET /v1/jobs", "DELETE /v1/jobs/a"])
def test_a_body_of_unknown_length_is_refused(control, path):
    assert exchange(control, f"{path} HTTP/1.1\r\nTransfer-Encoding: chunked", CHUNKED)[0] == 411


@pytest.mark.parametrize("token", ["", "guess"])
@pytest.mark.parametrize("path", ["POST /v1/jobs", "PATCH /v1/jobs/a", "PUT /v1/code/" + "0" * 64])
def test_a_request_without_a_valid_token_is_answered_before_its_body_arrives(control, path, token):
    status, text = exchange(control, f"{path} HTTP/1.1\r\nContent-Length: 1000000", b"{", token)
    assert (status, "valid token" in text) == (401, True)


@pytest.mark.parametrize("lengths", ["Content-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked"])
def test_a_connection_ends_with_a_body_of_unknown_length(control, lengths):
    host, _, port = control.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as wire:
        wire.sendall(
            f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {control.token}\r\n{lengths}\r\n\r\n".encode()
        )
        answer = b""
        while part := wire.recv(1 << 16):
            answer += part
    assert b"connection: close" in answer.lower()


def test_a_body_that_is_too_large_is_refused_before_it_arrives(control):
    for path in ("POST /v1/jobs", "GET /v1/jobs"):
        assert exchange(control, f"{path} HTTP/1.1\r\nContent-Length: 9000000", b"{")[0] == 413


@pytest.mark.parametrize("token", [None, "guess"])
def test_a_connection_ends_with_a_long_body_that_is_refused(control, token):
    host, _, port = control.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as wire:
        length = f"Content-Length: 9000000\r\nAuthorization: Bearer {control.token if token is None else token}"
        wire.sendall(f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode() + b"x" * 100_000)
        answer = b""
        while part := wire.recv(1 << 16):  # also while the client could send more
            answer += part
    assert b"connection: close" in answer.lower()
    assert int(answer.split()[1]) == (413 if token is None else 401)


def test_a_client_that_sends_a_body_that_is_too_large_gets_the_answer(control):
    headers = {"Authorization": f"Bearer {control.token}"}
    answer = httpx.post(f"{control.url}/v1/jobs", content=b"x" * 30_000_000, headers=headers, timeout=60, trust_env=False)
    assert (answer.status_code, "too large" in answer.json()["detail"]) == (413, True)


def test_a_connection_stays_open_after_a_short_body_that_is_refused(control):
    host, _, port = control.url.removeprefix("http://").rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.connect()
    first = connection.sock
    for _ in range(2):
        connection.request("POST", "/v1/jobs", b"{}")
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.will_close, connection.sock is first) == (401, False, True)
    connection.close()


def test_a_body_that_stops_is_not_waited_for(control, monkeypatch):
    monkeypatch.setattr(request_guard, "CHUNK_WITHIN_S", 0.2)
    assert exchange(control, "POST /v1/jobs HTTP/1.1\r\nContent-Length: 1000", b"{")[0] == 408


def test_other_requests_are_answered_while_a_large_submission_is_checked():
    async def scene(plane: Any, who: Any) -> None:
        tasks = [{"run": "echo " + "a;" * 4000 + str(n), "array": 10} for n in range(800)]
        ann, bob = who("ann"), who("bob")
        large = asyncio.create_task(ann.post("/v1/jobs", json={"jobs": tasks, "dry_run": True}, timeout=120))
        answered = 0
        while not large.done():
            assert (await bob.get("/v1/health")).status_code == 200
            answered += 1
            await asyncio.sleep(0.001)
        assert large.result().status_code == 201
        assert len(large.result().json()["jobs"]) == 8000
        assert answered > 30

    with_plane(scene)


def test_large_bodies_count_as_several_requests():
    limiter = RateLimiter(RequestRate(per_s=50, burst=200), clock=lambda: 0.0)
    assert [limiter.wait_s("ann", 8 << 20) > 0 for _ in range(7)] == [False] * 6 + [True]
    assert limiter.wait_s("ann") == 0, "small ones still pass"
    assert [limiter.wait_s("bob", math.inf) > 0 for _ in range(5)] == [False] * 4 + [True], "of any size, four pass"


def test_a_change_of_many_jobs_counts_as_several_requests(monkeypatch):
    monkeypatch.setattr("test_api.create_app", partial(create_app, rate=RequestRate(per_s=0.001, burst=60)))

    async def scene(plane: Any, who: Any) -> None:
        async def status(user: str, jobs: int) -> int:
            body = {"change": "hold", "jobs": list(range(jobs))}
            return (await who(user).post("/v1/jobs/changes", json=body)).status_code

        assert [await status("ann", 1000) for _ in range(4)] == [200, 200, 200, 429]  # each counts as 16
        assert [await status("ann", jobs) for jobs in (49, 49, 500)] == [200, 200, 429]
        assert await status("bob", 1000) == 200

    with_plane(scene)


def test_a_user_has_a_burst_and_then_a_rate():
    now = 0.0
    limiter = RateLimiter(RequestRate(per_s=2, burst=3), clock=lambda: now)
    assert [limiter.wait_s("ann") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.wait_s("bob") == 0
    now = 0.5
    assert (limiter.wait_s("ann"), limiter.wait_s("ann")) == (0, 0.5)
    now = 1000.0
    assert [limiter.wait_s("ann") for _ in range(4)] == [0, 0, 0, 0.5]


async def call(guard: RequestGuard, user: str, body: bytes = b"", method: str = "POST", path: str = "/v1/jobs") -> int:
    """The status that a guard's answer has."""
    sent: list[Any] = []
    headers = [(b"authorization", f"Bearer {user}".encode()), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await guard(scope, receive, send)
    return sent[0]["status"]


class Gate:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.open, self.inside = asyncio.Event(), list[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside.append(scope["bearer"].user)
        await self.open.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def guard(self, rate: RequestRate | None = None) -> RequestGuard:
        counted = lambda method, route, status: None  # noqa: E731
        return RequestGuard(self, lambda token: Bearer(Role.USER, token), lambda path: 1 << 30, counted, rate)

    async def wait_for(self, *users: str) -> None:
        while self.inside != list(users):
            await asyncio.sleep(0.01)


def test_one_users_large_bodies_wait_for_each_other_and_nobody_elses(monkeypatch):
    async def scene() -> None:
        gate, large = Gate(), b"x" * (8 << 20)
        guard = gate.guard()
        first = [asyncio.create_task(call(guard, "ann", large)) for _ in range(3)]
        await gate.wait_for("ann")
        others = [asyncio.create_task(call(guard, *one)) for one in (("bob", large), ("ann", b"small"))]
        await gate.wait_for("ann", "bob", "ann")
        gate.open.set()
        assert await asyncio.gather(*first, *others) == [200] * 5

    asyncio.run(scene())


def test_one_users_open_requests_and_rate_are_limited(monkeypatch):
    monkeypatch.setattr(request_guard, "MAX_OPEN", 2)

    async def scene() -> None:
        gate = Gate()
        guard = gate.guard(RequestRate(per_s=1e-3, burst=4))
        waiting = [asyncio.create_task(call(guard, "ann")) for _ in range(2)]
        await gate.wait_for("ann", "ann")
        assert await call(guard, "ann") == 429
        gate.open.set()
        assert await asyncio.gather(*waiting) == [200, 200]
        assert [await call(guard, "ann") for _ in range(2)] == [200, 429]
        assert await call(guard, "bob") == 200

    asyncio.run(scene())


def test_a_refused_request_says_when_to_try_again(control):
    limited = RequestGuard(None, lambda token: None, lambda path: 0, lambda *counted: None, RequestRate(0.1, 0.5))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(limited({"type": "http", "method": "GET", "path": "/", "headers": []}, None, send))
    assert sent[0]["status"] == 429
    assert dict(sent[0]["headers"])[b"retry-after"] == b"5"
    assert "at most 0.1 a second; try again in 5 s" in orjson.loads(sent[1]["body"])["detail"]


def test_one_users_requests_take_turns_to_compute_and_others_do_not_wait_for_them():
    async def scene() -> None:
        begun, over = list[str](), threading.Event()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            user = scope["bearer"].user

            def work() -> None:
                begun.append(user)
                assert user == "bob" or over.wait(PATIENCE_S)

            await in_worker(work, waits=True)
            await send({"type": "http.response.start", "status": 200, "headers": []})

        guard = RequestGuard(application, lambda token: Bearer(Role.USER, token), lambda path: 0, lambda *counted: None)
        slow = [asyncio.create_task(call(guard, "ann", method="GET")) for _ in range(10)]
        while not begun:
            await asyncio.sleep(0.01)
        assert [await call(guard, "bob", method="GET") for _ in range(3)] == [200] * 3
        assert begun == ["ann", "bob", "bob", "bob"]
        over.set()
        assert await asyncio.gather(*slow) == [200] * 10

    asyncio.run(scene())


def test_nobody_waits_for_the_database_that_is_asked_for_an_unknown_token():
    async def scene() -> None:
        asked, over, gate = list[str](), threading.Event(), Gate()
        gate.open.set()

        def bearer(token: str) -> Bearer:
            asked.append(token)
            assert token != "new" or over.wait(PATIENCE_S)
            return Bearer(Role.USER, token)

        guard = RequestGuard(gate, bearer, lambda path: 0, lambda *counted: None, may_wait="new".__eq__)
        new = asyncio.create_task(call(guard, "new", method="GET"))
        while not asked:
            await asyncio.sleep(0.01)
        assert await call(guard, "bob", method="GET") == 200
        over.set()
        assert await new == 200
        assert gate.inside == ["bob", "new"]

    asyncio.run(asyncio.wait_for(scene(), 2 * PATIENCE_S))


@pytest.mark.parametrize("remote", [True, False])
def test_no_agent_waits_for_the_token_of_another(remote: bool):
    threads = list[threading.Thread]()

    class Hub:
        tokens = SimpleNamespace(remote=remote)

        def admit(self, token: str) -> Bearer:
            threads.append(threading.current_thread())
            raise BadMessage(token)

    async def scene() -> list[bytes]:
        context: Any = SimpleNamespace(invocation_metadata=lambda: (("authorization", "Bearer t"),), peer=lambda: "")
        server: Any = AgentServer(Hub())  # type: ignore[arg-type]
        return [answer async for answer in server._stream(None, context)]

    assert asyncio.run(scene()) == [encode_message(Refused("t"))]
    assert (threads[0] is not threading.main_thread()) == remote, "only a database is waited for"


def test_requests_behind_others_of_their_user_do_not_wait_for_the_state_again(monkeypatch):
    monkeypatch.setattr("fairlead.runtime.control.http_api.ANSWER_WITHIN_S", 2.0)

    async def scene(plane: Any, who: Any) -> None:
        waits, at_rest = list[float](), plane.backend.at_rest
        plane.backend.at_rest = lambda within_s: (waits.append(within_s), at_rest(within_s))[1]
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with plane.backend.lock:
                held.set()
                over.wait(PATIENCE_S)

        threading.Thread(target=hold, daemon=True).start()
        assert await asyncio.to_thread(held.wait, PATIENCE_S)
        answers = await asyncio.gather(*(who("ann").get("/v1/jobs") for _ in range(3)))
        over.set()
        assert [answer.status_code for answer in answers] == [503] * 3
        assert waits[1] < 1.0, "together hardly longer than the two seconds of one"

    with_plane(scene)


def test_a_probe_is_answered_whatever_else_comes_from_its_address():
    async def scene() -> None:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        guard = RequestGuard(application, lambda token: None, lambda path: 0, lambda *counted: None, RequestRate(1e-3, 2.0))
        found = [await call(guard, "", method="GET") for _ in range(4)]
        assert found == [200, 200, 429, 429]
        assert [await call(guard, "", method="GET", path="/healthz") for _ in range(4)] == [200] * 4

    asyncio.run(scene())
