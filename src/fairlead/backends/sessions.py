"""What becomes of the requests to sessions, from what happens to their jobs: which accelerators serve whom, and with which
batches, from when until when, as plans route them; and how many requests come. It is told events, by a simulated world or out
of a journal, and draws requests when it is asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fairlead.backends.requests import Arrivals, Served, Serving, arrivals_of, serve
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Floats
from fairlead.core.inference import REPORTED, Resident, Server, ServingPlan, Session, rate_told
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream

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
                        one.rates.append((time, rate_told(rate, one.session.rate)))
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
