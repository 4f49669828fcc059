"""What happens, for operators: a log line for each event of a job, a node or the scheduler, and the last decisions. It reads
events that are in the journal, and changes nothing. Tokens, commands and environments are not logged."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from fairlead.core import events as ev
from fairlead.core.events import Event
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Code
from fairlead.engine.state import State

log = logging.getLogger("fairlead.cluster")

SLOW_S = 1.0  # a longer decision is logged; so is one of more than half a round

RECENT_DECISIONS = 50


def policy_of(scheduler: Mapping[str, Any]) -> str:
    """Return the name of a scheduler's policy, with or without parameters."""
    policy = scheduler.get("policy", "")
    return str(policy.get("name", policy) if isinstance(policy, Mapping) else policy)


class EventLog:
    """Logs events. `observe` is for an `ObservedJournal`, `observe_decision` for the decision timer."""

    def __init__(self, state: Callable[[], State], round_s: Callable[[], float]) -> None:
        self._state, self._round_s = state, round_s

    def observe_decision(self, seconds: float) -> None:
        round_s = self._round_s()
        if seconds > SLOW_S or (round_s and seconds > round_s / 2):
            log.warning("slow decision", extra={"seconds": round(seconds, 3), "round_s": round_s})

    def observe(self, events: Sequence[Event], seconds: float) -> None:
        """Log the events of a commit, except progress and metrics, which are too many."""
        for event in events:
            match event:
                case ev.JobSubmitted():
                    self._jobs("job submitted", [event.number], user=event.job.user, workers=event.job.workers)
                case ev.JobCancelled():
                    self._jobs("job cancelled", [event.number])
                case ev.JobHeld():
                    self._jobs("job held", [event.number], by=event.by)
                case ev.JobReleased():
                    self._jobs("job released", [event.number])
                case ev.JobRequeued():
                    self._jobs("job requeued", [event.number], hold=event.hold, by=event.by)
                case ev.JobUpdated():
                    self._jobs("job updated", [event.number], fields=sorted(event.changes))
                case ev.NodeLost() if event.time > 0:  # a new journal begins without nodes
                    log.warning("node lost", extra=self._node(event.node))
                case ev.NodeRepaired():
                    log.info("node joined", extra=self._node(event.node))
                case ev.NodeDrained():
                    what = "node undrained" if event.undo else "node drained" if event.from_s is None else "drain announced"
                    log.info(what, extra=self._node(event.node) | _drain(event, self._state().origin))
                case ev.NodeAdded():
                    gpus = f"{event.spec.accelerators} × {event.spec.type}"
                    log.info("node added", extra={"node": event.spec.name, "gpus": gpus})
                case ev.NodeRemoved():
                    log.info("node removed", extra=self._node(event.node))
                case ev.SchedulerSwitched():
                    log.warning("scheduler switched", extra={"policy": policy_of(event.scheduler), "why": event.why})
                case ev.SlowdownExceeded():
                    for number, factor in zip(event.jobs.tolist(), event.slowdowns.tolist()):
                        self._jobs("job slower than its max_slowdown", [number], logging.WARNING, slowdown=round(factor, 2))
                case ev.RoundPlanned():
                    self._planned(event.plan)
                case ev.JobsFinished():
                    self._jobs("job finished", event.jobs.tolist())
                case ev.JobsFailed():
                    more = {"why": event.why, **self._node(event.node)}
                    self._jobs("job failed", event.jobs.tolist(), logging.WARNING, **more)
                case ev.JobsInterrupted():
                    more = ({"why": event.why} if event.why else {}) | self._node(event.node)
                    self._jobs("job interrupted", event.jobs.tolist(), logging.WARNING, own_fault=event.own_fault, **more)

    def _planned(self, plan: RoundPlan) -> None:
        cluster = self._state().cluster
        for number, reason in plan.refused:
            what = "job cancelled" if reason.code is Code.DEPENDENCY_FAILED else "job refused"
            self._jobs(what, [number], logging.WARNING, why=reason.text)
        self._jobs("job finished", plan.ended.tolist(), early=True)
        starting = set(plan.launches.jobs.tolist())
        for number in plan.suspended.tolist():
            self._jobs("job moved" if number in starting else "job preempted", [number])
        bounds = plan.launches.offsets.tolist()
        for number, begin, end in zip(plan.launches.jobs.tolist(), bounds, bounds[1:]):
            places = plan.launches.accelerators[begin:end]
            nodes = [cluster.nodes[node].name for node in dict.fromkeys(cluster.node_of[places].tolist())]
            self._jobs("job started", [number], node=",".join(nodes), accelerators=places.tolist())

    def _node(self, node: int) -> dict[str, str]:
        return {"node": self._state().cluster.nodes[node].name} if node >= 0 else {}

    def _jobs(self, what: str, jobs: Sequence[int], level: int = logging.INFO, **more: Any) -> None:
        state = self._state()
        for number in jobs:
            generation = int(state.columns["starts"][number])
            log.log(level, what, extra={"job": state.job_of[number].name, "number": number, "generation": generation} | more)


def _drain(event: ev.NodeDrained, origin: float) -> dict[str, str]:
    times = {
        name: datetime.fromtimestamp(origin + second).astimezone().isoformat(timespec="seconds")
        for name, second in (("from", event.from_s), ("until", event.until_s))
        if second is not None
    }
    return {name: value for name, value in (("why", event.reason), ("by", event.by), *times.items()) if value}


class RecentDecisions:
    """The last decisions that changed something."""

    def __init__(self) -> None:
        self.plans: deque[RoundPlan] = deque(maxlen=RECENT_DECISIONS)

    def add(self, plan: RoundPlan) -> None:
        if plan.changes:
            self.plans.append(plan)

    def records(self, state: State, visible_to: str | None = None) -> list[dict[str, Any]]:
        """Return the decisions, most recent first, with one user's jobs or (None) all jobs."""
        return [record for plan in reversed(self.plans) if (record := decision_record(plan, state, visible_to))]


def decision_record(plan: RoundPlan, state: State, visible_to: str | None) -> dict[str, Any]:
    """Return what a decision changed, of one user's jobs or (None) of all jobs; empty if that is nothing."""

    def names(numbers: list[int]) -> list[str]:
        return [state.job_of[n].name for n in numbers if n in state.job_of and visible_to in (None, state.job_of[n].user)]

    starts, bounds = plan.launches, plan.launches.offsets.tolist()
    launched = {}
    for number, begin, end in zip(starts.jobs.tolist(), bounds, bounds[1:]):
        for name in names([number]):
            nodes = sorted(set(state.cluster.node_of[starts.accelerators[begin:end]].tolist()))
            launched[name] = [state.cluster.nodes[node].name for node in nodes]
    record = {
        "launched": launched,
        "suspended": names([n for n in plan.suspended.tolist() if n not in starts.jobs]),
        "refused": names([number for number, _ in plan.refused]),
        "ended": names(plan.ended.tolist()),
    }
    return {"second": plan.time, **record} if any(record.values()) else {}
