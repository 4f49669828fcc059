"""Squishy bin packing of sessions (Nexus, Shen et al., SOSP'19, §6.1), on accelerators of one type.

    full:      B = max{b : 2·l(b) ≤ SLO}: a request that just missed a batch waits for it and is in the next one. A session of
               rate R fills ⌊R / T⌋ accelerators, T = B / l(B); the rest of R is its residual r.
    residual:  alone on an accelerator its duty cycle is d = b / r with the largest b such that d + l(b) ≤ SLO; occupancy l(b) /
               d.
    merging:   by descending occupancy, each into the accelerator that it fills most. Two merge into the shorter duty cycle d of
               both; batches shrink to ⌈r·d⌉; feasible where Σ l(b) ≤ d and d + l(b) ≤ SLO for all.

Each accelerator meets the SLOs by itself, with requests dispatched one by one. `pooled.py` needs fewer accelerators. This
module knows nothing of jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.routes import Resident, Server, ServingPlan, Session

_EPSILON = 1e-9


def back_to_back_batch(session: Session, type_name: str) -> int:
    """The largest batch that an accelerator may run back to back; 0 where there is none."""
    return int(np.searchsorted(session.latency_s[type_name], session.slo_s / 2 + _EPSILON, side="right"))


@dataclass(frozen=True)
class _DutyCycle:
    """A duty cycle of an accelerator, in which each of its sessions has one batch."""

    duty_s: float
    parts: tuple[tuple[Session, float, int], ...]  # session, residual rate, batch
    busy_s: float

    @property
    def occupancy(self) -> float:
        return self.busy_s / self.duty_s


def pack_squishy(sessions: Sequence[Session], type_name: str, accelerators: float = math.inf) -> ServingPlan:
    """Plan on at most this many accelerators of a type; full ones first, then by occupancy."""
    servers: list[Server] = []
    cycles: list[_DutyCycle] = []
    unserved: dict[str, float] = {}
    for session in sessions:
        batch = back_to_back_batch(session, type_name) if type_name in session.latency_s else 0
        if not batch:
            unserved[session.name] = 1.0
            continue
        each = float(session.throughput(type_name)[batch - 1])
        count = math.floor(session.rate / each + _EPSILON)
        servers += [Server(type_name, (Resident(session.name, batch, each, 1.0),))] * count
        residual = session.rate - count * each
        if residual > _EPSILON * session.rate:
            cycles.append(_residual_cycle(session, residual, type_name))
    for cycle in sorted(_merged(cycles, type_name), key=lambda cycle: -cycle.occupancy):
        residents = (
            Resident(session.name, batch, rate, float(session.latency_s[type_name][batch - 1]) / cycle.duty_s)
            for session, rate, batch in cycle.parts
        )
        servers.append(Server(type_name, tuple(residents), cycle.duty_s))
    if len(servers) > accelerators:
        rates = {session.name: session.rate for session in sessions}
        for server in servers[int(accelerators) :]:
            for one in server.residents:
                unserved[one.session] = unserved.get(one.session, 0.0) + one.rate / rates[one.session]
        servers = servers[: int(accelerators)]
    return ServingPlan(tuple(servers), unserved)


def _residual_cycle(session: Session, rate: float, type_name: str) -> _DutyCycle:
    """A residual alone: the largest batch that can be collected and run in time, or single requests as they arrive."""
    latency = session.latency_s[type_name]
    sizes = np.arange(1, len(latency) + 1)
    fits = np.flatnonzero(sizes / rate + latency <= session.slo_s + _EPSILON)
    batch = int(sizes[fits[-1]]) if len(fits) else 1
    duty = batch / rate if len(fits) else session.slo_s - float(latency[0])
    return _DutyCycle(duty, ((session, rate, batch),), float(latency[batch - 1]))


def _merged(cycles: Sequence[_DutyCycle], type_name: str) -> list[_DutyCycle]:
    bins: list[_DutyCycle] = []
    for cycle in sorted(cycles, key=lambda cycle: -cycle.occupancy):
        attempts = [(at, _merge(each, cycle, type_name)) for at, each in enumerate(bins)]
        feasible = [(both.occupancy, -at, both) for at, both in attempts if both is not None]
        if feasible:
            _, at, both = max(feasible, key=lambda found: found[:2])
            bins[-at] = both
        else:
            bins.append(cycle)
    return bins


def _merge(one: _DutyCycle, other: _DutyCycle, type_name: str) -> _DutyCycle | None:
    """Both in one duty cycle, or None where a session would miss its SLO."""
    duty = min(one.duty_s, other.duty_s)
    parts = []
    busy = 0.0
    for session, rate, _ in one.parts + other.parts:
        batch = max(1, math.ceil(rate * duty - _EPSILON))
        latency = session.latency_s[type_name]
        if batch > len(latency) or duty + latency[batch - 1] > session.slo_s + _EPSILON:
            return None
        busy += float(latency[batch - 1])
        parts.append((session, rate, batch))
    return _DutyCycle(duty, tuple(parts), busy) if busy <= duty + _EPSILON else None
