"""When jobs will run, for everybody: one look ahead at a time, made in another process, serves all who ask within some seconds.
It is of everybody's jobs, and each is told of their own.

(No postponed annotations here: FastAPI reads them.)"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, HTTPException

from fairlead.core.errors import FairleadError
from fairlead.engine.saved import freeze
from fairlead.runtime.control import views
from fairlead.runtime.control.plane import Plane
from fairlead.runtime.control.tokens import Bearer, Role

KEPT_S = 15.0
GLANCE_S = 0.2

Foresee: TypeAlias = Callable[[float, bytes, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""From the second it is, a state as a journal's snapshots spell it, and rates: what is seen of whom."""
Frozen: TypeAlias = Callable[[], tuple[float, bytes, Mapping[str, Any]]]
Seen: TypeAlias = tuple[float, dict[str, Any]]


class Foresight:
    def __init__(self, foresee: Foresee, frozen: Frozen, now: Callable[[], float]) -> None:
        self._foresee, self._frozen, self._now = foresee, frozen, now
        self._look: asyncio.Task[Seen] | None = None
        self._asking = 0

    async def seen(self) -> Seen:
        """How many seconds ago it was looked ahead, and what was seen. Where all who asked leave, a look is broken off."""
        if self._look is None or (self._look.done() and not self._fresh(self._look)):
            self._look = asyncio.create_task(self._made())
        look, self._asking = self._look, self._asking + 1
        try:
            at, told = await asyncio.shield(look)
        finally:
            self._asking -= 1
            if not self._asking and not look.done():
                look.cancel()
                self._look = None
        return max(0.0, self._now() - at), told

    def _fresh(self, look: asyncio.Task[Seen]) -> bool:
        return not look.cancelled() and look.exception() is None and self._now() - look.result()[0] <= KEPT_S

    async def _made(self) -> Seen:
        at, saved, rates = await asyncio.to_thread(self._frozen)
        return at, await self._foresee(at, saved, rates)


def when_routes(plane: Plane, bearer: Callable[..., Any], foresee: Foresee) -> APIRouter:
    router = APIRouter()

    def frozen() -> tuple[float, bytes, Mapping[str, Any]]:
        with plane.live.at_rest():
            now, spell, rates = plane.live.now, freeze(plane.loop.state), views.rates(plane.loop.state)
        return now, spell(), {"rates": rates}

    def kinds(whose: str | None) -> dict[int, str]:
        """Of jobs that somebody may see and that have not ended meanwhile."""
        with plane.live.at_rest():
            state = plane.loop.state
            there = [(number, state.job_of[number]) for number in (*state.live.tolist(), *state.queue.tolist())]
        return {number: job.kind for number, job in there if whose in (None, job.user)}

    foresight = Foresight(foresee, frozen, lambda: plane.live.now)

    @router.get("/v1/when", responses={503: {}})
    async def when(who: Annotated[Bearer, Depends(bearer)]) -> dict[str, Any]:
        """When each job of yours should run and should have ended, in seconds from now: as if nobody else came, and with others
        who come as they did lately. null: not in the time that was looked at."""
        seen = asyncio.create_task(foresight.seen())
        try:
            while not seen.done():
                await asyncio.wait((seen,), timeout=GLANCE_S)
                if plane.leaving and not seen.done():  # which waits for who asks
                    raise HTTPException(503, "the control plane is leaving")
            age_s, told = seen.result()
        except FairleadError as problem:
            about = f": {problem}" if who.role is Role.ADMIN else "; an admin is told why"
            raise HTTPException(503, f"it could not be looked ahead{about}") from None
        finally:
            seen.cancel()
        return _of(told, age_s, await asyncio.to_thread(kinds, None if who.role is Role.ADMIN else who.user))

    return router


def _of(told: Mapping[str, Any], age_s: float, kinds: Mapping[int, str]) -> dict[str, Any]:
    """What somebody may know of it, by the kinds of the jobs that they may see."""
    jobs = [{**one, **_later(one, age_s)} for one in told["jobs"] if one["number"] in kinds]
    there = {kinds[one["number"]] for one in jobs}
    return {
        **told,
        "jobs": jobs,
        "endless": [number for number in told["endless"] if number in kinds],
        "in_proportion": [kind for kind in told["in_proportion"] if kind in there],
        "unmeasured": [kind for kind in told["unmeasured"] if kind in there],
    }


def _later(one: Mapping[str, Any], by_s: float) -> dict[str, Any]:
    def turn(seconds: list[float | None]) -> list[float | None]:
        return [None if each is None else max(0.0, each - by_s) for each in seconds]

    return {"by_itself": turn(one["by_itself"]), "with_others": [turn(each) for each in one["with_others"]]}
