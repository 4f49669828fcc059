"""The part of the HTTP API that changes submitted jobs, one or many at once: cancel, hold, release, requeue and update. It
answers when the changes are in the journal. (No postponed annotations here: FastAPI reads them.)"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Path, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr, field_validator, model_validator

from fairlead.config.user_limits import DEFAULT_LIMITS, UserLimits
from fairlead.core import events as ev
from fairlead.core.job import MAX_WEIGHT, MIN_WEIGHT, UPDATABLE_ENDED, Job, Phase
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.request_guard import ENCODED_SLASH, ParsedRoute, charge, json_response, turn
from fairlead.runtime.control.submissions import MAX_JOBS_PER_REQUEST, JobNames
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.protocol.task_file import Account, TaskSpec, task_of

T = TypeVar("T")
Ask = Callable[[Callable[[Sequence[ev.Event]], None]], None]
ENDED_ALREADY = "the job has already ended"
SLICE_S = 0.01  # how long the loop and other requests wait at a time, while the jobs of a request are checked
AT_ONCE = 50  # changes of a user that are journalled together: the loop does nothing else meanwhile
MAX_HINTS = 10  # unknown jobs of a request whose errors have similar names: finding these is slow
MAX_NAME = 260  # of a job, with its user
JobName = Annotated[
    str,
    Path(max_length=MAX_NAME, description="Name or number of the job; `USER%2FNAME` means a job of that user."),
    AfterValidator(lambda name: name.replace(ENCODED_SLASH, "/")),
]


class Requests(Protocol):
    """What the routes need of the application."""

    names: JobNames

    def find(self, name: str, caller: Bearer, near: bool = True) -> int:
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


class BulkChange(BaseModel):
    """The same change of many jobs."""

    model_config = ConfigDict(extra="forbid")

    change: Literal["cancel", "hold", "release", "requeue", "update"]
    jobs: Annotated[
        list[Annotated[StrictStr, Field(max_length=MAX_NAME)] | Annotated[StrictInt, Field(ge=0, lt=10**9)]],
        Field(
            min_length=1,
            max_length=MAX_JOBS_PER_REQUEST,
            description=f"at most {MAX_JOBS_PER_REQUEST:,} names or numbers; `USER/NAME` means a job of that user",
        ),
    ]
    hold: Annotated[bool, Field(description="for `requeue`: also hold the jobs")] = False
    fields: Annotated[JobUpdate | None, Field(description="for `update`: as in `PATCH /v1/jobs/{name}`")] = None

    @model_validator(mode="after")
    def _only_what_applies(self) -> "BulkChange":
        if self.hold and self.change != "requeue":
            raise ValueError("expected hold with 'requeue' only; to hold jobs, use change 'hold'")
        if self.fields is not None and self.change != "update":
            raise ValueError("expected fields with 'update' only")
        return self


@dataclass(frozen=True)
class CheckedChange:
    """A change of one job that the job's state and the caller's rights allow. `ask` sends it to the loop. If that makes no
    event, the job has changed meanwhile, and the request is refused as `too_late`; None: it has had its effect already."""

    ask: Ask
    answer: dict[str, Any]
    too_late: str | None
    code: str = ""  # an archive that must be stored
    reserved: tuple[str, str] | None = None  # a user and a name, until the change is in the journal
    former_name: str = ""  # before a change of the name


Check = Callable[[int, Phase, Bearer], CheckedChange]  # under the control plane's lock; raises HTTPException: it is refused


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
    router, names = APIRouter(route_class=ParsedRoute), requests.names
    Caller = Annotated[Bearer, Depends(bearer)]

    async def change(words: Sequence[str], caller: Bearer, check: Check) -> list[dict[str, Any] | HTTPException]:
        """Change jobs, and wait until all changes are in the journal. Returns the answer or the error of each word. A job that
        is named twice is changed once."""
        distinct, unknown = list(dict.fromkeys(words)), 0
        found: dict[str, int | HTTPException] = {}
        checked: dict[int, CheckedChange] = {}

        def check_some() -> None:
            nonlocal unknown
            until_s = time.monotonic() + SLICE_S
            for word in distinct[len(found) :]:
                try:
                    found[word] = number = requests.find(word, caller, unknown < MAX_HINTS)
                    if number not in checked:
                        checked[number] = check(number, Phase(int(plane.loop.state.columns["phase"][number])), caller)
                except HTTPException as refused:
                    found[word] = refused
                    unknown += refused.status_code == 404
                if time.monotonic() >= until_s:
                    return

        def missing_codes() -> set[str]:
            codes = {one.code for one in checked.values()} - {""}
            return {code for code in codes if plane.code is None or not plane.code.has(code)}

        try:
            while len(found) < len(distinct):
                await requests.read(check_some)
            missing = await asyncio.to_thread(missing_codes)
            gone = HTTPException(409, "the job's code is not stored any more; submit the job again")
            done: dict[int, dict[str, Any] | HTTPException] = {n: gone for n, one in checked.items() if one.code in missing}
            asked = [(number, one) for number, one in checked.items() if number not in done]
            for begin in range(0, len(asked), AT_ONCE):
                some = asked[begin : begin + AT_ONCE]
                for (number, one), events in zip(some, await journalled([one.ask for _, one in some])):
                    done[number] = one.answer if events or one.too_late is None else HTTPException(409, one.too_late)
            if renamed := {n: one.former_name for n, one in asked if one.former_name and done[n] is one.answer}:
                await requests.read(lambda: names.rename(plane.loop.state, renamed))
        finally:
            names.pending -= {one.reserved for one in checked.values() if one.reserved}
        return [done[one] if isinstance(one, int) else one for one in map(found.__getitem__, words)]

    async def journalled(asks: Sequence[Ask]) -> list[Sequence[ev.Event]]:
        """Send changes to the loop together; return the events of each when all are in the journal."""
        made: list[Sequence[ev.Event]] = []

        def ask(answer: Callable[[Sequence[ev.Event]], None]) -> None:
            def collect(events: Sequence[ev.Event]) -> None:  # in the order of the requests
                made.append(events)
                if len(made) == len(asks):
                    answer(())

            with plane.backend.inbox.together():
                for one in asks:
                    one(collect)

        async with turn() if len(asks) > 1 else nullcontext():  # or several such requests would meet in one commit
            await requests.in_the_journal(ask)
        return made

    async def change_one(name: str, caller: Bearer, check: Check) -> dict[str, Any]:
        [done] = await change([name], caller, check)
        if isinstance(done, HTTPException):
            raise done
        return done

    def check_holder(number: int, caller: Bearer) -> None:
        """Refuse to let a user lift or take over a hold of another, such as an operator."""
        holder = plane.loop.state.held.get(number)
        if holder is not None and caller.visible_user not in (None, holder):
            raise HTTPException(403, f"the job is held by {holder}; ask {holder} to release it")

    def check_cancel(number: int, phase: Phase, caller: Bearer) -> CheckedChange:
        if phase > Phase.RUNNING:
            raise HTTPException(409, ENDED_ALREADY)
        return CheckedChange(partial(plane.backend.cancel, number), {"number": number, "cancelled": True}, ENDED_ALREADY)

    def check_hold(number: int, phase: Phase, caller: Bearer) -> CheckedChange:
        check_holder(number, caller)
        runs = "the job is running: use requeue --hold"
        if phase >= Phase.RUNNING:
            raise HTTPException(409, runs if phase is Phase.RUNNING else ENDED_ALREADY)
        ask = partial(plane.backend.changes.hold, number, caller.user)
        return CheckedChange(ask, {"number": number, "held_by": caller.user}, runs)

    def check_release(number: int, phase: Phase, caller: Bearer) -> CheckedChange:
        if number not in plane.loop.state.held:
            raise HTTPException(409, "the job is not held")
        check_holder(number, caller)
        return CheckedChange(partial(plane.backend.changes.release, number), {"number": number, "held_by": None}, None)

    def check_requeue(number: int, phase: Phase, caller: Bearer, hold: bool) -> CheckedChange:
        check_holder(number, caller)
        if phase < Phase.RUNNING and not hold:
            raise HTTPException(409, "the job is already waiting")
        code, reserved = "", None
        if phase > Phase.RUNNING:
            job = plane.loop.state.job_of[number]
            code, reserved = task_of(job).code, (job.user, job.name)
            if not names.claim(plane.loop.state, *reserved):
                other = f"another job named {job.name!r} has not ended"
                raise HTTPException(409, f"{other}; rename one with 'fairlead update --name'")
        ask = partial(plane.backend.changes.requeue, number, hold, caller.user, ended=phase > Phase.RUNNING)
        answer = {"number": number, "phase": Phase.QUEUED.name.lower(), "held_by": caller.user if hold else None}
        return CheckedChange(ask, answer, "the job has just stopped or ended; try again", code, reserved)

    def check_update(body: JobUpdate) -> Check:
        given, wanted = body.model_dump(include=body.model_fields_set), body.changes()
        if not wanted:
            raise HTTPException(422, f"expected at least one of {', '.join(JobUpdate.model_fields)}")
        ended = f"{ENDED_ALREADY}; only its name and account can be changed"

        def check(number: int, phase: Phase, caller: Bearer) -> CheckedChange:
            if phase > Phase.RUNNING and not set(wanted) <= set(UPDATABLE_ENDED):
                raise HTTPException(409, ended)
            own, changes = {}, dict(wanted)
            if "account" in changes:
                if (account := caller.account_of(changes["account"])) is None:
                    raise HTTPException(422, f"jobs of this token belong to account {caller.account or caller.user!r}")
                own = {"account": account}
            changes |= own
            former = plane.loop.state.job_of[number]
            job = replace(former, **changes)
            fields = DEFAULT_LIMITS if "account" in changes else DEFAULT_LIMITS.keys() & changes.keys()
            check_limits(plane, caller, [job], fields)
            if changes.get("name") == "":
                raise HTTPException(422, "name: expected a name with at least one letter")
            ask, answer = partial(plane.backend.changes.update, number, changes), {"number": number, **given, **own}
            if not (new := changes.get("name", "")):
                return CheckedChange(ask, answer, ended)
            if not names.claim(plane.loop.state, job.user, new):
                raise HTTPException(409, f"a job of {job.user} named {new!r} has not ended")
            return CheckedChange(ask, answer, ended, reserved=(job.user, new), former_name=former.name)

        return check

    @router.delete("/v1/jobs/{name}", responses={404: {}, 409: {}})
    async def cancel(name: JobName, caller: Caller) -> dict[str, Any]:
        """Cancel a job."""
        return await change_one(name, caller, check_cancel)

    @router.put("/v1/jobs/{name}/hold", responses={403: {}, 404: {}, 409: {}, 411: {}})
    async def hold(name: JobName, caller: Caller) -> dict[str, Any]:
        """Hold a waiting job: it does not start until it is released."""
        return await change_one(name, caller, check_hold)

    @router.delete("/v1/jobs/{name}/hold", responses={403: {}, 404: {}, 409: {}})
    async def release(name: JobName, caller: Caller) -> dict[str, Any]:
        """Release a held job."""
        return await change_one(name, caller, check_release)

    @router.post("/v1/jobs/{name}/requeue", responses={403: {}, 404: {}, 409: {}, 411: {}, 422: {}})
    async def requeue(name: JobName, body: JobRequeue, caller: Caller) -> dict[str, Any]:
        """Requeue a job: a running one saves and stops, an ended one runs again, a finished one from its first step."""
        return await change_one(name, caller, partial(check_requeue, hold=body.hold))

    @router.patch("/v1/jobs/{name}", responses={403: {}, 404: {}, 409: {}, 411: {}, 422: {}})
    async def update(name: JobName, body: JobUpdate, caller: Caller) -> dict[str, Any]:
        """Change fields of a job. Of an ended job, only its name and account."""
        return await change_one(name, caller, check_update(body))

    @router.post("/v1/jobs/changes", response_model=dict[str, Any], responses={411: {}, 413: {}, 422: {}})
    async def change_many(body: BulkChange, caller: Caller) -> Response:
        """Make the same change to many jobs. Each job is changed or refused as by a request of its own.

        `results` has, in the order of `jobs`, what that request would answer, or its `error` with `status` and `detail`."""
        charge(len(body.jobs) // AT_ONCE)
        checks = {"cancel": check_cancel, "hold": check_hold, "release": check_release}
        checks["requeue"] = partial(check_requeue, hold=body.hold)
        check = check_update(body.fields or JobUpdate()) if body.change == "update" else checks[body.change]
        results = [
            {"error": {"status": one.status_code, "detail": one.detail}} if isinstance(one, HTTPException) else one
            for one in await change([str(name) for name in body.jobs], caller, check)
        ]
        return await json_response({"results": results})

    return router
