"""Packing of sessions with one request queue each, from which any accelerator of the session takes batches.

Nexus dispatches requests one by one, so each accelerator collects its own batches: 2·l(b) ≤ SLO, and residuals have small
batches (`squishy.py`). From a common queue, a batch is complete after (b − 1) / R seconds, R the rate of the whole session:

    load:      a(b) = R·l(b) / b, in accelerators that run batches of b back to back
    batch:     the least load with (b − 1) / R + l(b) + wait·min(1, a(b))·l(b) ≤ SLO: the batch is collected, may wait for one
               of its accelerators, and runs; a_sj on type j
    headroom:  1 + h = 1 + headroom·√(Σ_s v_s) / Σ_s a_s, v_s = (a_s·SLO_s / (SLO_s − l(b)))² / (R_s·SLO_s): arrivals within an
               SLO vary by the root of their number, and the variations of several sessions even out
    types:     min Σ_sj a_sj·x_sj with Σ_j x_sj = 1 and (1 + h)·Σ_s a_sj·x_sj ≤ N_j; x_sj is the part of session s that type j
               serves. Where not all fits, as many requests as possible
    wrap:      on each type the loads are laid end to end, by SLO, and cut into (1 + h)·Σ a equal pieces, rounded to the
               nearest number that holds Σ a, or up where they are few; one accelerator each (McNaughton's wrap-around rule)
    backup:    an idle accelerator also serves the sessions of its `neighbours` on either side in that order"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import InputError, require
from fairlead.core.routes import Resident, Server, ServingPlan, Session
from fairlead.policies.allocation.lp.program import Model, Program

_EPSILON = 1e-9
_FEW = 10  # accelerators; below this number counts are rounded up
_MAX_HEADROOM = 1000.0  # standard deviations
_MIN_SLACK = 1 / 3  # of an SLO left by a batch, as far as headroom depends on it


@dataclass(frozen=True)
class PoolingOptions:
    """Options of pooled packing: the part of a batch for which the next one may wait (1 is Nexus' rule), the standard
    deviations of arrivals to reserve capacity for, and the reach of backup accelerators."""

    wait: float = 0.1
    headroom: float = 1.1
    neighbours: int = 3

    def __post_init__(self) -> None:
        require(0 <= self.wait < math.inf, "packing pooled", "a number of at least 0", "wait", self.wait)
        if not 0 <= self.headroom <= _MAX_HEADROOM:
            expected = f"a number from 0 to {_MAX_HEADROOM:g}"
            raise InputError("packing pooled", expected, field="headroom", value=self.headroom)
        if not isinstance(self.neighbours, int) or self.neighbours < 0:
            raise InputError("packing pooled", "a whole number of at least 0", field="neighbours", value=self.neighbours)


DEFAULT_POOLING = PoolingOptions()


@dataclass(frozen=True)
class SessionLoad:
    """The load of a session on a type: batch size, load in accelerators, and the variance of the load."""

    batch: int
    load: float
    variance: float


@dataclass(frozen=True)
class _Part:
    """The part of a session that a type serves."""

    session: Session
    batch: int
    rate: float
    load: float


def pack_pooled(
    sessions: Sequence[Session], accelerators: Mapping[str, float], options: PoolingOptions = DEFAULT_POOLING
) -> ServingPlan:
    """Plan on at most this many accelerators of each type."""
    types = list(accelerators)
    loads = [[session_load(s, t, options.wait) for t in types] for s in sessions]
    matrix = np.array([[math.inf if one is None else one.load for one in row] for row in loads])
    best = [min(known, key=lambda one: one.load) for row in loads if (known := [one for one in row if one is not None])]
    scale = 1 + headroom_fraction(best, options)
    capacity = np.array([accelerators[name] / scale for name in types])
    share = _shares(np.array([s.rate for s in sessions]), matrix.reshape(len(sessions), len(types)), capacity)
    servers: list[Server] = []
    for column, name in enumerate(types):
        parts = [
            _Part(s, one.batch, s.rate * part, one.load * part)
            for s, row, part in zip(sessions, loads, share[:, column].tolist())
            if part > _EPSILON and (one := row[column]) is not None
        ]
        servers += _with_backups(_wrapped_around(parts, name, scale), options.neighbours)
    missing = 1 - share.sum(axis=1)
    return ServingPlan(tuple(servers), {s.name: part for s, part in zip(sessions, missing.tolist()) if part > 1e-6})


def session_load(session: Session, type_name: str, wait: float) -> SessionLoad | None:
    """The load of a session on a type; None where not even a single request can be answered in time."""
    if not (batch := pooled_batch(session, type_name, wait)):
        return None
    load, latency = float(_loads(session, type_name)[batch - 1]), float(session.latency_s[type_name][batch - 1])
    urgency = 1 / max(1 - latency / session.slo_s, _MIN_SLACK)
    return SessionLoad(batch, load, (load * urgency) ** 2 / (session.rate * session.slo_s))


def pooled_batch(session: Session, type_name: str, wait: float = 0.0) -> int:
    """The batch of the best throughput that can be collected and run in time; 0 where not even a single request can be."""
    latency = session.latency_s.get(type_name)
    if latency is None or latency[0] > session.slo_s:
        return 0
    load = _loads(session, type_name)
    total_s = np.arange(len(latency)) / session.rate + latency * (1 + wait * np.minimum(load, 1.0))
    fits = total_s <= session.slo_s + _EPSILON
    fits[0] = True
    return int(np.where(fits, load, np.inf).argmin()) + 1


def _loads(session: Session, type_name: str) -> Floats:
    return session.rate / session.throughput(type_name)


def required_accelerators(load: float, scale: float) -> int:
    """The number of accelerators for a total load, scaled by headroom."""
    scaled = load * scale
    count = math.ceil(scaled - 1e-6) if scaled < _FEW else math.floor(scaled + 0.5)
    return max(1, math.ceil(load - 1e-6), count)


def headroom_fraction(loads: Sequence[SessionLoad], options: PoolingOptions) -> float:
    """The part by which accelerators exceed the load, so that its variation fits."""
    total = sum(one.load for one in loads)
    return options.headroom * math.sqrt(sum(one.variance for one in loads)) / total if total else 0.0


def _shares(rate: Floats, load: Floats, capacity: Floats) -> Floats:
    """Sessions × types: the part of a session that each type serves."""
    can: Bools = np.isfinite(load)
    rows, columns = can.nonzero()
    share = np.zeros(load.shape)
    if not len(rows):
        return share
    cost, worth = load[rows, columns], rate[rows] / rate.max()
    variable = np.arange(len(rows))
    model = Model(
        worth - 1e-3 * worth.min() * cost / cost.max(),  # serve the most requests, then use the fewest accelerators
        np.zeros(len(rows)),
        np.ones(len(rows)),
        np.full(len(rate) + len(capacity), -math.inf),
        np.concatenate((np.ones(len(rate)), capacity)),
        (
            np.concatenate((rows, len(rate) + columns)),
            np.concatenate((variable, variable)),
            np.concatenate((np.ones(len(rows)), cost)),
        ),
    )
    share[rows, columns] = Program("types that serve sessions", model).solve().values.clip(0, 1)
    return share


def _wrapped_around(parts: Sequence[_Part], type_name: str, scale: float) -> list[Server]:
    """The fewest accelerators that these parts need, all filled alike."""
    if not parts:
        return []
    total = sum(part.load for part in parts)
    count = required_accelerators(total, scale)
    level = total / count
    residents: list[list[Resident]] = [[] for _ in range(count)]
    at, used = 0, 0.0
    for part in sorted(parts, key=lambda part: (part.session.slo_s, part.session.name)):
        left = part.load
        while left > _EPSILON:
            taken = left if at == count - 1 else min(left, level - used)
            if taken > _EPSILON:
                residents[at].append(Resident(part.session.name, part.batch, part.rate * taken / part.load, taken))
            left -= taken
            used += taken
            if used >= level - _EPSILON and at < count - 1:
                at, used = at + 1, 0.0
    return [Server(type_name, tuple(some)) for some in residents]


def _with_backups(servers: Sequence[Server], reach: int) -> list[Server]:
    """The same accelerators, each with the sessions of its neighbours in addition."""
    found = []
    for at, server in enumerate(servers):
        near = {one.session: one for other in servers[max(0, at - reach) : at + reach + 1] for one in other.residents}
        own = {one.session for one in server.residents}
        backup = tuple(replace(one, rate=0.0, occupancy=0.0) for name, one in near.items() if name not in own)
        found.append(replace(server, residents=server.residents + backup))
    return found
