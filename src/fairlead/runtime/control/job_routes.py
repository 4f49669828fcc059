"""The part of the HTTP API that changes submitted jobs: hold, release, requeue and update. Each is answered when it is in the
journal. (No postponed annotations here: FastAPI reads them.)"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from fairlead.config.user_limits import DEFAULT_LIMITS, UserLimits
from fairlead.core import events as ev
from fairlead.core.job import MAX_WEIGHT, MIN_WEIGHT, UPDATABLE_ENDED, Job, Phase
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.request_guard import ENCODED_SLASH, ParsedRoute
from fairlead.runtime.control.submissions import JobNames
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.protocol.task_file import Account, TaskSpec, task_of

T = TypeVar("T")
Ask = Callable[[Callable[[Sequence[ev.Event]], None]], None]
ENDED_ALREADY = "the job has already ended"
JobName = Annotated[
    str,
    Path(max_length=260, description="Name or number of the job; `USER%2FNAME` means a job of that user."),
    AfterValidator(lambda name: name.replace(ENCODED_SLASH, "/")),
]


class Requests(Protocol):
    """What the routes need of the application."""

    names: JobNames

    def find(self, name: str, caller: Bearer) -> int:
        """Return a job that the caller may see."""
        ...

    def read(self, what: Callable[[], T]) -> Awaitable[T]:
        """Read the state while the loop waits."""
        ...

    def in_the_journal(self, ask: Ask) -> Awaitable[Sequence[ev.Event]]:
        """Send a request to the loop, and wait until its events are in the journal."""
        ...


class JobUpdate(BaseModel):
    """Fields of a job to change; those that are not given stay. `null` removes a time limit or a deadline."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(description="new name")] = ""
    account: Annotated[Account, Field(description="team or project that the job counts for")] = ""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    weight: Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    time_limit_s: Annotated[float | None, Field(gt=0, lt=1e15, description="time limit of all launches together")] = None
    deadline_s: Annotated[float | None, Field(gt=0, lt=1e15, description="after submission")] = None
    retries: Annotated[int, Field(ge=0, le=1000)] = 3

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        return TaskSpec._valid_name(name) if name else name

    def changes(self) -> dict[str, Any]:
        """Return the given fields under the names of a job's fields."""
        given = self.model_dump(include=self.model_fields_set)
        limits: dict[str, Any] = {
            name: math.inf for name in ("time_limit_s", "deadline_s") if name in given and given[name] is None
        }
        renamed = {"retry_limit": given.pop("retries")} if "retries" in given else {}
        return {**given, **limits, **renamed}


class JobRequeue(BaseModel):
    """How to requeue a job."""

    model_config = ConfigDict(extra="forbid")

    hold: Annotated[bool, Field(description="also hold the job")] = False


def account_of(task: TaskSpec, caller: Bearer) -> str:
    """Return the account of a task's jobs; one that the caller's token does not allow is refused."""
    if (account := caller.account_of(task.account)) is None:
        theirs = caller.account or caller.user
        raise HTTPException(422, f"jobs of this token belong to account {theirs!r}, not {task.account!r}")
    return account


def check_limits(plane: ControlPlane, caller: Bearer, jobs: Sequence[Job], fields: Iterable[str] = DEFAULT_LIMITS) -> None:
    """Refuse jobs with a weight, a priority or another field beyond what the scheduler allows the caller."""
    limits = UserLimits.from_data(plane.scheduler_in_use.get("limits", {}))
    for job in jobs if caller.role is not Role.ADMIN else ():
        if why := limits.refusal(job, tuple(fields)):
            raise HTTPException(403, f"{job.name or 'the job'}: {why}")


def job_routes(plane: ControlPlane, bearer: Callable[..., Any], requests: Requests) -> APIRouter:
    """Return the routes that change submitted jobs."""
    router = APIRouter(route_class=ParsedRoute)
    Caller = Annotated[Bearer, Depends(bearer)]

    async def found(name: str, caller: Bearer) -> tuple[int, Phase]:
        def read() -> tuple[int, Phase]:
            number = requests.find(name, caller)
            return number, Phase(int(plane.loop.state.columns["phase"][number]))

        return await requests.read(read)

    async def check_hold(number: int, caller: Bearer) -> None:
        """Refuse to let a user lift or take over a hold of another, such as an operator."""
        holder = await requests.read(lambda: plane.loop.state.held.get(number))
        if holder is not None and caller.visible_user not in (None, holder):
            raise HTTPException(403, f"the job is held by {holder}; ask {holder} to release it")

    @router.put("/v1/jobs/{name}/hold", responses={403: {}, 404: {}, 409: {}, 411: {}})
    async def hold(name: JobName, caller: Caller) -> dict[str, Any]:
        """Hold a waiting job: it does not start until it is released."""
        number, phase = await found(name, caller)
        await check_hold(number, caller)
        if phase > Phase.RUNNING:
            raise HTTPException(409, ENDED_ALREADY)
        if phase is Phase.RUNNING or not await requests.in_the_journal(
            lambda answer: plane.backend.changes.hold(number, caller.user, answer)
        ):
            raise HTTPException(409, "the job is running: use requeue --hold")
        return {"number": number, "held_by": caller.user}

    @router.delete("/v1/jobs/{name}/hold", responses={403: {}, 404: {}, 409: {}})
    async def release(name: JobName, caller: Caller) -> dict[str, Any]:
        """Release a held job."""
        number, _ = await found(name, caller)
        if not await requests.read(lambda: number in plane.loop.state.held):
            raise HTTPException(409, "the job is not held")
        await check_hold(number, caller)
        await requests.in_the_journal(lambda answer: plane.backend.changes.release(number, answer))
        return {"number": number, "held_by": None}

    @router.post("/v1/jobs/{name}/requeue", responses={403: {}, 404: {}, 409: {}, 411: {}, 422: {}})
    async def requeue(name: JobName, body: JobRequeue, caller: Caller) -> dict[str, Any]:
        """Requeue a job: a running one saves and stops, an ended one runs again, a finished one from its first step."""
        number, phase = await found(name, caller)
        await check_hold(number, caller)
        if phase < Phase.RUNNING and not body.hold:
            raise HTTPException(409, "the job is already waiting")
        if phase > Phase.RUNNING:
            job = await requests.read(lambda: plane.loop.state.job_of[number])
            if (code := task_of(job).code) and (plane.code is None or not plane.code.has(code)):
                raise HTTPException(409, "the job's code is not stored any more; submit the job again")
            if await requests.read(lambda: requests.names.taken(plane.loop.state, job.user, job.name)):
                other = f"another job named {job.name!r} has not ended"
                raise HTTPException(409, f"{other}; rename one with 'fairlead update --name'")
        if not await requests.in_the_journal(
            lambda answer: plane.backend.changes.requeue(number, body.hold, caller.user, answer)
        ):
            raise HTTPException(409, "the job has just stopped or ended; try again")
        return {"number": number, "phase": Phase.QUEUED.name.lower(), "held_by": caller.user if body.hold else None}

    @router.patch("/v1/jobs/{name}", responses={403: {}, 404: {}, 409: {}, 411: {}, 422: {}})
    async def update(name: JobName, body: JobUpdate, caller: Caller) -> dict[str, Any]:
        """Change fields of a job. Of an ended job, only its name and account."""
        changes = body.changes()
        if not changes:
            raise HTTPException(422, f"expected at least one of {', '.join(JobUpdate.model_fields)}")
        number, phase = await found(name, caller)
        ended = HTTPException(409, f"{ENDED_ALREADY}; only its name and account can be changed")
        if phase > Phase.RUNNING and not set(changes) <= set(UPDATABLE_ENDED):
            raise ended
        if "account" in changes:
            if (account := caller.account_of(changes["account"])) is None:
                raise HTTPException(422, f"jobs of this token belong to account {caller.account or caller.user!r}")
            changes["account"] = account
        job = replace(await requests.read(lambda: plane.loop.state.job_of[number]), **changes)
        check_limits(plane, caller, [job], DEFAULT_LIMITS if "account" in changes else DEFAULT_LIMITS.keys() & changes.keys())
        if changes.get("name") == "":
            raise HTTPException(422, "name: expected a name with at least one letter")
        new, state = changes.get("name", ""), plane.loop.state
        if new and not await requests.read(lambda: requests.names.claim(state, job.user, new)):
            raise HTTPException(409, f"a job of {job.user} named {new!r} has not ended")
        try:
            old = await requests.read(lambda: state.job_of[number].name)
            if not await requests.in_the_journal(lambda answer: plane.backend.changes.update(number, changes, answer)):
                raise ended
            if new:
                await requests.read(lambda: requests.names.rename(state, number, old))
        finally:
            requests.names.pending.discard((job.user, new))
        given = body.model_dump(include=body.model_fields_set)
        return {"number": number, **given, **{name: changes[name] for name in ("account",) if name in changes}}

    return router
