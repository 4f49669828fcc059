"""Random mixes of sessions through the one loop, beside training: how many accelerators the policy gives them, what part of
their requests is answered in time, how often they are started again, and how often training gives way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.job import ELASTIC, Job
from fairlead.core.rng import stream
from fairlead.core.routes import REPORTED, Session
from fairlead.engine.apply import apply_event
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.serving.packing.pooled import DEFAULT_POOLING, PoolingOptions
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.sessions import ArrivalProcess
from fairlead.workloads.trace import Trace
from fairlead_papers.serving_mixes import Mix, allowed, least_accelerators

ROUND_S = 60.0


@dataclass(frozen=True)
class Swings:
    """Every `every_s` seconds each session's rate is drawn anew, evenly between `low` and `high` times what it was at first."""

    every_s: float = 300.0
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True)
class Looped:
    """What came of one mix."""

    seed: int
    sessions: int
    least: float  # by `least_accelerators`, at the rates of the beginning
    accelerators: int  # at most, at any moment
    mean_accelerators: float
    attainment: float
    worst: float  # of a session
    starts: float  # of a session, in the mean
    gave_way: float  # how often a training job had to, in the mean

    @property
    def within(self) -> bool:
        return self.accelerators <= allowed(self.least)


STEADY = Swings()
FREE = Costs()


def through_loop(
    mix: Mix,
    seeds: Sequence[int],
    *,
    how: PoolingOptions = DEFAULT_POOLING,
    arrivals: ArrivalProcess = "poisson",
    duration_s: float = 20.0,
    swings: Swings = STEADY,
    costs: Costs = FREE,
    training: int = 8,
    most_requests: float = 4e6,
    on_done: Callable[[], object] = lambda: None,
) -> list[Looped]:
    """Each mix on as many accelerators as are `allowed` at its highest rates, and `training` more; with as many training jobs
    of one worker as there are accelerators, all of which would run for the whole time. Of more than `most_requests`, those of
    some stretches are served."""
    found = []
    for seed in seeds:
        sessions = mix.draw(seed)
        found.append(_looped(seed, sessions, how, arrivals, duration_s, swings, costs, training, most_requests))
        on_done()
    return found


def _looped(
    seed: int,
    sessions: Sequence[Session],
    how: PoolingOptions,
    arrivals: ArrivalProcess,
    duration_s: float,
    swings: Swings,
    costs: Costs,
    training: int,
    most_requests: float,
) -> Looped:
    ((kind, _),) = sessions[0].latency_s.items()
    least = least_accelerators(sessions, kind)
    machine = Cluster.parse(f"{allowed(least * swings.high) + training}x{kind}:1")
    lasts = duration_s + ROUND_S  # so that the last requests find somebody
    served = [Job(one.name, steps=lasts, mode=ELASTIC) for one in sessions]
    trained = [Job(f"train-{at}", steps=lasts) for at in range(machine.size)]
    policy = Part("nexus", {"sessions": {one.name: _asked(one) for one in sessions}, **_parameters(how)})
    given = Simulation(
        Trace.of([*served, *trained]),
        machine,
        SchedulerConfig(policy, round_s=ROUND_S),
        costs=costs,
        others=_reports(sessions, swings, duration_s, seed),
    )
    run = run_simulation(given, journal=MemoryJournal())
    world = run.loop.backend
    assert isinstance(world, SimulatedBackend)
    assert world.sessions is not None
    history = world.sessions.history()
    serving = history.sampled(most_requests, end_s=duration_s, seed=seed, how=arrivals)
    seconds, counts = _in_use(run.loop.journal, duration_s)
    mean = float(np.average(counts, weights=seconds))
    starts = run.state.all_jobs().starts[: len(sessions)].mean()
    gave_way = run.state.all_jobs().preemptions[len(sessions) :].mean()
    worst = min(one.attainment for one in serving.sessions)
    return Looped(
        seed, len(sessions), least, int(counts.max()), mean, serving.attainment, worst, float(starts), float(gave_way)
    )


def _asked(session: Session) -> dict[str, object]:
    latency = {kind: [1000 * second for second in column.tolist()] for kind, column in session.latency_s.items()}
    largest = max(map(len, latency.values()))
    return {
        "slo_ms": 1000 * session.slo_s,
        "rate": session.rate,
        "batches": list(range(1, largest + 1)),
        "latency_ms": latency,
    }


def _parameters(how: PoolingOptions) -> dict[str, object]:
    return {"wait": how.wait, "headroom": how.headroom, "neighbours": how.neighbours}


def _reports(sessions: Sequence[Session], swings: Swings, duration_s: float, seed: int) -> list[ev.MetricsReported]:
    if swings.low == swings.high == 1.0:
        return []
    random, numbers = stream(seed, "swings"), np.arange(len(sessions))
    rates = np.array([one.rate for one in sessions])
    seconds = np.arange(swings.every_s, duration_s, swings.every_s)
    return [
        ev.MetricsReported(float(second), REPORTED, numbers, rates * random.uniform(swings.low, swings.high, len(rates)))
        for second in seconds
    ]


def _in_use(events: Iterable[ev.Event], until_s: float) -> tuple[Floats, Ints]:
    """For how many seconds there were how many accelerators that served."""
    seconds, counts, told = [0.0], [0], iter(events)
    opened = next(told)
    assert isinstance(opened, ev.JournalOpened)
    state = State(opened.cluster)
    for event in (opened, *told):
        if event.time >= until_s:
            break
        apply_event(state, event)
        if (used := len({place for route in state.routes.values() for place in route.accelerators})) != counts[-1]:
            seconds.append(event.time)
            counts.append(used)
    return np.diff(np.array([*seconds, until_s])), np.array(counts, dtype=np.int64)
