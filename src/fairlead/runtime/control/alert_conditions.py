"""Conditions that last for a while and that alerts are about: silent nodes, unfair shares, deadlines that will be missed. It
reads the state of a control plane, and sends nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairlead.config.alert_rules import DEADLINE, SILENT_NODE, UNFAIRNESS, AlertRule
from fairlead.core.job import Job
from fairlead.engine.fairness_ledger import SECOND, FairnessLedger, LedgerRow, sum_of_rows
from fairlead.engine.state_codec import freeze
from fairlead.runtime.control import views
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.lookahead_service import Lookahead

AGAIN_AFTER_S = {SILENT_NODE: 300.0, UNFAIRNESS: 3600.0, DEADLINE: 3600.0}  # a condition that ended and holds again
FORECAST_EVERY_S, LEDGER_EVERY_S = 300.0, 60.0
MIN_DESERVED_HOURS = 1.0  # recent GPU hours, below which nothing is unfair yet


class HeldCondition(NamedTuple):
    """A condition that holds, by its subject: a node, an account, a job."""

    subject: str
    text: str
    facts: Mapping[str, Any]
    user: str = ""  # whose job it is about


class ExpectedEnd(NamedTuple):
    """When a job should end; with `beyond`, not before that."""

    second: float
    beyond: bool = False


class AlertConditions:
    """Finds the conditions of rules. One thread for each kind of rule uses it; `forecast` may take as long as it needs."""

    def __init__(self, plane: ControlPlane, forecast: Lookahead | None) -> None:
        self._plane, self._forecast = plane, forecast
        self._forecast_at = self._ledger_at = -math.inf
        self._ends: dict[int, ExpectedEnd] = {}  # when jobs should end, by the last forecast, in seconds of the journal
        self._ledger: FairnessLedger | None = None
        self._absent: dict[str, float] = {}  # nodes that are lost or have not joined, and since when

    def find(self, rule: AlertRule) -> Sequence[HeldCondition]:
        """Return what a rule asks for. Raises `FairleadError`: the state is busy, or a forecast failed."""
        kinds: dict[str, Callable[[AlertRule], Iterator[HeldCondition]]] = {
            SILENT_NODE: self._silent_nodes,
            UNFAIRNESS: self._unfair,
            DEADLINE: self._deadlines,
        }
        return list(kinds[rule.on](rule))

    def _silent_nodes(self, rule: AlertRule) -> Iterator[HeldCondition]:
        plane, silent = self._plane, self._plane.hub.silent_nodes()
        with plane.backend.at_rest():
            state, now = plane.loop.state, plane.backend.now
            firsts = state.cluster.first_of
            present, drained, since = state.present[firsts].tolist(), state.drained[firsts].tolist(), dict(state.lost_since)
            nodes = [(index, node.name) for index, node in enumerate(state.cluster.nodes) if not node.removed]
        absent = {name: since.get(index, self._absent.get(name, now)) for index, name in nodes if not present[index]}
        self._absent = absent
        lost, idle = {name: now - at for name, at in absent.items()}, {name for index, name in nodes if drained[index]}
        for name, seconds in sorted({**silent, **lost}.items()):
            if seconds > rule.bound and name not in idle:
                text = f"Node {name} has been silent for {duration_text(seconds)}"
                text += "; its jobs resume on other nodes." if name in lost else "."
                yield HeldCondition(name, text, {"node": {"name": name, "silent_s": round(seconds, 1)}})

    def _unfair(self, rule: AlertRule) -> Iterator[HeldCondition]:
        plane = self._plane
        if self._ledger is None or plane.backend.now - self._ledger_at >= LEDGER_EVERY_S:
            with plane.backend.at_rest():
                self._ledger, self._ledger_at = plane.fairness_ledger(), plane.backend.now
        what = "user" if rule.users else "account"
        holders: dict[str, list[LedgerRow]] = {}
        for (account, user), row in self._ledger.rows.items():
            if rule.covers(user, account):
                holders.setdefault(user if rule.users else rule.account_for(account), []).append(row)
        for name, rows in sorted(holders.items()):
            row = sum_of_rows(rows)
            received, deserved = (part / SECOND / 3600 for part in (row.recent_received, row.recent_deserved))
            if deserved >= MIN_DESERVED_HOURS and 1 - received / deserved > rule.bound:
                text = f"{what.capitalize()} {name or '(none)'} received {received / deserved:.0%} of the GPU time that it "
                text += f"deserves ({received:.1f} of {deserved:.1f} recent GPU hours)."
                hours = {"received_gpu_hours": round(received, 3), "deserved_gpu_hours": round(deserved, 3)}
                yield HeldCondition(f"{what}-{name}", text, {what: {"name": name, **hours}})

    def _deadlines(self, rule: AlertRule) -> Iterator[HeldCondition]:
        plane = self._plane
        self._simulate()
        with plane.backend.at_rest():
            now, jobs = plane.backend.now, self._with_deadline()
        for number, (job, due_s) in jobs.items():
            end_s, beyond = self._ends.get(number, ExpectedEnd(now))
            end_s = max(end_s, now)
            if not rule.covers(job.user, job.account) or end_s - due_s <= rule.bound:
                continue
            text = job_text(number, job)
            if due_s <= now:
                text += f" missed its deadline {duration_text(now - due_s)} ago and has not ended."
            else:
                late = "" if beyond else f" by {duration_text(end_s - due_s)}"
                text += f" will miss its deadline, in {duration_text(due_s - now)},{late} at this rate: "
                text += f"it should {'not end within' if beyond else 'end in'} {duration_text(end_s - now)}."
            times = {"deadline_at": views.clock(plane, due_s), "expected_end_at": views.clock(plane, end_s)}
            yield HeldCondition(str(number), text, {"job": {**job_facts(number, job), **times}}, job.user)

    def _with_deadline(self) -> dict[int, tuple[Job, float]]:
        """Jobs that have not ended, with the seconds of their deadlines. Hold the lock."""
        state = self._plane.loop.state
        alive = np.concatenate((state.live, state.queue))
        due_s = state.columns["submitted_s"][alive] + state.columns["deadline_s"][alive]
        known = np.isfinite(due_s)
        return {number: (state.job_of[number], due) for number, due in zip(alive[known].tolist(), due_s[known].tolist())}

    def _simulate(self) -> None:
        """Make a new forecast if the last one is old and a job has a deadline."""
        plane = self._plane
        if self._forecast is None or plane.backend.now - self._forecast_at < FORECAST_EVERY_S:
            return
        with plane.backend.at_rest():
            if not self._with_deadline():
                return
            now, encode, rates = plane.backend.now, freeze(plane.loop.state), views.rates(plane.loop.state)
        self._forecast_at, forecast = now, self._forecast

        async def simulate() -> dict[str, Any]:
            return await forecast(now, encode(), {"rates": rates})

        found = expected_ends(asyncio.run(simulate()))
        self._ends = {number: ExpectedEnd(now + end_s, beyond) for number, (end_s, beyond) in found.items()}


def expected_ends(forecast: Mapping[str, Any]) -> dict[int, ExpectedEnd]:
    """Return in how many seconds jobs should end, by a forecast: the median. Jobs whose run time is unknown are left out."""
    guessed = {number for number, _ in forecast["priors"]}.union(forecast["limited"])
    unknown = {number for number, _ in forecast["unmeasured"]}.union(forecast["open_ended"]) - guessed
    found: dict[int, ExpectedEnd] = {}
    for job in forecast["jobs"] if forecast["completed"] else ():
        times = job["with_arrivals"]
        _, end_s = times[1] if len(times) == 3 else job["without_arrivals"]
        if job["number"] not in unknown and not (end_s is None and job["blocked"]):
            found[job["number"]] = ExpectedEnd(job["horizon_s"] if end_s is None else end_s, end_s is None)
    return found


def job_text(number: int, job: Job) -> str:
    """Return how alerts name a job."""
    return f"Job {job.name} (number {number}{f', user {job.user}' if job.user else ''})"


def job_facts(number: int, job: Job) -> dict[str, Any]:
    """Return the fields of a job in a webhook."""
    return {"number": number, "name": job.name, "user": job.user, "account": job.account}


def duration_text(seconds: float) -> str:
    """Return a duration as `2 h 5 min`, without what is too small to matter."""
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(round(whole / 60), 60)
    if not hours:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
