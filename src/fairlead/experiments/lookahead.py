"""Forward simulation from a state: when will each job start and end under the scheduler that decides? One simulation assumes
that no job arrives any more. How far others, with arrivals as in the recent past, differ says how certain the forecast is."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any, Literal

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.config.schedulers import scheduler_of, simulated_with
from fairlead.core.errors import FairleadError, require
from fairlead.core.events import Memo, NodeDrained, NodeLost, NodeRepaired
from fairlead.core.job import Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.engine.loop import Loop, Stalled
from fairlead.engine.state import State
from fairlead.experiments.live_inputs import (
    RateGuesses,
    fastest_rate,
    measured_table,
    open_ended_jobs,
    rate_guesses,
    recent_jobs,
    run_time_priors,
    with_assumed_ends,
    with_colocated_rates,
)
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

HORIZON_S = 30 * 86400.0
"""A forecast reaches this far."""

BEYOND_S = 2 * HORIZON_S
"""A job whose end is unknown runs this long in simulations: it does not end."""

QUIET_DECISIONS = 50
"""A simulation ends after so many decisions without news, if only jobs run whose end is unknown."""


@dataclass(frozen=True)
class ArrivalForecast:
    """The jobs that a forward simulation assumes to arrive: `none` (Blox §5.2), or as in the `recent` past.

    `recent`: for `window_s`, or the length of the past if that is shorter, jobs arrive as often as before. Each is a copy of a
    job of that time, drawn by `seed`."""

    arrivals: Literal["none", "recent"] = "none"
    window_s: float = 6 * 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.arrivals in ("none", "recent"), "forecast", "none or recent", "arrivals", self.arrivals)
        require(0 < self.window_s < math.inf, "forecast", "seconds above 0", "window_s", self.window_s)

    def draw(self, now: float, past: Iterable[Job]) -> tuple[Job, ...]:
        """The jobs that are assumed to arrive; `past` are those that did, most recent first."""
        if self.arrivals == "none":
            return ()
        known = list(takewhile(lambda job: job.submitted_s >= now - self.window_s, past))[::-1]
        if not known:
            return ()
        draw = stream(self.seed, "forecast", round(now * 1000))
        span_s = min(self.window_s, now)
        count = int(draw.poisson(len(known)))
        times = sorted((now + span_s * draw.random(count)).tolist())
        copied = draw.integers(len(known), size=count).tolist()
        return tuple(
            replace(known[one], name=f"forecast-{place}", submitted_s=second, after=(), group="", command="")
            for place, (second, one) in enumerate(zip(times, copied))
        )


@dataclass(frozen=True)
class StartingPoint:
    """Where a forward simulation starts: a detached snapshot, the scheduler with its memo, and what will happen."""

    view: Snapshot
    scheduler: SchedulerConfig
    memo: Memo = None
    arrivals: tuple[Job, ...] = ()
    costs: Costs = field(default_factory=Costs)
    faults: tuple[NodeLost | NodeRepaired, ...] = ()  # of nodes, by time


def forward_loop(
    start: StartingPoint,
    scheduler: SchedulerConfig,
    table: ThroughputTable,
    *,
    registry: Registry | None = None,
    on_decision: Callable[[RoundPlan], None] | None = None,
) -> Loop:
    """The loop that simulates a scheduler from a starting point. A switch to another scheduler forgets the memo, as on a
    cluster."""
    memo = start.memo if scheduler == start.scheduler else None
    times = (
        (second, node, undo) for node, one in start.view.drains.items() for undo, second in enumerate((one.from_s, one.until_s))
    )
    due = sorted((second, node, bool(undo)) for second, node, undo in times if second is not None)
    drains = [NodeDrained(max(second, start.view.time), node, undo) for second, node, undo in due]
    backend = SimulatedBackend.from_snapshot(
        start.view, table, start.arrivals, costs=start.costs, faults=start.faults, others=drains
    )
    stages = simulated_with(start.costs, scheduler).build(table, registry or Registry.installed())
    return Loop(State.from_snapshot(start.view, memo), backend, stages, on_decision=on_decision)


@dataclass(frozen=True)
class JobTimes:
    """Seconds from now until a job runs, 0 if it does, and until it has ended. Infinity: not within the simulation."""

    starts_s: float
    ends_s: float

    @property
    def never_starts(self) -> bool:
        """Whether it ends without having run: it is refused, or cancelled as a job that it depends on was."""
        return self.starts_s == math.inf > self.ends_s


@dataclass(frozen=True)
class ForwardRun:
    """One forward simulation: the times of the jobs of interest, and how far it went; `complete` unless it was stopped, and
    `blocked` if in the end only jobs ran whose end is unknown."""

    times: list[JobTimes]
    simulated_s: float
    complete: bool = True
    blocked: bool = False


def simulate_forward(
    start: StartingPoint,
    table: ThroughputTable,
    numbers: Sequence[int],
    horizon_s: float = HORIZON_S,
    registry: Registry | None = None,
    keep_running: Callable[[float], bool] = lambda simulated_s: True,
    unknown: frozenset[int] = frozenset(),
) -> ForwardRun:
    """Simulate until the jobs of these numbers have ended, no job can progress, or `keep_running` says no. Jobs whose end is
    `unknown` do not end within the horizon, so it only waits for their starts."""
    view = start.view
    started = dict.fromkeys(view.jobs.number[view.jobs.running].tolist(), view.time)
    wanted, complete = np.array(numbers, dtype=np.int64), True
    begun, open_ended = np.isin(wanted, [*started]), np.isin(wanted, [*unknown])
    news, news_at = -1, 0

    def note(plan: RoundPlan) -> None:
        for number in plan.launches.jobs.tolist():
            started.setdefault(number, plan.time)
        begun[np.isin(wanted, plan.launches.jobs)] = True

    loop = forward_loop(start, start.scheduler, table, registry=registry, on_decision=note)
    lasting = (job.steps > HORIZON_S * fastest_rate(job, table) for job in start.arrivals)  # copies of jobs of unknown end
    endless = unknown.union(view.next_number + place for place, is_endless in enumerate(lasting) if is_endless)

    def blocked(state: State) -> bool:
        return bool(len(state.running)) and endless.issuperset(state.running.tolist())

    def stop(state: State) -> bool:
        nonlocal complete, news, news_at
        alive = state.columns["phase"][wanted] <= int(Phase.RUNNING)
        if not (alive & ~(begun & open_ended)).any():
            return True
        if (seen := int(begun.sum() - alive.sum())) != news:
            news, news_at = seen, loop.decisions
        if loop.decisions - news_at > QUIET_DECISIONS and blocked(state):
            return True
        complete = keep_running(loop.backend.now - view.time)
        return not complete

    with suppress(Stalled):
        loop.run(until=view.time + horizon_s, stop=stop)
    ended = loop.state.columns["ended_s"][wanted] - view.time
    times = [
        JobTimes(started.get(number, math.inf) - view.time, math.inf if math.isnan(end) else end)
        for number, end in zip(numbers, ended.tolist())
    ]
    return ForwardRun(times, loop.backend.now - view.time, complete, blocked(loop.state))


@dataclass(frozen=True)
class JobForecast:
    """A job that has not ended: its times without further arrivals, and in each simulation with some. Infinity is beyond
    `horizon_s`, which is shorter where the simulation without arrivals was stopped; or unknown for a `blocked` job, which waits
    for jobs whose end is unknown."""

    number: int
    name: str
    running: bool
    without_arrivals: JobTimes
    with_arrivals: tuple[JobTimes, ...]
    horizon_s: float = HORIZON_S
    blocked: bool = False

    def range(self, of: Callable[[JobTimes], float]) -> tuple[float, float, float]:
        """Minimum, median and maximum over the simulations with arrivals; without any, of the one without."""
        values = sorted(map(of, self.with_arrivals)) or [of(self.without_arrivals)]
        return values[0], statistics.median_high(values), values[-1]


@dataclass(frozen=True)
class ForecastOptions:
    """How to forecast: the number of simulations with arrivals as in the last `window_s`, all within `budget_s`; of all jobs,
    or of some `jobs` by number."""

    simulations: int = 5
    window_s: float = 6 * 3600.0
    budget_s: float = 60.0
    costs: Costs = field(default_factory=Costs)
    jobs: frozenset[int] | None = None


def forecast_jobs(
    state: State,
    table: ThroughputTable,
    options: ForecastOptions,
    *,
    horizon_s: float = HORIZON_S,
    unknown: frozenset[int] = frozenset(),
    start_another: Callable[[], bool] = lambda: True,
    keep_running: Callable[[float], bool] = lambda simulated_s: True,
) -> tuple[JobForecast, ...]:
    """Forecast the jobs that have not ended, by number. Every job must end at a rate that `table` has.

    Args:
        unknown: jobs whose end is unknown; their steps must last beyond the horizon.
        start_another: called after each simulation; False ends the forecast.
        keep_running: called during a simulation with the simulated seconds; False stops it. A stopped simulation counts only if
            it is the first.
    """
    view = state.snapshot().detached()
    start = StartingPoint(view, scheduler_of(state.scheduler), state.memo, costs=options.costs)
    past = list(recent_jobs(state, table))
    drawn = (ArrivalForecast("recent", options.window_s, seed).draw(view.time, past) for seed in range(options.simulations))
    numbers = sorted([*view.jobs.number.tolist(), *view.queued.number.tolist()])
    numbers = [number for number in numbers if options.jobs is None or number in options.jobs]
    if not numbers:
        return ()
    runs: list[ForwardRun] = []
    for arrivals in chain([()], drawn):
        begin = replace(start, arrivals=arrivals)
        run = simulate_forward(begin, table, numbers, horizon_s, keep_running=keep_running, unknown=unknown)
        if run.complete or not runs:
            runs.append(run)
        if not run.complete or not start_another():
            break
    first, *others = runs
    running = {*view.jobs.number[view.jobs.running].tolist()}
    return tuple(
        JobForecast(
            number,
            view.job_of[number].name,
            number in running,
            first.times[place],
            tuple(one.times[place] for one in others),
            horizon_s if first.complete else first.simulated_s,
            any(run.blocked and math.inf in (run.times[place].starts_s, run.times[place].ends_s) for run in runs),
        )
        for place, number in enumerate(numbers)
    )


@dataclass(frozen=True)
class ClusterForecast:
    """A forecast of a cluster's jobs. `completed` counts the simulations, the one without arrivals included. `open_ended` jobs
    have unknown steps. For those in `priors`, so many jobs of their kind have finished, within `ranges`, and they should run as
    long. Those that are `limited` should run until their time limit. The ends of the others are unknown; `overdue` has the
    median run time of jobs of their kind, if they have run longer. `missed` jobs arrived or stopped meanwhile; no forecast."""

    jobs: tuple[JobForecast, ...]
    completed: int
    options: ForecastOptions
    history_s: float
    guesses: RateGuesses = field(default_factory=RateGuesses)
    open_ended: tuple[int, ...] = ()
    missed: int = 0
    priors: Mapping[int, int] = field(default_factory=dict)
    limited: frozenset[int] = frozenset()
    overdue: Mapping[int, float] = field(default_factory=dict)
    ranges: Mapping[int, Sequence[float]] = field(default_factory=dict)

    @property
    def unknown(self) -> frozenset[int]:
        """The jobs whose end is unknown: they have no steps or no measured rate, no time limit, and no finished jobs tell."""
        return frozenset({*self.open_ended, *self.guesses.unmeasured} - self.priors.keys() - self.limited)


OnSimulated = Callable[[int, float], None]
"""Called with the number of completed simulations, and the simulated seconds of the present one."""


def forecast(
    state: State,
    rates: Mapping[str, Any] | ThroughputTable,
    options: ForecastOptions,
    on_simulated: OnSimulated = lambda completed, simulated_s: None,
) -> ClusterForecast:
    """Forecast from a cluster's state, with the rates that it has measured, or a table. The state is consumed."""
    if isinstance(rates, ThroughputTable):
        table, guesses = rates.for_types(state.cluster.type_names), RateGuesses()
    else:
        table, guesses = measured_table(rates, state, BEYOND_S), rate_guesses(rates, state)
    table = with_colocated_rates(table, state)
    open_ended, now, budget = open_ended_jobs(state), state.time, _Budget(options.budget_s, on_simulated)
    without_end = {*open_ended, *guesses.unmeasured}
    priors = run_time_priors(state, without_end)
    known = {number: prior.finished for number, prior in priors.items() if prior.left_s < math.inf}
    limited = frozenset(n for n in without_end - known.keys() if state.job_of[n].time_limit_s < math.inf)
    overdue = {number: prior.median_s for number, prior in priors.items() if number not in known.keys() | limited}
    about = ClusterForecast((), 0, options, min(options.window_s, now), guesses, tuple(open_ended), 0, known, limited, overdue)
    try:
        found = forecast_jobs(
            with_assumed_ends(state, table, {*open_ended, *known}, BEYOND_S),
            table,
            options,
            unknown=about.unknown,
            start_another=budget.start_another,
            keep_running=budget.keep_running,
        )
    except Exception as problem:  # a faulty part, or jobs that would never end
        raise FairleadError(f"cannot simulate ahead from this state: {type(problem).__name__}: {problem}") from problem
    return replace(about, jobs=found, completed=budget.completed, ranges={n: priors[n].range_s for n in known})


def without_simulation(state: State, options: ForecastOptions) -> ClusterForecast:
    """The jobs as they are: the answer before any simulation has been made."""
    running = {*state.running.tolist()}
    jobs = tuple(
        JobForecast(
            number,
            state.job_of[number].name,
            number in running,
            JobTimes(0.0 if number in running else math.inf, math.inf),
            (),
            0.0,
        )
        for number in sorted((*state.live.tolist(), *state.queue.tolist()))
    )
    return ClusterForecast(jobs, 0, options, min(options.window_s, state.time))


class _Budget:
    """Seconds that all simulations may take."""

    def __init__(self, budget_s: float, on_simulated: OnSimulated) -> None:
        self.completed = 0
        self._budget_s, self._on_simulated, self._began = budget_s, on_simulated, time.monotonic()

    def start_another(self) -> bool:
        """Whether one more simulation, as long as the mean so far, would end in time."""
        self.completed += 1
        self._on_simulated(self.completed, 0.0)
        return (time.monotonic() - self._began) * (self.completed + 1) / self.completed <= self._budget_s

    def keep_running(self, simulated_s: float) -> bool:
        self._on_simulated(self.completed, simulated_s)
        return time.monotonic() - self._began < self._budget_s


_OLD_KEYS = {
    "completed": "made",
    "simulations": "looks",
    "history_s": "lately_s",
    "scaled": "in_proportion",
    "open_ended": "endless",
    "running": "runs",
    "without_arrivals": "by_itself",
    "with_arrivals": "with_others",
    "horizon_s": "within_s",
}
"""Keys of control planes before this version."""


def forecast_to_json(found: ClusterForecast) -> dict[str, Any]:
    """As JSON data; infinity is null."""
    return {
        "jobs": [
            {
                **vars(one),
                "without_arrivals": _seconds(one.without_arrivals),
                "with_arrivals": [_seconds(times) for times in one.with_arrivals],
            }
            for one in found.jobs
        ],
        "completed": found.completed,
        "simulations": found.options.simulations,
        "budget_s": found.options.budget_s,
        "history_s": found.history_s,
        "window_s": found.options.window_s,
        "scaled": list(found.guesses.scaled.items()),
        "unmeasured": list(found.guesses.unmeasured.items()),
        "open_ended": list(found.open_ended),
        "missed": found.missed,
        "priors": list(found.priors.items()),
        "limited": sorted(found.limited),
        "overdue": list(found.overdue.items()),
        "ranges": list(found.ranges.items()),
    }


def forecast_from_json(data: Mapping[str, Any]) -> ClusterForecast:
    """The forecast that `forecast_to_json` has written, here or in an older version."""
    data = _with_new_keys(data)
    jobs = []
    for one in map(_with_new_keys, data["jobs"]):
        with_arrivals = tuple(map(_times, one["with_arrivals"]))
        known = (one["number"], one["name"], one["running"], _times(one["without_arrivals"]), with_arrivals)
        jobs.append(JobForecast(*known, one["horizon_s"], one.get("blocked", False)))
    return ClusterForecast(
        tuple(jobs),
        data["completed"],
        ForecastOptions(data["simulations"], data["window_s"], data["budget_s"]),
        data["history_s"],
        RateGuesses(dict(data["scaled"]), dict(data["unmeasured"])),
        tuple(data["open_ended"]),
        data.get("missed", 0),  # older control planes lack these
        dict(data.get("priors", ())),
        frozenset(data.get("limited", ())),
        dict(data.get("overdue", ())),
        dict(data.get("ranges", ())),
    )


def _with_new_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, **{new: data[old] for new, old in _OLD_KEYS.items() if old in data and new not in data}}


def _seconds(times: JobTimes) -> list[float | None]:
    return [None if each == math.inf else each for each in (times.starts_s, times.ends_s)]


def _times(seconds: list[float | None]) -> JobTimes:
    starts, ends = (math.inf if each is None else each for each in seconds)
    return JobTimes(starts, ends)
