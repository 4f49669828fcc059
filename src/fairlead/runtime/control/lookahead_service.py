"""Forecasts of when jobs will run, for all users: one simulation at a time, in another process. Its result serves all requests
for some seconds, as long as the user's jobs have not changed. It covers all jobs; users see their own. A sample of the
forecasts goes to the journal. (No postponed annotations here: FastAPI reads them.)"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Request

from fairlead.core.errors import FairleadError
from fairlead.core.events import Event, ForecastsRecorded
from fairlead.engine.state import State
from fairlead.engine.state_codec import freeze
from fairlead.runtime.control import views
from fairlead.runtime.control.cluster_backend import StateBusy
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.tokens import Bearer, Role

log = logging.getLogger(__name__)

VALID_S = 15.0  # or as long as the simulation took
CHECK_EVERY_S = 0.2
READ_WITHIN_S = 2.0
CLIENT_CLOSED = 499  # for the request counter only
SAMPLE_AFTER_S, SAMPLE_EVERY_S = 60.0, 600.0  # forecasts for the journal that no user asked for
MAX_RECORDED, RECORD_AGAIN_S, MAX_PER_EVENT = 4, 6 * 3600.0, 200  # forecasts of a job in the journal, and how far apart
SHARED_KEYS = (
    "completed",
    "simulations",
    "budget_s",
    "window_s",
    "history_s",
    "widened",
)  # keys that are the same for all users

Lookahead: TypeAlias = Callable[[float, bytes, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Forecasts from the present second, an encoded state, and measured rates."""
Ask: TypeAlias = Callable[[float, bytes, Mapping[str, Any], Mapping[str, Any], float], Awaitable[dict[str, Any]]]
"""Answers from the same, a question, and the seconds for the answer. It raises RefusedQuestion, or another FairleadError."""
FrozenState: TypeAlias = Callable[[], tuple[float, bytes, Mapping[str, Any]]]
T = TypeVar("T")


class SimulationProcesses(NamedTuple):
    """What simulates beside the control plane: forecasts, and answers to short and to long questions."""

    forecast: Lookahead
    short: Ask
    long: Ask


class LookaheadResult(NamedTuple):
    """A forecast, the second that it starts from, and the second at which it was ready."""

    from_s: float
    ready_s: float
    forecast: dict[str, Any]


class LookaheadService:
    """Runs at most one simulation at a time."""

    def __init__(
        self,
        lookahead: Lookahead,
        frozen: FrozenState,
        now: Callable[[], float],
        record: Callable[[LookaheadResult], None] = lambda result: None,
    ) -> None:
        self._lookahead, self._frozen, self._now, self._record = lookahead, frozen, now, record
        self._sampling: asyncio.Task[None] | None = None
        self._sampled = -math.inf
        self._task: asyncio.Task[LookaheadResult] | None = None
        self._waiting = 0

    async def result(self, other_than: LookaheadResult | None = None) -> LookaheadResult:
        """Return a recent result, other than a known one. A simulation without waiting requests is cancelled."""
        if self._task is None or (self._task.done() and not self._is_usable(self._task, other_than)):
            self._task = asyncio.create_task(self._simulate())
            self._task.add_done_callback(_log_failure)
        task, self._waiting = self._task, self._waiting + 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if not self._waiting and not task.done():
                task.cancel()
                self._task = None

    async def sample(self) -> None:
        """See that a forecast is made soon, for the journal, but not often. Called with requests about jobs."""
        if (self._sampling is None or self._sampling.done()) and time.monotonic() - self._sampled >= SAMPLE_EVERY_S:
            self._sampled = time.monotonic()
            self._sampling = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        await asyncio.sleep(SAMPLE_AFTER_S)  # the job that was just submitted is in the state then
        with suppress(FairleadError):  # it is in the log
            await self.result()

    def _is_usable(self, task: asyncio.Task[LookaheadResult], other_than: LookaheadResult | None) -> bool:
        if task.cancelled() or task.exception() is not None or task.result() is other_than:
            return False
        result = task.result()
        return self._now() - result.ready_s <= max(VALID_S, result.ready_s - result.from_s)

    async def _simulate(self) -> LookaheadResult:
        from_s, state, rates = await asyncio.to_thread(self._frozen)
        forecast = await self._lookahead(from_s, state, rates)
        result = LookaheadResult(from_s, self._now(), forecast)
        self._record(result)
        return result


def _log_failure(task: asyncio.Task[LookaheadResult]) -> None:
    """Users do not see why a simulation failed, and maybe no request waits for it."""
    if not task.cancelled() and (problem := task.exception()) is not None:
        log.warning("forecast failed", extra={"why": str(problem)})


def sampled_forecasts(result: LookaheadResult, now: float, state: State) -> list[Event]:
    """The event that records the forecasts of jobs that have none in the journal, or an old one; none if there are no such
    jobs. Only jobs with an interval count."""
    last: dict[int, list[float]] = {}
    for made_s, number, *_ in state.forecasts:
        last.setdefault(int(number), []).append(made_s)
    alive = {*state.live.tolist(), *state.queue.tolist()}
    chosen: list[tuple[int, list[float]]] = []
    for one in result.forecast["jobs"] if result.forecast["completed"] > 4 else ():
        number, times, known = one["number"], one["with_arrivals"], last.get(one["number"], [])
        again = len(known) < MAX_RECORDED and (not known or now - known[-1] >= RECORD_AGAIN_S)
        if again and number in alive and len(times) == 3 and len(chosen) < MAX_PER_EVENT:
            values = [math.inf if turn[place] is None else turn[place] for place in (0, 1) for turn in times]
            chosen.append((number, [round(result.from_s + value, 1) for value in values]))
    if not chosen:
        return []
    columns: list[Any] = [np.array(column) for column in zip(*(values for _, values in chosen))]
    jobs = np.array([number for number, _ in chosen], dtype=np.int64)
    return [ForecastsRecorded(now, jobs, *columns, *result.forecast.get("widened", ()))]


def frozen_state(plane: ControlPlane) -> FrozenState:
    """Return what reads the present second, the encoded state and the measured rates of a control plane."""

    def frozen() -> tuple[float, bytes, Mapping[str, Any]]:
        with plane.backend.at_rest(READ_WITHIN_S):
            now, encode, rates = plane.backend.now, freeze(plane.loop.state), views.rates(plane.loop.state)
        return now, encode(), {"rates": rates}

    return frozen


def lookahead_service(plane: ControlPlane, lookahead: Lookahead) -> LookaheadService:
    """Return the service of a control plane; it records its forecasts."""

    def record(result: LookaheadResult) -> None:
        plane.backend.inbox.put(lambda now: sampled_forecasts(result, now, plane.loop.state))

    return LookaheadService(lookahead, frozen_state(plane), lambda: plane.backend.now, record)


def when_routes(plane: ControlPlane, bearer: Callable[..., Any], service: LookaheadService) -> APIRouter:
    """Return the route `/v1/when`."""
    router = APIRouter()

    def visible(visible_to: str | None) -> dict[int, bool]:
        """Return the jobs of a user that have not ended, and whether they run."""
        with plane.backend.at_rest(READ_WITHIN_S):
            state = plane.loop.state
            running, alive = {*state.running.tolist()}, (*state.live.tolist(), *state.queue.tolist())
            return {number: number in running for number in alive if visible_to in (None, state.job_of[number].user)}

    @router.get("/v1/when", responses={503: {}})
    async def when(caller: Annotated[Bearer, Depends(bearer)], request: Request) -> dict[str, Any]:
        """When each of your jobs should start and end, in seconds from now: without new jobs, and with drawn run times,
        arrivals and node failures (lower bound of an 80 % interval, median, upper bound). null: not within the simulated
        time."""
        closed = asyncio.create_task(_closed(request))
        try:
            result = await _while_open(plane, closed, service.result())
            mine = await asyncio.to_thread(visible, caller.visible_user)
            if not mine.items() <= {
                (one["number"], one["running"]) for one in result.forecast["jobs"]
            }:  # a job came, started or stopped since
                result = await _while_open(plane, closed, service.result(result))
                mine = await asyncio.to_thread(visible, caller.visible_user)
        except StateBusy:
            raise
        except FairleadError as problem:
            about = f": {problem}" if caller.role is Role.ADMIN else "; an admin sees the reason"
            raise HTTPException(503, f"the forecast failed{about}") from None
        finally:
            closed.cancel()
        return _for_user(result, plane.backend.now, mine)

    return router


async def while_connected(plane: ControlPlane, request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await some work for a request; it is cancelled if the client closes the connection or the control plane stops."""
    closed = asyncio.create_task(_closed(request))
    try:
        return await _while_open(plane, closed, work)
    finally:
        closed.cancel()


async def _while_open(plane: ControlPlane, closed: asyncio.Task[None], work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait((task, closed), timeout=CHECK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if plane.stopping and not task.done():  # the server waits for open requests
                raise HTTPException(503, "the control plane is stopping")
            if closed.done() and not task.done():
                raise HTTPException(CLIENT_CLOSED, "the client closed the connection")
        return task.result()
    finally:
        task.cancel()


async def _closed(request: Request) -> None:
    """Return when the client has closed the connection; the server does not report it otherwise."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _for_user(result: LookaheadResult, now: float, mine: Mapping[int, bool]) -> dict[str, Any]:
    """The forecast for a user, in seconds from now. Jobs that came or stopped since are only counted, in `missed`."""
    forecast, age_s = result.forecast, max(0.0, now - result.from_s)
    known = (one for one in forecast["jobs"] if one["number"] in mine and mine[one["number"]] >= one["running"])
    jobs = [_shifted(one, mine[one["number"]], age_s, complete=forecast["completed"] > 0) for one in known]
    return {
        **{name: forecast[name] for name in SHARED_KEYS},
        "jobs": jobs,
        "missed": len(mine) - len(jobs),
        "open_ended": [number for number in forecast["open_ended"] if number in mine],
        "limited": [number for number in forecast["limited"] if number in mine],
        **{
            key: [about for about in forecast[key] if about[0] in mine]
            for key in ("priors", "ranges", "overdue", "scaled", "unmeasured")
        },
    }


def _shifted(one: Mapping[str, Any], running: bool, by_s: float, complete: bool) -> dict[str, Any]:
    """One job's forecast, some seconds later; so is the horizon of an incomplete simulation."""

    def shift(seconds: list[float | None]) -> list[float | None]:
        starts, ends = (None if each is None else max(0.0, each - by_s) for each in seconds)
        return [0.0 if running else starts, ends]

    return {
        **one,
        "running": running,
        "without_arrivals": shift(one["without_arrivals"]),
        "with_arrivals": [shift(each) for each in one["with_arrivals"]],
        "horizon_s": one["horizon_s"] if complete else max(0.0, one["horizon_s"] - by_s),
    }
