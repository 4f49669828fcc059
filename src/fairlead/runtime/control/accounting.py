"""Accounting: which jobs have ended, which GPUs jobs held, from when to when, and their metrics over time. Ended jobs come from
the state, which keeps all of them. Times and metrics come from the events of the journal; what it has dropped is not known any
more. (No postponed annotations here: FastAPI reads them.)"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Query, Response

from fairlead.core import events as ev
from fairlead.core.errors import JournalError
from fairlead.core.job import ENDED, Job, Phase
from fairlead.engine.codec import encode_line
from fairlead.engine.fairness_ledger import SECOND, FairnessLedger, LedgerRow, sum_of_rows
from fairlead.engine.job_control import last_run
from fairlead.engine.journal import Journal
from fairlead.engine.state import State
from fairlead.files import finite_or_none
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.runtime.control import views
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.job_metrics import MetricCurves
from fairlead.runtime.control.job_routes import JobName, Requests
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.protocol.task_parts import array_of

MAX_HISTORY = 100_000
BATCH = 10_000  # events that are observed while the loop waits


class GpuRun(NamedTuple):
    """A stretch of time in which a job held GPUs of one type. `outcome` is how it ended, empty if it has not; `code` is the
    exit code, or minus the signal, of a process that failed."""

    number: int
    type: int
    gpus: int
    start_s: float
    nodes: tuple[int, ...]
    end_s: float
    outcome: str = ""
    code: int = 0


class GpuRunRecorder:
    """The stretches in which jobs held GPUs, from the events of a journal, each observed once. `state` is the state after them;
    if the journal has dropped its first events, stretches that began before are cut at the first one that is left."""

    def __init__(self, state: State) -> None:
        self.seen: int | None = None  # the number of the last event, or how many there were
        self._state, self.known_s = state, -1.0  # the second from which on events are known
        self._open: dict[int, tuple[int, int, float, tuple[int, ...]]] = {}  # type, GPUs, start and nodes
        self._launched: set[int] = set()  # or stopped: their first launch is not from before the events
        self._runs: list[GpuRun] = []

    def observe_all(self, events: Iterable[tuple[int, ev.Event]]) -> None:
        """Observe events with their numbers, in order."""
        for self.seen, event in events:
            self._observe(event)

    def _observe(self, event: ev.Event) -> None:
        if self.known_s < 0:
            self.known_s = 0.0 if isinstance(event, ev.JournalOpened) else event.time
        match event:
            case ev.RoundPlanned(plan):
                starts, again = plan.launches, set(plan.launches.jobs.tolist())
                for number in plan.ended.tolist():  # a waiting job may be ended
                    self._close(number, plan.time, "finished", held=number in plan.suspended)
                for number in plan.suspended.tolist():
                    self._close(number, plan.time, "moved" if number in again else "preempted", held=True)
                bounds, node_of = starts.offsets.tolist(), self._state.cluster.node_of
                columns = (starts.jobs.tolist(), starts.types.tolist(), starts.workers.tolist(), bounds, bounds[1:])
                for number, type_, gpus, begin, end in zip(*columns):
                    nodes = tuple(dict.fromkeys(node_of[starts.accelerators[begin:end]].tolist()))
                    self._open[number] = type_, gpus, plan.time, nodes
                    self._launched.add(number)
            case ev.JobsFinished(_, jobs, at):
                for number, second in zip(jobs.tolist(), at.tolist()):
                    self._close(number, second, "finished", held=True)
            case ev.JobsFailed(_, jobs, at):
                for number, second in zip(jobs.tolist(), at.tolist()):
                    self._close(number, second, "failed", event.code, held=True)
            case ev.JobsInterrupted():
                for number in event.jobs.tolist():
                    self._close(number, event.at_s, "failed" if event.own_fault else "interrupted", event.code, held=True)
            case ev.JobCancelled(time, number):
                self._close(number, time, "cancelled")
            case ev.JobRequeued(time, number):
                self._close(number, time, "requeued")

    def runs(self, now: float) -> tuple[float, list[GpuRun]]:
        """Return the second from which on stretches are known, and all of them up to `now`, in the order of their starts."""
        a, unfinished = self._state.columns, dict(self._open)
        for number in self._state.running.tolist():  # a launch that was dropped from the journal
            began = int(a["type"][number]), int(a["held"][number]), float(a["run_started_s"][number])
            unfinished.setdefault(number, (*began, ()))
        going_on = [GpuRun(number, *begun, now) for number, begun in unfinished.items() if now > begun[2]]
        return max(self.known_s, 0.0), sorted((*self._runs, *going_on), key=lambda run: (run.start_s, run.number))

    def _close(self, number: int, second: float, outcome: str, code: int = 0, *, held: bool = False) -> None:
        begun = self._open.pop(number, None)
        if begun is None and held and number not in self._launched and self.known_s > 0 and number in self._state.job_of:
            begun = int(self._state.columns["type"][number]), self._state.job_of[number].workers, self.known_s, ()
        self._launched.add(number)
        if begun is not None and second > begun[2]:
            self._runs.append(GpuRun(number, *begun, second, outcome, code))


def numbered_events(journal: Journal, after: int | None = None) -> Iterator[tuple[int, ev.Event]]:
    """Return the events of a journal behind one, or (None) all that are left, with their numbers."""
    if isinstance(journal, DatabaseJournal):
        return journal.numbered(after)
    return islice(enumerate(journal, 1), after or 0, None)


def journal_lines(journal: Journal, after: int, limit: int) -> bytes:
    """Return events behind one, encoded. Raises `JournalError`: they were removed, or cannot be read."""
    try:
        return b"".join(encode_line(event) for _, event in islice(numbered_events(journal, after), limit))
    except JournalError:
        first = next((number for number, _ in numbered_events(journal)), 0)
        if first <= after + 1:
            raise
        older = f"events up to {first - 1} were removed, as 'serve --keep-days' asks"
        raise JournalError(f"{older}; the first event left is {first}: pass after={first - 1}") from None


def cut(run: GpuRun, since_s: float, until_s: float) -> GpuRun | None:
    """Return the part of a run within a window; None if there is none."""
    start_s, end_s = max(run.start_s, since_s), min(run.end_s, until_s)
    if start_s >= end_s:
        return None
    return run if (start_s, end_s) == (run.start_s, run.end_s) else run._replace(start_s=start_s, end_s=end_s)


def _about(number: int, job: Job) -> dict[str, Any]:
    return {"number": number, "name": job.name, "user": job.user, "account": job.account, "job_type": job.kind}


def history_records(plane: ControlPlane, number: int) -> Iterator[dict[str, Any]]:
    """Yield what accounting knows of each ended run of a job. A run after the first was submitted when the job was requeued."""
    state, job = plane.loop.state, plane.loop.state.job_of[number]
    ended = Phase(int(state.columns["phase"][number])) in ENDED
    submitted_s, run_s, accelerator_s = float(state.columns["submitted_s"][number]), 0.0, 0.0
    runs = (*state.ended_runs.get(number, ()), *((last_run(state, number),) if ended else ()))
    lost = state.lost_work.get(number) if ended else None
    for run in runs:
        phase = Phase(run.phase)
        yield {
            **_about(number, job),
            "array": array_of(job),
            "state": phase.name.lower(),
            "exit_code": views.exit_code(phase, run.code),
            "submitted_at": views.clock(plane, submitted_s),
            "started_at": None if run.started_s is None else views.clock(plane, run.started_s),
            "ended_at": views.clock(plane, run.ended_s),
            "waited_s": (run.ended_s if run.started_s is None else run.started_s) - submitted_s,
            "ran_s": run.run_s - run_s,
            "gpus": job.workers,
            "gpu_hours": (run.accelerator_s - accelerator_s) / 3600,
            "lost_work_s": lost[0] if lost and run is runs[-1] else 0.0,
        }
        submitted_s, run_s, accelerator_s = run.requeued_s, run.run_s, run.accelerator_s


def _hours(row: LedgerRow) -> dict[str, Any]:
    """GPU hours of the ledger. The balance is positive if a user received less than deserved."""
    hour = 3600 * SECOND
    return {
        "received_gpu_hours": row.received / hour,
        "deserved_gpu_hours": row.deserved / hour,
        "recent_received_gpu_hours": row.recent_received / hour,
        "recent_deserved_gpu_hours": row.recent_deserved / hour,
        "balance_gpu_hours": (row.recent_deserved - row.recent_received) / hour,
        "received_ns": row.received,
        "deserved_ns": row.deserved,
    }


def ledger_records(ledger: FairnessLedger, visible_to: str | None = None) -> dict[str, Any]:
    """Return the rows of one user, or (None) of all users and accounts, and the totals."""
    rows, every, hour = ledger.rows, sum_of_rows(ledger.rows.values()), 3600 * SECOND
    physical = every.received - ledger.counted_twice
    found = {
        "half_life_s": ledger.rules.half_life_s,
        "users": [
            {"user": user, "account": account, **_hours(rows[account, user])}
            for user, account in sorted((user, account) for account, user in rows)
            if visible_to in (None, user)
        ],
        "total": {
            **_hours(every),
            "physical_gpu_hours": physical / hour,
            "available_gpu_hours": ledger.available / hour,
            "physical_ns": physical,
            "available_ns": ledger.available,
        },
    }
    if visible_to is None:
        found["accounts"] = [{"account": account, **_hours(row)} for account, row in ledger.accounts().items()]
    return found


def accounting_routes(plane: ControlPlane, bearer: Callable[..., Any], requests: Requests) -> APIRouter:
    """Return the routes `/v1/history`, `/v1/runs`, `/v1/jobs/{name}/metrics`, `/v1/ledger` and `/v1/journal`."""
    router, read = APIRouter(), requests.read
    Caller = Annotated[Bearer, Depends(bearer)]
    Moment = Annotated[float, Query(ge=0, le=1e12, description="Unix time")]

    @router.get("/v1/history")
    async def history(
        caller: Caller,
        since: Moment = 0.0,
        until: Moment = 1e12,
        limit: Annotated[int, Query(ge=1, le=MAX_HISTORY)] = MAX_HISTORY,
    ) -> dict[str, Any]:
        """Jobs that ended within a window, in the order of their ends; of more than `limit`, the last ones. A job that was
        requeued is there once for each time that it ended."""

        def collect() -> list[dict[str, Any]]:
            state, ended_s = plane.loop.state, plane.loop.state.columns["ended_s"]
            ended = [n for n in state.job_of if n in state.ended_runs or since <= plane.origin + ended_s[n] < until]
            visible = [n for n in ended if caller.visible_user in (None, state.job_of[n].user)]
            found = [run for n in visible for run in history_records(plane, n) if since <= run["ended_at"] < until]
            return sorted(found, key=lambda run: (run["ended_at"], run["number"]))[-limit:]

        found = await read(collect)
        await asyncio.to_thread(views.drop_saved_work, found, plane.backend.checkpoints)
        return {"jobs": found}

    recorder, curves, catching_up = GpuRunRecorder(plane.loop.state), MetricCurves(), asyncio.Lock()

    async def observe_unseen() -> None:
        """Let the recorder observe the events since the last request. They are read outside the control plane's lock."""
        unseen = numbered_events(plane.journal, recorder.seen)

        def next_batch() -> list[tuple[int, ev.Event]]:
            batch = list(islice(unseen, BATCH))
            curves.observe_all(batch)
            return batch

        while batch := await asyncio.to_thread(next_batch):
            await read(partial(recorder.observe_all, batch))

    async def catch_up() -> None:
        nonlocal recorder, curves
        async with catching_up:
            try:
                await observe_unseen()
            except JournalError:  # events were dropped before they were observed: begin again with those that are left
                recorder, curves = GpuRunRecorder(plane.loop.state), MetricCurves()
                await observe_unseen()

    @router.get("/v1/runs")
    async def runs(
        caller: Caller,
        since: Moment = 0.0,
        until: Moment = 1e12,
        job: Annotated[int | None, Query(ge=0, description="only this job, by number")] = None,
    ) -> dict[str, Any]:
        """The stretches of a window in which jobs held GPUs, cut at its edges, in Unix time. The journal's events begin at
        `known_since`: of earlier times nothing is known. A GPU that two jobs share is in the stretches of both. `outcome` is
        how a stretch ended, empty while it lasts."""
        names, nodes = plane.cluster.type_names, plane.cluster.nodes
        await catch_up()

        def collect() -> dict[str, Any]:
            state = plane.loop.state
            known_s, found = recorder.runs(min(plane.backend.now, plane.progress_until_s))
            rows = [
                {
                    **_about(part.number, about),
                    "gpu_type": names[part.type],
                    "gpus": part.gpus,
                    "nodes": [nodes[node].name for node in part.nodes],
                    "start": plane.origin + part.start_s,
                    "end": plane.origin + part.end_s,
                    "outcome": part.outcome,
                    "exit_code": 0 if part.outcome == "finished" else part.code or None,
                }
                for run in found
                if job in (None, run.number)
                and (part := cut(run, since - plane.origin, until - plane.origin)) is not None
                and caller.visible_user in (None, (about := state.job_of[part.number]).user)
            ]
            return {"known_since": plane.origin + known_s, "now": plane.origin + plane.backend.now, "runs": rows}

        return dict(await read(collect))

    @router.get("/v1/jobs/{name}/metrics")
    async def metrics(name: JobName, caller: Caller) -> dict[str, Any]:
        """What a job reported over time, and what was measured of its GPUs. Long curves have fewer points. The journal's events
        begin at `known_since`."""
        number = await read(lambda: requests.find(name, caller))
        await catch_up()
        async with catching_up:
            found, known_s = curves.of(number), max(recorder.known_s, 0.0)
        rows = {
            metric: {
                "time": [plane.origin + second for second in seconds],
                "step": steps,
                "value": [finite_or_none(value) for value in values],
            }
            for metric, (seconds, steps, values) in found.items()
        }
        return {"number": number, "known_since": plane.origin + known_s, "metrics": rows}

    @router.get("/v1/ledger")
    async def ledger(caller: Caller) -> dict[str, Any]:
        """The fairness ledger: GPU time that users received and deserved, and their balance. A GPU that two jobs share counts
        for both, and once in the physical total. Users see their own rows and the totals; admins see all users and accounts."""
        ledger = await read(plane.fairness_ledger)
        since, now = plane.origin + ledger.since / SECOND, plane.origin + ledger.at / SECOND
        return {"known_since": since, "now": now, **ledger_records(ledger, caller.visible_user)}

    @router.get("/v1/journal", responses={403: {}, 410: {}}, response_class=Response)
    async def journal(
        caller: Caller,
        after: Annotated[int, Query(ge=0, lt=2**63, description="the number of the last event that is known")] = 0,
        limit: Annotated[int, Query(ge=1, le=BATCH)] = BATCH,
    ) -> Response:
        """The events of the journal after event `after`, as JSON lines; empty if there are none yet. Status 410 says that they
        were removed, and which is the first one left. Needs an admin token."""
        if caller.role is not Role.ADMIN:
            raise HTTPException(403, "this request needs an admin token")
        try:
            found = await asyncio.to_thread(journal_lines, plane.journal, after, limit)
        except JournalError as problem:
            raise HTTPException(410, f"the journal does not have event {after + 1}: {problem}") from None
        return Response(found, media_type="application/x-ndjson")

    return router
