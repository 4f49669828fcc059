"""Inference in the simulator: the requests to sessions, in virtual time. A `SessionTracker` observes events and notes which
accelerators serve which session when; requests are drawn and served only when a result is asked for.

Requests wait in one queue per session, from which a free accelerator takes a batch: what waits, up to the batch size of the
plan, for the session whose batch has to start soonest. It does not wait for a batch to fill, as batches grow by themselves
where all accelerators are busy. A request that can no longer be answered in time is dropped; so are those at the head of an
overfull queue that would make a batch small, as in Nexus (SOSP'19, §6.3).

This module knows events and routes, and no scheduler."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Floats
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream
from fairlead.core.routes import REPORTED, Resident, Server, ServingPlan, Session, reported_rate

ArrivalProcess = Literal["poisson", "uniform"]
_NEARLY = 1e-9


def request_arrivals(session: Session, duration_s: float, seed: int, how: ArrivalProcess = "poisson") -> Floats:
    """The seconds at which a session's requests arrive: as a Poisson process, or evenly with a random start."""
    random = stream(seed, "requests", session.name)
    if how == "uniform":
        gap = 1.0 / session.rate
        return np.arange(random.random() * gap, duration_s, gap)
    count = int(random.poisson(session.rate * duration_s))
    return np.sort(random.random(count)) * duration_s


@dataclass(frozen=True)
class SessionResult:
    """The requests of one session. Latencies are of answered requests."""

    session: str
    requests: int
    in_time: int
    late: int
    batches: int
    median_s: float
    p99_s: float

    @property
    def dropped(self) -> int:
        """Requests that were not answered."""
        return self.requests - self.in_time - self.late

    @property
    def attainment(self) -> float:
        """The share of all requests that were answered within the SLO."""
        return self.in_time / self.requests if self.requests else 1.0


@dataclass(frozen=True)
class ServingResult:
    """The requests of all sessions, and the share of its time that each accelerator was busy."""

    sessions: tuple[SessionResult, ...]
    busy: tuple[float, ...]

    @property
    def attainment(self) -> float:
        """The share of all requests that were answered within their SLO."""
        requests = sum(one.requests for one in self.sessions)
        return sum(one.in_time for one in self.sessions) / requests if requests else 1.0


class _Queue:
    """A session's requests, in order of arrival: those before `head` are done."""

    def __init__(self, session: Session, arrivals: Floats, since_s: float) -> None:
        self.session = session
        self.arrivals: list[float] = arrivals.tolist()
        self.before = bisect_left(self.arrivals, since_s)  # served and not counted
        self.head = 0
        self.latencies: list[float] = []
        self.batches = 0

    @property
    def first(self) -> float:
        """When the first waiting request arrived; infinity where there is none."""
        return self.arrivals[self.head] if self.head < len(self.arrivals) else math.inf

    def take(self, now: float, batch: int, latency: Sequence[float]) -> float:
        """Run a batch; return when it is done, which is now where all waiting requests are dropped."""
        slo, arrivals = self.session.slo_s, self.arrivals
        behind = bisect_right(arrivals, now, self.head)
        while self.head < behind:
            waiting = behind - self.head
            left = arrivals[self.head] + slo - now + _NEARLY
            largest = min(batch, waiting)
            allowed = largest if latency[largest - 1] <= left else bisect_right(latency, left, 0, largest)
            if allowed and (allowed == largest or waiting <= batch):
                done = now + latency[allowed - 1]
                self.latencies.extend(done - one for one in arrivals[max(self.head, self.before) : self.head + allowed])
                self.head += allowed
                self.batches += self.head > self.before
                return done
            self.head += 1
        return now

    def result(self) -> SessionResult:
        latency = np.array(self.latencies)
        in_time = int(np.count_nonzero(latency <= self.session.slo_s + 2 * _NEARLY))
        median, p99 = np.quantile(latency, (0.5, 0.99)).tolist() if len(latency) else (math.nan, math.nan)
        requests = len(self.arrivals) - self.before
        return SessionResult(self.session.name, requests, in_time, len(latency) - in_time, self.batches, median, p99)


def serve_requests(
    plan: ServingPlan,
    sessions: Sequence[Session],
    arrivals: Mapping[str, Floats],
    windows: Sequence[tuple[float, float]] | None = None,
    since_s: float = -math.inf,
) -> ServingResult:
    """Serve arrivals by a plan, up to the last request.

    Args:
        windows: For each server, from when on it is there, and when it stops to start batches. None: always.
        since_s: Requests that arrive before are served and not counted.
    """
    latency = {(s.name, t): values.tolist() for s in sessions for t, values in s.latency_s.items()}
    queues = {s.name: _Queue(s, arrivals[s.name], since_s) for s in sessions}
    residents = [[(queues[r.session], r.batch, latency[r.session, one.type]) for r in one.residents] for one in plan.servers]
    # Of accelerators that are free at the same moment, the one with the fewest sessions goes first: the others are of more use.
    order = sorted(range(len(residents)), key=lambda at: (len(residents[at]), at))
    there = windows or [(0.0, math.inf)] * len(order)
    free = [(there[server][0], rank) for rank, server in enumerate(order)]
    heapq.heapify(free)
    busy = [0.0] * len(residents)
    end = max((float(times[-1]) for times in arrivals.values() if len(times)), default=0.0)
    while free:
        now, rank = free[0]
        server = order[rank]
        start, soonest, chosen = math.inf, math.inf, None
        for one in residents[server]:
            queue, batch, takes = one
            first = queue.first
            if first <= now:
                last_call = first + queue.session.slo_s - takes[batch - 1]
                if start > now or last_call < soonest:
                    start, soonest, chosen = now, last_call, one
            elif first < start:
                start, chosen = first, one
        if chosen is None or now >= there[server][1]:
            heapq.heappop(free)
        elif start > now:
            heapq.heapreplace(free, (start, rank))
        else:
            done = chosen[0].take(now, chosen[1], chosen[2])
            busy[server] += done - now
            heapq.heapreplace(free, (done, rank))
    return ServingResult(tuple(queue.result() for queue in queues.values()), tuple(one / end if end else 0.0 for one in busy))


MAX_STRETCHES = 50
"""The number of time windows in which requests are drawn where there are too many."""
STRETCH_SLOS, LEAD_IN_SLOS = 40.0, 10.0
"""The length of a window and of its start that is not counted, in SLOs."""


@dataclass(frozen=True)
class ServingHistory:
    """The request rates of sessions over time, and the accelerators that served them."""

    sessions: tuple[Session, ...]
    rates: Mapping[str, tuple[tuple[float, float, float], ...]]  # by session: from, until, requests per second
    plan: ServingPlan
    windows: tuple[tuple[float, float], ...]  # by server: from, until

    def requests(self, begin_s: float = 0.0, end_s: float = math.inf) -> float:
        """The expected number of requests."""
        parts = (part for parts in self.rates.values() for part in parts)
        return sum(rate * max(0.0, min(until, end_s) - max(since, begin_s)) for since, until, rate in parts)

    def served(
        self,
        *,
        begin_s: float = 0.0,
        end_s: float = math.inf,
        seed: int = 0,
        how: ArrivalProcess = "poisson",
        lead_in_s: float = 0.0,
    ) -> ServingResult:
        """Draw and serve the requests that arrive between two seconds. Those of `lead_in_s` before are served and not counted:
        with them, queues have their usual length at the start."""
        arrivals = {s.name: self._arrivals(s, begin_s - lead_in_s, end_s, seed, how) for s in self.sessions}
        return serve_requests(self.plan, self.sessions, arrivals, self.windows, begin_s)

    def sampled(
        self,
        max_requests: float,
        *,
        begin_s: float = 0.0,
        end_s: float = math.inf,
        seed: int = 0,
        how: ArrivalProcess = "poisson",
    ) -> ServingResult:
        """Draw and serve at most about `max_requests` requests that arrive between two seconds.

        Where more are expected, only those of some windows are drawn: one window in each of some equal parts of the time, at a
        random moment. Each window is many SLOs long and has a lead-in. Latencies are those of the last window."""
        expected = self.requests(begin_s, end_s)
        if expected <= max_requests:
            return self.served(begin_s=begin_s, end_s=end_s, seed=seed, how=how)
        parts = [part for parts in self.rates.values() for part in parts]
        begin, end = max(begin_s, min(since for since, _, _ in parts)), min(end_s, max(until for _, until, _ in parts))
        slo, seconds = max(one.slo_s for one in self.sessions), (end - begin) * max_requests / expected
        count = min(MAX_STRETCHES, max(1, int(seconds / (STRETCH_SLOS * slo))))
        lead_in = min(LEAD_IN_SLOS * slo, seconds / count / 2)
        each, length = (end - begin) / count, seconds / count - lead_in
        random, found = stream(seed, "stretches of requests"), list[ServingResult]()
        for number in range(count):
            start = begin + (number + (1 - length / each) * float(random.random())) * each
            stretch = self.served(begin_s=start, end_s=start + length, seed=seed + number, how=how, lead_in_s=lead_in)
            found.append(stretch)
        return ServingResult(tuple(_added(each) for each in zip(*(one.sessions for one in found))), found[-1].busy)

    def _arrivals(self, session: Session, begin_s: float, end_s: float, seed: int, how: ArrivalProcess) -> Floats:
        pieces = [np.zeros(0)]
        for at, (since, until, rate) in enumerate(self.rates[session.name]):
            since, until = max(since, begin_s), min(until, end_s)
            if until > since and rate > 0:
                one = replace(session, name=f"{session.name} {at}", rate=rate)
                pieces.append(since + request_arrivals(one, until - since, seed, how))
        return np.sort(np.concatenate(pieces))


def _added(parts: Sequence[SessionResult]) -> SessionResult:
    counts = {name: sum(getattr(one, name) for one in parts) for name in ("requests", "in_time", "late", "batches")}
    return replace(parts[-1], **counts)


@dataclass(frozen=True)
class _Interval:
    """A time in which some accelerators serve a session with one batch size."""

    session: Session
    accelerators: tuple[int, ...]
    batch: int
    since_s: float
    until_s: float = math.inf


@dataclass
class _Job:
    """A job that is a session, and where it served, serves and will serve."""

    session: Session
    rates: list[tuple[float, float]]  # (from second, requests per second)
    intervals: list[_Interval] = field(default_factory=list)
    starting: tuple[int, ...] = ()  # its accelerators, until it is known when all of them serve
    batch: int = 1
    ended_s: float = math.inf

    def at(self, second: float) -> frozenset[int]:
        """The accelerators that serve it at a second."""
        return frozenset(place for one in self.intervals if one.since_s <= second < one.until_s for place in one.accelerators)

    def change(self, second: float, accelerators: Iterable[int]) -> None:
        """From a second on, let these accelerators serve it."""
        while self.intervals and self.intervals[-1].since_s >= second:
            self.intervals.pop()
        if self.intervals and self.intervals[-1].until_s > second:
            self.intervals[-1] = replace(self.intervals[-1], until_s=second)
        if places := tuple(sorted(accelerators)):
            self.intervals.append(_Interval(self.session, places, self.batch, second))

    def resize(self, second: float, batch: int) -> None:
        """From a second on, use another batch size."""
        later = [one for one in self.intervals if one.until_s > second]
        self.batch = batch
        for one in later:
            self.change(max(one.since_s, second), one.accelerators)


@dataclass
class SessionTracker:
    """Observes every event and notes which accelerators serve which session."""

    cluster: Cluster
    sessions: Mapping[str, Session]
    jobs: dict[int, _Job] = field(default_factory=dict)
    time: float = 0.0

    def observe(self, event: ev.Event) -> None:
        """Take in the next event."""
        self.time = max(self.time, event.time)
        match event:
            case ev.JobSubmitted(time, number, job) if job.name in self.sessions:
                session = self.sessions[job.name]
                self.jobs[number] = _Job(session, [(time, session.rate)])
            case ev.MetricsReported(time, name, jobs, values) if name == REPORTED:
                for number, rate in zip(jobs.tolist(), values.tolist()):
                    if (one := self.jobs.get(number)) is not None:
                        one.rates.append((time, reported_rate(rate, one.session.rate)))
            case ev.RoundPlanned(plan):
                self._plan(plan)
            case ev.ProgressReported(time, jobs, _, rates, since):
                for number, rate, second in zip(jobs.tolist(), rates.tolist(), since.tolist()):
                    self._started(number, rate, max(time, second) if rate else time)
            case ev.JobsInterrupted(jobs=jobs):
                self._leave((number, event.at_s) for number in jobs.tolist())
            case ev.JobsFinished(_, jobs, at) | ev.JobsFailed(_, jobs, at):
                self._leave(zip(jobs.tolist(), at.tolist()), ended=True)
            case ev.JobCancelled(time, number):
                self._leave([(number, time)], ended=True)
            case ev.JobRequeued(time, number):
                self._leave([(number, time)])

    def _plan(self, plan: RoundPlan) -> None:
        """While a session moves, the accelerators that it keeps continue to serve it."""
        served = {number: self.jobs[number].at(plan.time) for number in plan.suspended.tolist() if number in self.jobs}
        self._leave((number, plan.time) for number in plan.suspended.tolist())
        self._leave(((number, plan.time) for number in (*plan.ended.tolist(), *dict(plan.refused))), ended=True)
        starts = plan.launches
        for number, begin, end in zip(starts.jobs.tolist(), starts.offsets.tolist(), starts.offsets[1:].tolist()):
            if (one := self.jobs.get(number)) is not None:
                route, one.starting = plan.routes.get(number), tuple(starts.accelerators[begin:end].tolist())
                one.batch = 1 if route is None else route.batch
                one.change(plan.time, served.get(number, frozenset()).intersection(one.starting))
        for number, route in plan.routes.items():
            if (one := self.jobs.get(number)) is not None and one.batch != route.batch:
                one.resize(plan.time, route.batch)

    def _started(self, number: int, rate: float, second: float) -> None:
        """A session has started; with rate 0 it reports that it stands still and has left its accelerators."""
        one = self.jobs.get(number)
        if one is not None and one.starting:
            one.change(second, one.starting if rate else ())
            one.starting = () if rate else one.starting

    def _leave(self, jobs: Iterable[tuple[int, float]], *, ended: bool = False) -> None:
        for number, second in jobs:
            if (one := self.jobs.get(number)) is not None:
                one.change(second, ())
                one.starting = ()
                one.ended_s = min(one.ended_s, second) if ended else one.ended_s

    def history(self) -> ServingHistory:
        """The history up to the last event."""
        intervals = [replace(one, until_s=min(one.until_s, self.time)) for job in self.jobs.values() for one in job.intervals]
        servers: list[Server] = []
        windows: list[tuple[float, float]] = []
        for place, here in sorted(_by_accelerator(intervals).items()):
            type_name = self.cluster.type_names[int(self.cluster.type_of[place])]
            for begin, end, present in _cut([one for one in here if type_name in one.session.latency_s]):
                servers.append(Server(type_name, tuple(_resident(one, type_name) for one in present)))
                windows.append((begin, end))
        rates: dict[str, list[tuple[float, float, float]]] = {}
        for job in self.jobs.values():
            end = min(job.ended_s, self.time)
            seconds = [min(second, end) for second, _ in job.rates] + [end]
            parts = [(since, until, rate) for (since, until), (_, rate) in zip(pairwise(seconds), job.rates) if until > since]
            rates.setdefault(job.session.name, []).extend(parts)
        sessions = {job.session.name: job.session for job in self.jobs.values()}
        by_session = {name: tuple(parts) for name, parts in rates.items()}
        return ServingHistory(tuple(sessions.values()), by_session, ServingPlan(tuple(servers), {}), tuple(windows))


def _resident(interval: _Interval, type_name: str) -> Resident:
    return Resident(interval.session.name, max(1, min(interval.batch, len(interval.session.latency_s[type_name]))), 1.0, 1.0)


def _by_accelerator(intervals: Iterable[_Interval]) -> dict[int, list[_Interval]]:
    found: dict[int, list[_Interval]] = {}
    for interval in intervals:
        if interval.until_s > interval.since_s:
            for place in interval.accelerators:
                found.setdefault(place, []).append(interval)
    return found


def _cut(intervals: Sequence[_Interval]) -> list[tuple[float, float, tuple[_Interval, ...]]]:
    """Intervals in which the same sessions are on an accelerator with the same batch sizes."""
    seconds = sorted({second for one in intervals for second in (one.since_s, one.until_s)})
    found: list[tuple[float, float, tuple[_Interval, ...]]] = []
    for begin, end in pairwise(seconds):
        present = tuple(one for one in intervals if one.since_s <= begin and one.until_s >= end)
        if found and found[-1][1] == begin and _residents(found[-1][2]) == _residents(present):
            found[-1] = (found[-1][0], end, present)
        elif present:
            found.append((begin, end, present))
    return found


def _residents(intervals: Sequence[_Interval]) -> list[tuple[str, int]]:
    return [(one.session.name, one.batch) for one in intervals]
