"""Open pages: each is an HTTP answer without an end, with server-sent events. One sender makes the events for all pages, at
most twice a second, and only while there is a page. A page that does not read is dropped; it connects again and resumes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairlead.console.live_feed import LiveFeed
from fairlead.runtime.control.cluster_backend import StateBusy

SEND_S = 0.5  # between two events
COMMENT_S = 10.0  # between two comments, by which a page and proxies see that the connection is there
CHECK_S = 2.0  # between two checks whether a page's token or session is still valid
RESUME_S = 60.0  # after the last page has left; then the feed sleeps, and pages begin again
MAX_PAGES, MAX_OF_USER = 200, 20
MAX_BUFFER = 4 << 20  # bytes of events that a page has not read, besides its first and its last one
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class LivePage:
    """One open page. `sight` is the user whose jobs have names on it; None: all users'."""

    user: str
    sight: str | None
    is_valid: Callable[[], bool]
    revision: int | None = None  # of the last event in its buffer; None: the first is still being made
    ended: bool = False
    _events: deque[bytes] = field(default_factory=deque)
    _size: int = 0
    _early: list[tuple[int, bytes]] = field(default_factory=list)  # events that were made before the first
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, revision: int, event: bytes) -> None:
        """Put its first event, which may be large."""
        self._put(revision, event)
        self._size = 0
        for later in self._early:
            self.add(*later)
        self._early.clear()

    def add(self, revision: int, event: bytes) -> None:
        """Put another event, unless the page has it already."""
        if self.revision is None:
            self._early.append((revision, event))
        elif self._size > MAX_BUFFER:
            self.end()
        elif revision > self.revision:
            self._put(revision, event)

    def comment(self) -> None:
        if self.revision is not None and not self._events:
            self._put(self.revision, b":\n\n")

    def _put(self, revision: int, event: bytes) -> None:
        if self.ended:
            return
        self.revision = revision
        self._events.append(event)
        self._size += len(event)
        self._more.set()

    def end(self) -> None:
        """End its stream; what it has not read is dropped."""
        self.ended = True
        self._events.clear()
        self._more.set()

    async def send_all(self, send: Send) -> None:
        """Send events until the page ends."""
        while not self.ended:
            await self._more.wait()
            self._more.clear()
            while self._events:
                event = self._events.popleft()
                self._size = max(0, self._size - len(event))
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LivePages:
    """All open pages of a control plane."""

    def __init__(self, feed: LiveFeed, stopping: Callable[[], bool]) -> None:
        self._feed, self._stopping = feed, stopping
        self._pages: set[LivePage] = set()
        self._sender: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None  # in which the feed is read and written
        self._resets: dict[str | None, bytes] = {}  # by sight, at one revision: after a restart all pages come at once
        self._resets_of = ("", 0)

    def __len__(self) -> int:
        return len(self._pages)

    async def open(self, page: LivePage, since: str, stopping: Callable[[], bool]) -> Response:
        """Return the stream of a page, from its last event id on. Raises `HTTPException`: there are too many pages."""
        if sum(other.user == page.user for other in self._pages) >= MAX_OF_USER:
            raise HTTPException(429, f"{page.user} has {MAX_OF_USER} open pages; close one", {"Retry-After": "5"})
        if len(self._pages) >= MAX_PAGES:
            raise HTTPException(503, f"{MAX_PAGES} pages are open; try again later", {"Retry-After": "30"})
        self._pages.add(page)
        try:
            epoch, _, revision = since.partition(":")
            known = int(revision) if revision.isdecimal() and len(revision) < 16 else -1
            page.begin(*await self._in_thread(lambda: self._first(page.sight, epoch, known)))
        except BaseException:
            self._pages.discard(page)
            raise
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._keep_sending(stopping))
        return _Stream(page, self._pages.discard)

    def _first(self, sight: str | None, epoch: str, known: int) -> tuple[int, bytes]:
        """The first event of a page. Only the sender refreshes the feed: what it finds goes to all pages."""
        feed = self._feed
        feed.wake()
        if feed.knows(epoch, known):
            return feed.revision, feed.message(sight, known)
        if self._resets_of != (feed.epoch, feed.revision):
            self._resets, self._resets_of = {}, (feed.epoch, feed.revision)
        if sight not in self._resets:
            self._resets[sight] = feed.message(sight)
        return feed.revision, self._resets[sight]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._thread = self._thread or ThreadPoolExecutor(1, "live")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _keep_sending(self, stopping: Callable[[], bool]) -> None:
        try:
            await self._send(stopping)
        except Exception:
            log.exception("the console stops sending; pages connect again")
            for page in self._pages:
                page.end()

    async def _send(self, stopping: Callable[[], bool]) -> None:
        """Send events while there are pages; let the feed sleep when there were none for a while."""
        loop = asyncio.get_running_loop()
        comment_at, check_at = loop.time() + COMMENT_S, loop.time() + CHECK_S
        empty_since: float | None = None
        while True:
            await asyncio.sleep(SEND_S)
            now = loop.time()
            if stopping() or self._stopping():
                for page in self._pages:
                    page.end()
            if not self._pages:
                empty_since = now if empty_since is None else empty_since
                if now - empty_since >= RESUME_S or stopping() or self._stopping():
                    break
                continue
            empty_since = None
            if now >= check_at:
                check_at = now + CHECK_S
                for page in [page for page in self._pages if not page.is_valid()]:
                    page.end()
            sights = {page.sight for page in self._pages}
            revision, events = await self._in_thread(lambda sights=sights: self._next(sights))  # type: ignore[misc]
            for page in list(self._pages):
                if page.sight in events:
                    page.add(revision, events[page.sight])
            if now >= comment_at:
                comment_at = now + COMMENT_S
                for page in self._pages:
                    page.comment()
        self._sender = None  # a page that comes from now on wakes the feed again
        await self._in_thread(self._sleep)

    def _sleep(self) -> None:
        self._feed.sleep()
        self._resets = {}

    def _next(self, sights: set[str | None]) -> tuple[int, dict[str | None, bytes]]:
        before = self._feed.revision
        with contextlib.suppress(StateBusy):
            self._feed.refresh()
        if self._feed.revision == before:
            return before, {}
        return self._feed.revision, {sight: self._feed.message(sight, before) for sight in sights}


class _Stream(Response):
    """The answer to a page: events until it leaves, or is ended."""

    def __init__(self, page: LivePage, leave: Callable[[LivePage], None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._page, self._leave = page, leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def until_left() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._page.end()

        left = asyncio.create_task(until_left())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._page.send_all(send)
        finally:
            left.cancel()
            self._page.end()
            self._leave(self._page)
