"""The scheduler over HTTP: which one decides, and another one from the next round on. What is wrong with it is said before
anything is switched. Whoever advises on it gets the whole state.

(No postponed annotations here: FastAPI reads them.)"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field

from fairlead.core import events as ev
from fairlead.core.errors import FairleadError
from fairlead.engine.state_codec import freeze
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.snapshotter import check_serializable
from fairlead.runtime.control.tokens import Bearer, Role

Answered: TypeAlias = Callable[[Sequence[ev.Event]], None]


class Switch(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scheduler: Annotated[dict[str, Any], Field(description="As in a scheduler file.")]
    why: Annotated[str, Field(max_length=500)] = ""
    instead_of: Annotated[
        dict[str, Any] | None, Field(description="The scheduler that decides, as GET told it; where it is another by now, 409.")
    ] = None


def scheduler_routes(
    plane: ControlPlane,
    bearer: Callable[..., Any],
    admin: Callable[..., Any],
    in_the_journal: Callable[[Callable[[Answered], None]], Awaitable[Sequence[ev.Event]]],
) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/scheduler")
    async def scheduler(who: Annotated[Bearer, Depends(bearer)]) -> dict[str, Any]:
        """`trouble` says what keeps it from deciding; empty where nothing does. What a stage says of it is for admins."""
        trouble = plane.decision_health.message if who.role is Role.ADMIN else plane.decision_health.summary
        counts = {"decisions": plane.loop.decisions, "missed": plane.loop.missed}
        return {"scheduler": dict(plane.scheduler_in_use), "trouble": trouble, **counts}

    @router.post("/v1/scheduler", responses={403: {}, 409: {}, 411: {}, 413: {}, 422: {}})
    async def switch(body: Switch, who: Annotated[Bearer, Depends(admin)]) -> dict[str, Any]:
        try:
            await asyncio.to_thread(plane.check, body.scheduler)
            check_serializable(body.instead_of or {})
        except (FairleadError, TypeError, ValueError) as problem:  # a plug-in may find what is wrong in a way of its own
            raise HTTPException(422, str(problem)) from None
        why = body.why or f"{who.user} wanted it"
        switch = partial(plane.backend.switch, body.scheduler, why, instead_of=body.instead_of)
        if not await in_the_journal(lambda answered: switch(answered=answered)):
            raise HTTPException(409, "somebody else has switched the scheduler meanwhile; look at it again")
        return {"scheduler": body.scheduler}

    @router.get("/v1/state", responses={403: {}}, response_class=Response)
    async def state(who: Annotated[Bearer, Depends(admin)]) -> Response:
        """All that the scheduler knows, in the spelling of a journal's snapshots; `fairlead-now` is the second it is of."""

        def frozen() -> tuple[float, Callable[[], bytes]]:
            with plane.backend.at_rest():
                return plane.backend.now, freeze(plane.loop.state)

        now, spell = await asyncio.to_thread(frozen)
        saved = await asyncio.to_thread(spell)
        return Response(saved, media_type="application/octet-stream", headers={"fairlead-now": repr(now)})

    return router
