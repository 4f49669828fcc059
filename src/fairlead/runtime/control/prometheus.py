"""What Prometheus is told: counts of what happened since this process began, and how things stand when it asks. It reads events
and the state, and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.core.reasons import Code
from fairlead.engine.loop import Loop

DECISION_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COMMIT_S = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

# When each counter began would be as many series again, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

LOOK_WITHIN_S = 2.0
"""So long a scrape waits for the state to be at rest; a scraper waits for ten seconds or so."""

CONTENT = "text/plain; version=0.0.4; charset=utf-8"


class ControlPlaneMetrics(Collector):
    """The numbers of one control plane, in a registry of its own. `stand_under` is called once, with the loop, the agents that
    are connected, the lock under which the state is read, and for how long the journal has been away."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._events = self._counter("journal_events", "Events in the journal, by kind.", "event")
        self._commits = self._histogram("journal_commit_seconds", "Commits of the journal.", COMMIT_S)
        self._decisions = self._histogram("decision_seconds", "Decisions, and how long they took.", DECISION_S)
        self._stood = self._counter("decisions_stood", "Decisions in which what was decided last stood, by why.", "why")
        self._submitted = self._counter("jobs_submitted", "Jobs that were accepted.")
        self._started = self._counter("jobs_started", "Launches, moves included.")
        self._preempted = self._counter("jobs_preempted", "Jobs that were suspended to wait.")
        self._ended = self._counter("jobs_ended", "Jobs that ended, by how.", "how")
        self._interrupted = self._counter("jobs_interrupted", "Jobs that lost their accelerators.", "own_fault")
        self._requests = self._counter("http_requests", "Requests by route and status.", "method", "route", "status")
        for how in ("finished", "failed", "cancelled", "refused"):
            self._ended.labels(how)
        for why in ("failed", "late"):
            self._stood.labels(why)
        for fault in ("true", "false"):
            self._interrupted.labels(fault)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"fairlead_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"fairlead_{name}", what, buckets=buckets, registry=self.registry)

    def stand_under(self, loop: Loop, connected: Callable[[], int], lock: Any, away_s: Callable[[], float]) -> None:
        self._loop, self._connected, self._lock, self._away_s = loop, connected, lock, away_s
        self.registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    # What happened.

    def decided(self, seconds: float) -> None:
        self._decisions.observe(seconds)

    def stood(self, why: str) -> None:
        self._stood.labels(why).inc()

    def watch(self, events: Sequence[ev.Event], seconds: float) -> None:
        if not events:
            return
        self._commits.observe(seconds)
        for event in events:
            self._events.labels(type(event).__name__).inc()
            if isinstance(event, ev.JobSubmitted):
                self._submitted.inc()
            elif isinstance(event, ev.JobCancelled):
                self._ended.labels("cancelled").inc()
            elif isinstance(event, ev.JobsFinished):
                self._ended.labels("finished").inc(len(event.jobs))
            elif isinstance(event, ev.JobsFailed):
                self._ended.labels("failed").inc(len(event.jobs))
            elif isinstance(event, ev.JobsInterrupted):
                self._interrupted.labels("true" if event.own_fault else "false").inc(len(event.jobs))
            elif isinstance(event, ev.RoundPlanned):
                plan = event.plan
                self._started.inc(len(plan.launches))
                self._preempted.inc(int(np.count_nonzero(~np.isin(plan.suspended, plan.launches.jobs))))
                for _, reason in plan.refused:
                    self._ended.labels("cancelled" if reason.code is Code.DEPENDENCY_FAILED else "refused").inc()
                self._ended.labels("finished").inc(len(plan.ended))

    def answered(self, method: str, route: str, status: int) -> None:
        self._requests.labels(method, route, str(status)).inc()

    # How things stand.

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        away, connected = self._away_s(), self._connected()
        yield GaugeMetricFamily("fairlead_journal_away_seconds", "For how long the journal is away; 0: it is not.", value=away)
        yield GaugeMetricFamily("fairlead_agents_connected", "Agents whose stream is open.", value=connected)
        if not self._lock.acquire(timeout=LOOK_WITHIN_S):  # what is not known now is not told
            return
        try:
            found = list(self._of_the_state())
        finally:
            self._lock.release()
        yield from found

    def _of_the_state(self) -> Iterator[Metric]:
        state, missed = self._loop.state, self._loop.missed
        phases = np.bincount(state.store.arrays["phase"][: state.next_number], minlength=len(Phase))
        types, up = state.cluster.type_of, state.up
        busy = state.device_map.occupancy > 0
        by_type = [np.bincount(types[which], minlength=len(state.cluster.types)) for which in (up, busy)]
        jobs = GaugeMetricFamily("fairlead_jobs", "Jobs by phase.", labels=["phase"])
        for phase in Phase:
            jobs.add_metric([phase.name.lower()], int(phases[phase]))
        yield jobs
        names = ("fairlead_accelerators_up", "fairlead_accelerators_busy")
        for name, what, counts in zip(names, ("that are up", "that jobs hold"), by_type):
            gauge = GaugeMetricFamily(name, f"Accelerators {what}, by type.", labels=["type"])
            for kind, count in zip(state.cluster.type_names, counts.tolist()):
                gauge.add_metric([kind], count)
            yield gauge
        yield CounterMetricFamily("fairlead_rounds_missed", "Rounds that began during an earlier one's decision.", value=missed)


Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequestCounter:
    """Around an ASGI application: tells each request's route and status. A path that no route answers to is not a label."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], metrics: ControlPlaneMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.answered(method, route, status)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
