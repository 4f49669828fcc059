"""Metrics for Prometheus: counters of this process, and gauges of the present state. It reads events and the state, and changes
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.core.reasons import Code
from fairlead.engine.fairness_ledger import SECOND, FairnessLedger
from fairlead.engine.loop import Loop

DECISION_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COMMIT_S = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

# The start time of each counter would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

READ_WITHIN_S = 2.0  # how long a scrape waits for the state; scrapers wait for about ten seconds

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ControlPlaneMetrics(Collector):
    """The metrics of one control plane, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._events = self._counter("journal_events", "Events in the journal, by type.", "event")
        self._commits = self._histogram("journal_commit_seconds", "Duration of journal commits.", COMMIT_S)
        self.observe_decision = self._histogram("decision_seconds", "Duration of decisions.", DECISION_S).observe
        self._skipped = self._counter("decisions_skipped", "Rounds without a new decision, by reason.", "reason")
        self._submitted = self._counter("jobs_submitted", "Jobs that were accepted.")
        self._started = self._counter("jobs_started", "Launches, including moves.")
        self._preempted = self._counter("jobs_preempted", "Jobs that were preempted.")
        self._ended = self._counter("jobs_ended", "Jobs that ended, by outcome.", "outcome")
        self._interrupted = self._counter("jobs_interrupted", "Jobs that were interrupted.", "own_fault")
        self._requests = self._counter("http_requests", "Requests by route and status.", "method", "route", "status")
        for outcome in ("finished", "failed", "cancelled", "refused"):
            self._ended.labels(outcome)
        for reason in ("failed", "late"):
            self._skipped.labels(reason)
        for fault in ("true", "false"):
            self._interrupted.labels(fault)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"fairlead_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"fairlead_{name}", what, buckets=buckets, registry=self.registry)

    def attach(
        self,
        loop: Loop,
        connected: Callable[[], int],
        lock: Any,
        unreachable_s: Callable[[], float],
        ledger: Callable[[], FairnessLedger],
    ) -> None:
        """Read gauges from a loop, under its lock; `connected` counts agents, `unreachable_s` is about the journal."""
        self._loop, self._connected, self._lock, self._unreachable_s = loop, connected, lock, unreachable_s
        self._ledger = ledger
        self.registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def skipped(self, reason: str) -> None:
        self._skipped.labels(reason).inc()

    def observe_commit(self, events: Sequence[ev.Event], seconds: float) -> None:
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

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count an HTTP request; an unknown path is not a label."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry must not read the state at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        unreachable, connected = self._unreachable_s(), self._connected()
        what = "Seconds since the journal became unreachable; 0 if it is reachable."
        yield GaugeMetricFamily("fairlead_journal_unreachable_seconds", what, value=unreachable)
        yield GaugeMetricFamily("fairlead_agents_connected", "Connected agents.", value=connected)
        if not self._lock.acquire(timeout=READ_WITHIN_S):  # without the state, its gauges are missing
            return
        try:
            found = list(self._state_gauges())
        finally:
            self._lock.release()
        yield from found

    def _state_gauges(self) -> Iterator[Metric]:
        state, missed = self._loop.state, self._loop.missed
        phases = np.bincount(state.columns["phase"][list(state.job_of)], minlength=len(Phase))
        types, up = state.cluster.type_of, state.up
        busy = state.device_map.occupancy > 0
        by_type = [np.bincount(types[which], minlength=len(state.cluster.types)) for which in (up, busy)]
        jobs = GaugeMetricFamily("fairlead_jobs", "Jobs by phase.", labels=["phase"])
        for phase in Phase:
            jobs.add_metric([phase.name.lower()], int(phases[phase]))
        yield jobs
        names = ("fairlead_accelerators_up", "fairlead_accelerators_allocated")
        for name, what, counts in zip(names, ("that are up", "that jobs hold"), by_type):
            gauge = GaugeMetricFamily(name, f"GPUs {what}, by type.", labels=["type"])
            for type_name, count in zip(state.cluster.type_names, counts.tolist()):
                gauge.add_metric([type_name], count)
            yield gauge
        yield CounterMetricFamily("fairlead_rounds_missed", "Rounds that began during an earlier decision.", value=missed)
        yield from self._ledger_series()

    def _ledger_series(self) -> Iterator[Metric]:
        """GPU time by account, as counters over all time and as shares of the time that the ledger remembers."""
        accounts = self._ledger().accounts()
        for what, meaning in (("received", "that jobs held"), ("deserved", "deserved by weight, while there was demand")):
            seconds = CounterMetricFamily(f"fairlead_account_{what}_gpu_seconds", f"GPU time {meaning}.", labels=["account"])
            share = GaugeMetricFamily(
                f"fairlead_account_{what}_share", f"Share of recent GPU time {meaning}.", labels=["account"]
            )
            total = sum(getattr(row, f"recent_{what}") for row in accounts.values())
            for account, row in accounts.items():
                seconds.add_metric([account], getattr(row, what) / SECOND)
                share.add_metric([account], getattr(row, f"recent_{what}") / total if total else 0.0)
            yield seconds
            yield share
