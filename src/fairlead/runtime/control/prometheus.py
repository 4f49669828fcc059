"""Metrics for Prometheus: counters of this process, and gauges of the present state. It reads events and the state, and changes
nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.core import events as ev
from fairlead.core.cluster import Ints
from fairlead.core.job import Phase
from fairlead.core.reasons import Code
from fairlead.engine.fairness_ledger import SECOND, FairnessLedger, LedgerRow, sum_of_rows
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.runtime.protocol.messages import HostUsage

DECISION_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
COMMIT_S = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
WAIT_S = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86_400.0, 3 * 86_400.0)
RHO = (0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
MAX_HOSTS = 1000  # nodes with series of CPU, memory and disk: the first ones by name
MAX_NAMES = 200  # accounts, and users, with series of their own
OTHERS = "(others)"  # the label of all further ones; no name has brackets

# The start time of each counter would double the number of series.
disable_created_metrics()  # type: ignore[no-untyped-call]

READ_WITHIN_S = 2.0  # how long a scrape waits for the state; scrapers wait for about ten seconds

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Demand:
    """GPUs that jobs in the system request, for each GPU that is up, averaged over the stay of each job; after a restart of the
    control plane, over the time since then."""

    def __init__(self) -> None:
        self._at_s, self._level, self._sum = math.nan, 0.0, 0.0
        self._entered: dict[int, tuple[float, float]] = {}  # second and sum
        self._first = (0.0, 0.0)

    def count(self, state: State) -> None:
        """Count the demand up to the present second; then the demand is that of the state."""
        if math.isnan(self._at_s):
            self._at_s, self._first = state.time, (state.time, 0.0)
        self._sum += self._level * (state.time - self._at_s)
        self._at_s = state.time
        workers = state.columns["workers"]
        self._level = float(workers[state.live].sum() + workers[state.queue].sum()) / max(1, int(state.capacity.sum()))

    def enter(self, number: int) -> None:
        self._entered[number] = self._at_s, self._sum

    def average(self, number: int) -> float:
        """The average during the stay of a job, at least 1."""
        since_s, before = self._entered.get(number, self._first)
        return max(1.0, (self._sum - before) / (self._at_s - since_s) if self._at_s > since_s else self._level)

    def forget(self, state: State) -> None:
        """Forget jobs that have ended, now and then."""
        if len(self._entered) > 2 * (len(state.live) + len(state.queue)) + 1000:
            alive = {*state.live.tolist(), *state.queue.tolist()}
            self._entered = {number: entry for number, entry in self._entered.items() if number in alive}


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
        self._wait = self._histogram(
            "job_wait_seconds", "Time from submission to the first start of a job, by account.", WAIT_S, "account"
        )
        self._rho = self._histogram(
            "job_rho",
            "Finish-time fairness ρ of finished jobs, by user: time since submission, divided by run time and by the average "
            "demand for a GPU (at least 1). Above 1: slower than with an equal share.",
            RHO,
            "user",
        )
        self._too_slow = self._counter("slowdown_exceeded", "Co-located jobs that became slower than their max_slowdown.")
        self._separated = self._histogram(
            "slowdown_separation_seconds", "Time from the beginning of such a slowdown until the job was separated.", WAIT_S
        )
        self._slow, self._separations = frozenset[int](), -1
        self.alerts = self._counter(
            "alerts", "Alerts that the control plane sends, by channel and outcome.", "channel", "outcome"
        )
        self._requests = self._counter("http_requests", "Requests by route and status.", "method", "route", "status")
        for outcome in ("finished", "failed", "cancelled", "refused"):
            self._ended.labels(outcome)
        for reason in ("failed", "late"):
            self._skipped.labels(reason)
        for fault in ("true", "false"):
            self._interrupted.labels(fault)
        for channel in ("webhook", "mail"):
            for outcome in ("sent", "failed", "dropped"):
                self.alerts.labels(channel, outcome)
        self._names: dict[str, set[str]] = {"account": set(), "user": set()}
        self._demand = _Demand()

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"fairlead_{name}", what, labels, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"fairlead_{name}", what, labels, buckets=buckets, registry=self.registry)

    def _label(self, kind: str, name: str) -> str:
        """The label of an account or a user: the first ones that are seen have their own."""
        seen = self._names[kind]
        if name not in seen and len(seen) >= MAX_NAMES:
            return OTHERS
        seen.add(name)
        return name

    def attach(
        self,
        loop: Loop,
        connected: Callable[[], int],
        lock: Any,
        unreachable_s: Callable[[], float],
        ledger: Callable[[], FairnessLedger],
        silent_nodes: Callable[[], Mapping[str, float]] = dict,
        hosts: Callable[[], Mapping[str, HostUsage]] = dict,
    ) -> None:
        """Read gauges from a loop, under its lock; `connected` counts agents, `unreachable_s` is about the journal."""
        self._hosts = hosts
        self._loop, self._connected, self._lock, self._unreachable_s = loop, connected, lock, unreachable_s
        self._ledger, self._silent_nodes = ledger, silent_nodes
        self.registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def skipped(self, reason: str) -> None:
        self._skipped.labels(reason).inc()

    def observe_commit(self, events: Sequence[ev.Event], seconds: float) -> None:
        if not events:
            return
        self._commits.observe(seconds)
        state = self._loop.state
        self._demand.count(state)
        for event in events:
            self._events.labels(type(event).__name__).inc()
            if isinstance(event, ev.JobSubmitted):
                self._submitted.inc()
                self._demand.enter(event.number)
            elif isinstance(event, ev.JobCancelled):
                self._ended.labels("cancelled").inc()
            elif isinstance(event, ev.JobsFinished):
                self._ended.labels("finished").inc(len(event.jobs))
                self._observe_rho(state, event.jobs)
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
                self._observe_rho(state, plan.ended)
                self._observe_waits(state, plan.launches.jobs, plan.time)
            elif isinstance(event, ev.SlowdownExceeded):
                before, self._slow = self._slow, frozenset(event.jobs.tolist())
                self._too_slow.inc(len(self._slow - before))
        record = state.interference
        new = record.count - self._separations if self._separations >= 0 else 0
        for _, number, took_s in record.separations[-new:] if new else ():
            self._separated.observe(took_s)
            self._slow -= {number}
        self._separations = record.count
        self._demand.forget(state)

    def _observe_waits(self, state: State, jobs: Ints, now: float) -> None:
        first = jobs[state.columns["starts"][jobs] == 1]
        for number, submitted_s in zip(first.tolist(), state.columns["submitted_s"][first].tolist()):
            account = self._label("account", state.job_of[number].account)
            self._wait.labels(account).observe(max(0.0, now - submitted_s))

    def _observe_rho(self, state: State, jobs: Ints) -> None:
        """A job that was requeued after its end is left out: part of its time was not spent in the cluster."""
        columns = (state.columns[name][jobs].tolist() for name in ("submitted_s", "ended_s", "settled_run_s"))
        for number, submitted_s, ended_s, run_s in zip(jobs.tolist(), *columns):
            if run_s > 0 and number not in state.ended_runs:
                user = self._label("user", state.job_of[number].user)
                self._rho.labels(user).observe((ended_s - submitted_s) / (run_s * self._demand.average(number)))

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count an HTTP request; an unknown path is not a label."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry must not read the state at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        unreachable, connected, silent = self._unreachable_s(), self._connected(), self._silent_nodes()
        what = "Seconds since the journal became unreachable; 0 if it is reachable."
        yield GaugeMetricFamily("fairlead_journal_unreachable_seconds", what, value=unreachable)
        yield GaugeMetricFamily("fairlead_agents_connected", "Connected agents.", value=connected)
        yield from host_series(self._hosts())
        if not self._lock.acquire(timeout=READ_WITHIN_S):  # without the state, its gauges are missing
            return
        try:
            found = [*self._state_gauges(), self._nodes(silent)]
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
        waits = np.concatenate((state.live[state.columns["phase"][state.live] == Phase.WAITING], state.eligible))
        now = max(self._loop.backend.now, state.time)
        longest = now - state.columns["waiting_since_s"][waits].min(initial=now)
        what = "How long the job that waits longest has waited, without held jobs."
        yield GaugeMetricFamily("fairlead_longest_wait_seconds", what, value=longest)
        yield CounterMetricFamily("fairlead_rounds_missed", "Rounds that began during an earlier decision.", value=missed)
        yield from self._ledger_series()

    def _nodes(self, silent: Mapping[str, float]) -> Metric:
        """Nodes by the first of these states that applies."""
        state, cluster = self._loop.state, self._loop.state.cluster
        firsts = cluster.first_of
        left = np.array([not node.removed for node in cluster.nodes], dtype=np.bool_)
        unreachable, backed_off = (np.zeros(len(left), dtype=np.bool_) for _ in range(2))
        unreachable[[cluster.number_of_node[name] for name in silent if name in cluster.number_of_node]] = True
        backed_off[list(state.backoffs)] = True
        states = {"lost": ~state.present[firsts], "unreachable": unreachable, "backed-off": backed_off}
        counts: dict[str, int] = {}
        for name, applies in {**states, "drained": state.drained[firsts], "up": left}.items():
            counts[name] = int(np.count_nonzero(left & applies))
            left = left & ~applies
        nodes = GaugeMetricFamily("fairlead_nodes", "Nodes by state.", labels=["state"])
        for name, count in counts.items():
            nodes.add_metric([name], count)
        return nodes

    def _ledger_series(self) -> Iterator[Metric]:
        """GPU time by account, as counters over all time and as shares of the time that the ledger remembers."""
        rows: dict[str, list[LedgerRow]] = {}
        for account, row in self._ledger().accounts().items():
            rows.setdefault(self._label("account", account), []).append(row)
        accounts = {label: sum_of_rows(found) for label, found in rows.items()}
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


def host_series(hosts: Mapping[str, HostUsage]) -> Iterator[Metric]:
    """Return gauges of CPU, memory and disk by node, where they are measured, and how many nodes have nearly none left."""
    full = GaugeMetricFamily("fairlead_nodes_nearly_full", "Nodes with 95 % of a resource in use.", labels=["resource"])
    for resource in ("disk", "memory"):
        full.add_metric([resource], sum(resource in usage.nearly_full for usage in hosts.values()))
    yield full
    shown = sorted(hosts.items())[:MAX_HOSTS]
    for name, (what, unit, field) in _HOST_GAUGES.items():
        gauge = GaugeMetricFamily(f"fairlead_node_{name}", what, labels=["node"])
        for node, usage in shown:
            if (value := getattr(usage, field)) is not None:
                gauge.add_metric([node], value * unit)
        yield gauge


_HOST_GAUGES = {
    "cpu_utilization": ("Busy share of a node's CPU cores, 0 to 1.", 1.0, "cpu"),
    "load": ("Load average of a node over a minute.", 1.0, "load"),
    "memory_used_bytes": ("Memory of a node in use, without what the kernel can free.", 2.0**30, "memory_gb"),
    "memory_bytes": ("Memory of a node.", 2.0**30, "memory_total_gb"),
    "disk_used_bytes": ("Disk with the folder of a node's agent: in use.", 2.0**30, "disk_gb"),
    "disk_bytes": ("Disk with the folder of a node's agent: size.", 2.0**30, "disk_total_gb"),
}
