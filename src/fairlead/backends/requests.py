"""Requests served by a plan, in virtual time and to the event: they arrive, are gathered in one queue for each session, and are
taken from it in batches by whichever of the session's accelerators is free.

A session's batch is due when it is full, or when its first request would be late if it waited any longer. Of several that are
due an accelerator takes the one that has to start soonest. A request that cannot be answered in time any more is dropped; so are
those at the head of an overfull queue that would make a batch small, as Nexus drops early (SOSP'19, §6.3)."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.inference import Server, ServingPlan, Session
from fairlead.core.rng import stream

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

    def __init__(self, session: Session, arrivals: Floats, guard_s: float) -> None:
        self.session = session
        self.arrivals: list[float] = arrivals.tolist()
        self.head = 0
        self.guard_s = guard_s
        self.latencies: list[float] = []
        self.batches = 0
        self.late = 0

    def due(self, batch: int, latency: Sequence[float]) -> float:
        """When a batch of at most this size should start; infinity where no more requests come."""
        head = self.head
        if head >= len(self.arrivals):
            return math.inf
        first = self.arrivals[head]
        last_call = max(first, first + self.session.slo_s - latency[batch - 1] - self.guard_s)
        full = head + batch - 1
        return min(last_call, self.arrivals[full]) if full < len(self.arrivals) else last_call

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
                self.latencies.extend(done - one for one in arrivals[self.head : self.head + allowed])
                self.head += allowed
                self.batches += 1
                return done
            self.head += 1
        return now

    def told(self) -> Served:
        latency = np.array(self.latencies)
        in_time = int(np.count_nonzero(latency <= self.session.slo_s + 2 * _NEARLY))
        median, p99 = np.quantile(latency, (0.5, 0.99)).tolist() if len(latency) else (math.nan, math.nan)
        return Served(self.session.name, len(self.arrivals), in_time, len(latency) - in_time, self.batches, median, p99)


def serve(plan: ServingPlan, sessions: Sequence[Session], arrivals: Mapping[str, Floats]) -> Serving:
    """Serve these arrivals by a plan, up to the last request."""
    latency = {(s.name, t): values.tolist() for s in sessions for t, values in s.latency_s.items()}
    guards = _guards(plan, latency)
    queues = {s.name: _Queue(s, arrivals[s.name], guards.get(s.name, 0.0)) for s in sessions}
    residents = [[(queues[r.session], r.batch, latency[r.session, server.type]) for r in server.residents] for server in plan.servers]
    # Of those that are free at the same moment, who serves fewest sessions goes first: the others are of more use.
    order = sorted(range(len(residents)), key=lambda at: (len(residents[at]), at))
    free = [(0.0, rank) for rank in range(len(order))]
    busy = [0.0] * len(residents)
    end = max((float(times[-1]) for times in arrivals.values() if len(times)), default=0.0)
    while free:
        now, rank = free[0]
        server = order[rank]
        soonest, start, chosen = math.inf, math.inf, None
        for one in residents[server]:
            queue, batch, takes = one
            when = queue.due(batch, takes)
            if when <= now:
                must = queue.arrivals[queue.head] + queue.session.slo_s - takes[batch - 1]
                if start > now or must < soonest:
                    start, soonest, chosen = now, must, one
            elif when < start:
                start, chosen = when, one
        if chosen is None:
            heapq.heappop(free)
        elif start > now:
            heapq.heapreplace(free, (start, rank))
        else:
            done = chosen[0].take(now, chosen[1], chosen[2])
            busy[server] += done - now
            heapq.heapreplace(free, (done, rank))
    return Serving(tuple(queue.told() for queue in queues.values()), tuple(one / end if end else 0.0 for one in busy))


def _guards(plan: ServingPlan, latency: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, float]:
    """How much before its last call a session's batch is called: where accelerators are shared, one may be in the middle of
    another's batch."""
    waits: dict[str, list[float]] = {}
    for server in plan.servers:
        for one in server.residents:
            waits.setdefault(one.session, []).append(_longest_of_others(server, one.session, latency))
    return {name: min(each) for name, each in waits.items()}


def _longest_of_others(server: Server, name: str, latency: Mapping[tuple[str, str], Sequence[float]]) -> float:
    others = [latency[one.session, server.type][one.batch - 1] for one in server.residents if one.session != name]
    return max(others, default=0.0)
