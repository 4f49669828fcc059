"""When jobs will run, for everybody: one look ahead at a time, made in another process, serves all who ask within some seconds,
as long as nothing that it says of their jobs has changed. It is of everybody's jobs, and each is told of their own.

(No postponed annotations here: FastAPI reads them.)"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

from fastapi import APIRouter, Depends, HTTPException, Request

from fairlead.core.errors import FairleadError
from fairlead.engine.state_codec import freeze
from fairlead.runtime.control import views
from fairlead.runtime.control.cluster_backend import StateBusy
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.tokens import Bearer, Role

log = logging.getLogger(__name__)

KEPT_S = 15.0  # or as long as it took to look
GLANCE_S = 0.2
AT_REST_WITHIN_S = 2.0
HUNG_UP = 499  # which nobody reads; it is counted
TELLS = ("completed", "simulations", "budget_s", "window_s", "history_s")
"""What is told to everybody."""

Lookahead: TypeAlias = Callable[[float, bytes, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""From the second it is, a state as a journal's snapshots spell it, and rates: what is seen of whom."""
Frozen: TypeAlias = Callable[[], tuple[float, bytes, Mapping[str, Any]]]


class LookaheadResult(NamedTuple):
    """What was seen, from which second on, and when that was known."""

    at: float
    done: float
    told: dict[str, Any]


class LookaheadService:
    def __init__(self, lookahead: Lookahead, frozen: Frozen, now: Callable[[], float]) -> None:
        self._lookahead, self._frozen, self._now = lookahead, frozen, now
        self._look: asyncio.Task[LookaheadResult] | None = None
        self._asking = 0

    async def seen(self, besides: LookaheadResult | None = None) -> LookaheadResult:
        """The last look, or one that is being made, or a new one: one that is fresh, and not the one `besides` which another is
        wanted. Where all who wait for a look are cancelled, so is it."""
        if self._look is None or (self._look.done() and not self._serves(self._look, besides)):
            self._look = asyncio.create_task(self._made())
            self._look.add_done_callback(_heard)
        look, self._asking = self._look, self._asking + 1
        try:
            return await asyncio.shield(look)
        finally:
            self._asking -= 1
            if not self._asking and not look.done():
                look.cancel()
                self._look = None

    def _serves(self, look: asyncio.Task[LookaheadResult], besides: LookaheadResult | None) -> bool:
        if look.cancelled() or look.exception() is not None or look.result() is besides:
            return False
        seen = look.result()
        return self._now() - seen.done <= max(KEPT_S, seen.done - seen.at)

    async def _made(self) -> LookaheadResult:
        at, saved, rates = await asyncio.to_thread(self._frozen)
        told = await self._lookahead(at, saved, rates)
        return LookaheadResult(at, self._now(), told)


def _heard(look: asyncio.Task[LookaheadResult]) -> None:
    """Why it failed users are not told, and maybe nobody waits for it any more."""
    if not look.cancelled() and (problem := look.exception()) is not None:
        log.warning("it could not be looked ahead", extra={"why": str(problem)})


def when_routes(plane: ControlPlane, bearer: Callable[..., Any], lookahead: Lookahead) -> APIRouter:
    router = APIRouter()

    def frozen() -> tuple[float, bytes, Mapping[str, Any]]:
        with plane.backend.at_rest(AT_REST_WITHIN_S):
            now, spell, rates = plane.backend.now, freeze(plane.loop.state), views.rates(plane.loop.state)
        return now, spell(), {"rates": rates}

    def there(whose: str | None) -> dict[int, bool]:
        """Jobs that somebody may see and that have not ended, and whether they run."""
        with plane.backend.at_rest(AT_REST_WITHIN_S):
            state = plane.loop.state
            running, alive = {*state.running.tolist()}, (*state.live.tolist(), *state.queue.tolist())
            return {number: number in running for number in alive if whose in (None, state.job_of[number].user)}

    foresight = LookaheadService(lookahead, frozen, lambda: plane.backend.now)

    async def looked(besides: LookaheadResult | None, gone: asyncio.Task[None]) -> LookaheadResult:
        look = asyncio.create_task(foresight.seen(besides))
        try:
            while not look.done():
                await asyncio.wait((look, gone), timeout=GLANCE_S, return_when=asyncio.FIRST_COMPLETED)
                if plane.stopping and not look.done():  # which waits for who asks
                    raise HTTPException(503, "the control plane is stopping")
                if gone.done() and not look.done():
                    raise HTTPException(HUNG_UP, "who asked has hung up")
            return look.result()
        finally:
            look.cancel()

    @router.get("/v1/when", responses={503: {}})
    async def when(who: Annotated[Bearer, Depends(bearer)], request: Request) -> dict[str, Any]:
        """When each job of yours should run and should have ended, in seconds from now: as if nobody else came, and with others
        who come as they did lately. null: not in the time that was looked at."""
        whose = None if who.role is Role.ADMIN else who.user
        gone = asyncio.create_task(_hung_up(request))
        try:
            seen = await looked(None, gone)
            mine = await asyncio.to_thread(there, whose)
            if not mine.items() <= _runs(seen).items():  # somebody came, began or stopped since
                seen = await looked(seen, gone)
                mine = await asyncio.to_thread(there, whose)
        except StateBusy:
            raise
        except FairleadError as problem:
            about = f": {problem}" if whose is None else "; an admin is told why"
            raise HTTPException(503, f"it could not be looked ahead{about}") from None
        finally:
            gone.cancel()
        return _of(seen, plane.backend.now, mine)

    return router


async def _hung_up(request: Request) -> None:
    """Returns when whoever asked does not wait for the answer any more: nobody else would tell."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _runs(seen: LookaheadResult) -> dict[int, bool]:
    return {one["number"]: one["running"] for one in seen.told["jobs"]}


def _of(seen: LookaheadResult, now: float, mine: Mapping[int, bool]) -> dict[str, Any]:
    """What somebody may know of it, from now on: of their jobs, who have at most begun since. Of those who came or stopped it
    says nothing, and how many they are is `missed`."""
    told, age_s = seen.told, max(0.0, now - seen.at)
    as_seen = (one for one in told["jobs"] if one["number"] in mine and mine[one["number"]] >= one["running"])
    jobs = [_later(one, mine[one["number"]], age_s, whole=told["completed"] > 0) for one in as_seen]
    return {
        **{name: told[name] for name in TELLS},
        "jobs": jobs,
        "missed": len(mine) - len(jobs),
        "open_ended": [number for number in told["open_ended"] if number in mine],
        "scaled": [guess for guess in told["scaled"] if guess[0] in mine],
        "unmeasured": [guess for guess in told["unmeasured"] if guess[0] in mine],
    }


def _later(one: Mapping[str, Any], runs: bool, by_s: float, whole: bool) -> dict[str, Any]:
    """What was seen of one, by so many seconds nearer; so is the end of a look that was broken off."""

    def turn(seconds: list[float | None]) -> list[float | None]:
        starts, ends = (None if each is None else max(0.0, each - by_s) for each in seconds)
        return [0.0 if runs else starts, ends]

    return {
        **one,
        "running": runs,
        "without_arrivals": turn(one["without_arrivals"]),
        "with_arrivals": [turn(each) for each in one["with_arrivals"]],
        "horizon_s": one["horizon_s"] if whole else max(0.0, one["horizon_s"] - by_s),
    }
