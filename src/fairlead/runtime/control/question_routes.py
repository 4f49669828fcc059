"""The part of the HTTP API that answers questions by simulation: what if, which change would start a job, when would a new job
start. Processes beside the control plane answer, one question at a time each. (No postponed annotations here: FastAPI reads
them.)"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from fairlead.core.errors import FairleadError
from fairlead.core.job import ENDED, Phase
from fairlead.runtime.control.cluster_backend import StateBusy
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.job_routes import JobName, Requests, account_of, check_limits
from fairlead.runtime.control.lookahead_service import (
    Ask,
    FrozenState,
    SimulationProcesses,
    frozen_state,
    while_connected,
)
from fairlead.runtime.control.request_guard import ParsedRoute, json_response
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.runtime.protocol.whatif_request import NoAnswerInTime, RefusedQuestion, WhatIfRequest

log = logging.getLogger(__name__)

SHORT_S, LONG_S = 4.0, 60.0  # for the answer to a question: of a job, and what if
MAX_OPEN, MAX_PER_USER = 8, 2  # questions that are answered or wait for it
RETRY_S = 5
MAX_FORECAST = 10  # tasks of a dry run that get a forecast


class QuestionLine:
    """Questions that one process answers, one after the other; the present one is cancelled with its request."""

    def __init__(self, ask: Ask, frozen: FrozenState, budget_s: float) -> None:
        self._ask, self._frozen, self._budget_s = ask, frozen, budget_s
        self._open: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    async def answer(self, caller: Bearer, kind: str, **about: Any) -> dict[str, Any]:
        """Return the answer for a caller.

        Raises:
            HTTPException: Too many questions are open (429), this one cannot be answered (422), or the simulation failed (409).
        """
        if self._open[caller.user] >= MAX_PER_USER or self._open.total() >= MAX_OPEN:
            of = f"{caller.user} has {MAX_PER_USER}" if self._open[caller.user] >= MAX_PER_USER else f"there are {MAX_OPEN}"
            raise HTTPException(429, f"{of} open questions; try again in {RETRY_S} s", {"Retry-After": str(RETRY_S)})
        question = {"kind": kind, "user": caller.user, "all_users": caller.visible_user is None, **about}
        self._open[caller.user] += 1
        try:
            async with self._turn:
                now, saved, rates = await asyncio.to_thread(self._frozen)
                return await self._ask(now, saved, rates, question, self._budget_s)
        except StateBusy:
            raise
        except RefusedQuestion as refused:
            raise HTTPException(422, str(refused)) from None
        except NoAnswerInTime:
            raise HTTPException(409, f"the simulation took longer than {self._budget_s:g} s, so it was stopped") from None
        except FairleadError as problem:
            log.warning("question failed", extra={"kind": kind, "why": str(problem)})
            why = f": {problem}" if caller.role is Role.ADMIN else "; an admin sees the reason"
            raise HTTPException(409, f"the simulation failed{why}") from None
        finally:
            self._open[caller.user] -= 1
            self._open += Counter()


class Questions:
    """The questions of a control plane: short ones do not wait for long ones."""

    def __init__(self, plane: ControlPlane, processes: SimulationProcesses) -> None:
        frozen = frozen_state(plane)
        self.plane = plane
        self.short = QuestionLine(processes.short, frozen, SHORT_S)
        self.long = QuestionLine(processes.long, frozen, LONG_S)

    async def starts(self, request: Request, caller: Bearer, tasks: Sequence[TaskSpec]) -> list[Mapping[str, Any]]:
        """Return when each of the first tasks of a dry run would start, alone; nothing for arrays, for jobs that depend on
        others, and where there is no answer."""
        single = [place for place, task in enumerate(tasks) if len(task.members("")) == 1 and not task.after][:MAX_FORECAST]
        asked = [_task_data(tasks[place], caller) for place in single]
        found: list[Mapping[str, Any]] = []
        if asked:
            try:
                answer = await while_connected(self.plane, request, self.short.answer(caller, "start", tasks=asked))
                found = answer["jobs"]
            except (HTTPException, StateBusy):  # the jobs are checked all the same
                pass
        by_place = dict(zip(single, found))
        return [by_place.get(place, {}) for place in range(len(tasks))]


def _task_data(task: TaskSpec, caller: Bearer) -> dict[str, Any]:
    """A task as data, with the account that it counts for."""
    return task.model_dump(mode="json", exclude_unset=True) | {"account": account_of(task, caller)}


def question_routes(questions: Questions, bearer: Callable[..., Any], requests: Requests) -> APIRouter:
    """Return the routes that answer questions."""
    router, plane = APIRouter(route_class=ParsedRoute), questions.plane
    Caller = Annotated[Bearer, Depends(bearer)]

    def job_to_cancel(word: str, caller: Bearer) -> str:
        """The number of a job. Other users' jobs have numbers only, as in `/v1/live`."""
        number = int(word) if word.isdecimal() and len(word) < 10 else requests.find(word, caller)
        if number not in plane.loop.state.job_of or plane.loop.state.columns["phase"][number] > int(Phase.RUNNING):
            raise HTTPException(422, f"without: expected the name or number of a job that has not ended, not {word[:80]!r}")
        return str(number)

    @router.post("/v1/whatif", response_model=dict[str, Any], responses={409: {}, 422: {}, 429: {}, 503: {}})
    async def whatif(body: WhatIfRequest, caller: Caller, request: Request) -> Response:
        """Simulate the cluster from now on twice in each scenario: as it is, and with changes. The cluster does not change.

        The answer has the differences in `metrics`, `users` and `jobs`: mean JCT without and with the changes, and the paired
        difference with a 95 % interval. Those that gain most come first. `starts_s` says when waiting jobs start (null: not
        within the simulation), `scenarios` how many there were, and `guesses` what was assumed. `timelines`, if asked for, has
        the runs of each job in the first scenario, in seconds from now; `left_out` and `more_nodes` count what is not listed.
        Intervals need three scenarios. Other users and their jobs have no names, unless an admin asks. The simulation takes at
        most a minute. It ends when the client closes the connection."""
        others = {*body.quotas, *body.weights} - {caller.user}
        if others and caller.role is not Role.ADMIN:
            raise HTTPException(403, "quotas and weights of other users need an admin token")
        tasks = [_task_data(task, caller) for task in body.submit]
        check_limits(plane, caller, [task.job(task.name, caller.user) for task in body.submit])
        without = await requests.read(lambda: [job_to_cancel(word, caller) for word in body.without])
        asked = body.model_dump(mode="json", exclude={"submit"}) | {"submit": tasks, "without": without}
        found = await while_connected(plane, request, questions.long.answer(caller, "whatif", request=asked))
        return await json_response(found)

    @router.get("/v1/jobs/{name}/fix", responses={404: {}, 409: {}, 429: {}, 503: {}})
    async def fix(name: JobName, caller: Caller, request: Request) -> dict[str, Any]:
        """The smallest change of each kind that would start a waiting job at the next decision, and the jobs that it would
        delay (null: not simulated), each by some `seconds` (null: it does not end within the simulation). Kinds in `unsearched`
        were not searched to the end, for lack of time."""

        def waiting() -> int:
            number = requests.find(name, caller)
            phase = Phase(int(plane.loop.state.columns["phase"][number]))
            if phase is Phase.RUNNING or phase in ENDED or number in plane.loop.state.held:
                word = "held: release it" if number in plane.loop.state.held else phase.name.lower()
                raise HTTPException(409, f"the job does not wait for GPUs: it is {word}")
            return number

        number = await requests.read(waiting)
        return await while_connected(plane, request, questions.short.answer(caller, "fix", number=number))

    return router
