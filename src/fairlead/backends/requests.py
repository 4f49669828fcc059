"""Requests served by a plan, in virtual time and to the event: they arrive, are gathered in one queue for each session, and are
taken from it in batches by whichever of the session's accelerators is free.

A free accelerator takes what waits, up to the batch of the plan, for the session whose batch has to start soonest. It does not
wait for a batch to fill, as batches grow by themselves where all are busy. A request that cannot be answered in time any more
is dropped; so are those at the head of an overfull queue that would make a batch small, as in Nexus (SOSP'19, §6.3)."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.inference import ServingPlan, Session
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
