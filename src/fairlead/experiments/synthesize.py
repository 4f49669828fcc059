"""The synthesizer (Blox §5.2): every few rounds, simulate every candidate scheduler forward from the present state, and let the
best one decide until the next advice. Another candidate than the running one is stopped as soon as it cannot beat the best so
far. Advice depends on the state alone, not on the number of processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import TracebackType

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig, scheduler_of
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError, near_or_all, require
from fairlead.core.events import Memo, SchedulerSwitched
from fairlead.core.job import Job
from fairlead.core.plan import boundary_after
from fairlead.core.snapshot import Snapshot
from fairlead.engine.journal import Journal
from fairlead.engine.state import State
from fairlead.experiments.cases import ProcessPool
from fairlead.experiments.live_inputs import open_ended_jobs, recent_jobs, with_assumed_ends
from fairlead.experiments.lookahead import StartingPoint, forward_loop
from fairlead.experiments.scenarios import ArrivalForecast
from fairlead.experiments.simulate import Simulation, SimulationRun, begin, stop_of
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

METRICS = ("jct", "responsiveness")

CHECK_EVERY = 16
"""Steps between two checks of a forward simulation whether its candidate can still win."""

JUST_BEFORE = 1e-3
"""Advice is made this share of a round before the round begins, so that the new scheduler decides the whole round."""


@dataclass(frozen=True)
class CandidateForecast:
    """Mean seconds from now until jobs end, and until jobs that never ran start, under one candidate. Not `complete`: the
    simulation was stopped as the candidate could not win, and the figures are lower bounds."""

    jct_s: float
    responsiveness_s: float
    complete: bool = True
    problem: str = ""  # why this candidate cannot be used at all

    def of(self, metric: str) -> float:
        return self.jct_s if metric == "jct" else self.responsiveness_s


@dataclass(frozen=True)
class Objective:
    """The metrics that a candidate is chosen by, with weights. Each counts relative to the running combination, so that equal
    weights make metrics equally important."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"jct": 1.0})

    def __post_init__(self) -> None:
        for metric, weight in self.weights.items():
            if metric not in METRICS:
                raise InputError("synthesize", f"a metric ({near_or_all(metric, METRICS)})", field="metric", value=metric)
            require(0 < weight < math.inf, "synthesize", "a weight above 0", metric, weight)
        require(self.weights, "synthesize", "at least one metric", "metric")

    def score(self, candidate: CandidateForecast, running: CandidateForecast) -> float:
        """Lower is better; the running combination has 1."""
        if candidate.problem:
            return math.inf
        total = sum(self.weights.values())
        parts = (weight * (candidate.of(name) + 1.0) / (running.of(name) + 1.0) for name, weight in self.weights.items())
        return sum(parts) / total


@dataclass(frozen=True)
class ScoreLimit:
    """A candidate with a higher score than this cannot win."""

    objective: Objective
    running: CandidateForecast
    score: float

    def exceeded_by(self, candidate: CandidateForecast) -> bool:
        return self.objective.score(candidate, self.running) > self.score


def forecast_candidate(
    start: StartingPoint,
    candidate: SchedulerConfig,
    table: ThroughputTable,
    limit: ScoreLimit | None = None,
) -> CandidateForecast:
    """Simulate a candidate until all jobs have ended, or until it cannot win any more."""
    try:
        loop = forward_loop(start, candidate, table)
        progress = _Progress(start, loop.state, limit, table)
        loop.run(stop=progress.cannot_win)
    except Exception as problem:  # a faulty part, or jobs that would never end: not to be chosen
        return CandidateForecast(math.inf, math.inf, problem=f"{type(problem).__name__}: {problem}")
    return progress.forecast(complete=not progress.stopped)


class _Progress:
    """The figures of one forward simulation so far."""

    def __init__(self, start: StartingPoint, state: State, limit: ScoreLimit | None, table: ThroughputTable) -> None:
        self.state, self.limit, self.stopped = state, limit, False
        self._calls = 0
        view = start.view
        jobs = [*(view.job_of[n] for part in (view.jobs, view.queued) for n in part.number.tolist()), *start.arrivals]
        best = np.array([table.alone[table.row(job.kind, job.workers)].max() for job in jobs])
        self._min_step_s = np.where(best > 0, 1.0 / np.maximum(best, 1e-300), 0.0)
        arriving = np.arange(view.next_number, view.next_number + len(start.arrivals), dtype=np.int64)
        self._numbers: Ints = np.concatenate((view.jobs.number, view.queued.number, arriving))
        present = len(self._numbers) - len(arriving)
        self._from_s: Floats = np.full(len(self._numbers), view.time)
        self._from_s[present:] = [job.submitted_s for job in start.arrivals]
        never_ran = np.concatenate((view.jobs.starts, view.queued.starts)) == 0
        self._never_ran = np.concatenate((never_ran, np.ones(len(arriving), dtype=np.bool_)))

    def cannot_win(self, state: State) -> bool:
        self._calls += 1
        if self.limit is None or self._calls % CHECK_EVERY:
            return False
        self.stopped = self.limit.exceeded_by(self.forecast(complete=False))
        return self.stopped

    def forecast(self, *, complete: bool) -> CandidateForecast:
        """The figures, with a lower bound for each job that has not ended: the rest of its steps at its fastest rate."""
        now, arrays = self.state.time, self.state.columns
        arrived = self._numbers < self.state.next_number
        numbers, from_s, never_ran = self._numbers[arrived], self._from_s[arrived], self._never_ran[arrived]
        ended = arrays["ended_s"][numbers]
        done = arrays["base_steps"][numbers] + arrays["rate"][numbers] * np.maximum(now - arrays["since_s"][numbers], 0.0)
        left_s = np.maximum(arrays["steps"][numbers] - done, 0.0) * self._min_step_s[arrived]
        jct_s = np.where(np.isnan(ended), now + left_s, ended) - from_s
        wait_s = np.fmin(np.fmin(arrays["first_started_s"][numbers], ended), now) - from_s
        jobs = max(len(self._numbers), 1)
        never_ran_jobs = max(int(np.count_nonzero(self._never_ran)), 1)
        return CandidateForecast(float(jct_s.sum()) / jobs, float(wait_s[never_ran].sum()) / never_ran_jobs, complete)


def combinations(
    base: SchedulerConfig, policies: Sequence[Part], admissions: Sequence[Part] = (), placements: Sequence[Part] = ()
) -> tuple[SchedulerConfig, ...]:
    """`base` with each policy, admission and placement; where none are given, its own. All else stays as it is."""
    require(policies, "synthesize", "at least one policy", "policies")
    several = len(placements) > 1
    choices = product(policies, admissions or (base.admission,), placements or (base.placement,))
    found = [
        replace(base, policy=policy, admission=admission, placement=where, name=_name(policy, admission, where, several))
        for policy, admission, where in choices
    ]
    return _with_distinct_names(found)


def _with_distinct_names(candidates: Sequence[SchedulerConfig]) -> tuple[SchedulerConfig, ...]:
    """The same; equal labels, which leave out some parameters, get a number."""
    named: list[SchedulerConfig] = []
    for one in candidates:
        if any(replace(other, name="") == replace(one, name="") for other in named):
            raise InputError("synthesize", "each candidate only once", field="candidates", value=one.label)
        taken, label = {other.label for other in named}, one.label
        names = (label, *(f"{label} ({count})" for count in range(2, len(named) + 2)))
        name = next(name for name in names if name not in taken)
        named.append(one if name == label else replace(one, name=name))
    return tuple(named)


def _name(policy: Part, admission: Part, placement: Part, several_placements: bool) -> str:
    parts = [policy]
    if admission != Part("accept-all"):
        parts.append(admission)
    if several_placements:
        parts.append(placement)
    return " + ".join(map(str, parts))


def equivalence_key(start: StartingPoint, candidate: SchedulerConfig) -> str:
    """The same for candidates that give equal forecasts: without queued or arriving jobs, admission decides nothing."""
    nothing_to_admit = not len(start.view.queued) and not start.arrivals
    return str(replace(candidate, name="", admission=Part("accept-all") if nothing_to_admit else candidate.admission))


@dataclass(frozen=True)
class Advice:
    """The forecast of every candidate, and which one should decide from here on."""

    time: float
    running: SchedulerConfig
    chosen: SchedulerConfig
    forecasts: tuple[tuple[str, CandidateForecast], ...]  # the running one first
    gain: float  # share of the running one's score
    took_s: float = 0.0

    @property
    def switch(self) -> bool:
        return self.chosen.label != self.running.label

    @property
    def why(self) -> str:
        """For the journal: the forecasts of the chosen and of the running candidate."""
        forecasts = dict(self.forecasts)
        new, old = forecasts[self.chosen.label], forecasts[self.running.label]
        return (
            f"synthesizer: {self.chosen.label} instead of {self.running.label}, {self.gain:.1%} better: "
            f"jobs end after {new.jct_s:.0f} s instead of {old.jct_s:.0f} s, "
            f"begin after {new.responsiveness_s:.0f} s instead of {old.responsiveness_s:.0f} s"
        )


class Advisor:
    """Chooses among candidates by an objective. It keeps its processes until it is closed."""

    def __init__(
        self,
        candidates: Sequence[SchedulerConfig],
        table: ThroughputTable,
        *,
        objective: Objective | None = None,
        arrivals: ArrivalForecast | None = None,
        costs: Costs | None = None,
        margin: float = 0.01,
        processes: int = 1,
    ) -> None:
        require(candidates, "synthesize", "at least one candidate", "candidates")
        require(0 <= margin < math.inf, "synthesize", "a share of at least 0, as in 0.01", "margin", margin)
        for candidate in candidates:
            candidate.build(table)  # reports errors now
        self.candidates, self.table = _with_distinct_names(candidates), table
        self.objective, self.arrivals = objective or Objective(), arrivals or ArrivalForecast()
        self.costs, self.margin = costs or Costs(), margin
        self._processes = min(processes, len(self.candidates))
        self._pool: ProcessPool | None = None

    def __enter__(self) -> Advisor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.__exit__(kind, error, trace)
            self._pool = None

    def advise(self, view: Snapshot, running: SchedulerConfig, *, memo: Memo = None, past: Iterable[Job] = ()) -> Advice:
        """Which candidate should decide from this snapshot on; `past` are the jobs that arrived, most recent first."""
        began = time.perf_counter()
        running = self._candidate(running)
        start = StartingPoint(view.detached(), running, memo, self.arrivals.draw(view.time, past), self.costs)
        current = forecast_candidate(start, running, self.table)
        reference = CandidateForecast(0.0, 0.0) if current.problem else current
        tried = [(running, current)]
        if len(view.jobs) or len(view.queued):
            others = [one for one in self.candidates if one.label != running.label]
            keys = {one.label: equivalence_key(start, one) for one in others}
            by_key = {equivalence_key(start, running): current}
            distinct = {key: one for one in reversed(others) if (key := keys[one.label]) not in by_key}
            first = list(distinct.values())[::-1]
            by_key |= zip((keys[one.label] for one in first), self._forecasts(start, first, reference))
            tried += [(one, by_key[keys[one.label]]) for one in others]
        here, *rest = [(self.objective.score(one, reference), place) for place, (_, one) in enumerate(tried)]
        best = min((score for score in rest if tried[score[1]][1].complete), default=here)
        gain = 1.0 - best[0] / here[0] if math.isfinite(here[0]) else float(math.isfinite(best[0]))
        chosen = tried[best[1]][0] if gain > self.margin else running
        forecasts = {one.label: found for one, found in tried}
        order = dict.fromkeys([running.label, *(one.label for one in self.candidates)])
        ordered = tuple((label, forecasts[label]) for label in order if label in forecasts)
        return Advice(view.time, running, chosen, ordered, max(gain, 0.0), time.perf_counter() - began)

    def _candidate(self, running: SchedulerConfig) -> SchedulerConfig:
        """The candidate that equals a scheduler but for its name. A scheduler that is no candidate gets no candidate's name."""
        for one in self.candidates:
            if replace(one, name="") == replace(running, name=""):
                return one
        taken = {one.label for one in self.candidates}
        return replace(running, name=f"{running.label}, as it is") if running.label in taken else running

    def _forecasts(
        self, start: StartingPoint, others: Sequence[SchedulerConfig], reference: CandidateForecast
    ) -> list[CandidateForecast]:
        if self._processes <= 1 or len(others) <= 1:
            return _forecast_each(start, others, self.table, self.objective, reference)
        if self._pool is None:
            self._pool = ProcessPool(self._processes, _set_table, (self.table,))
        shares = [others[first :: self._processes] for first in range(self._processes)]
        waiting = [self._pool.submit(_forecast_in_pool, start, share, self.objective, reference) for share in shares]
        forecasts: list[CandidateForecast] = [reference] * len(others)
        for first, found in enumerate(waiting):
            forecasts[first :: self._processes] = found.result()
        return forecasts


def _forecast_each(
    start: StartingPoint,
    candidates: Sequence[SchedulerConfig],
    table: ThroughputTable,
    objective: Objective,
    reference: CandidateForecast,
) -> list[CandidateForecast]:
    """One after the other; each is stopped once it cannot beat the best before it."""
    forecasts: list[CandidateForecast] = []
    best = objective.score(reference, reference) if reference.jct_s else math.inf
    for candidate in candidates:
        forecasts.append(forecast_candidate(start, candidate, table, ScoreLimit(objective, reference, best)))
        if forecasts[-1].complete:
            best = min(best, objective.score(forecasts[-1], reference))
    return forecasts


_table: ThroughputTable | None = None  # in a process of the pool: it is large and never changes


def _set_table(table: ThroughputTable) -> None:
    global _table
    _table = table


def _forecast_in_pool(
    start: StartingPoint, candidates: Sequence[SchedulerConfig], objective: Objective, reference: CandidateForecast
) -> list[CandidateForecast]:
    assert _table is not None
    return _forecast_each(start, candidates, _table, objective, reference)


def advise(state: State, advisor: Advisor) -> Advice:
    """Advice for a running cluster's state, which is consumed."""
    running = scheduler_of(state.scheduler)
    state = with_assumed_ends(state, advisor.table, open_ended_jobs(state))
    return advisor.advise(state.snapshot(), running, memo=state.memo, past=recent_jobs(state, advisor.table))


@dataclass(frozen=True)
class Synthesized:
    """A synthesized run, and the advice given during it."""

    run: SimulationRun
    advice: tuple[Advice, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the time that each candidate decided."""
        end = self.run.state.time
        times = [one.time for one in self.advice] + [end]
        held: dict[str, float] = {one.running.label: one.time for one in self.advice[:1]}
        for one, until in zip(self.advice, times[1:]):
            held[one.chosen.label] = held.get(one.chosen.label, 0.0) + max(until - one.time, 0.0)
        total = sum(held.values())
        return {label: seconds / total for label, seconds in held.items()} if total else {}


def synthesize(
    given: Simulation,
    advisor: Advisor,
    *,
    every: int = 10,
    journal: Journal | None = None,
    gantt: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Synthesized:
    """Run a simulation that starts under `given.scheduler`; every `every` rounds the advisor may choose another
    candidate. A switch is an event in the journal."""
    length = given.scheduler.round_s
    require(length != 0, "synthesize", "a scheduler with rounds", "rounds", "event-driven")
    require(every >= 1, "synthesize", "a whole number of rounds, at least 1", "every", every)
    begun = begin(given, journal, gantt=gantt)
    loop, stop = begun.loop, stop_of(given, on_progress)
    over = False

    def ended(state: State) -> bool:
        nonlocal over
        over = stop is not None and stop(state)
        return over

    running, advice = given.scheduler, list[Advice]()
    while not over and (loop.state.busy or not loop.backend.exhausted):
        here = loop.backend.now + 2 * JUST_BEFORE * length  # past the round that the last advice was made before
        rounds = boundary_after(here, length) + (every - 1) * length
        before = loop.backend.now
        loop.run(until=rounds - JUST_BEFORE * length, stop=ended)
        if over or (not loop.state.busy and loop.backend.exhausted):
            break
        if loop.backend.now <= before:  # nothing can happen any more
            break
        if not loop.state.busy:
            continue
        view = loop.state.snapshot(loop.backend.now)
        advice.append(advisor.advise(view, running, memo=loop.state.memo, past=_most_recent_first(loop.state)))
        if advice[-1].switch:
            running = advice[-1].chosen
            loop.record(SchedulerSwitched(loop.backend.now, running.to_data(), advice[-1].why))
    run = begun.finish(given)
    return Synthesized(replace(run, record=replace(run.record, scheduler="synthesized")), tuple(advice))


def _most_recent_first(state: State) -> Iterator[Job]:
    return (state.job_of[number] for number in range(state.next_number - 1, -1, -1) if number in state.job_of)
