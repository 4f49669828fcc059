"""Squishy bin packing, as Nexus has it (Shen et al., SOSP'19, §6.1), on accelerators of one type.

    whole:     B = max{b : 2·l(b) ≤ SLO}: a request that just missed a batch waits for it and is in the next one. A session of
               rate R fills ⌊R / T⌋ accelerators, T = B / l(B); what is left of R is its residual r.
    residual:  alone on an accelerator its round is d = b / r with the largest b such that d + l(b) ≤ SLO; occupancy l(b) / d.
    merging:   by descending occupancy, each into the accelerator that becomes fullest by it. Two merge into a round that is the
               shorter of theirs, d; batches shrink to ⌈r·d⌉; it works where Σ l(b) ≤ d and d + l(b) ≤ SLO for all.

Every accelerator keeps its promises by itself, with requests dealt out one by one. `pooling.py` needs fewer accelerators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.routes import Resident, Server, ServingPlan, Session

_NEARLY = 1e-9


def whole_batch(session: Session, type_name: str) -> int:
    """The largest batch that an accelerator may run back to back; 0 where there is none."""
    return int(np.searchsorted(session.latency_s[type_name], session.slo_s / 2 + _NEARLY, side="right"))


@dataclass(frozen=True)
class _Round:
    """An accelerator's round, in which each of its sessions has one batch."""

    duty_s: float
    parts: tuple[tuple[Session, float, int], ...]  # a session, its residual rate, its batch
    busy_s: float

    @property
    def occupancy(self) -> float:
        return self.busy_s / self.duty_s


def squishy(sessions: Sequence[Session], type_name: str, accelerators: float = math.inf) -> ServingPlan:
    """A plan on at most so many accelerators of a type; whole ones first, then the fullest."""
    servers: list[Server] = []
    rounds: list[_Round] = []
    unserved: dict[str, float] = {}
    for session in sessions:
        batch = whole_batch(session, type_name) if type_name in session.latency_s else 0
        if not batch:
            unserved[session.name] = 1.0
            continue
        each = float(session.throughput(type_name)[batch - 1])
        count = math.floor(session.rate / each + _NEARLY)
        servers += [Server(type_name, (Resident(session.name, batch, each, 1.0),))] * count
        left = session.rate - count * each
        if left > _NEARLY * session.rate:
            rounds.append(_alone(session, left, type_name))
    servers += [_server(one, type_name) for one in sorted(_merged(rounds, type_name), key=lambda one: -one.occupancy)]
    if len(servers) > accelerators:
        given = {session.name: session.rate for session in sessions}
        for server in servers[int(accelerators) :]:
            for one in server.residents:
                unserved[one.session] = unserved.get(one.session, 0.0) + one.rate / given[one.session]
        servers = servers[: int(accelerators)]
    return ServingPlan(tuple(servers), unserved)


def _alone(session: Session, rate: float, type_name: str) -> _Round:
    """A residual by itself: the largest batch that can be gathered and run in time, or single requests as they come."""
    latency = session.latency_s[type_name]
    sizes = np.arange(1, len(latency) + 1)
    fits = np.flatnonzero(sizes / rate + latency <= session.slo_s + _NEARLY)
    batch = int(sizes[fits[-1]]) if len(fits) else 1
    duty = batch / rate if len(fits) else session.slo_s - float(latency[0])
    return _Round(duty, ((session, rate, batch),), float(latency[batch - 1]))


def _merged(rounds: Sequence[_Round], type_name: str) -> list[_Round]:
    bins: list[_Round] = []
    for one in sorted(rounds, key=lambda one: -one.occupancy):
        tries = [(at, _together(each, one, type_name)) for at, each in enumerate(bins)]
        good = [(both.occupancy, -at, both) for at, both in tries if both is not None]
        if good:
            _, at, both = max(good, key=lambda found: found[:2])
            bins[-at] = both
        else:
            bins.append(one)
    return bins


def _together(one: _Round, other: _Round, type_name: str) -> _Round | None:
    """Both in one round, or None where one of their sessions would be late."""
    duty = min(one.duty_s, other.duty_s)
    parts = []
    busy = 0.0
    for session, rate, _ in one.parts + other.parts:
        batch = max(1, math.ceil(rate * duty - _NEARLY))
        latency = session.latency_s[type_name]
        if batch > len(latency) or duty + latency[batch - 1] > session.slo_s + _NEARLY:
            return None
        busy += float(latency[batch - 1])
        parts.append((session, rate, batch))
    return _Round(duty, tuple(parts), busy) if busy <= duty + _NEARLY else None


def _server(one: _Round, type_name: str) -> Server:
    residents = (
        Resident(session.name, batch, rate, float(session.latency_s[type_name][batch - 1]) / one.duty_s)
        for session, rate, batch in one.parts
    )
    return Server(type_name, tuple(residents), one.duty_s)
