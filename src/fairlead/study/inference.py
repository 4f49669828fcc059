"""How well sessions are served by a packing: random mixes of them, how many accelerators nobody can do without, and what part of
the requests is answered in time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlead.backends.requests import Arrivals, Serving, arrivals_of, serve
from fairlead.core.errors import InputError
from fairlead.core.inference import ServingPlan, Session, latencies
from fairlead.core.rng import stream
from fairlead.policies.pooling import pooled
from fairlead.policies.squishy import squishy, whole_batch

Packing = Literal["pooled", "squishy"]


def least_accelerators(sessions: Sequence[Session], type_name: str) -> float:
    """Σ R / T, T the best throughput of one accelerator with batches of which two in a row are within the SLO, as Nexus has it: a
    request that just missed a batch waits for it to end, and is in the next."""
    return sum(s.rate / float(s.throughput(type_name)[: whole_batch(s, type_name)].max()) for s in sessions)


def fewest_thinkable(sessions: Sequence[Session], type_name: str) -> float:
    """Σ R / T, T the best throughput with any batch that is itself within the SLO: as if nobody had to wait for a batch."""
    best = (s.throughput(type_name)[s.latency_s[type_name] <= s.slo_s].max() for s in sessions)
    return sum(s.rate / float(each) for s, each in zip(sessions, best))


@dataclass(frozen=True)
class Mix:
    """What random sessions are like. A batch of b takes α + β·b: `alone_ms` is the range of α + β (one request), `gain` that of
    1 + α / β, the factor between the throughput of large batches and that of single requests; SLOs are `slo` times what one
    request takes, and a session needs `demand` accelerators by `least_accelerators`. The first two and SLOs are drawn evenly on
    a logarithmic scale. Sessions are added until they need at least `accelerators`."""

    accelerators: float = 20.0
    alone_ms: tuple[float, float] = (3.0, 30.0)
    gain: tuple[float, float] = (2.0, 12.0)
    slo: tuple[float, float] = (5.0, 30.0)
    demand: tuple[float, float] = (0.3, 3.0)
    largest_batch: int = 64

    def draw(self, seed: int, type_name: str = "v100") -> tuple[Session, ...]:
        random = stream(seed, "mix of sessions")
        sessions: list[Session] = []
        needed = 0.0
        sizes = np.arange(1, self.largest_batch + 1)
        while needed < self.accelerators:
            alone, gain, slo = (math.exp(random.uniform(*np.log(pair))) for pair in (self.alone_ms, self.gain, self.slo))
            each = alone / gain
            seconds = (alone - each + each * sizes) / 1000
            draft = Session(f"session-{len(sessions)}", 1.0, slo * alone / 1000, {type_name: latencies(sizes.tolist(), seconds)})
            wanted = float(random.uniform(*self.demand))
            rate = wanted / least_accelerators([draft], type_name)
            sessions.append(Session(draft.name, rate, draft.slo_s, draft.latency_s))
            needed += wanted
        return tuple(sessions)


@dataclass(frozen=True)
class Trial:
    """A plan, and what came of it when it was served."""

    plan: ServingPlan
    serving: Serving


def packed(
    sessions: Sequence[Session], accelerators: Mapping[str, float], packing: Packing = "pooled", *, reserve: float, fill: float
) -> ServingPlan:
    if packing == "pooled":
        return pooled(sessions, accelerators, reserve=reserve, fill=fill)
    if len(accelerators) > 1:
        raise InputError("packing squishy", "a cluster of one type; several are for 'pooled'", value=", ".join(accelerators))
    (name, count), *_ = accelerators.items()
    return squishy(sessions, name, count)


def tried(
    sessions: Sequence[Session], plan: ServingPlan, *, duration_s: float = 60.0, seed: int = 0, how: Arrivals = "poisson"
) -> Trial:
    return Trial(plan, serve(plan, sessions, {s.name: arrivals_of(s, duration_s, seed, how) for s in sessions}))
