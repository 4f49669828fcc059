"""Forward simulation from a state: when will each job start and end under the scheduler that decides? One simulation assumes
that no job arrives any more. How far others, with arrivals as in the recent past, differ says how certain the forecast is."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, scheduler_of, simulated_with
from fairlead.core.errors import FairleadError
from fairlead.core.events import Memo, NodeDrained, NodeLost, NodeRepaired
from fairlead.core.job import Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.engine.loop import Loop, Stalled
from fairlead.engine.state import State
from fairlead.experiments.forecast_quality import NOT_WIDENED, Widening, forecast_interval
from fairlead.experiments.live_inputs import (
    RateGuesses,
    busy_s,
    fastest_rate,
    measured_table,
    open_ended_jobs,
    rate_guesses,
    recent_jobs,
    run_time_priors,
    steps_done,
    with_assumed_ends,
    with_colocated_rates,
)
from fairlead.experiments.scenarios import ArrivalForecast, FaultHistory, RunTimes
from fairlead.simulator.backend import Other, SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

HORIZON_S = 30 * 86400.0
"""A forecast reaches this far."""

BEYOND_S = 2 * HORIZON_S
"""A job whose end is unknown runs this long in simulations: it does not end."""

QUIET_DECISIONS = 50
"""A simulation ends after so many decisions without news, if only jobs run whose end is unknown."""


@dataclass(frozen=True)
class StartingPoint:
    """Where a forward simulation starts: a detached snapshot, the scheduler with its memo, and what will happen."""

    view: Snapshot
    scheduler: SchedulerConfig
    memo: Memo = None
    arrivals: tuple[Job, ...] = ()
    costs: Costs = field(default_factory=Costs)
    faults: tuple[NodeLost | NodeRepaired, ...] = ()  # of nodes, by time
    others: tuple[Other, ...] = ()  # such as cancellations


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
        start.view, table, start.arrivals, costs=start.costs, faults=start.faults, others=(*drains, *start.others)
    )
    parts = registry or Registry.installed()
    stages = simulated_with(start.costs, scheduler).build(table, parts)
    loop = Loop(State.from_snapshot(start.view, memo), backend, stages, on_decision=on_decision)
    loop.compose = lambda data: simulated_with(start.costs, scheduler_of(data)).build(table, parts)
    loop.decision_delay = start.costs.decision_delays()
    return loop


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
    keep_running: Callable[[float], bool] = lambda simulated_s: True,
    unknown: frozenset[int] = frozenset(),
    until_started: bool = False,
) -> ForwardRun:
    """Simulate until the jobs of these numbers have ended, no job can progress, or `keep_running` says no. Jobs whose end is
    `unknown` do not end within the horizon, so it only waits for their starts. With `until_started`, so it does for all jobs if
    no job was suspended by then: it is assumed that none will be. That is for schedulers that have suspended no job so far."""
    view, wanted, complete = start.view, np.array(numbers, dtype=np.int64), True
    started = dict.fromkeys(view.jobs.number[view.jobs.running].tolist(), view.time)
    place_of = np.full(view.next_number + len(start.arrivals), -1)
    place_of[wanted] = np.arange(len(wanted))
    begun, open_ended = np.isin(wanted, [*started]), np.isin(wanted, [*unknown])
    news, news_at, awaited, no_preemption = -1, 0, -1, until_started

    def note(plan: RoundPlan) -> None:
        nonlocal no_preemption
        no_preemption = no_preemption and not len(plan.suspended)
        for number in plan.launches.jobs.tolist():
            started.setdefault(number, plan.time)
        places = place_of[plan.launches.jobs]
        begun[places[places >= 0]] = True

    loop = forward_loop(start, start.scheduler, table, on_decision=note)
    lasting = (job.steps > HORIZON_S * fastest_rate(job, table) for job in start.arrivals)  # copies of jobs of unknown end
    endless = unknown.union(view.next_number + place for place, is_endless in enumerate(lasting) if is_endless)

    def blocked(state: State) -> bool:
        return bool(len(state.running)) and endless.issuperset(state.running.tolist())

    def stop(state: State) -> bool:
        nonlocal complete, news, news_at, awaited
        phase = state.columns["phase"]
        if awaited < 0 or phase[wanted[awaited]] > int(Phase.RUNNING) or begun[awaited]:
            left = ((phase[wanted] <= int(Phase.RUNNING)) & ~(begun & (open_ended | no_preemption))).nonzero()[0]
            if not len(left):
                return True
            awaited = int(left[-1])  # it is enough to look at one
        if endless and (seen := int(begun.sum() - (phase[wanted] <= int(Phase.RUNNING)).sum())) != news:
            news, news_at = seen, loop.decisions
        if endless and loop.decisions - news_at > QUIET_DECISIONS and blocked(state):
            return True
        complete = keep_running(loop.backend.now - view.time)
        return not complete

    with suppress(Stalled):
        loop.run(until=view.time + horizon_s, stop=stop)
    ended = loop.state.columns["ended_s"][wanted] - view.time
    if no_preemption:
        assert isinstance(loop.backend, SimulatedBackend)
        ended = np.where(np.isnan(ended) & begun & ~open_ended, loop.backend.world.ends[wanted] - view.time, ended)
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
    """How to forecast: the number of scenarios with arrivals as in the last `window_s`, all within `budget_s`; of all jobs,
    or of some `jobs` by number."""

    simulations: int = 19
    window_s: float = 7 * 86400.0
    budget_s: float = 60.0
    costs: Costs = field(default_factory=Costs)
    jobs: frozenset[int] | None = None


class Scenarios:
    """The simulations of one forecast, each by its own seed. Run times of jobs without a known end, arrivals and node faults
    are drawn; `None` instead of a seed has median run times, and neither arrivals nor faults. The state is consumed.

    Args:
        unknown: jobs whose end is unknown; their steps must last beyond the horizon.
        run_times: what the run times of the jobs `drawn` are drawn from.
    """

    def __init__(
        self,
        state: State,
        table: ThroughputTable,
        options: ForecastOptions,
        horizon_s: float = HORIZON_S,
        unknown: frozenset[int] = frozenset(),
        run_times: RunTimes | None = None,
        drawn: Collection[int] = (),
    ) -> None:
        self.state, self.table, self.options, self.horizon_s, self.unknown = state, table, options, horizon_s, unknown
        view = state.snapshot().detached()
        self.start = StartingPoint(view, scheduler_of(state.scheduler), state.memo, costs=options.costs)
        numbers = sorted([*view.jobs.number.tolist(), *view.queued.number.tolist()])
        self.numbers = [number for number in numbers if options.jobs is None or number in options.jobs]
        self._faults, self._run_times = FaultHistory.of(state), run_times
        self._drawn = [(n, steps_done(state, n), fastest_rate(state.job_of[n], table)) for n in sorted(drawn)]
        self._busy_s = busy_s(view, table)
        self._preempts = bool((state.columns["preemptions"] + state.columns["moves"]).any())

    def simulate(self, seed: int | None, keep_running: Callable[[float], bool] = lambda simulated_s: True) -> ForwardRun:
        """One simulation; it stops when `keep_running`, called with the simulated seconds, says no."""
        start = self.start if seed is None else self._scenario(seed)
        args = (start, self.table, self.numbers, self.horizon_s, keep_running, self.unknown)
        return simulate_forward(*args, until_started=seed is not None and not self._preempts)

    def _scenario(self, seed: int) -> StartingPoint:
        state, options, now = self.state, self.options, self.start.view.time
        if self._run_times is not None:
            draw = stream(seed, "run-times", round(now * 1000))
            self._run_times.redraw(draw)
            for (number, done, rate), (share, beyond) in zip(self._drawn, draw.random((len(self._drawn), 2)).tolist()):
                job, ran_s = state.job_of[number], self._run_times.ran_s[number]
                if run_time := self._run_times.of(job, ran_s):
                    left_s = min(max(1.0, run_time.at(share, beyond) - ran_s), BEYOND_S)
                    state.assume(number, steps=done + left_s * rate, min_run_s=job.min_run_s)
        past, within_s = recent_jobs(state, self.table), min(options.window_s, self._busy_s)
        arrivals = ArrivalForecast("recent", options.window_s, seed).draw(now, past, within_s)
        faults = tuple(self._faults.draw(seed, now, within_s))
        view = state.snapshot().detached() if self._drawn else self.start.view
        return replace(self.start, view=view, arrivals=arrivals, faults=faults)

    def forecasts(self, runs: Sequence[ForwardRun], factor: Widening) -> tuple[JobForecast, ...]:
        """The jobs' forecasts by these simulations, of which the first is that without arrivals."""
        first, *others = runs
        view = self.start.view
        running = {*view.jobs.number[view.jobs.running].tolist()}
        return tuple(
            JobForecast(
                number,
                view.job_of[number].name,
                number in running,
                first.times[place],
                _summary([one.times[place] for one in others], factor),
                self.horizon_s if first.complete else first.simulated_s,
                any(run.blocked and math.inf in (run.times[place].starts_s, run.times[place].ends_s) for run in runs),
            )
            for place, number in enumerate(self.numbers)
        )


def _summary(times: Sequence[JobTimes], factor: Widening) -> tuple[JobTimes, ...]:
    """The interval and the median of more than three simulations."""
    if len(times) <= 3:
        return tuple(times)
    starts = forecast_interval((one.starts_s for one in times), factor.starts)
    ends = forecast_interval((one.ends_s for one in times), factor.ends)
    return tuple(map(JobTimes, starts, ends))


def _simulations(
    scenarios: Scenarios, start_another: Callable[[], bool], keep_running: Callable[[float], bool]
) -> Iterator[ForwardRun]:
    for seed in (None, *range(scenarios.options.simulations)) if scenarios.numbers else (None,):
        run = scenarios.simulate(seed, keep_running)
        yield run
        if not run.complete or not start_another():
            return


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
    widened: Widening = NOT_WIDENED  # by what past forecasts taught

    @property
    def unknown(self) -> frozenset[int]:
        """The jobs whose end is unknown: they have no steps or no measured rate, no time limit, and no finished jobs tell."""
        return frozenset({*self.open_ended, *self.guesses.unmeasured} - self.priors.keys() - self.limited)


OnSimulated = Callable[[int, float], None]
"""Called with the number of completed simulations, and the simulated seconds of the present one."""


class PreparedForecast:
    """A forecast from a cluster's state, with the rates that it has measured, or a table, before any simulation. The state is
    consumed."""

    def __init__(self, state: State, rates: Mapping[str, Any] | ThroughputTable, options: ForecastOptions) -> None:
        if isinstance(rates, ThroughputTable):
            table, guesses = rates.for_types(state.cluster.type_names), RateGuesses()
        else:
            table, guesses = measured_table(rates, state, BEYOND_S), rate_guesses(rates, state)
        table = with_colocated_rates(table, state)
        open_ended, times = open_ended_jobs(state), RunTimes(state)
        without_end = {*open_ended, *guesses.unmeasured}
        priors = run_time_priors(state, without_end, times)
        known = {number: prior.finished for number, prior in priors.items()}
        self._about = ClusterForecast(
            (),
            0,
            options,
            min(options.window_s, state.time),
            guesses,
            tuple(open_ended),
            priors=known,
            limited=frozenset(n for n in without_end - known.keys() if state.job_of[n].time_limit_s < math.inf),
            overdue={n: prior.median_s for n, prior in priors.items() if times.ran_s[n] >= prior.range_s[1]},
            ranges={number: prior.range_s for number, prior in priors.items()},
            widened=Widening.learned(state),
        )
        state = with_assumed_ends(state, table, {*open_ended, *known}, BEYOND_S, priors)
        self.scenarios = Scenarios(state, table, options, unknown=self._about.unknown, run_times=times, drawn=known)

    def result(self, runs: Sequence[ForwardRun]) -> ClusterForecast:
        """The forecast by these simulations, of which the first is that without arrivals. Of the others those that are complete
        count."""
        counted = counted_runs(runs)
        completed = len(counted) if counted[0].complete else 0
        return replace(self._about, jobs=self.scenarios.forecasts(counted, self._about.widened), completed=completed)


def counted_runs(runs: Iterable[ForwardRun]) -> list[ForwardRun]:
    """The first simulation, which may have been stopped, and of the others those that are complete."""
    first, *others = runs
    return [first, *(run for run in others if run.complete)]


def forecast(
    state: State,
    rates: Mapping[str, Any] | ThroughputTable,
    options: ForecastOptions,
    on_simulated: OnSimulated = lambda completed, simulated_s: None,
) -> ClusterForecast:
    """Forecast from a cluster's state, with the rates that it has measured, or a table. The state is consumed."""
    budget = _Budget(options.budget_s, on_simulated)
    with simulation_errors():
        prepared = PreparedForecast(state, rates, options)
        return prepared.result([*_simulations(prepared.scenarios, budget.start_another, budget.keep_running)])


@contextmanager
def simulation_errors() -> Iterator[None]:
    """Name the cause where a part is faulty, or jobs would never end."""
    try:
        yield
    except Exception as problem:
        raise FairleadError(f"cannot simulate ahead from this state: {type(problem).__name__}: {problem}") from problem


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
