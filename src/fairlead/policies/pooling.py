"""Packing sessions whose requests are gathered in one queue each, from which any of the session's accelerators takes batches.

Nexus deals requests out one by one, so that each accelerator gathers its own batches: 2·l(b) ≤ SLO, and what is left of a session
beside its whole accelerators has small batches (`squishy.py`). Gathered together, a batch is there after (b − 1) / R seconds, R
the rate of the whole session, wherever it is run afterwards:

    batch:  of all with (b − 1) / R + l(b) ≤ (1 − reserve)·SLO, the one with the most requests a second; on type j B_sj
    load:   a_sj = R_s·l(B_sj) / B_sj, in accelerators of type j that are all at work
    types:  min Σ_sj a_sj·x_sj with Σ_j x_sj = 1 and Σ_s a_sj·x_sj ≤ fill·N_j: x_sj is the part of session s that type j serves;
            where there is no room for all, as many requests as possible
    nodes:  on each type the loads are laid end to end, by SLO, and cut at every accelerator (McNaughton's wrap-around rule)

Hence ⌈Σ a_s / fill⌉ accelerators of one type, whatever the residuals are, and at most one more place for a session than its load
needs. `reserve` pays for waiting until an accelerator is free, `fill` for the ups and downs of arrivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.inference import Resident, Server, ServingPlan, Session
from fairlead.policies.program import Program

_NEARLY = 1e-9


@dataclass(frozen=True)
class _Part:
    """What a type serves of a session."""

    session: Session
    batch: int
    rate: float
    load: float


def gathered_batch(session: Session, type_name: str, reserve: float) -> int:
    """The batch of the best throughput that can be gathered and run in time; 0 where not even one request can be answered."""
    latency = session.latency_s.get(type_name)
    if latency is None or latency[0] > session.slo_s:
        return 0
    sizes = np.arange(1, len(latency) + 1)
    takes = (sizes - 1) / session.rate + latency
    fits = takes <= (1 - reserve) * session.slo_s + _NEARLY
    fits[0] = True
    return int(np.where(fits, sizes / latency, 0.0).argmax()) + 1


def pooled(
    sessions: Sequence[Session], accelerators: Mapping[str, float], *, reserve: float = 0.1, fill: float = 0.95
) -> ServingPlan:
    """A plan on at most so many accelerators of each type."""
    types = list(accelerators)
    batch = np.array([[gathered_batch(s, t, reserve) for t in types] for s in sessions], dtype=np.int64).reshape(-1, len(types))
    load = np.zeros(batch.shape)
    for row, column in np.argwhere(batch > 0).tolist():
        size = int(batch[row, column])
        load[row, column] = sessions[row].rate * sessions[row].latency_s[types[column]][size - 1] / size
    room = np.array([fill * accelerators[name] for name in types])
    share = _shares(np.array([s.rate for s in sessions]), batch > 0, load, room)
    servers: list[Server] = []
    for column, name in enumerate(types):
        parts = [
            _Part(s, int(batch[row, column]), s.rate * share[row, column], float(load[row, column] * share[row, column]))
            for row, s in enumerate(sessions)
            if share[row, column] > _NEARLY
        ]
        servers += _laid_end_to_end(parts, name, fill)
    missing = 1.0 - share.sum(axis=1)
    unserved = {s.name: float(part) for s, part in zip(sessions, missing.tolist()) if part > 1e-6}
    return ServingPlan(tuple(servers), unserved)


def _shares(rate: Floats, can: Ints, load: Floats, room: Floats) -> Floats:
    """Sessions × types: which part of a session each type serves."""
    rows, columns = np.nonzero(can)
    share = np.zeros(load.shape)
    if not len(rows):
        return share
    use = load[rows, columns]
    worth = rate[rows] / rate.sum()
    # All requests that can be served are; then with the fewest accelerators.
    cost = worth - 1e-3 * worth.min() * use / use.max()
    variable = np.arange(len(rows))
    program = Program(
        "which types serve which sessions",
        cost,
        np.zeros(len(rows)),
        np.ones(len(rows)),
        np.full(len(rate) + len(room), -math.inf),
        np.concatenate((np.ones(len(rate)), np.where(np.isfinite(room), room, math.inf))),
        (
            np.concatenate((rows, len(rate) + columns)),
            np.concatenate((variable, variable)),
            np.concatenate((np.ones(len(rows)), use)),
        ),
    )
    share[rows, columns] = program.solve().values
    return share


def _laid_end_to_end(parts: Sequence[_Part], type_name: str, fill: float) -> list[Server]:
    """As few accelerators as hold these, all filled alike."""
    total = sum(part.load for part in parts)
    count = math.ceil(total / fill - 1e-6)
    level = total / max(count, 1)
    residents: list[list[Resident]] = [[] for _ in range(count)]
    at, used = 0, 0.0
    for part in sorted(parts, key=lambda part: (part.session.slo_s, part.session.name)):
        left = part.load
        while left > _NEARLY:
            taken = left if at == count - 1 else min(left, level - used)
            if taken > _NEARLY:
                rate = part.rate * taken / part.load
                residents[at].append(Resident(part.session.name, part.batch, rate, taken))
            left -= taken
            used += taken
            if used >= level - _NEARLY and at < count - 1:
                at, used = at + 1, 0.0
    return [Server(type_name, tuple(some)) for some in residents]
