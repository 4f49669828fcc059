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
from fairlead.core.inference import REPORTED, Resident, Server, ServingPlan, Session
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream

STRETCHES = 1000
"""In which requests are drawn where there are too many."""


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

    def served(self, *, begin_s: float = 0.0, end_s: float = math.inf, seed: int = 0, how: Arrivals = "poisson") -> Serving:
        """What becomes of the requests that come between two seconds."""
        arrivals = {s.name: self._arrivals(s, begin_s, end_s, seed, how) for s in self.sessions}
        return serve(self.plan, self.sessions, arrivals, self.windows)

    def sampled(self, most: float, seed: int = 0) -> Serving:
        """What becomes of all requests or, where they are more than so many, of those of some stretches: one of equal length in
        each of `STRETCHES` equal parts of the time, at a moment drawn at random. Latencies are those of the last of them."""
        if self.requests() <= most:
            return self.served(seed=seed)
        parts = [part for parts in self.rates.values() for part in parts]
        begin, end = min(since for since, _, _ in parts), max(until for _, until, _ in parts)
        each, length = (end - begin) / STRETCHES, (end - begin) / STRETCHES * most / self.requests()
        random, found = stream(seed, "stretches of requests"), list[Serving]()
        for number in range(STRETCHES):
            start = begin + (number + (1 - length / each) * float(random.random())) * each
            found.append(self.served(begin_s=start, end_s=start + length, seed=seed + number))
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
    """A job that is a session."""

    session: Session
    rates: list[tuple[float, float]]  # from which second on, how many a second
    stay: _Stay | None = None
    starting: bool = False
    ended_s: float = math.inf


@dataclass
class Requests:
    """Told every event, it knows who serves whom."""

    cluster: Cluster
    sessions: Mapping[str, Session]
    jobs: dict[int, _Job] = field(default_factory=dict)
    stays: list[_Stay] = field(default_factory=list)  # that are over
    time: float = 0.0

    def see(self, event: ev.Event) -> None:
        self.time = max(self.time, event.time)
        match event:
            case ev.JobSubmitted(time, number, job) if job.name in self.sessions:
                session = self.sessions[job.name]
                self.jobs[number] = _Job(session, [(time, session.rate)])
            case ev.MetricsReported(time, name, jobs, values) if name == REPORTED:
                for number, rate in zip(jobs.tolist(), values.tolist()):
                    if number in self.jobs and rate > 0:
                        self.jobs[number].rates.append((time, rate))
            case ev.RoundPlanned(plan):
                self._plan(plan)
            case ev.ProgressReported(_, jobs, _, _, since):
                for number, second in zip(jobs.tolist(), since.tolist()):
                    self._up(number, second)
            case ev.JobsInterrupted(time, jobs):
                self._leave((number, time) for number in jobs.tolist())
            case ev.JobsFinished(_, jobs, at) | ev.JobsFailed(_, jobs, at):
                self._leave(zip(jobs.tolist(), at.tolist()), ended=True)
            case ev.JobCancelled(time, number):
                self._leave([(number, time)], ended=True)

    def _plan(self, plan: RoundPlan) -> None:
        self._leave((number, plan.time) for number in plan.suspended.tolist())
        self._leave(((number, plan.time) for number in (*plan.ended.tolist(), *dict(plan.refused))), ended=True)
        starts = plan.launches
        for number, begin, end in zip(starts.jobs.tolist(), starts.offsets.tolist(), starts.offsets[1:].tolist()):
            if number in self.jobs:
                one, places = self.jobs[number], starts.accelerators[begin:end].tolist()
                one.stay, one.starting = _Stay(one.session, tuple(places), 1, plan.time), True
        for number, route in plan.routes.items():
            known = self.jobs.get(number)
            if known is not None and known.stay is not None and known.stay.batch != route.batch:
                self._close(known.stay, plan.time)
                known.stay = replace(known.stay, batch=route.batch, since_s=max(plan.time, known.stay.since_s))

    def _up(self, number: int, second: float) -> None:
        one = self.jobs.get(number)
        if one is not None and one.stay is not None and one.starting:
            one.stay, one.starting = replace(one.stay, since_s=max(second, one.stay.since_s)), False

    def _leave(self, jobs: Iterable[tuple[int, float]], *, ended: bool = False) -> None:
        for number, second in jobs:
            one = self.jobs.get(number)
            if one is None:
                continue
            if one.stay is not None:
                self._close(one.stay, second)
                one.stay = None
            if ended:
                one.ended_s = second

    def _close(self, stay: _Stay, second: float) -> None:
        if second > stay.since_s:
            self.stays.append(replace(stay, until_s=second))

    def history(self) -> History:
        """Up to the last event."""
        stays = [*self.stays, *(replace(one.stay, until_s=self.time) for one in self.jobs.values() if one.stay is not None)]
        servers: list[Server] = []
        windows: list[tuple[float, float]] = []
        for place, here in sorted(_by_accelerator(stays).items()):
            kind = self.cluster.type_names[int(self.cluster.type_of[place])]
            for begin, end, together in _cut([one for one in here if kind in one.session.latency_s]):
                servers.append(Server(kind, tuple(_resident(one, kind) for one in together)))
                windows.append((begin, end))
        rates: dict[str, list[tuple[float, float, float]]] = {}
        for job in self.jobs.values():
            seconds = [*(since for since, _ in job.rates[1:]), min(job.ended_s, self.time)]
            parts = [(since, until, rate) for (since, rate), until in zip(job.rates, seconds) if until > since]
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
    found = []
    for begin, end in pairwise(seconds):
        together = tuple(one for one in stays if one.since_s <= begin and one.until_s >= end)
        if together:
            found.append((begin, end, together))
    return found
