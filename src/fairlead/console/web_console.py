"""The routes of the console: the page and its files, sign-in, and the stream of changes. (No postponed annotations here:
FastAPI reads them.)"""

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from fairlead.console.live_feed import LiveFeed
from fairlead.console.live_stream import LivePage, LivePages
from fairlead.core import VERSION
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.request_guard import SESSION_COOKIE, SIGN_IN, check_origin, check_token, look_up, session_of
from fairlead.runtime.control.tokens import Bearer, Tokens

LASTS_S = 12 * 3600.0  # a session, after its last use
MAX_OF_TOKEN = 50  # sessions of one token; the one that was not used for longest ends

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(slots=True)
class _Session:
    """A session, and when it was last used."""

    bearer: Bearer
    used_s: float


class Sessions:
    """Sessions of browsers, in memory, by the digests of their ids: random ids in place of tokens, so that no page keeps a
    token. A session ends some hours after its last use, when its user signs out, or with the token that it was opened with."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._clock = tokens, clock
        self._sessions: dict[bytes, _Session] = {}  # in the order of their last use

    def open(self, bearer: Bearer) -> str:
        """Open a session; return its id."""
        now, mine = self._clock(), list[bytes]()
        for digest, session in list(self._sessions.items()):
            if session.used_s + LASTS_S <= now:
                del self._sessions[digest]
            elif session.bearer.digest == bearer.digest:
                mine.append(digest)
        for digest in mine[: max(0, len(mine) + 1 - MAX_OF_TOKEN)]:
            del self._sessions[digest]
        session_id = secrets.token_urlsafe(32)
        self._sessions[_digest(session_id)] = _Session(bearer, now)
        return session_id

    def bearer(self, session_id: str, *, use: bool = True) -> Bearer | None:
        """Return the bearer of a session's token; None if either has ended. It counts as a use, if `use`."""
        digest, now = _digest(session_id), self._clock()
        session = self._sessions.get(digest)
        if session is None:
            return None
        found = None if session.used_s + LASTS_S <= now else self._tokens.current(session.bearer)
        if found is None:
            del self._sessions[digest]
        elif use:
            self._sessions[digest] = self._sessions.pop(digest)
            session.used_s = now
        return found

    def close(self, session_id: str) -> None:
        """End a session, if there is one with this id."""
        self._sessions.pop(_digest(session_id), None)


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()


class SignIn(BaseModel):
    """A request to sign in."""

    model_config = ConfigDict(extra="forbid")

    token: Annotated[str, Field(min_length=1, max_length=1024)]


class PageFile(NamedTuple):
    """A file of the page."""

    content: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Return the files of the console's page, and those of the HTML report that it shares, by name."""
    found: dict[str, PageFile] = {}
    for package, kinds in (("reporting", ("js", "css")), ("console", tuple(MEDIA_TYPES))):
        for file in files("fairlead").joinpath(package, "page").iterdir():
            kind = file.name.rpartition(".")[2]
            if kind in kinds:
                content = file.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                found[file.name] = PageFile(content, MEDIA_TYPES[kind], etag)
    return found


class Console:
    """The console of one control plane."""

    def __init__(self, plane: ControlPlane, tokens: Tokens) -> None:
        self._plane, self._tokens = plane, tokens
        self.sessions = Sessions(tokens)
        self.pages = LivePages(LiveFeed(plane), lambda: plane.stopping or plane.backend.stopped)
        self._files = page_files()

    def bearer(self, session: str) -> Bearer | None:
        """Return the bearer of the token that a session was opened with; None if either has ended."""
        return self.sessions.bearer(session)

    def routes(self, bearer: Callable[..., Any], features: list[str]) -> APIRouter:
        """Return the routes. `features` are parts that a page may show, and may still grow."""
        router, plane = APIRouter(), self._plane
        Caller = Annotated[Bearer, Depends(bearer)]

        @router.get("/", include_in_schema=False)
        async def page(request: Request) -> Response:
            return self._file("index.html", request)

        @router.get("/console/session", include_in_schema=False)
        async def session(caller: Caller) -> dict[str, Any]:
            """Who is signed in, and what the page may show."""
            about = {"cluster": str(plane.cluster), "version": VERSION, "features": features}
            return {"user": caller.user, "role": str(caller.role), **about}

        @router.post(SIGN_IN, include_in_schema=False, status_code=204)
        async def sign_in(body: SignIn, request: Request) -> Response:
            """Open a session with the token of a user or an admin. An earlier session of the same browser ends."""
            headers = _headers(request)
            check_origin(headers)
            found = await look_up(self._tokens.bearer, self._tokens.may_wait, body.token.strip())
            if found is None:
                raise HTTPException(401, "this token is not valid")
            caller = check_token(found)
            self.sessions.close(session_of(headers))
            secure = "; Secure" if request.url.scheme == "https" else ""
            cookie = f"{SESSION_COOKIE}={self.sessions.open(caller)}; Path=/; HttpOnly; SameSite=Strict{secure}"
            return Response(status_code=204, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})

        @router.post("/console/sign-out", include_in_schema=False, status_code=204)
        async def sign_out(request: Request, caller: Caller) -> Response:
            """End the session of this browser."""
            self.sessions.close(session_of(_headers(request)))
            cookie = f"{SESSION_COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
            return Response(status_code=204, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})

        @router.get("/console/{name}", include_in_schema=False)
        async def file(name: str, request: Request) -> Response:
            return self._file(name, request)

        @router.get(
            "/v1/live",
            response_class=Response,
            responses={200: {"content": {"text/event-stream": {}}}, 429: {}, 503: {}},
        )
        async def live(
            request: Request,
            caller: Caller,
            last_event_id: Annotated[str, Header(max_length=64, description="The id of the last event.")] = "",
            since: Annotated[str, Query(max_length=64, description="As the header, for clients that cannot set it.")] = "",
        ) -> Response:
            """Jobs and nodes as server-sent events: `reset` with all rows, then `change` with new rows, at most twice a second.
            A client that sends the id of its last event gets only what changed since, if that is known. Other users' jobs have
            no names, unless an admin asks."""
            headers = _headers(request)
            opened_with = "" if b"authorization" in headers else session_of(headers)

            def is_valid() -> bool:
                if opened_with:
                    return self.sessions.bearer(opened_with, use=False) is not None
                return self._tokens.current(caller) is not None

            page = LivePage(caller.user, caller.visible_user, is_valid)
            return await self.pages.open(page, last_event_id or since, request.scope.get("stopping", lambda: False))

        return router

    def _file(self, name: str, request: Request) -> Response:
        found = self._files.get(name)
        if found is None:
            raise HTTPException(404, f"the console has no file {name[:80]!r}")
        headers = {**SECURITY, "ETag": found.etag, "Cache-Control": "no-cache"}
        known = request.headers.get("if-none-match", "")
        if found.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)


def _headers(request: Request) -> dict[bytes, str]:
    return {name.lower(): value.decode("latin-1") for name, value in request.scope["headers"]}
