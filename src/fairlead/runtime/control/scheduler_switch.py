"""HTTP routes for the scheduler: show it, switch it, and fetch the whole state for advice on it. (No postponed annotations
here: FastAPI reads them.)"""

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

EventsAnswer: TypeAlias = Callable[[Sequence[ev.Event]], None]


class SchedulerSwitch(BaseModel):
    """A request to switch the scheduler."""

    model_config = ConfigDict(extra="forbid")

    scheduler: Annotated[dict[str, Any], Field(description="As in a scheduler file.")]
    why: Annotated[str, Field(max_length=500)] = ""
    instead_of: Annotated[
        dict[str, Any] | None, Field(description="Switch only if this scheduler, from GET, is still in use; otherwise 409.")
    ] = None


def scheduler_routes(
    plane: ControlPlane,
    bearer: Callable[..., Any],
    admin: Callable[..., Any],
    in_the_journal: Callable[[Callable[[EventsAnswer], None]], Awaitable[Sequence[ev.Event]]],
) -> APIRouter:
    """Return the routes under `/v1/scheduler` and `/v1/state`."""
    router = APIRouter()

    @router.get("/v1/scheduler")
    async def scheduler(who: Annotated[Bearer, Depends(bearer)]) -> dict[str, Any]:
        """The scheduler; `decision_error` says why it does not decide at present, in detail for admins."""
        error = plane.decision_health.message if who.role is Role.ADMIN else plane.decision_health.summary
        counts = {"decisions": plane.loop.decisions, "missed": plane.loop.missed}
        return {"scheduler": dict(plane.scheduler_in_use), "decision_error": error, **counts}

    @router.post("/v1/scheduler", responses={403: {}, 409: {}, 411: {}, 413: {}, 422: {}})
    async def switch(body: SchedulerSwitch, who: Annotated[Bearer, Depends(admin)]) -> dict[str, Any]:
        """Switch the scheduler from the next round on."""
        try:
            await asyncio.to_thread(plane.check, body.scheduler)
            check_serializable(body.instead_of or {})
        except (FairleadError, TypeError, ValueError) as problem:  # a plug-in may raise its own errors
            raise HTTPException(422, str(problem)) from None
        why = body.why or f"requested by {who.user}"
        switch = partial(plane.backend.switch, body.scheduler, why, instead_of=body.instead_of)
        if not await in_the_journal(lambda answer: switch(answer=answer)):
            raise HTTPException(409, "the scheduler was switched meanwhile; fetch it again")
        return {"scheduler": body.scheduler}

    @router.get("/v1/state", responses={403: {}}, response_class=Response)
    async def state(who: Annotated[Bearer, Depends(admin)]) -> Response:
        """The whole state, encoded as in a journal's snapshots; the header `fairlead-now` is its second."""

        def frozen() -> tuple[float, Callable[[], bytes]]:
            with plane.backend.at_rest():
                return plane.backend.now, freeze(plane.loop.state)

        now, encode = await asyncio.to_thread(frozen)
        encoded = await asyncio.to_thread(encode)
        return Response(encoded, media_type="application/octet-stream", headers={"fairlead-now": repr(now)})

    return router
