"""Requests served by a plan, in virtual time and to the event: they arrive, are gathered in one queue for each session, and are
taken from it in batches by whichever of the session's accelerators is free.

A free accelerator takes what waits, up to the batch of the plan, for the session whose batch has to start soonest. It does not
wait for a batch to fill, as batches grow by themselves where all are busy. A request that cannot be answered in time any more
is dropped; so are those at the head of an overfull queue that would make a batch small, as in Nexus (SOSP'19, §6.3)."""

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

Arrivals = Literal["poisson", "uniform"]
_NEARLY = 1e-9


def arrivals_of(session: Session, duration_s: float, seed: int, how: Arrivals = "poisson") -> Floats:
    """The seconds at which a session's requests come: as a Poisson process, or evenly with a random beginning."""
    random = stream(seed, "requests", session.name)
    if how == "uniform":
        gap = 1.0 / session.rate
        return np.arange(random.random() * gap, duration_s, gap)
    count = int(random.poisson(session.rate * duration_s))
    return np.sort(random.random(count)) * duration_s


@dataclass(frozen=True)
class Served:
    """What became of a session's requests. Latencies are of those that were answered."""

    session: str
    requests: int
    in_time: int
    late: int
    batches: int
    median_s: float
    p99_s: float

    @property
    def dropped(self) -> int:
        return self.requests - self.in_time - self.late

    @property
    def attainment(self) -> float:
        """The part of all requests that were answered within the SLO; dropped ones were not."""
        return self.in_time / self.requests if self.requests else 1.0


@dataclass(frozen=True)
class Serving:
    """What became of everybody's requests, and the part of its time that each accelerator was at work."""

    sessions: tuple[Served, ...]
    busy: tuple[float, ...]

    @property
    def attainment(self) -> float:
        requests = sum(one.requests for one in self.sessions)
        return sum(one.in_time for one in self.sessions) / requests if requests else 1.0


class _Queue:
    """A session's requests, in order of arrival: those before `head` are gone."""

    def __init__(self, session: Session, arrivals: Floats, since_s: float) -> None:
        self.session = session
        self.arrivals: list[float] = arrivals.tolist()
        self.before = bisect_left(self.arrivals, since_s)  # so many are served and not counted
        self.head = 0
        self.latencies: list[float] = []
        self.batches = 0

    @property
    def first(self) -> float:
        """When the first request came that is still to be answered; infinity where there is none."""
        return self.arrivals[self.head] if self.head < len(self.arrivals) else math.inf

    def take(self, now: float, batch: int, latency: Sequence[float]) -> float:
        """Run a batch; returns when it is done, which is now where all that waited had to be dropped."""
        slo, arrivals = self.session.slo_s, self.arrivals
        behind = bisect_right(arrivals, now, self.head)
        while self.head < behind:
            waiting = behind - self.head
            left = arrivals[self.head] + slo - now + _NEARLY
            most = min(batch, waiting)
            allowed = most if latency[most - 1] <= left else bisect_right(latency, left, 0, most)
            if allowed and (allowed == most or waiting <= batch):
                done = now + latency[allowed - 1]
                self.latencies.extend(done - one for one in arrivals[max(self.head, self.before) : self.head + allowed])
                self.head += allowed
                self.batches += self.head > self.before
                return done
            self.head += 1
        return now

    def told(self) -> Served:
        latency = np.array(self.latencies)
        in_time = int(np.count_nonzero(latency <= self.session.slo_s + 2 * _NEARLY))
        median, p99 = np.quantile(latency, (0.5, 0.99)).tolist() if len(latency) else (math.nan, math.nan)
        requests = len(self.arrivals) - self.before
        return Served(self.session.name, requests, in_time, len(latency) - in_time, self.batches, median, p99)


def serve(
    plan: ServingPlan,
    sessions: Sequence[Session],
    arrivals: Mapping[str, Floats],
    windows: Sequence[tuple[float, float]] | None = None,
    since_s: float = -math.inf,
) -> Serving:
    """Serve these arrivals by a plan, up to the last request. `windows` says for each server from when on it is there, and when
    it begins no more batches; else all are there all the time. What came before `since_s` is served and not counted."""
    latency = {(s.name, t): values.tolist() for s in sessions for t, values in s.latency_s.items()}
    queues = {s.name: _Queue(s, arrivals[s.name], since_s) for s in sessions}
    residents = [[(queues[r.session], r.batch, latency[r.session, one.type]) for r in one.residents] for one in plan.servers]
    # Of those that are free at the same moment, who serves fewest sessions goes first: the others are of more use.
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
    return Serving(tuple(queue.told() for queue in queues.values()), tuple(one / end if end else 0.0 for one in busy))


# What becomes of the requests to sessions, from what happens to their jobs: which accelerators serve whom, and with which
# batches, from when until when, as plans route them; and how many requests come. It is told events, by a simulated world or
# out
# of a journal, and draws requests when it is asked.

MOST_STRETCHES = 50
"""In which requests are drawn where there are too many."""
STRETCH_SLOS, LEAD_IN_SLOS = 40.0, 10.0
"""How long a stretch is, where so many requests may be drawn, or longer; and its beginning that is not counted. In SLOs."""


@dataclass(frozen=True)
class History:
    """Sessions when they were there, and the accelerators that served them meanwhile."""

    sessions: tuple[Session, ...]
    rates: Mapping[str, tuple[tuple[float, float, float], ...]]  # by session: from, until, requests per second
    plan: ServingPlan
    windows: tuple[tuple[float, float], ...]  # by server: from when until when it was there

    def requests(self, begin_s: float = 0.0, end_s: float = math.inf) -> float:
        """How many are to be expected."""
        parts = (part for parts in self.rates.values() for part in parts)
        return sum(rate * max(0.0, min(until, end_s) - max(since, begin_s)) for since, until, rate in parts)

    def served(
        self,
        *,
        begin_s: float = 0.0,
        end_s: float = math.inf,
        seed: int = 0,
        how: Arrivals = "poisson",
        lead_in_s: float = 0.0,
    ) -> Serving:
        """What becomes of the requests that come between two seconds. Those of `lead_in_s` before are served too, and not
        counted: by them the others find queues as they would be."""
        arrivals = {s.name: self._arrivals(s, begin_s - lead_in_s, end_s, seed, how) for s in self.sessions}
        return serve(self.plan, self.sessions, arrivals, self.windows, begin_s)

    def sampled(
        self, most: float, *, begin_s: float = 0.0, end_s: float = math.inf, seed: int = 0, how: Arrivals = "poisson"
    ) -> Serving:
        """What becomes of the requests that come between two seconds or, where they are more than so many, of those of some
        stretches: one of equal length in each of some equal parts of the time, at a moment drawn at random. A stretch is many
        SLOs long, and led in. Latencies are those of the last of them."""
        expected = self.requests(begin_s, end_s)
        if expected <= most:
            return self.served(begin_s=begin_s, end_s=end_s, seed=seed, how=how)
        parts = [part for parts in self.rates.values() for part in parts]
        begin, end = max(begin_s, min(since for since, _, _ in parts)), min(end_s, max(until for _, until, _ in parts))
        slo, seconds = max(one.slo_s for one in self.sessions), (end - begin) * most / expected
        count = min(MOST_STRETCHES, max(1, int(seconds / (STRETCH_SLOS * slo))))
        lead_in = min(LEAD_IN_SLOS * slo, seconds / count / 2)
        each, length = (end - begin) / count, seconds / count - lead_in
        random, found = stream(seed, "stretches of requests"), list[Serving]()
        for number in range(count):
            start = begin + (number + (1 - length / each) * float(random.random())) * each
            stretch = self.served(begin_s=start, end_s=start + length, seed=seed + number, how=how, lead_in_s=lead_in)
            found.append(stretch)
        return Serving(tuple(_added(each) for each in zip(*(one.sessions for one in found))), found[-1].busy)

    def _arrivals(self, session: Session, begin_s: float, end_s: float, seed: int, how: Arrivals) -> Floats:
        pieces = [np.zeros(0)]
        for at, (since, until, rate) in enumerate(self.rates[session.name]):
            since, until = max(since, begin_s), min(until, end_s)
            if until > since and rate > 0:
                one = replace(session, name=f"{session.name} {at}", rate=rate)
                pieces.append(since + arrivals_of(one, until - since, seed, how))
        return np.sort(np.concatenate(pieces))


def _added(parts: Sequence[Served]) -> Served:
    counts = {name: sum(getattr(one, name) for one in parts) for name in ("requests", "in_time", "late", "batches")}
    return replace(parts[-1], **counts)


@dataclass(frozen=True)
class _Stay:
    """A session on some accelerators, with one batch size."""

    session: Session
    accelerators: tuple[int, ...]
    batch: int
    since_s: float
    until_s: float = math.inf


@dataclass
class _Job:
    """A job that is a session, and where it served, serves, and is known to serve soon: one stay after the other."""

    session: Session
    rates: list[tuple[float, float]]  # from which second on, how many a second
    stays: list[_Stay] = field(default_factory=list)
    starting: tuple[int, ...] = ()  # its accelerators, while it is not known when all of them will serve
    batch: int = 1
    ended_s: float = math.inf

    def at(self, second: float) -> frozenset[int]:
        """The accelerators that serve it."""
        return frozenset(place for one in self.stays if one.since_s <= second < one.until_s for place in one.accelerators)

    def turn(self, second: float, accelerators: Iterable[int]) -> None:
        """From a second on it is served by these."""
        while self.stays and self.stays[-1].since_s >= second:
            self.stays.pop()
        if self.stays and self.stays[-1].until_s > second:
            self.stays[-1] = replace(self.stays[-1], until_s=second)
        if places := tuple(sorted(accelerators)):
            self.stays.append(_Stay(self.session, places, self.batch, second))

    def resize(self, second: float, batch: int) -> None:
        """From a second on, with other batches."""
        later = [one for one in self.stays if one.until_s > second]
        self.batch = batch
        for one in later:
            self.turn(max(one.since_s, second), one.accelerators)


@dataclass
class Requests:
    """Told every event, it knows who serves whom."""

    cluster: Cluster
    sessions: Mapping[str, Session]
    jobs: dict[int, _Job] = field(default_factory=dict)
    time: float = 0.0

    def see(self, event: ev.Event) -> None:
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
                    self._goes(number, rate, max(time, second) if rate else time)
            case ev.JobsInterrupted(time, jobs):
                self._leave((number, time) for number in jobs.tolist())
            case ev.JobsFinished(_, jobs, at) | ev.JobsFailed(_, jobs, at):
                self._leave(zip(jobs.tolist(), at.tolist()), ended=True)
            case ev.JobCancelled(time, number):
                self._leave([(number, time)], ended=True)

    def _plan(self, plan: RoundPlan) -> None:
        """Who moves goes on, while it starts, where it was and stays."""
        served = {number: self.jobs[number].at(plan.time) for number in plan.suspended.tolist() if number in self.jobs}
        self._leave((number, plan.time) for number in plan.suspended.tolist())
        self._leave(((number, plan.time) for number in (*plan.ended.tolist(), *dict(plan.refused))), ended=True)
        starts = plan.launches
        for number, begin, end in zip(starts.jobs.tolist(), starts.offsets.tolist(), starts.offsets[1:].tolist()):
            if (one := self.jobs.get(number)) is not None:
                route, one.starting = plan.routes.get(number), tuple(starts.accelerators[begin:end].tolist())
                one.batch = 1 if route is None else route.batch
                one.turn(plan.time, served.get(number, frozenset()).intersection(one.starting))
        for number, route in plan.routes.items():
            if (one := self.jobs.get(number)) is not None and one.batch != route.batch:
                one.resize(plan.time, route.batch)

    def _goes(self, number: int, rate: float, second: float) -> None:
        """A session that starts has started; or it says that it stands still, and has left where it was."""
        one = self.jobs.get(number)
        if one is not None and one.starting:
            one.turn(second, one.starting if rate else ())
            one.starting = () if rate else one.starting

    def _leave(self, jobs: Iterable[tuple[int, float]], *, ended: bool = False) -> None:
        for number, second in jobs:
            if (one := self.jobs.get(number)) is not None:
                one.turn(second, ())
                one.starting = ()
                one.ended_s = min(one.ended_s, second) if ended else one.ended_s

    def history(self) -> History:
        """Up to the last event."""
        stays = [replace(one, until_s=min(one.until_s, self.time)) for job in self.jobs.values() for one in job.stays]
        servers: list[Server] = []
        windows: list[tuple[float, float]] = []
        for place, here in sorted(_by_accelerator(stays).items()):
            kind = self.cluster.type_names[int(self.cluster.type_of[place])]
            for begin, end, together in _cut([one for one in here if kind in one.session.latency_s]):
                servers.append(Server(kind, tuple(_resident(one, kind) for one in together)))
                windows.append((begin, end))
        rates: dict[str, list[tuple[float, float, float]]] = {}
        for job in self.jobs.values():
            end = min(job.ended_s, self.time)
            seconds = [min(second, end) for second, _ in job.rates] + [end]
            parts = [(since, until, rate) for (since, until), (_, rate) in zip(pairwise(seconds), job.rates) if until > since]
            rates.setdefault(job.session.name, []).extend(parts)
        sessions = {job.session.name: job.session for job in self.jobs.values()}
        spelled = {name: tuple(parts) for name, parts in rates.items()}
        return History(tuple(sessions.values()), spelled, ServingPlan(tuple(servers), {}), tuple(windows))


def _resident(stay: _Stay, kind: str) -> Resident:
    return Resident(stay.session.name, max(1, min(stay.batch, len(stay.session.latency_s[kind]))), 1.0, 1.0)


def _by_accelerator(stays: Iterable[_Stay]) -> dict[int, list[_Stay]]:
    found: dict[int, list[_Stay]] = {}
    for stay in stays:
        if stay.until_s > stay.since_s:
            for place in stay.accelerators:
                found.setdefault(place, []).append(stay)
    return found


def _cut(stays: Sequence[_Stay]) -> list[tuple[float, float, tuple[_Stay, ...]]]:
    """Stretches in which the same sessions are on an accelerator, with the same batches."""
    seconds = sorted({second for one in stays for second in (one.since_s, one.until_s)})
    found: list[tuple[float, float, tuple[_Stay, ...]]] = []
    for begin, end in pairwise(seconds):
        together = tuple(one for one in stays if one.since_s <= begin and one.until_s >= end)
        if found and found[-1][1] == begin and _residents(found[-1][2]) == _residents(together):
            found[-1] = (found[-1][0], end, together)
        elif together:
            found.append((begin, end, together))
    return found


def _residents(stays: Sequence[_Stay]) -> list[tuple[str, int]]:
    return [(one.session.name, one.batch) for one in stays]
