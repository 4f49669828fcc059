"""What people and tools ask over HTTP: jobs, nodes, use, health. Bodies are checked before anything else is done; a submission
is answered when it is in the journal.

(No postponed annotations here: FastAPI reads them, and some name what is known only inside `create_app`.)"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from fairlead import __version__
from fairlead.core import events as ev
from fairlead.core.job import Job, Phase
from fairlead.engine.decide import why_never
from fairlead.runtime.control import views
from fairlead.runtime.control.plane import Plane
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.runtime.tasks import TaskSpec

LARGEST_BODY = 8 << 20
MOST_AT_ONCE = 1000
ANSWER_WITHIN_S = 30.0


class Submission(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[TaskSpec], Field(min_length=1, max_length=MOST_AT_ONCE)]
    dry_run: bool = False


def create_app(plane: Plane, tokens: Tokens) -> FastAPI:
    app = FastAPI(title="Fairlead", version=__version__, description="A scheduler for deep-learning clusters.")
    scheme = HTTPBearer(auto_error=False)
    pending: set[str] = set()  # names that are on their way into the journal

    def bearer(given: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]) -> Bearer:
        found = None if given is None else tokens.bearer(given.credentials)
        if found is None or found.role is Role.AGENT:
            raise HTTPException(401, "a valid token is needed: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
        return found

    Who = Annotated[Bearer, Depends(bearer)]

    @app.middleware("http")
    async def small_bodies(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "0")
        if request.method in ("POST", "PUT", "PATCH") and (not length.isdigit() or int(length) > LARGEST_BODY):
            return JSONResponse({"detail": f"a body of at most {LARGEST_BODY:,} bytes, with its length"}, 413)
        if request.method in ("POST", "PUT", "PATCH") and "content-length" not in request.headers:
            return JSONResponse({"detail": "a body with its length"}, 411)
        return await go_on(request)

    def reading(read: Callable[[], Any]) -> Any:
        with plane.live.lock:
            return read()

    async def read(what: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(reading, what)

    async def in_the_journal(ask: Callable[[Callable[[Sequence[ev.Event]], None]], None]) -> Sequence[ev.Event]:
        """Ask for something, and wait until it is kept."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[ev.Event]] = loop.create_future()

        def answered(events: Sequence[ev.Event]) -> None:
            loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(events))

        ask(answered)
        over = asyncio.create_task(plane.over())
        done, _ = await asyncio.wait((answer, over), timeout=ANSWER_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if answer in done:
            return answer.result()
        why = f": {plane.failure}" if plane.failure is not None else ""
        raise HTTPException(503, f"not known whether it was accepted, look at the queue later{why}")

    def find(name: str, who: Bearer) -> int:
        """A job by number, or by name: the youngest of that name. Others' jobs are not there."""
        state = plane.loop.state
        number = int(name) if name.isdigit() and len(name) < 10 and int(name) in state.job_of else -1
        if number < 0:
            number = next((n for n in reversed(state.job_of) if state.job_of[n].name == name), -1)
        if number < 0 or (who.role is not Role.ADMIN and state.job_of[number].user != who.user):
            raise HTTPException(404, f"there is no job {name[:80]!r}")
        return number

    JobName = Annotated[str, Path(max_length=128)]

    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        return {"version": __version__, "second": plane.live.now}

    @app.get("/v1/digest", responses={403: {}})
    async def digest(who: Who) -> dict[str, Any]:
        """A fingerprint of the state: a replay of the journal gives the same."""
        if who.role is not Role.ADMIN:
            raise HTTPException(403, "for an admin")
        return {"digest": await read(lambda: plane.loop.state.digest())}

    @app.post("/v1/jobs", status_code=201, responses={409: {}, 411: {}, 413: {}, 422: {}})
    async def submit(body: Submission, who: Who) -> dict[str, Any]:
        jobs = [task.job(task.name, who.user) for task in body.jobs]
        fitting = await read(lambda: _checked(plane, jobs, pending))
        if body.dry_run:
            return {"jobs": [{"name": job.name, "types": types} for job, types in zip(jobs, fitting)]}
        names = {job.name for job in jobs} - {""}
        pending.update(names)
        try:
            events = await in_the_journal(lambda answered: plane.live.submit_jobs(jobs, answered))
        finally:
            pending.difference_update(names)
        return {"jobs": [{"number": e.number, "name": e.job.name} for e in events if isinstance(e, ev.JobSubmitted)]}

    @app.get("/v1/jobs")
    async def jobs(
        who: Who,
        phase: Annotated[list[str] | None, Query(max_length=10)] = None,
        everybody: bool = False,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> dict[str, Any]:
        known = {one.name.lower() for one in Phase}
        if phase is not None and not set(phase) <= known:
            raise HTTPException(422, f"phases are {', '.join(sorted(known))}")

        def collect() -> list[dict[str, Any]]:
            state, now = plane.loop.state, plane.live.now
            mine = [n for n, job in state.job_of.items() if (everybody and who.role is Role.ADMIN) or job.user == who.user]
            phases = state.store.arrays["phase"]
            if phase is not None:
                mine = [n for n in mine if Phase(int(phases[n])).name.lower() in phase]
            return [views.job_record(plane.loop, number, now) for number in mine[-limit:]]

        return {"jobs": await read(collect)}

    @app.get("/v1/jobs/{name}", responses={404: {}})
    async def job(name: JobName, who: Who) -> dict[str, Any]:
        found: dict[str, Any] = await read(lambda: views.job_record(plane.loop, find(name, who), plane.live.now))
        return found

    @app.delete("/v1/jobs/{name}", responses={404: {}, 409: {}})
    async def cancel(name: JobName, who: Who) -> dict[str, Any]:
        number = await read(lambda: find(name, who))
        if await read(lambda: plane.loop.state.store.arrays["phase"][number] > int(Phase.RUNNING)):
            raise HTTPException(409, "it has ended already")
        if not await in_the_journal(lambda answered: plane.live.cancel(number, answered)):
            raise HTTPException(409, "it has ended already")
        return {"number": number, "cancelled": True}

    @app.get("/v1/nodes")
    async def nodes(who: Who) -> dict[str, Any]:
        return {"nodes": await read(lambda: views.node_records(plane.loop.state, plane.hub.connected))}

    @app.get("/v1/usage")
    async def usage(who: Who) -> dict[str, Any]:
        records = await read(lambda: views.usage(plane.loop.state, plane.live.now))
        return {"usage": [r for r in records if who.role is Role.ADMIN or r["user"] == who.user]}

    return app


def _checked(plane: Plane, jobs: Sequence[Job], pending: set[str]) -> list[list[str]]:
    """The types each could run on. Refuses what can never run here, and names that are taken."""
    state = plane.loop.state
    taken = {state.job_of[n].name for n in (*state.live.tolist(), *state.queue.tolist())} | pending
    types: list[list[str]] = []
    new: set[str] = set()
    for job in jobs:
        mask = state.types_that_fit(job)
        if not mask:
            raise HTTPException(422, f"{job.name or 'it'} can never run here: {why_never(job, state.cluster)}")
        if job.name and (job.name in taken or job.name in new):
            raise HTTPException(409, f"the name {job.name!r} is taken by a job that has not ended")
        new.add(job.name)
        types.append([name for code, name in enumerate(state.cluster.type_names) if mask >> code & 1])
    return types
