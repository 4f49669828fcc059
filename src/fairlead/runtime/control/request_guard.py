"""What every HTTP request passes before the application sees it: its token, the rate and the open requests of its user, and the
size of its body, counted as it arrives. Bodies are read after that, and parsed outside the event loop. And the errors of the
HTTP API. It knows no routes and no jobs. (No postponed annotations here: FastAPI reads them.)"""

import asyncio
import json
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.runtime.control.tokens import Bearer, Role

T = TypeVar("T")

SMALL_BODY = 64 << 10  # a body up to this size needs no room
ROOM_PER_USER, ROOM_IN_ALL = 64 << 20, 512 << 20  # bytes of larger bodies that are read or handled at the same time
BODY_UNIT = 256 << 10  # bytes of a body that count as one more request
PARSED = 8  # memory of parsed JSON, in multiples of its size
CHUNK_WITHIN_S = 30.0  # the next part of a body
MIN_BYTES_PER_S = 64 << 10  # of a body, after the first `CHUNK_WITHIN_S`
MAX_OPEN = 64  # requests of one user at the same time
CLOSE = {"Connection": "close"}  # after a body without an end in sight, or a long one that is not read
PROBE = "/healthz"  # always answered: other requests from a probe's address must not make a server seem ill
AGENTS = (Role.AGENT, Role.NODE, Role.LAUNCH)  # refused here: agents use gRPC
ENCODED_SLASH = "%2F"  # stays encoded in a path, and so in its parameters
MAX_USERS = 10_000  # whose rates are remembered
SESSION_COOKIE = "fairlead_session"
SIGN_IN, SIGN_IN_BYTES = "/console/sign-in", 4096  # the one request with a body and without a token, and its largest body
PAGE_HEADER = b"x-fairlead-console"  # a script of another site cannot set it
READING = ("GET", "HEAD", "OPTIONS")

_SLASH = re.compile(ENCODED_SLASH, re.IGNORECASE)
_workers, _look_ups = ThreadPoolExecutor(2, "requests"), ThreadPoolExecutor(1, "tokens")
_turns: ContextVar[AbstractAsyncContextManager[None]] = ContextVar("turns")  # of the request's user
_limits: ContextVar[Callable[[float], None]] = ContextVar("limits")


async def in_worker(work: Callable[[], T], *, waits: bool = False) -> T:
    """Compute in a thread, so that other requests are answered meanwhile: one of a few, or one of more if the work also waits.
    One user's requests take turns."""
    async with turn():
        return await asyncio.get_running_loop().run_in_executor(None if waits else _workers, work)


_ALWAYS: AbstractAsyncContextManager[None] = nullcontext()


def turn() -> AbstractAsyncContextManager[None]:
    """Return a context that one request of a user has at a time."""
    return _turns.get(_ALWAYS)


def charge(requests: int) -> None:
    """Count a request as so many more; refuse it if its user has none of them left."""
    if requests and (limit := _limits.get(None)):
        limit((requests - 1) * BODY_UNIT)


async def json_response(data: Any) -> Response:
    """Return an answer that is encoded in a thread: large ones take long."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return await in_worker(lambda: Response(orjson.dumps(data, option=options), media_type="application/json"))


class RequestRate(NamedTuple):
    """The requests that a user may make: so many a second, after a burst. A large body counts as several."""

    per_s: float = 50.0
    burst: float = 200.0

    def cost(self, body: float) -> float:
        """Return as how many requests one with a body of this size counts."""
        return min(1 + body / BODY_UNIT, max(1.0, self.burst / 4))


@dataclass
class RateLimiter:
    """A token bucket for each user."""

    rate: RequestRate
    clock: Callable[[], float] = time.monotonic
    _full_at: dict[str, float] = field(default_factory=dict)  # when the bucket of a user will be full again

    def wait_s(self, user: str, body: float = 0) -> float:
        """Count a request with a body of this size; return 0, or the seconds to wait if it is one too many."""
        now = self.clock()
        full_at = max(now, self._full_at.get(user, now)) + self.rate.cost(body) / self.rate.per_s
        if (over_s := full_at - now - self.rate.burst / self.rate.per_s) > 1e-9:
            return over_s
        if len(self._full_at) >= MAX_USERS:
            self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        self._full_at[user] = full_at
        return 0.0


def check_token(found: Bearer | None, *, metrics: bool = False) -> Bearer:
    """Return the bearer of a user's or an admin's token, or also of one for metrics; others are refused."""
    if found is None or found.role in AGENTS:
        wanted = "this request needs a valid token in the header 'Authorization: Bearer TOKEN'"
        raise HTTPException(401, wanted, {"WWW-Authenticate": "Bearer"})
    if found.role is Role.METRICS and not metrics:
        raise HTTPException(403, "this token may only read /metrics; use the token of a user or an admin")
    return found


async def look_up(bearer: Callable[[str], Bearer | None], may_wait: Callable[[str], bool], token: str) -> Bearer | None:
    """Return the bearer of a token; no other request waits for one that is unknown."""
    if may_wait(token):
        return await asyncio.get_running_loop().run_in_executor(_look_ups, bearer, token)
    return bearer(token)


class WebConsole(Protocol):
    """The pages for browsers: their sessions, which the guard accepts in place of tokens, and their routes."""

    def bearer(self, session: str) -> Bearer | None:
        """Return the bearer of the token that a session was opened with; None if either has ended."""
        ...

    def routes(self, bearer: Callable[..., Any], features: list[str]) -> APIRouter:
        """Return the routes. `bearer` is the dependency that gives a request's bearer; `features` are parts that a page may
        show, and may still grow."""
        ...


def session_of(headers: Mapping[bytes, str]) -> str:
    """Return the session in a request's cookie; empty if there is none, or several: another site may have set one."""
    pairs = (part.strip().partition("=") for part in headers.get(b"cookie", "").split(";"))
    found = [value for name, _, value in pairs if name == SESSION_COOKIE]
    return found[0] if len(found) == 1 else ""


def check_origin(headers: Mapping[bytes, str]) -> None:
    """Refuse a request that a page of another site has sent."""
    origin = headers.get(b"origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get(b"host", "").lower():
        raise HTTPException(403, "a page of another site may not send this request")


class RequestGuard:
    """The application behind it gets requests with a known bearer (`scope["bearer"]`) and a complete body."""

    def __init__(
        self,
        app: ASGIApp,
        bearer: Callable[[str], Bearer | None],
        largest_body: Callable[[str], int],
        count: Callable[[str, str, int], None],
        rate: RequestRate | None = None,
        may_wait: Callable[[str], bool] = lambda token: False,  # whether `bearer` may ask a database
        console: WebConsole | None = None,
    ) -> None:
        self._may_wait, self._console = may_wait, console
        self._app, self._bearer, self._largest_body, self._count = app, bearer, largest_body, count
        self._limiter = RateLimiter(rate) if rate is not None else None
        self._open: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}  # of users with open requests
        self._held: Counter[str] = Counter()  # bytes by user; of all under ""
        self._released = asyncio.Condition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if b"%2f" in scope.get("raw_path", b"").lower():  # as in the name of a job, `ann/train`: it separates no parts
            scope["path"] = unquote(_SLASH.sub(quote(ENCODED_SLASH), scope["raw_path"].decode("ascii")))
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]}
            await send(message)

        try:
            await self._handle(scope, receive, counted)
        except HTTPException as refused:
            headers = {**(refused.headers or {}), **(CLOSE if scope.get("unread", 0) > SMALL_BODY else {})}
            await JSONResponse({"detail": refused.detail}, refused.status_code, headers)(scope, receive, counted)
        finally:
            self._count(scope["method"], getattr(scope.get("route"), "path", ""), status)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        found = None
        length = headers.get(b"content-length", "0")
        scope["unread"] = int(length) if length.isdecimal() and len(length) < 20 else math.inf
        if scheme.lower() == "bearer":
            found = await look_up(self._bearer, self._may_wait, token.strip())
        elif self._console is not None and not scheme and (session := session_of(headers)):
            found = self._console.bearer(session)
            if found is not None and scope["method"] not in READING and scope["path"] != SIGN_IN:
                check_origin(headers)
                if headers.get(PAGE_HEADER) != "1":
                    raise HTTPException(403, "a request with a cookie that changes something needs 'X-Fairlead-Console: 1'")
        scope["bearer"] = found
        if scope["path"] == PROBE and not self._body_size(scope, headers, found):
            await self._app(scope, receive, send)
            return
        is_user = found is not None and found.role not in AGENTS  # a user may have the name of a node
        user = found.user if found and is_user else f"{(scope.get('client') or ('',))[0]} without a token"

        def limit(body: float) -> None:
            if self._limiter is not None and (wait_s := math.ceil(self._limiter.wait_s(user, body))):
                rate = f"at most {self._limiter.rate.per_s:g} a second"
                why = f"too many requests of {user}: {rate}; try again in {wait_s} s"
                raise HTTPException(429, why, {"Retry-After": str(wait_s)})

        limit(scope["unread"])
        if self._open[user] >= MAX_OPEN:
            raise HTTPException(429, f"{user} has {MAX_OPEN} open requests; try again in 1 s", {"Retry-After": "1"})
        self._open[user] += 1
        _turns.set(self._turns.setdefault(user, asyncio.Lock()))
        _limits.set(limit)
        try:
            size = self._body_size(scope, headers, found)
            await (self._with_body(scope, receive, send, user, size) if size else self._app(scope, receive, send))
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user], self._turns[user]

    def _body_size(self, scope: Scope, headers: dict[bytes, str], found: Bearer | None) -> int:
        """The size of a request's body; one that must not be read is refused."""
        length, chunked = headers.get(b"content-length"), b"transfer-encoding" in headers
        sends = scope["method"] in ("POST", "PUT", "PATCH")
        if chunked and length is not None:
            raise HTTPException(400, "a request has the header Content-Length or Transfer-Encoding, not both", CLOSE)
        signs_in = self._console is not None and (scope["method"], scope["path"]) == ("POST", SIGN_IN)
        if (sends or chunked or length not in (None, "0")) and not signs_in:
            check_token(found)
        if chunked or (sends and length is None):
            raise HTTPException(411, "the request needs the header Content-Length", CLOSE if chunked else None)
        largest = SIGN_IN_BYTES if signs_in else self._largest_body(scope["path"])
        if length is not None and (not length.isdecimal() or int(length) > largest):
            raise HTTPException(413, f"the body is too large: at most {largest:,} bytes are accepted")
        return int(length or 0)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send, user: str, size: int) -> None:
        code = scope["path"].startswith("/v1/code/")
        async with self._room(user, 0 if size <= SMALL_BODY else size if code else size * PARSED):
            body, scope["unread"] = await self._read(receive, size), 0
            if body is None:
                return  # the client has left
            if len(body) != size:
                raise HTTPException(400, "the body is not as long as the header Content-Length says")
            parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replayed() -> Message:
                return parts.pop() if parts else await receive()

            await self._app(scope, replayed, send)

    async def _read(self, receive: Receive, size: int) -> bytes | None:
        """The body, no more than one part beyond its stated size; None if the client has left."""
        body, begun = bytearray(), time.monotonic()
        while True:
            late_s = begun + CHUNK_WITHIN_S + len(body) / MIN_BYTES_PER_S - time.monotonic()
            try:
                async with asyncio.timeout(min(late_s, CHUNK_WITHIN_S)):
                    message: MutableMapping[str, Any] = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body of the request did not arrive in time") from None
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False) or len(body) > size:
                return bytes(body)

    @asynccontextmanager
    async def _room(self, user: str, size: int) -> AsyncIterator[None]:
        """Wait until a body of this size has room among those of its user, and of all."""
        size = min(size, ROOM_PER_USER)
        if not size:
            yield
            return
        async with self._released:
            await self._released.wait_for(
                lambda: self._held[user] + size <= ROOM_PER_USER and self._held[""] + size <= ROOM_IN_ALL
            )
            self._held.update({user: size, "": size})
        try:
            yield
        finally:
            async with self._released:
                self._held.subtract({user: size, "": size})
                self._held += Counter()
                self._released.notify_all()


class ParsedRoute(APIRoute):
    """A route whose body is parsed and validated outside the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None or (body := self.body_field.field_info.annotation) is None:
            return handle
        model: TypeAdapter[Any] = TypeAdapter(body)

        async def parsed(request: Request) -> Response:
            return await handle(_ParsedRequest(request.scope, request.receive, model))

        return parsed


class _ParsedRequest(Request):
    """A request whose JSON is a valid model already."""

    def __init__(self, scope: Scope, receive: Receive, model: TypeAdapter[Any]) -> None:
        super().__init__(scope, receive)
        self._model = model

    async def json(self) -> Any:
        body = await self.body()

        def parse() -> Any:
            try:
                return self._model.validate_python(json.loads(body), from_attributes=True)
            except json.JSONDecodeError:
                raise HTTPException(422, "the body is not JSON") from None
            except ValidationError as problem:
                raise HTTPException(422, validation_sentence(problem.errors(include_url=False)[0])) from None

        return await in_worker(parse)


MAX_DETAIL = 1000


class ErrorResponse(BaseModel):
    """The body of every error."""

    detail: str


DESCRIPTIONS = {
    400: "the body cannot be read, or has two lengths",
    401: "no valid token",
    403: "not allowed with this role",
    404: "not found, or it belongs to another user",
    408: "the body did not arrive in time",
    409: "the current state does not allow it",
    411: "the header Content-Length is missing",
    413: "the body is too large, or above a quota",
    422: "an invalid request",
    429: "too many requests; try again after the seconds of the header Retry-After",
    503: "busy: it is unknown whether the request was accepted, or the state cannot be read; try again",
    507: "no room for more code",
}

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": why} for status, why in DESCRIPTIONS.items()
}


def validation_sentence(error: Any) -> str:
    """The field and what is wrong with it."""
    if error["type"] == "json_invalid":
        return "the body is not JSON"
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    message = str(error["msg"]).removeprefix("Value error, ")
    text = f"{where}: {message}" if where else message
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_DETAIL]
