"""The HTTP API for users and tools: jobs, logs, code, nodes, usage, health. Requests are checked first; a change is answered
when it is in the journal. (No postponed annotations here: FastAPI reads them, and some are names in `create_app`.)"""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from fairlead.core import VERSION
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError, JournalUnreachable
from fairlead.core.job import ENDED, Job, Phase
from fairlead.engine.state_codec import freeze
from fairlead.runtime.control import views
from fairlead.runtime.control.accounting import accounting_routes
from fairlead.runtime.control.api_pages import add_pages
from fairlead.runtime.control.cluster_backend import StateBusy
from fairlead.runtime.control.code_store import CodeQuotaExceeded
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.event_log import policy_of
from fairlead.runtime.control.job_logs import LogMissing, LogReader, LogUnreachable
from fairlead.runtime.control.job_routes import JobName, account_of, check_limits, job_routes
from fairlead.runtime.control.lookahead_service import SimulationProcesses, lookahead_service, when_routes
from fairlead.runtime.control.node_routes import node_routes
from fairlead.runtime.control.prometheus import CONTENT_TYPE
from fairlead.runtime.control.question_routes import Questions, question_routes
from fairlead.runtime.control.request_guard import (
    ERROR_RESPONSES,
    ParsedRoute,
    RequestGuard,
    RequestRate,
    WebConsole,
    check_token,
    in_worker,
    json_response,
    validation_sentence,
)
from fairlead.runtime.control.snapshotter import check_serializable
from fairlead.runtime.control.submissions import (
    JobNames,
    JobQuery,
    Submission,
    expand_arrays,
    feasible_types_of,
    jobs_of,
    reserve_names,
    submission_order,
    visibility,
)
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.runtime.protocol.code_archive import ArchiveRefused
from fairlead.runtime.protocol.task_parts import array_of

MAX_BODY = 8 << 20
MAX_EARLIER = 20  # earlier jobs with the same name in a job's record
ANSWER_WITHIN_S = 30.0
MIN_READ_S = 0.2  # how long each request waits for the state at least
AT_ONCE = 200  # records that are made while the loop and other requests wait
CHECK_EVERY_S = 0.2  # whether the scheduling loop has ended

T = TypeVar("T")


class SchedulerSwitch(BaseModel):
    """A request to switch the scheduler."""

    model_config = ConfigDict(extra="forbid")

    scheduler: Annotated[dict[str, Any], Field(description="As in a scheduler file.")]
    why: Annotated[str, Field(max_length=500, description="A reason, for the journal.")] = ""
    instead_of: Annotated[
        dict[str, Any] | None, Field(description="Switch only if this scheduler, from GET, is still in use; otherwise 409.")
    ] = None


def create_app(
    plane: ControlPlane,
    tokens: Tokens,
    *,
    metrics_open: bool = False,
    lookahead: SimulationProcesses | None = None,
    rate: RequestRate | None = None,
    agents_loop: asyncio.AbstractEventLoop | None = None,
    console: WebConsole | None = None,
) -> FastAPI:
    """Return the application; `/metrics` needs no token if `metrics_open`. `rate` limits each user; None: no limit.
    `agents_loop` is the event loop of the agents' streams, if the application runs in another one. `console` has the pages for
    browsers; None: `/` only says what this is."""
    about = "The control plane of a GPU cluster."
    app = FastAPI(
        title="Fairlead", version=VERSION, description=about, responses=ERROR_RESPONSES, docs_url=None, redoc_url=None
    )
    app.router.route_class = ParsedRoute
    add_pages(app, root=console is None)
    questions = None if lookahead is None else Questions(plane, lookahead)
    features = ["ledger"]  # what a page of the console may show, besides what every control plane has

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, problem: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": validation_sentence(problem.errors()[0])}, 422)

    @app.exception_handler(StateBusy)
    @app.exception_handler(JournalUnreachable)
    @app.exception_handler(LogUnreachable)
    @app.exception_handler(LogMissing)
    async def fail(request: Request, problem: FairleadError) -> JSONResponse:
        statuses = {StateBusy: 503, JournalUnreachable: 503, LogUnreachable: 409, LogMissing: 404}
        return JSONResponse({"detail": str(problem)}, statuses[type(problem)])

    scheme = HTTPBearer(auto_error=False)
    names, logs = JobNames(), LogReader(plane)

    async def bearer(request: Request, given: Annotated[object, Depends(scheme)]) -> Bearer:
        return check_token(request.scope["bearer"])

    Caller = Annotated[Bearer, Depends(bearer)]

    def admin(caller: Caller) -> Bearer:
        if caller.role is not Role.ADMIN:
            raise HTTPException(403, "this request needs an admin token")
        return caller

    def metrics_reader(request: Request) -> None:
        if check_token(request.scope["bearer"], metrics=True).role is Role.USER:
            raise HTTPException(403, "this request needs an admin token or one of the role metrics")

    Admin = Annotated[Bearer, Depends(admin)]

    def largest_body(path: str) -> int:
        return plane.code.limits.packed_bytes if path.startswith("/v1/code/") and plane.code is not None else MAX_BODY

    app.add_middleware(
        RequestGuard,
        bearer=tokens.bearer,
        largest_body=largest_body,
        count=plane.metrics.count_request,
        rate=rate,
        may_wait=tokens.may_wait,
        console=console,
    )

    async def read(what: Callable[[], T]) -> T:
        """Read the state in a thread, while the loop waits."""
        until = time.monotonic() + ANSWER_WITHIN_S  # also for a request behind others of its user

        def at_rest() -> T:
            with plane.backend.at_rest(max(MIN_READ_S, until - time.monotonic())):
                return what()

        return await in_worker(at_rest, waits=True)

    async def in_the_journal(ask: Callable[[Callable[[Sequence[ev.Event]], None]], None]) -> Sequence[ev.Event]:
        """Send a request to the loop, and wait until its events are in the journal."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Sequence[ev.Event]] = loop.create_future()

        def answer(events: Sequence[ev.Event]) -> None:
            with suppress(RuntimeError):  # the server has ended; the scheduling loop must not fail
                loop.call_soon_threadsafe(lambda: None if result.done() else result.set_result(events))

        ask(answer)
        until = loop.time() + ANSWER_WITHIN_S
        while not result.done() and loop.time() < until and plane.failure is None and not plane.backend.stopped:
            await asyncio.wait((result,), timeout=CHECK_EVERY_S)
        if result.done():
            return result.result()
        why = f": {plane.failure}" if plane.failure is not None else ""
        raise HTTPException(503, f"it is unknown whether the request was accepted; check 'fairlead queue' later{why}")

    async def from_agents(reading: Coroutine[Any, Any, T]) -> T:
        """Await what needs the agents' streams, in their event loop."""
        if agents_loop is None:
            return await reading
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, agents_loop))

    def find(name: str, caller: Bearer, near: bool = True) -> int:
        """Return a job by number, or the most recent one by name, that a user may see. `near`: an error has similar names."""
        state = plane.loop.state
        name, may_see = names.of_one_user(state, name, visibility(state, caller)[0], caller.user)
        if found := names.namesakes(state, name, may_see):
            return found[-1]
        if members := names.members(state, name, may_see):
            raise HTTPException(422, f"{name} is an array of {len(members):,} jobs; name one, such as {name}-{min(members)}")
        raise HTTPException(404, names.missing(state, name, may_see, near))

    def dependency(name: str, caller: Bearer) -> list[int]:
        """Return a job, or all jobs of an array, that another depends on; one that will never finish is refused."""
        try:
            numbers = names.select(plane.loop.state, name, *visibility(plane.loop.state, caller), caller.user)
        except HTTPException as problem:
            if problem.status_code == 409:
                raise
            raise HTTPException(422, f"there is no job {name[:80]!r} to depend on") from None
        for number in numbers:
            phase = Phase(int(plane.loop.state.columns["phase"][number]))
            if phase in ENDED and phase is not Phase.FINISHED:
                job = plane.loop.state.job_of[number].name
                raise HTTPException(422, f"job {job!r} is {phase.name.lower()} and will never finish: no job can depend on it")
        return numbers

    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        """The version and the present second."""
        return {"version": VERSION, "second": plane.backend.now}

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", responses={503: {}})
    async def healthz(response: Response) -> dict[str, str]:
        """For probes, without a token: `ok`; `starting` until the agents of an earlier run have reported; 503 and `unhealthy`
        if the scheduling loop has ended, its decisions fail or are late, or the journal cannot be written."""
        status = "starting" if plane.progress_until_s < math.inf else "ok"
        if not plane.healthy:
            response.status_code, status = 503, "unhealthy"
        return {"status": status}

    @app.get("/v1/digest", responses={403: {}})
    async def digest(caller: Admin) -> dict[str, Any]:
        """A digest of the state, and the second of its last event: a replay of the journal up to there gives the same."""
        state = plane.loop.state
        return await read(lambda: {"digest": state.digest(), "second": state.time})

    @app.post("/v1/jobs", status_code=201)
    async def submit(body: Submission, caller: Caller, request: Request) -> dict[str, Any]:
        """Submit jobs, all or none; the answer has them in the same order. A task with `array` or `grid` is many jobs.

        A dry run also answers in how many seconds a job would start (`starts_s`; null: not known), and with how many fewer
        workers it would start in less than half of that (`alternatives`): without further arrivals, for single jobs."""
        expanded = await in_worker(lambda: expand_arrays(body.jobs, lambda: secrets.token_hex(4)))
        order, after = await read(lambda: submission_order(expanded, lambda name: dependency(name, caller)))
        for task in body.jobs:
            account_of(task, caller)

        def complete() -> list[Job]:
            made = jobs_of(((expanded[place], others) for place, others in zip(order, after)), caller.user)
            completed = [replace(job, account=caller.account_of(job.account) or "") for job in made]
            check_limits(plane, caller, completed)
            return completed

        jobs = await in_worker(complete)
        arrays = {one.member.name for one in expanded if one.member is not None}
        new = set() if body.dry_run else ({job.name for job in jobs} | arrays) - {""}
        fitting = await in_worker(lambda: feasible_types_of(plane, jobs))
        await read(lambda: reserve_names(plane.loop.state, caller.user, [expanded[place] for place in order], names, new))

        def in_request_order(answers: Iterable[dict[str, Any]]) -> dict[str, Any]:
            return {"jobs": [answer for _, answer in sorted(zip(order, answers), key=lambda one: one[0])]}

        if body.dry_run:
            checked = ({"name": job.name, "user": job.user, "types": types, **_array(job)} for job, types in zip(jobs, fitting))
            answer = in_request_order(checked)
            if questions is not None and len(answer["jobs"]) == len(body.jobs):
                for one, starts in zip(answer["jobs"], await questions.starts(request, caller, body.jobs)):
                    one |= starts
            return answer

        def ask(answer: Callable[[Sequence[ev.Event]], None]) -> None:
            def journaled(events: Sequence[ev.Event]) -> None:
                names.pending.difference_update(
                    (caller.user, name) for name in new
                )  # not before, even if the client does not wait any more
                answer(events)

            plane.backend.submit_jobs(jobs, journaled)

        events = await in_the_journal(ask)
        submitted = (event for event in events if isinstance(event, ev.JobSubmitted))
        return in_request_order({"number": e.number, "name": e.job.name, **_array(e.job)} for e in submitted)

    @app.get("/v1/jobs", response_model=dict[str, Any])
    async def jobs(caller: Caller, query: Annotated[JobQuery, Query()]) -> Response:
        """Jobs in the order of their numbers. Of more than `limit`, running jobs and the most recent ones, or the first ones
        from `from_number` on."""
        numbers = await read(lambda: query.numbers(plane.loop.state, names, caller))
        records: list[dict[str, Any]] = []

        def collect(some: Sequence[int]) -> None:
            now, until_s = plane.backend.now, plane.progress_until_s
            records.extend(views.job_record(plane.loop, number, now, until_s, caller.visible_user) for number in some)

        for begin in range(0, len(numbers), AT_ONCE):
            await read(partial(collect, numbers[begin : begin + AT_ONCE]))
        await asyncio.to_thread(views.drop_saved_work, records, plane.backend.checkpoints)
        return await json_response({"jobs": records})

    @app.get("/v1/jobs/{name}")
    async def job(name: JobName, caller: Caller) -> dict[str, Any]:
        """One job; a name means the most recent one, and `earlier` are the others with that name."""

        def record() -> dict[str, Any]:
            number = find(name, caller)
            found = views.job_record(plane.loop, number, plane.backend.now, plane.progress_until_s, caller.visible_user)
            same = names.numbers(plane.loop.state, found["name"])
            earlier = [other for other in same if other < number and plane.loop.state.job_of[other].user == found["user"]]
            return {**found, **views.job_task(plane, number, caller.visible_user), "earlier": earlier[-MAX_EARLIER:]}

        found = await read(record)
        await asyncio.to_thread(views.drop_saved_work, [found], plane.backend.checkpoints)
        folder = found["checkpoint"]
        return {**found, "checkpoint_file": await asyncio.to_thread(views.newest_checkpoint, folder) if folder else None}

    @app.get("/v1/jobs/{name}/logs", responses={404: {}, 409: {}})
    async def log(
        name: JobName,
        caller: Caller,
        launch: Annotated[int, Query(ge=0, le=10**9, description="counted from 1; 0: the last")] = 0,
        rank: Annotated[int, Query(ge=0, le=100_000, description="rank of the worker in a gang")] = 0,
        offset: Annotated[int, Query(ge=-(1 << 40), le=1 << 40, description="below 0: from the end")] = 0,
    ) -> dict[str, Any]:
        """A chunk of a worker's log. Continue at `next` until `over` is true and `text` is empty."""
        number = await read(lambda: find(name, caller))
        return await from_agents(logs.read(number, launch, rank, offset))

    @app.get("/v1/jobs/{name}/outputs", responses={404: {}, 409: {}}, response_class=Response)
    async def outputs(
        name: JobName,
        caller: Caller,
        path: Annotated[str, Query(max_length=1024, description="empty: the list of all outputs, in JSON")] = "",
        offset: Annotated[int, Query(ge=0, le=1 << 40)] = 0,
    ) -> Response:
        """A chunk of a file that a job has kept (`outputs` in its task). Continue behind it until the chunk is empty."""
        number = await read(lambda: find(name, caller))
        launch, data = await from_agents(logs.read_output(number, path, offset))
        return Response(data, media_type="application/octet-stream", headers={"fairlead-launch": str(launch)})

    Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 digest of the archive.")]

    @app.get("/v1/code/{digest}", responses={404: {}})
    async def has_code(digest: Digest, caller: Caller) -> dict[str, Any]:
        """Whether an archive with this SHA-256 digest is stored already."""
        if plane.code is None or not await asyncio.to_thread(plane.code.has, digest):
            raise HTTPException(404, "no archive with this digest")
        return {"digest": digest}

    @app.put("/v1/code/{digest}", status_code=201, responses={411: {}, 413: {}, 422: {}, 507: {}})
    async def send_code(digest: Digest, request: Request, caller: Caller) -> dict[str, Any]:
        """Store a zip archive with a job's code under its SHA-256 digest."""
        if plane.code is None:
            raise HTTPException(422, "this control plane does not store code")
        archive, store = await request.body(), plane.code

        def add() -> None:
            try:
                store.add(archive, digest, caller.user)
            except CodeQuotaExceeded:
                plane.cleaner.remove_code()
                store.add(archive, digest, caller.user)

        try:
            await asyncio.to_thread(add)
        except ArchiveRefused as refused:
            raise HTTPException(422, str(refused)) from None
        except CodeQuotaExceeded as full:
            raise HTTPException(full.status, str(full)) from None
        return {"digest": digest}

    @app.get("/v1/rates")
    async def rates(caller: Caller) -> dict[str, Any]:
        """Measured throughputs."""
        measured = await read(lambda: views.rates(plane.loop.state, caller.visible_user))
        return {"types": list(plane.cluster.type_names), "rates": measured}

    @app.get("/v1/overview", response_model=dict[str, Any])
    async def overview(caller: Caller) -> Response:
        """The cluster at one moment: the jobs on each GPU, the queue, the last decisions."""
        found = await read(lambda: views.overview(plane, caller.visible_user))
        await asyncio.to_thread(views.drop_saved_work, found["jobs"], plane.backend.checkpoints)
        return await json_response(found)

    @app.get("/v1/usage")
    async def usage(caller: Caller) -> dict[str, Any]:
        """GPU hours by user and account."""
        records = await read(lambda: views.usage(plane.loop.state, min(plane.backend.now, plane.progress_until_s)))
        return {"usage": [r for r in records if caller.visible_user in (None, r["user"])]}

    @app.get("/metrics", dependencies=[] if metrics_open else [Depends(metrics_reader)], include_in_schema=False)  # not JSON
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(await asyncio.to_thread(plane.metrics.text), media_type=CONTENT_TYPE)

    @app.get("/v1/scheduler")
    async def scheduler(caller: Caller) -> dict[str, Any]:
        """The scheduler, why it does not decide now (in detail for admins), its policy if that preempts, and too slow jobs."""
        error = plane.decision_health.message if caller.role is Role.ADMIN else plane.decision_health.summary
        slow = await read(lambda: views.interference(plane, caller.visible_user))
        about = {"decisions": plane.loop.decisions, "missed": plane.loop.missed, "decision_error": error, "interference": slow}
        preempting = policy_of(plane.scheduler_in_use) if plane.preempts else ""
        return {"scheduler": dict(plane.scheduler_in_use), **about, "preempting_policy": preempting}

    @app.post("/v1/scheduler", responses={403: {}, 409: {}, 411: {}, 413: {}, 422: {}})
    async def switch(body: SchedulerSwitch, caller: Admin) -> dict[str, Any]:
        """Switch the scheduler from the next round on."""
        try:
            await asyncio.to_thread(plane.check, body.scheduler)
            check_serializable(body.instead_of or {})
        except (FairleadError, TypeError, ValueError) as problem:  # a plug-in may raise its own errors
            raise HTTPException(422, str(problem)) from None
        why = body.why or f"requested by {caller.user}"
        if not await in_the_journal(lambda answer: plane.backend.switch(body.scheduler, why, answer, body.instead_of)):
            raise HTTPException(409, "the scheduler was switched in the meantime; fetch it again")
        return {"scheduler": body.scheduler}

    @app.get("/v1/state", responses={403: {}}, response_class=Response)
    async def state(caller: Admin) -> Response:
        """The whole state, encoded as in a journal's snapshots; the header `fairlead-now` is its second."""

        now, encode = await read(lambda: (plane.backend.now, freeze(plane.loop.state)))
        encoded = await asyncio.to_thread(encode)
        return Response(encoded, media_type="application/octet-stream", headers={"fairlead-now": repr(now)})

    requests = SimpleNamespace(names=names, find=find, read=read, in_the_journal=in_the_journal)
    service = None if lookahead is None else lookahead_service(plane, lookahead.forecast)
    app.include_router(job_routes(plane, bearer, requests), dependencies=[Depends(service.sample)] if service else [])
    app.include_router(node_routes(plane, bearer, requests))
    app.include_router(accounting_routes(plane, bearer, requests))
    if service is not None:
        app.include_router(when_routes(plane, bearer, service))
        features.append("when")
    if questions is not None:
        app.include_router(question_routes(questions, bearer, requests))
        features += ["whatif", "fix"]
    if console is not None:
        app.include_router(console.routes(bearer, features))
    return app


def _array(job: Job) -> dict[str, Any]:
    """The array of a job in an answer to its submission; nothing for other jobs."""
    array = array_of(job)
    return {} if array is None else {"array": array}
