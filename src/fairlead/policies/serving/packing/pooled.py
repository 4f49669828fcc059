"""Packing sessions whose requests are gathered in one queue each, from which any of the session's accelerators takes batches.

Nexus deals requests out one by one, so that each accelerator gathers its own batches: 2·l(b) ≤ SLO, and what is left of a
session beside its whole accelerators has small batches (`squishy.py`). Gathered together, a batch is there after (b − 1) / R
seconds, R the rate of the whole session, wherever it is run afterwards:

    load:      a(b) = R·l(b) / b, in accelerators that run batches of b back to back
    batch:     the least load with (b − 1) / R + l(b) + wait·min(1, a(b))·l(b) ≤ SLO: it is gathered, run, and in between it may
               have to wait for one of its accelerators; a_sj on type j
    headroom:  1 + h = 1 + headroom·√(Σ_s v_s) / Σ_s a_s, v_s = (a_s·SLO_s / (SLO_s − l(b)))² / (R_s·SLO_s): arrivals within an
               SLO vary by the root of their number, what are too many has to be gone through before the last batch must
               begin, and those of several sessions even out
    types:     min Σ_sj a_sj·x_sj with Σ_j x_sj = 1 and (1 + h)·Σ_s a_sj·x_sj ≤ N_j; x_sj is the part of session s that type j
               serves. Where there is no room for all, as many requests as possible
    line:      on each type the loads are laid end to end, by SLO, and cut into (1 + h)·Σ a equal pieces, rounded to the
               nearest number that holds Σ a, or up where they are few; an accelerator each (McNaughton's wrap-around rule)
    aid:       when it is free, an accelerator stands in for the `neighbours` on either side of it in that line

What is left of a session beside its whole accelerators costs no more than the rest of it, and nothing is lost between bins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import InputError
from fairlead.core.routes import Resident, Server, ServingPlan, Session
from fairlead.policies.allocation.lp.program import Model, Program

_NEARLY = 1e-9
_FEW = 10  # accelerators, of which half a one is too much to do without
_MOST_HEADROOM = 1000.0  # standard deviations; an accelerator more for each is made, and nobody needs ten
_LEAST_LEFT = 1 / 3  # of an SLO beside a batch, as far as headroom goes by it


@dataclass(frozen=True)
class Pooled:
    """How closely to pack: for which part of a batch the next one waits (1 is Nexus' rule), how many standard deviations of
    arrivals there is room for, and how far accelerators stand in for each other."""

    wait: float = 0.1
    headroom: float = 1.1
    neighbours: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.wait < math.inf:
            raise InputError("packing pooled", "a number from 0 on", field="wait", value=self.wait)
        if not 0 <= self.headroom <= _MOST_HEADROOM:
            expected = f"a number from 0 to {_MOST_HEADROOM:g}"
            raise InputError("packing pooled", expected, field="headroom", value=self.headroom)
        if not isinstance(self.neighbours, int) or self.neighbours < 0:
            raise InputError("packing pooled", "a whole number from 0 on", field="neighbours", value=self.neighbours)


PLAIN = Pooled()


@dataclass(frozen=True)
class Way:
    """What a session takes of a type: so many requests at once, a load in accelerators, and the variance of that."""

    batch: int
    load: float
    variance: float


@dataclass(frozen=True)
class _Part:
    """What a type serves of a session."""

    session: Session
    batch: int
    rate: float
    load: float


def pooled(sessions: Sequence[Session], accelerators: Mapping[str, float], how: Pooled = PLAIN) -> ServingPlan:
    """A plan on at most so many accelerators of each type."""
    types = list(accelerators)
    ways = [[way(s, t, how.wait) for t in types] for s in sessions]
    load = np.array([[math.inf if one is None else one.load for one in row] for row in ways]).reshape(len(sessions), len(types))
    best = [min(known, key=lambda one: one.load) for row in ways if (known := [one for one in row if one is not None])]
    scale = 1 + headroom(best, how)
    share = _shares(np.array([s.rate for s in sessions]), load, np.array([accelerators[name] / scale for name in types]))
    servers: list[Server] = []
    for column, name in enumerate(types):
        parts = [
            _Part(s, one.batch, s.rate * part, one.load * part)
            for s, row, part in zip(sessions, ways, share[:, column].tolist())
            if part > _NEARLY and (one := row[column]) is not None
        ]
        servers += _standing_in(_laid_end_to_end(parts, name, scale), how.neighbours)
    missing = 1 - share.sum(axis=1)
    return ServingPlan(tuple(servers), {s.name: part for s, part in zip(sessions, missing.tolist()) if part > 1e-6})


def way(session: Session, type_name: str, wait: float) -> Way | None:
    """None where not even one request alone can be answered in time."""
    if not (batch := gathered_batch(session, type_name, wait)):
        return None
    load, latency = float(_loads(session, type_name)[batch - 1]), float(session.latency_s[type_name][batch - 1])
    hurry = 1 / max(1 - latency / session.slo_s, _LEAST_LEFT)
    return Way(batch, load, (load * hurry) ** 2 / (session.rate * session.slo_s))


def gathered_batch(session: Session, type_name: str, wait: float = 0.0) -> int:
    """The batch of the best throughput that can be gathered and run in time; 0 where not even one request alone can be."""
    latency = session.latency_s.get(type_name)
    if latency is None or latency[0] > session.slo_s:
        return 0
    load = _loads(session, type_name)
    takes = np.arange(len(latency)) / session.rate + latency * (1 + wait * np.minimum(load, 1.0))
    fits = takes <= session.slo_s + _NEARLY
    fits[0] = True
    return int(np.where(fits, load, np.inf).argmin()) + 1


def _loads(session: Session, type_name: str) -> Floats:
    return session.rate / session.throughput(type_name)


def accelerators_for(load: float, scale: float) -> int:
    """How many accelerators these loads need together, with room for their ups and downs."""
    wanted = load * scale
    whole = math.ceil(wanted - 1e-6) if wanted < _FEW else math.floor(wanted + 0.5)
    return max(1, math.ceil(load - 1e-6), whole)


def headroom(ways: Sequence[Way], how: Pooled) -> float:
    """By which part accelerators exceed the load, so that its ups and downs find room."""
    load = sum(one.load for one in ways)
    return how.headroom * math.sqrt(sum(one.variance for one in ways)) / load if load else 0.0


def _shares(rate: Floats, load: Floats, room: Floats) -> Floats:
    """Sessions × types: which part of a session each type serves."""
    can: Bools = np.isfinite(load)
    rows, columns = can.nonzero()
    share = np.zeros(load.shape)
    if not len(rows):
        return share
    use, worth = load[rows, columns], rate[rows] / rate.max()
    variable = np.arange(len(rows))
    model = Model(
        worth - 1e-3 * worth.min() * use / use.max(),  # all requests that can be served; then on the fewest accelerators
        np.zeros(len(rows)),
        np.ones(len(rows)),
        np.full(len(rate) + len(room), -math.inf),
        np.concatenate((np.ones(len(rate)), room)),
        (
            np.concatenate((rows, len(rate) + columns)),
            np.concatenate((variable, variable)),
            np.concatenate((np.ones(len(rows)), use)),
        ),
    )
    share[rows, columns] = Program("which types serve which sessions", model).solve().values.clip(0, 1)
    return share


def _laid_end_to_end(parts: Sequence[_Part], type_name: str, scale: float) -> list[Server]:
    """As few accelerators as these need, all filled alike."""
    if not parts:
        return []
    total = sum(part.load for part in parts)
    count = accelerators_for(total, scale)
    level = total / count
    residents: list[list[Resident]] = [[] for _ in range(count)]
    at, used = 0, 0.0
    for part in sorted(parts, key=lambda part: (part.session.slo_s, part.session.name)):
        left = part.load
        while left > _NEARLY:
            taken = left if at == count - 1 else min(left, level - used)
            if taken > _NEARLY:
                residents[at].append(Resident(part.session.name, part.batch, part.rate * taken / part.load, taken))
            left -= taken
            used += taken
            if used >= level - _NEARLY and at < count - 1:
                at, used = at + 1, 0.0
    return [Server(type_name, tuple(some)) for some in residents]


def _standing_in(line: Sequence[Server], reach: int) -> list[Server]:
    """The same accelerators, each with what those beside it serve besides."""
    helping = []
    for at, server in enumerate(line):
        near = {one.session: one for other in line[max(0, at - reach) : at + reach + 1] for one in other.residents}
        own = {one.session for one in server.residents}
        aid = tuple(replace(one, rate=0.0, occupancy=0.0) for name, one in near.items() if name not in own)
        helping.append(replace(server, residents=server.residents + aid))
    return helping
