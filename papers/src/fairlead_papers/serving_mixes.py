"""`fairlead inference mixes`: try a packing on random mixes of sessions. How many accelerators it takes beside a bound,
and the part of the requests that is answered in time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from fairlead.cli import options as opt
from fairlead.cli.cmd_inference import (
    ARRIVALS,
    HEADROOM,
    NEIGHBOURS,
    PACKING,
    WAIT,
    ArrivalKinds,
    Packings,
)
from fairlead.cli.output import fitted_table, out, print_json, progress
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.rng import stream
from fairlead.core.routes import Session, latencies
from fairlead.experiments.serving import Packing, pack_sessions, serve_sessions
from fairlead.policies.serving.packing.pooled import DEFAULT_POOLING, PoolingOptions, pooled_batch
from fairlead.policies.serving.packing.squishy import back_to_back_batch
from fairlead.simulator.sessions import ArrivalProcess


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
        plan = pack_sessions(sessions, {name: math.inf}, packing, how)
        serving = serve_sessions(plan, sessions, duration_s=duration_s, seed=seed, how=arrivals)
        worst = min(one.attainment for one in serving.sessions)
        least, at_rate = least_accelerators(sessions, name), least_at_rate(sessions, name)
        trials.append(Tried(seed, len(sessions), least, at_rate, len(plan.servers), serving.attainment, worst))
        on_done()
    return trials


def mixes(
    name: Annotated[str, typer.Argument(help=f"The kind of mix: {', '.join(MIXES)}.")] = "usual",
    count: Annotated[int, typer.Option("--mixes", help="Number of mixes.", min=1, max=10_000)] = 20,
    packing: Packings = PACKING,
    arrivals: ArrivalKinds = ARRIVALS,
    duration: Annotated[
        float, typer.Option("--duration", help="Seconds during which requests arrive.", min=0.1, max=600)
    ] = 20.0,
    wait: float = WAIT,
    headroom: float = HEADROOM,
    neighbours: int = NEIGHBOURS,
    json: opt.JsonOption = False,
) -> None:
    """Test a packing on random mixes of sessions: the GPUs that it needs, and the requests within their SLO.

    The column 'least' is a lower bound on GPUs, from each session's best throughput within its SLO. The column 'at rate' is
    the bound for batches that fill up at the session's rate. A packing passes with at most 10 % or one GPU above the bound.
    """
    if name not in MIXES:
        raise InputError("mixes", f"a kind of mix ({near_or_all(name, MIXES)})", field="name", value=name)
    how = PoolingOptions(wait, headroom, neighbours)
    with progress(count, f"serving {name} mixes", quiet=json) as bar:
        trials = try_mixes(
            MIXES[name],
            range(count),
            packing=packing.value,
            how=how,
            arrivals=arrivals.value,
            duration_s=duration,
            on_done=lambda: bar.advance(),
        )
    within, good = sum(one.within for one in trials), sum(one.attainment >= 0.99 for one in trials)
    if json:
        print_json({"mixes": [_tried(one) for one in trials], "within_bound": within, "at_least_99": good})
        return
    headings = ("mix", "sessions", "least", "at rate", "accelerators", "in time", "worst session")
    rows = [
        (
            str(one.seed),
            str(one.sessions),
            f"{one.least:.2f}",
            f"{one.at_rate:.2f}",
            str(one.accelerators) + ("" if one.within else " !"),
            f"{one.attainment:.2%}",
            f"{one.worst:.2%}",
        )
        for one in trials
    ]
    summary = f"{within} of {count} within a tenth or one of the least, {good} with 99 % in time"
    out.print(fitted_table(f"{name} mixes, {packing.value}, {arrivals.value} arrivals", headings, rows, 1, summary))


def _tried(one: Tried) -> dict[str, object]:
    return {
        "seed": one.seed,
        "sessions": one.sessions,
        "least": one.least,
        "at_rate": one.at_rate,
        "accelerators": one.accelerators,
        "within_bound": one.within,
        "attainment": one.attainment,
        "worst_session": one.worst,
    }
