"""What happens, for operators: a log line for each event of a job, a node or the scheduler, and the last decisions.

It reads events that are in the journal, and changes nothing. Tokens, commands and environments are not logged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import singledispatchmethod
from typing import Any

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Ints
from fairlead.core.events import Event
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Code
from fairlead.engine.journal import Journal
from fairlead.engine.state import State
from fairlead.runtime.control.views import policy_of

log = logging.getLogger("fairlead.cluster")

SLOW_S = 1.0
"""A longer decision is logged; so is one of more than half a round."""

RECENT_DECISIONS = 50

JournalObserver = Callable[[Sequence[Event], float], None]
"""Receives the events of a commit, and the seconds that it took."""


class EventLog:
    """Logs events. `observe` is for an `ObservedJournal`, `decided` for the decision timer."""

    def __init__(self, state: Callable[[], State], round_s: Callable[[], float]) -> None:
        self._state, self._round_s = state, round_s

    def observe(self, events: Sequence[Event], seconds: float) -> None:
        """Log the events of a commit."""
        for event in events:
            self._log(event)

    def decided(self, seconds: float) -> None:
        """Log a slow decision."""
        round_s = self._round_s()
        if seconds > SLOW_S or (round_s and seconds > round_s / 2):
            log.warning("slow decision", extra={"seconds": round(seconds, 3), "round_s": round_s})

    @singledispatchmethod
    def _log(self, event: Any) -> None:
        """Other events are not logged: progress and metrics are too many."""

    @_log.register
    def _submitted(self, event: ev.JobSubmitted) -> None:
        log.info("job submitted", extra=self._job(event.number) | {"user": event.job.user, "workers": event.job.workers})

    @_log.register
    def _cancelled(self, event: ev.JobCancelled) -> None:
        log.info("job cancelled", extra=self._job(event.number))

    @_log.register
    def _lost(self, event: ev.NodeLost) -> None:
        if event.time > 0:  # a new journal begins without nodes
            log.warning("node given up", extra={"node": self._state().cluster.nodes[event.node].name})

    @_log.register
    def _repaired(self, event: ev.NodeRepaired) -> None:
        log.info("node joined", extra={"node": self._state().cluster.nodes[event.node].name})

    @_log.register
    def _drained(self, event: ev.NodeDrained) -> None:
        what = "node used again" if event.undo else "node drained"
        log.info(what, extra={"node": self._state().cluster.nodes[event.node].name})

    @_log.register
    def _switched(self, event: ev.SchedulerSwitched) -> None:
        log.warning("scheduler switched", extra={"policy": policy_of(event.scheduler), "why": event.why})

    @_log.register
    def _planned(self, event: ev.RoundPlanned) -> None:
        plan, cluster = event.plan, self._state().cluster
        for number, reason in plan.refused:
            what = "job cancelled" if reason.code is Code.DEPENDENCY_FAILED else "job refused"
            log.warning(what, extra=self._job(number) | {"why": reason.text})
        for number in plan.ended.tolist():
            log.info("job finished", extra=self._job(number) | {"early": True})
        starting = set(plan.launches.jobs.tolist())
        for number in plan.suspended.tolist():
            log.info("job moved" if number in starting else "job preempted", extra=self._job(number))
        bounds = plan.launches.offsets.tolist()
        for number, begin, end in zip(plan.launches.jobs.tolist(), bounds, bounds[1:]):
            places = plan.launches.accelerators[begin:end]
            nodes = [cluster.nodes[node].name for node in dict.fromkeys(cluster.node_of[places].tolist())]
            log.info("job started", extra=self._job(number) | {"node": ",".join(nodes), "accelerators": places.tolist()})

    @_log.register
    def _finished(self, event: ev.JobsFinished) -> None:
        self._each("job finished", event.jobs)

    @_log.register
    def _failed(self, event: ev.JobsFailed) -> None:
        self._each("job failed", event.jobs, logging.WARNING, why=event.why, **self._where(event.node))

    @_log.register
    def _interrupted(self, event: ev.JobsInterrupted) -> None:
        more = {"why": event.why} if event.why else {}
        self._each("job interrupted", event.jobs, logging.WARNING, own_fault=event.own_fault, **more, **self._where(event.node))

    def _where(self, node: int) -> dict[str, str]:
        return {"node": self._state().cluster.nodes[node].name} if node >= 0 else {}

    def _each(self, what: str, jobs: Ints, level: int = logging.INFO, **more: Any) -> None:
        for number in jobs.tolist():
            log.log(level, what, extra=self._job(number) | more)

    def _job(self, number: int) -> dict[str, Any]:
        state = self._state()
        generation = int(state.columns["starts"][number])
        return {"job": state.job_of[number].name, "number": number, "generation": generation}


class ObservedJournal:
    """A journal whose observers see each commit, in the loop's thread, after the state has seen the events."""

    def __init__(self, journal: Journal, observers: Sequence[JournalObserver]) -> None:
        self._journal, self._observers = journal, observers
        self._events: list[Event] = []

    def append(self, event: Event) -> None:
        """Append to the inner journal."""
        self._journal.append(event)
        self._events.append(event)

    def commit(self) -> None:
        """Commit the inner journal, then call the observers."""
        began = time.perf_counter()
        self._journal.commit()
        seconds = time.perf_counter() - began
        events, self._events = self._events, []
        for observer in self._observers:
            observer(events, seconds)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._journal)

    def close(self) -> None:
        """Close the inner journal."""
        self._journal.close()


class RecentDecisions:
    """The last decisions that changed something."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last: deque[RoundPlan] = deque(maxlen=RECENT_DECISIONS)

    def add(self, plan: RoundPlan) -> None:
        """Add a decision."""
        if plan.changes:
            self._last.append(plan)

    def records(self, state: State, whose: str | None = None) -> list[dict[str, Any]]:
        """Return the decisions, most recent first, with one user's jobs or (None) all jobs."""
        return [record for plan in reversed(self._last) if (record := self._record(plan, state, whose))]

    def _record(self, plan: RoundPlan, state: State, whose: str | None) -> dict[str, Any]:
        def names(numbers: list[int]) -> list[str]:
            return [state.job_of[n].name for n in numbers if n in state.job_of and whose in (None, state.job_of[n].user)]

        starts, bounds = plan.launches, plan.launches.offsets.tolist()
        launched = {}
        for number, begin, end in zip(starts.jobs.tolist(), bounds, bounds[1:]):
            nodes = sorted(set(self._cluster.node_of[starts.accelerators[begin:end]].tolist()))
            for name in names([number]):
                launched[name] = [self._cluster.nodes[node].name for node in nodes]
        record = {
            "launched": launched,
            "suspended": names([n for n in plan.suspended.tolist() if n not in starts.jobs]),
            "refused": names([number for number, _ in plan.refused]),
            "ended": names(plan.ended.tolist()),
        }
        return {"second": plan.time, **record} if any(record.values()) else {}
