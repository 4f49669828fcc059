"""How well sessions are served by a packing: random mixes of them, how many accelerators nobody can do without, and what part
of the requests is answered in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError, InputError, JournalError
from fairlead.core.rng import stream
from fairlead.core.routes import ServingPlan, Session, latencies
from fairlead.engine.event_journal import read_events
from fairlead.engine.state import State
from fairlead.policies.serving.nexus import Nexus
from fairlead.policies.serving.packing.pooled import DEFAULT_POOLING, PoolingOptions, pack_pooled, pooled_batch
from fairlead.policies.serving.packing.squishy import back_to_back_batch, pack_squishy
from fairlead.simulator.sessions import (
    ArrivalProcess,
    ServingHistory,
    ServingResult,
    SessionTracker,
    request_arrivals,
    serve_requests,
)

Packing = Literal["pooled", "squishy"]


def packed(
    sessions: Sequence[Session],
    accelerators: Mapping[str, float],
    packing: Packing = "pooled",
    how: PoolingOptions = DEFAULT_POOLING,
) -> ServingPlan:
    """A plan on at most so many accelerators of each type."""
    if packing == "pooled":
        return pack_pooled(sessions, accelerators, how)
    if len(accelerators) > 1:
        raise InputError("packing squishy", "a cluster of one type; 'pooled' takes several", value=", ".join(accelerators))
    ((name, count),) = accelerators.items()
    return pack_squishy(sessions, name, count)


def served(
    plan: ServingPlan, sessions: Sequence[Session], *, duration_s: float = 60.0, seed: int = 0, how: ArrivalProcess = "poisson"
) -> ServingResult:
    """What becomes of the requests of so many seconds."""
    return serve_requests(plan, sessions, {s.name: request_arrivals(s, duration_s, seed, how) for s in sessions})


def least_accelerators(sessions: Sequence[Session], type_name: str) -> float:
    """Σ R / T, T the best throughput of one accelerator within the SLO as Nexus has it: two batches in a row are, as a request
    that just missed one waits for it to end and is in the next."""
    return sum(s.rate / float(s.throughput(type_name)[: back_to_back_batch(s, type_name)].max()) for s in sessions)


def least_at_rate(sessions: Sequence[Session], type_name: str) -> float:
    """Σ R / T, T the best throughput with batches that can be gathered at the session's rate and then run within the SLO: with
    evenly spaced arrivals nobody can do with fewer."""
    return sum(s.rate / float(s.throughput(type_name)[pooled_batch(s, type_name) - 1]) for s in sessions)


def allowed(least: float) -> int:
    """So many accelerators a packing may take by our measure where the bound is `least`: one more than it, or a tenth."""
    whole = math.ceil(least - 1e-9)
    return max(whole + 1, math.floor(1.1 * whole + 1e-9))


@dataclass(frozen=True)
class Mix:
    """What random sessions are like. One request alone takes `alone_ms`; large batches have up to `gain` times the throughput
    of single requests, a batch of b takes α + β·b; SLOs are `slo` times what one request takes: each of these is drawn evenly
    on a logarithmic scale. A session needs `demand` accelerators by `least_accelerators`; sessions are added until all of
    them need at least `accelerators`."""

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
            latency = latencies(sizes.tolist(), ((alone - each + each * sizes) / 1000).tolist())
            draft = Session(f"session-{len(sessions)}", 1.0, slo * alone / 1000, {type_name: latency})
            wanted = float(random.uniform(*self.demand))
            rate = wanted / least_accelerators([draft], type_name)
            sessions.append(Session(draft.name, rate, draft.slo_s, draft.latency_s))
            needed += wanted
        return tuple(sessions)


MIXES: Mapping[str, Mix] = {
    "usual": Mix(),
    "sixty": Mix(accelerators=60.0),
    "large": Mix(demand=(2.0, 8.0)),
    "small": Mix(demand=(0.1, 1.0)),
    "tight": Mix(slo=(3.0, 8.0)),
    "very-tight": Mix(slo=(2.1, 4.0)),
    "loose": Mix(slo=(15.0, 60.0)),
    "gainful": Mix(gain=(6.0, 20.0)),
}
"""By name, the mixes that packings are tried on."""


@dataclass(frozen=True)
class Tried:
    """A packing on one mix, with as many accelerators as it wants."""

    seed: int
    sessions: int
    least: float  # by `least_accelerators`
    at_rate: float  # by `least_at_rate`
    accelerators: int
    attainment: float
    worst: float  # of a session

    @property
    def within(self) -> bool:
        return self.accelerators <= allowed(self.least)


def try_mixes(
    mix: Mix,
    seeds: Sequence[int],
    *,
    packing: Packing = "pooled",
    how: PoolingOptions = DEFAULT_POOLING,
    arrivals: ArrivalProcess = "poisson",
    duration_s: float = 20.0,
    on_done: Callable[[], object] = lambda: None,
) -> list[Tried]:
    trials = []
    for seed in seeds:
        sessions = mix.draw(seed)
        ((name, _),) = sessions[0].latency_s.items()
        plan = packed(sessions, {name: math.inf}, packing, how)
        serving = served(plan, sessions, duration_s=duration_s, seed=seed, how=arrivals)
        worst = min(one.attainment for one in serving.sessions)
        least, at_rate = least_accelerators(sessions, name), least_at_rate(sessions, name)
        trials.append(Tried(seed, len(sessions), least, at_rate, len(plan.servers), serving.attainment, worst))
        on_done()
    return trials


# Sessions served as a journal tells: by the accelerators that their routes had there, at the rates that they reported, from
# when their replicas were up until they were taken away. The journal knows the accelerators; requests are drawn anew.


def sessions_in(schedulers: Iterable[Mapping[str, Any]]) -> dict[str, Session]:
    """By name, the sessions that any of these schedulers knows; of two that know the same, as the later does."""
    found: dict[str, Session] = {}
    for scheduler in schedulers:
        known = {name: part for name, part in scheduler.items() if name == "policy"}
        said = known.get("policy")
        if (said.get("name") if isinstance(said, Mapping) else said) == "nexus":
            policy = SchedulerConfig.from_data(known).build(None).policy
            if isinstance(policy, Nexus):
                found.update((name, policy.session(name)) for name in policy.sessions)
    return found


def read_history(path: Path) -> ServingHistory:
    """The sessions of a journal that has a scheduler with policy `nexus`."""
    return history_of(read_events(path), path)


def history_of(events: Iterable[ev.Event], path: Path | str) -> ServingHistory:
    told = list(events)
    if not told or not isinstance(told[0], ev.JournalOpened):
        raise InputError(path, "a journal, which begins with an 'opened' event")
    schedulers = (event.scheduler for event in told if isinstance(event, (ev.JournalOpened, ev.SchedulerSwitched)))
    requests = SessionTracker(told[0].cluster, sessions_in(schedulers))
    state = State(told[0].cluster)
    for line, event in enumerate(told, start=1):
        if isinstance(event, ev.MemoChanged) and _routed_by_memo(event.memo, requests.sessions):
            expected = "plans with routes; this one is of a version before these, and simulating its trace again makes one"
            raise InputError(path, expected, line=line, field="memo.routing")
        try:
            state.apply(event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{path}:{line}: an event that cannot have happened: {error}") from error
        requests.observe(event)
    if not requests.jobs:
        raise InputError(path, "a journal of policy 'nexus' with jobs that are sessions")
    return requests.history()


def _routed_by_memo(memo: object, sessions: Mapping[str, Session]) -> bool:
    """Batches were in the policy's memory before plans had routes."""
    routing = memo.get("routing") if isinstance(memo, Mapping) else None
    return isinstance(routing, Mapping) and not sessions.keys().isdisjoint(routing)
