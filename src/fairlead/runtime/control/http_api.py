"""What people and tools ask over HTTP: jobs, nodes, use, health. Bodies are checked before anything else is done; a submission
is answered when it is in the journal.

(No postponed annotations here: FastAPI reads them, and some name what is known only inside `create_app`.)"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from fairlead import __version__
from fairlead.core import events as ev
from fairlead.core.errors import near_names, near_or_all
from fairlead.core.job import ENDED, Job, Phase
from fairlead.engine.feasibility import feasible_types, infeasible_reason
from fairlead.engine.state import State
from fairlead.runtime.control import views
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.http_errors import DOCUMENTED, speak_plainly
from fairlead.runtime.control.job_logs import LogMissing, LogReader, LogUnreachable
from fairlead.runtime.control.lookahead_service import Lookahead, when_routes
from fairlead.runtime.control.prometheus import CONTENT, RequestCounter
from fairlead.runtime.control.scheduler_switch import scheduler_routes
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.runtime.protocol.code_archive import ArchiveRefused
from fairlead.runtime.protocol.task_file import TaskSpec, task_of

# Jobs by name. People find the youngest job of a name that they may see; a name is free again when its job has ended. Names
# are read from the state as jobs come, so that a look costs the same with ten jobs and with a hundred thousand.

MOST_COMPARED = 200
"""Jobs whose names are compared with one that nobody has; to compare is slow, and everybody waits."""

MOST_LOOKED_AT = 10_000
"""Jobs among which these are looked for: where others have many, one's own may be far back."""


class JobNames:
    """Ask it under the control plane's lock only."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._read = 0

    def called(self, state: State, name: str) -> Sequence[int]:
        """The numbers of all jobs of a name, the youngest last."""
        for number in range(self._read, state.next_number):
            self._numbers.setdefault(state.job_of[number].name, []).append(number)
        self._read = state.next_number
        return self._numbers.get(name, ())

    def near(self, state: State, name: str, may_see: Callable[[int], bool]) -> list[str]:
        """Names like it, of the youngest that one may see."""
        youngest = islice(range(state.next_number - 1, -1, -1), MOST_LOOKED_AT)
        numbers = (number for number in youngest if may_see(number))
        return near_names(name, dict.fromkeys(state.job_of[number].name for number in islice(numbers, MOST_COMPARED)))

    def taken(self, state: State, name: str) -> bool:
        """At most the youngest of a name has not ended."""
        numbers = self.called(state, name)
        return bool(numbers) and bool(state.store.arrays["phase"][numbers[-1]] <= Phase.RUNNING)


# The order of the jobs of one submission: whoever comes after another of them is numbered behind it.


def submission_order(tasks: Sequence[TaskSpec], known: Callable[[str], int]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Places in `tasks` as they are to be numbered, and for each whom it comes after: the number of a job that is there
    already, as `known` says, or -1 for the first of this order, -2 for the second, … Circles are refused."""
    place_of = {task.name: place for place, task in enumerate(tasks) if task.name}
    order: list[int] = []
    at: dict[int, int] = {}  # by place: where it stands in the order
    after: dict[int, tuple[int, ...]] = {}

    for begin in range(len(tasks)):
        path = [begin]
        while path:
            here = path[-1]
            ahead = [place_of[str(name)] for name in tasks[here].after if str(name) in place_of]
            missing = next((place for place in ahead if place not in at), None)
            if here in at:
                path.pop()
            elif missing is None:
                at[here] = len(order)
                order.append(here)
                names = [str(name) for name in tasks[here].after]
                after[here] = tuple(
                    dict.fromkeys(-1 - at[place_of[name]] if name in place_of else known(name) for name in names)
                )
                path.pop()
            elif missing in path:
                circle = [*path[path.index(missing) :], missing]
                raise HTTPException(422, f"after: {' after '.join(tasks[place].name for place in circle)} is a circle")
            else:
                path.append(missing)
    return order, [after[place] for place in order]


LARGEST_BODY = 8 << 20
MOST_AT_ONCE = 1000
MOST_EARLIER = 20
"""Jobs that had a job's name before it."""
ANSWER_WITHIN_S = 30.0


class Submission(BaseModel):
    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[TaskSpec], Field(min_length=1, max_length=MOST_AT_ONCE)]
    dry_run: bool = False


def create_app(
    plane: ControlPlane, tokens: Tokens, *, metrics_open: bool = False, lookahead: Lookahead | None = None
) -> FastAPI:
    about = "A scheduler for deep-learning clusters."
    app = FastAPI(title="Fairlead", version=__version__, description=about, responses=DOCUMENTED)
    speak_plainly(app)
    scheme = HTTPBearer(auto_error=False)
    names = JobNames()
    pending: set[str] = set()  # names that are on their way into the journal
    logs = LogReader(plane)

    async def bearer(given: Annotated[HTTPAuthorizationCredentials | None, Depends(scheme)]) -> Bearer:
        found = None if given is None else tokens.bearer(given.credentials)
        if found is None or found.role is Role.AGENT:
            raise HTTPException(401, "a valid token is needed: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
        return found

    Who = Annotated[Bearer, Depends(bearer)]

    def admin(who: Who) -> Bearer:
        if who.role is not Role.ADMIN:
            raise HTTPException(403, "this needs an admin's token")
        return who

    @app.middleware("http")
    async def small_bodies(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "0")
        largest = LARGEST_BODY
        if request.url.path.startswith("/v1/code/") and plane.code is not None:
            largest = plane.code.limits.packed_bytes
        if request.method in ("POST", "PUT", "PATCH") and (not length.isdecimal() or int(length) > largest):
            return JSONResponse({"detail": f"a body of at most {largest:,} bytes, with its length"}, 413)
        if request.method in ("POST", "PUT", "PATCH") and "content-length" not in request.headers:
            return JSONResponse({"detail": "a body with its length"}, 411)
        return await go_on(request)

    def reading(read: Callable[[], Any]) -> Any:
        with plane.backend.at_rest(ANSWER_WITHIN_S):
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
        if found := namesakes(name, who):
            return found[-1]
        near = names.near(state, name, lambda number: may_see(number, who))
        hint = f"; near: {', '.join(map(repr, near))}" if near else ""
        raise HTTPException(404, f"there is no job {name[:80]!r}{hint}")

    def may_see(number: int, who: Bearer) -> bool:
        job = plane.loop.state.job_of.get(number)
        return job is not None and (who.role is Role.ADMIN or job.user == who.user)

    def namesakes(name: str, who: Bearer) -> list[int]:
        """All jobs of a name, or the one of a number, that somebody may see, the youngest last."""
        numbers = [int(name)] if name.isdecimal() and len(name) < 10 else names.called(plane.loop.state, name)
        return [number for number in numbers if may_see(number, who)]

    def awaited(name: str, who: Bearer) -> int:
        """A job that another is to come after; one that will never finish is not waited for."""
        try:
            number = find(name, who)
        except HTTPException:
            raise HTTPException(422, f"there is no job {name[:80]!r} to come after") from None
        phase = Phase(int(plane.loop.state.store.arrays["phase"][number]))
        if phase in ENDED and phase is not Phase.FINISHED:
            raise HTTPException(
                422, f"job {name[:80]!r} is {phase.name.lower()} and will never finish: nothing can come after it"
            )
        return number

    JobName = Annotated[str, Path(max_length=128)]

    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        return {"version": __version__, "second": plane.backend.now}

    @app.get("/v1/digest", responses={403: {}})
    async def digest(who: Annotated[Bearer, Depends(admin)]) -> dict[str, Any]:
        """A fingerprint of the state, and the second of its last event: a replay of the journal up to there gives the same."""

        def told() -> dict[str, Any]:
            return {"digest": plane.loop.state.digest(), "second": plane.loop.state.time}

        found: dict[str, Any] = await read(told)
        return found

    @app.post("/v1/jobs", status_code=201)
    async def submit(body: Submission, who: Who) -> dict[str, Any]:
        order, after = await read(lambda: submission_order(body.jobs, lambda name: awaited(name, who)))
        for task in body.jobs:
            if who.account_of(task.account) is None:
                theirs = who.account or who.user
                raise HTTPException(422, f"this token's jobs are of account {theirs!r}, not {task.account!r}")
        jobs = [
            replace(task.job(task.name, who.user, others), account=who.account_of(task.account) or "")
            for task, others in ((body.jobs[place], others) for place, others in zip(order, after))
        ]
        new = set() if body.dry_run else {job.name for job in jobs} - {""}
        fitting = await read(lambda: _checked(plane, jobs, names, pending, new))

        def as_asked(answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
            return {"jobs": [answer for _, answer in sorted(zip(order, answers), key=lambda one: one[0])]}

        if body.dry_run:
            return as_asked({"name": job.name, "types": types} for job, types in zip(jobs, fitting))

        def ask(answered: Callable[[Sequence[ev.Event]], None]) -> None:
            def kept(events: Sequence[ev.Event]) -> None:
                pending.difference_update(new)  # not before, even where whoever asked is not waiting any more
                answered(events)

            plane.backend.submit_jobs(jobs, kept)

        events = await in_the_journal(ask)
        return as_asked({"number": e.number, "name": e.job.name} for e in events if isinstance(e, ev.JobSubmitted))

    @app.get("/v1/jobs")
    async def jobs(
        who: Who,
        phase: Annotated[list[str] | None, Query(max_length=10)] = None,
        everybody: bool = False,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> dict[str, Any]:
        """In the order of their numbers. Of more than `limit`, those that run and the youngest."""
        known = {one.name.lower() for one in Phase}
        if phase is not None and not set(phase) <= known:
            raise HTTPException(422, f"phases are {', '.join(sorted(known))}")

        def collect() -> list[dict[str, Any]]:
            state, now, whose = plane.loop.state, plane.backend.now, None if who.role is Role.ADMIN else who.user
            mine = [n for n, job in state.job_of.items() if (everybody and who.role is Role.ADMIN) or job.user == who.user]
            phases = state.store.arrays["phase"]
            if phase is not None:
                mine = [n for n in mine if Phase(int(phases[n])).name.lower() in phase]
            if len(mine) > limit:
                mine = sorted(sorted(mine, key=lambda n: (phases[n] == Phase.RUNNING, n))[-limit:])
            return [views.job_record(plane.loop, number, now, plane.heard_s, whose) for number in mine]

        return {"jobs": await read(collect)}

    @app.get("/v1/jobs/{name}")
    async def job(name: JobName, who: Who) -> dict[str, Any]:
        """By name it is the youngest; `earlier` are the numbers of the others of that name."""

        def record() -> dict[str, Any]:
            number = find(name, who)
            whose = None if who.role is Role.ADMIN else who.user
            told = views.job_record(plane.loop, number, plane.backend.now, plane.heard_s, whose)
            return {**told, "earlier": [other for other in namesakes(told["name"], who) if other < number][-MOST_EARLIER:]}

        found: dict[str, Any] = await read(record)
        return found

    @app.get("/v1/jobs/{name}/logs", responses={404: {}, 409: {}})
    async def log(
        name: JobName,
        who: Who,
        launch: Annotated[int, Query(ge=0, le=10**9, description="counted from 1; 0: the last")] = 0,
        rank: Annotated[int, Query(ge=0, le=100_000)] = 0,
        offset: Annotated[int, Query(ge=-(1 << 40), le=1 << 40, description="below 0: from the end")] = 0,
    ) -> dict[str, Any]:
        """A piece of what a worker printed; go on at `next` until `over` and `text` is empty."""
        number = await read(lambda: find(name, who))
        try:
            return await logs.read(number, launch, rank, offset)
        except LogUnreachable as away:
            raise HTTPException(409, str(away)) from None
        except LogMissing as missing:
            raise HTTPException(404, str(missing)) from None

    Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]

    @app.get("/v1/code/{digest}", responses={404: {}})
    async def has_code(digest: Digest, who: Who) -> dict[str, Any]:
        """Whether an archive of this SHA-256 needs not be sent any more."""
        if plane.code is None or not plane.code.has(digest):
            raise HTTPException(404, "it was not sent yet")
        return {"digest": digest}

    @app.put("/v1/code/{digest}", status_code=201, responses={411: {}, 413: {}, 422: {}})
    async def send_code(digest: Digest, request: Request, who: Who) -> dict[str, Any]:
        """A zip archive with a job's code, under its SHA-256."""
        if plane.code is None:
            raise HTTPException(422, "this control plane keeps no code")
        archive = await request.body()
        try:
            await asyncio.to_thread(plane.code.take, archive, digest)
        except ArchiveRefused as refused:
            raise HTTPException(422, str(refused)) from None
        return {"digest": digest}

    @app.delete("/v1/jobs/{name}", responses={404: {}, 409: {}})
    async def cancel(name: JobName, who: Who) -> dict[str, Any]:
        number = await read(lambda: find(name, who))
        if await read(lambda: plane.loop.state.store.arrays["phase"][number] > int(Phase.RUNNING)):
            raise HTTPException(409, "it has ended already")
        if not await in_the_journal(lambda answered: plane.backend.cancel(number, answered)):
            raise HTTPException(409, "it has ended already")
        return {"number": number, "cancelled": True}

    @app.get("/v1/nodes")
    async def nodes(who: Who) -> dict[str, Any]:
        whose = None if who.role is Role.ADMIN else who.user
        return {"nodes": await read(lambda: views.node_records(plane, whose))}

    async def drained(name: str, who: Bearer, undo: bool) -> dict[str, Any]:
        if who.role is not Role.ADMIN:
            raise HTTPException(403, "draining nodes needs an admin's token")
        numbers = {node.name: number for number, node in enumerate(plane.cluster.nodes)}
        if name not in numbers:
            raise HTTPException(404, f"there is no node {name[:80]!r}; {near_or_all(name, numbers)}")
        await in_the_journal(lambda answered: plane.backend.drain(numbers[name], undo, answered))
        records = await read(lambda: views.node_records(plane))
        told: dict[str, Any] = records[numbers[name]]
        return told

    @app.put("/v1/nodes/{name}/drain", responses={403: {}, 404: {}, 411: {}})
    async def drain(name: JobName, who: Who) -> dict[str, Any]:
        """Leave a node: its jobs save and move at the next decision, and none comes until this is undone."""
        return await drained(name, who, undo=False)

    @app.delete("/v1/nodes/{name}/drain", responses={403: {}, 404: {}})
    async def undrain(name: JobName, who: Who) -> dict[str, Any]:
        """Use a node again."""
        return await drained(name, who, undo=True)

    @app.get("/v1/rates")
    async def rates(who: Who) -> dict[str, Any]:
        """Throughputs as they were measured."""
        whose = None if who.role is Role.ADMIN else who.user
        return {"types": list(plane.cluster.type_names), "rates": await read(lambda: views.rates(plane.loop.state, whose))}

    @app.get("/v1/overview")
    async def overview(who: Who) -> dict[str, Any]:
        """The cluster at one moment: who holds which accelerator, the queue, the last decisions."""
        whose = None if who.role is Role.ADMIN else who.user
        found: dict[str, Any] = await read(lambda: views.overview(plane, whose))
        return found

    @app.get("/v1/usage")
    async def usage(who: Who) -> dict[str, Any]:
        records = await read(lambda: views.usage(plane.loop.state, plane.backend.now))
        return {"usage": [r for r in records if who.role is Role.ADMIN or r["user"] == who.user]}

    @app.get("/metrics", dependencies=[] if metrics_open else [Depends(admin)], include_in_schema=False)  # not JSON
    async def metrics() -> Response:
        return Response(await asyncio.to_thread(plane.metrics.text), media_type=CONTENT)

    app.add_middleware(RequestCounter, metrics=plane.metrics)
    app.include_router(scheduler_routes(plane, bearer, admin, in_the_journal))
    if lookahead is not None:
        app.include_router(when_routes(plane, bearer, lookahead))
    return app


def _checked(
    plane: ControlPlane, jobs: Sequence[Job], names: JobNames, pending: set[str], claimed: set[str]
) -> list[list[str]]:
    """The types each could run on. Refuses what can never run here, and names that are taken; those that are claimed are taken
    from now on."""
    state = plane.loop.state
    types: list[list[str]] = []
    seen: set[str] = set()
    for job in jobs:
        code = task_of(job).code
        if code and (plane.code is None or not plane.code.has(code)):
            raise HTTPException(422, f"the code of {job.name or 'it'} was not sent: PUT /v1/code/{code} first")
        mask = feasible_types(job, state.cluster)
        if not mask:
            raise HTTPException(422, f"{job.name or 'it'} can never run here: {infeasible_reason(job, state.cluster).text}")
        if job.name and (job.name in seen or job.name in pending or names.taken(state, job.name)):
            raise HTTPException(409, f"the name {job.name!r} is taken by a job that has not ended")
        seen.add(job.name)
        types.append([name for code, name in enumerate(state.cluster.type_names) if mask >> code & 1])
    pending |= claimed
    return types
