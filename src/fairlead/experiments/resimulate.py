"""Simulate a recorded run again under other schedulers.

The inputs come from the journal: jobs with the work that they really did, cancellations, outages, drains, measured rates and
start costs. A finished job has the steps that it did, including those that its own failures repeated. A cancelled job leaves
at the same second. A failed job fails after the same run time, as if that were its limit. A job that never reported steps
counts in seconds.

Left out: metrics that jobs reported, batch size schedules, scheduler switches, and checkpoints that jobs made by themselves, so
that an outage sets a job back to its last start. Interference between co-located jobs is what the last estimator predicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fairlead.config import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Ints
from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.job import ELASTIC, TIMED, Job, Phase, kind_of, model_of
from fairlead.engine.state import State
from fairlead.estimators.base import spread_gangs
from fairlead.experiments.compare import CaseOutcome, Comparison, Workload
from fairlead.experiments.inputs import used_rates
from fairlead.experiments.live_inputs import with_estimated_interference
from fairlead.experiments.metrics import DEFAULTS, MetricOptions, Summary, summarize
from fairlead.experiments.run_record import RunRecord, record_of
from fairlead.experiments.simulate import Faults
from fairlead.journal.recovery import read_journal
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.simulator.backend import Other
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage
from fairlead.workloads.throughput_tables import Key, MeasuredRate, ThroughputTable, draft_table
from fairlead.workloads.trace import Trace

PlacementKey: TypeAlias = tuple[str, int, str, bool]
"""Job type, workers, GPU type, and whether it is spread over more nodes than needed: what a rate depends on."""

MAX_STEP_ERROR = 0.25
"""Declared steps count as wrong where the observed steps differ by more than this share."""


@dataclass(frozen=True)
class ObservedLaunch:
    """From the plan that began it to the plan or report that ended it, with the waits for its GPUs and for the job to stop."""

    kind: str
    workers: int
    type: str
    spread: bool
    first: bool
    seconds: float
    steps: float
    job: int  # by number


@dataclass
class LaunchObserver:
    """Applies all events of a run, in order, and collects launches and rates."""

    state: State
    launches: list[ObservedLaunch] = field(default_factory=list)
    work: dict[int, float] = field(default_factory=dict)  # steps of finished jobs; NaN where unknown
    failure_reasons: dict[int, str] = field(default_factory=dict)
    repeated_steps: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # steps lost by a job's own failures
    _rates: dict[PlacementKey, list[float]] = field(default_factory=lambda: defaultdict(list))
    _placements: dict[int, PlacementKey] = field(default_factory=dict)
    _began: dict[int, tuple[float, float]] = field(default_factory=dict)  # second and steps
    _leaving: dict[int, tuple[ObservedLaunch, float]] = field(default_factory=dict)  # suspended, and its steps at the beginning

    def rates(self) -> dict[PlacementKey, MeasuredRate]:
        """The median of the reported rates."""
        return {key: MeasuredRate(*key, float(np.median(rates))) for key, rates in self._rates.items()}

    def observe(self, event: ev.Event) -> None:
        if isinstance(event, ev.RoundPlanned):
            for number in event.plan.suspended.tolist():
                self._left(number, event.time)
            for number in event.plan.ended.tolist():
                self._ended(number, event.time)
        elif isinstance(event, ev.JobsFinished):
            for number, second in zip(event.jobs.tolist(), event.at.tolist()):
                self._ended(number, second)
        elif isinstance(event, ev.JobsFailed):
            self.failure_reasons.update(dict.fromkeys(event.jobs.tolist(), event.why))
        elif isinstance(event, ev.JobsInterrupted) and event.own_fault:
            for number, kept in zip(event.jobs.tolist(), event.steps.tolist()):
                self.repeated_steps[number] += max(0.0, self._steps(number, event.time) - kept)
        elif isinstance(event, ev.ProgressReported):
            self._progressed(event)
        self.state.apply(event)
        if isinstance(event, ev.RoundPlanned):
            self._note_placements(np.sort(event.plan.launches.jobs))
            for number in event.plan.launches.jobs.tolist():
                self._began[number] = event.time, self._steps(number, event.time)
        elif isinstance(event, ev.ProgressReported):
            self._rated(event)

    def _steps(self, number: int, second: float) -> float:
        a = self.state.columns
        return float(a["base_steps"][number] + a["rate"][number] * max(0.0, second - a["since_s"][number]))

    def _launch(self, number: int, second: float, steps: float) -> ObservedLaunch | None:
        """The present launch up to this second and these steps; None if it shares its GPUs."""
        place = self.place(number)
        if place is None or number not in self._began:
            return None
        began, base = self._began[number]
        first = int(self.state.columns["starts"][number]) == 1
        return ObservedLaunch(*place, first, second - began, steps - base, number)

    def _left(self, number: int, second: float) -> None:
        self._settle(number)
        launch = self._launch(number, second, self._steps(number, second))
        if launch is not None:
            self._leaving[number] = launch, self._began[number][1]

    def _progressed(self, event: ev.ProgressReported) -> None:
        """A suspended job reports its last steps."""
        for number, steps, rate in zip(event.jobs.tolist(), event.steps.tolist(), event.rates.tolist()):
            if rate == 0 and number in self._leaving:
                launch, base = self._leaving[number]
                self._leaving[number] = replace(launch, steps=steps - base), base
                if self.state.columns["held"][number]:  # it is about to resume elsewhere, from there
                    self._began[number] = self._began[number][0], steps
                self._settle(number)

    def _ended(self, number: int, second: float) -> None:
        self._settle(number)
        a = self.state.columns
        declared, observed = float(a["steps"][number]), self._steps(number, second)
        if a["rate"][number] <= 0:
            self.work[number] = math.nan if declared == UNKNOWN_STEPS else declared
        else:
            self.work[number] = declared if abs(observed - declared) <= MAX_STEP_ERROR * declared else observed
        launch = self._launch(number, second, self.work[number])
        if launch is not None:
            self.launches.append(launch)

    def _settle(self, number: int) -> None:
        if number in self._leaving:
            self.launches.append(self._leaving.pop(number)[0])

    def _rated(self, event: ev.ProgressReported) -> None:
        for number, rate in zip(event.jobs.tolist(), event.rates.tolist()):
            if rate > 0 and (place := self.place(number)) is not None and place[0] != TIMED:
                self._rates[place].append(rate)

    def place(self, number: int) -> PlacementKey | None:
        """Where a job runs, if it runs and shares no GPU."""
        device_map = self.state.device_map
        if not self.state.columns["held"][number]:
            return None
        if device_map.shared and (device_map.occupancy[device_map.of(number)] > 1).any():
            return None
        return self._placements.get(number)

    def _note_placements(self, jobs: Ints) -> None:
        """Note where the jobs that were just launched run; sorted by number, as columns are."""
        state, a, names = self.state, self.state.columns, self.state.cluster.type_names
        view = state.snapshot()
        spread = spread_gangs(view.jobs.with_rows(jobs), view)
        columns = (jobs, a["held"][jobs], a["type"][jobs], a["batch_size"][jobs], spread)
        for number, held, type_, size, wide in zip(*(column.tolist() for column in columns)):
            kind = state.job_of[number].kind
            self._placements[number] = kind_of(model_of(kind), size) if size > 0 else kind, held, names[type_], wide


def startup_costs(launches: Iterable[ObservedLaunch], table: ThroughputTable, types: Sequence[str]) -> Costs:
    """Seconds that launches did not spend on steps, by job type; without observations, the mean of all types."""
    spent: dict[str, dict[bool, list[float]]] = {}
    overall: dict[bool, list[float]] = {True: [], False: []}
    for one in launches:
        known = one.kind == TIMED or (one.kind, one.workers) in table.row_of
        if known and one.steps > 0:  # without a step it was perhaps still starting
            rates = table.spread if one.spread else table.alone
            cost = one.seconds - one.steps / float(rates[table.row(one.kind, one.workers), types.index(one.type)])
            spent.setdefault(one.kind, {True: [], False: []})[one.first].append(cost)
            overall[one.first].append(cost)
    first, later = _mean(overall[True], 0.0), _mean(overall[False], _mean(overall[True], 0.0))
    by_kind = {kind: Costs(_mean(costs[True], first), _mean(costs[False], later)) for kind, costs in spent.items()}
    return Costs(first, later, by_kind=by_kind)


def _mean(costs: Sequence[float], otherwise: float) -> float:
    """To the microsecond: a job that ends at a round's very end must not end behind it by a rounding."""
    return max(0.0, round(float(np.mean(costs)), 6)) if costs else otherwise


@dataclass(frozen=True)
class ExogenousInputs:
    """The inputs of a run, without its scheduler's decisions."""

    cluster: Cluster
    trace: Trace
    table: ThroughputTable
    costs: Costs
    outages: tuple[Outage, ...] = ()
    others: tuple[Other, ...] = ()  # cancellations and drains
    scheduler: Mapping[str, Any] = field(default_factory=dict)  # the last that decided
    guessed: tuple[str, ...] = ()  # rates without a measurement, in words


def exogenous_inputs(events: Sequence[ev.Event], name: str = "journal") -> tuple[ExogenousInputs, RunRecord]:
    """The inputs of a run, in hindsight, and its record."""
    try:
        return _found(events, name)
    except FairleadError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise JournalError(f"{name}: events that cannot have happened: {error}") from error


def _found(events: Sequence[ev.Event], name: str) -> tuple[ExogenousInputs, RunRecord]:
    if not events:
        raise JournalError(f"{name}: it is empty; give a journal with events")
    opened = events[0]
    if not isinstance(opened, ev.JournalOpened):
        raise JournalError(f"{name}: the beginning is missing; only a journal with all of its events can be simulated again")
    observer = LaunchObserver(State(opened.cluster))
    for line, event in enumerate(events, start=1):
        try:
            observer.observe(event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{name}:{line}: an event that cannot have happened: {error}") from error
    state, types = observer.state, opened.cluster.type_names
    measured = {**_recorded_rates(opened), **observer.rates()}
    rates = {**_in_proportion(state.job_of.values(), measured), **measured}
    fastest: dict[Key, float] = {}
    for one in sorted(rates.values(), key=lambda rate: rate.steps_per_s):
        fastest[one.kind, one.workers] = one.steps_per_s
    jobs = {number: _in_hindsight(observer, number, fastest) for number in sorted(state.job_of)}
    table = ThroughputTable.timed(types)
    if rates:
        table = draft_table(rates.values(), types, Path(name)).finish().for_types(types)
        table = with_estimated_interference(table, state, SchedulerConfig.from_data(state.scheduler, name))
    trace = Trace(tuple(jobs.values()), name)
    world = ExogenousInputs(
        opened.cluster,
        trace,
        table,
        startup_costs(observer.launches, table, types),
        tuple(_outages(events)),
        tuple(_others(events, state, jobs)),
        state.scheduler,
        _guesses(jobs.values(), measured, types),
    )
    in_hindsight = [replace(e, job=jobs[e.number]) if isinstance(e, ev.JobSubmitted) else e for e in events]
    label = _decided(events, name)
    plans = sum(isinstance(event, ev.RoundPlanned) for event in events)
    facts = {"decisions_with_changes": float(plans)}
    return world, record_of(State.replay(in_hindsight), label, name, used_rates(trace.jobs, table), facts, in_hindsight)


def _decided(events: Sequence[ev.Event], name: str) -> str:
    """The schedulers that decided, in order."""
    schedulers = [event.scheduler for event in events if isinstance(event, (ev.JournalOpened, ev.SchedulerSwitched))]
    labels = list(dict.fromkeys(SchedulerConfig.from_data(scheduler, name).label for scheduler in schedulers))
    return ", then ".join(labels) if len(labels) <= 2 else f"{labels[0]}, then {len(labels) - 1} others"


_Measured: TypeAlias = dict[PlacementKey, MeasuredRate]


def _recorded_rates(opened: ev.JournalOpened) -> _Measured:
    """The rates that a simulation records when it begins."""
    found: _Measured = {}
    for key, rates in (opened.rates or {}).items():
        kind, _, workers = key.rpartition("|")
        for type_name, rate in zip(opened.cluster.type_names, rates, strict=True):
            if kind != TIMED:
                where = (kind, int(workers), type_name, False)
                found[where] = MeasuredRate(*where, float(rate))
    return found


def _in_proportion(jobs: Iterable[Job], measured: _Measured) -> _Measured:
    """Rates of elastic jobs at the gang size that they requested and never had, in proportion to the nearest size."""
    found: _Measured = {}
    for kind, workers in sorted({(job.kind, job.workers) for job in jobs if job.mode == ELASTIC and job.kind != TIMED}):
        by_place = defaultdict[tuple[str, bool], dict[int, float]](dict)
        for rate in measured.values():
            if rate.kind == kind:
                by_place[rate.type, rate.spread][rate.workers] = rate.steps_per_s
        for (type_name, spread), known in by_place.items():
            nearest = min(known, key=lambda size: (abs(size - workers), size))
            rate = MeasuredRate(kind, workers, type_name, spread, known[nearest] * workers / nearest)
            found[kind, workers, type_name, spread] = rate
    return found


def _in_hindsight(observer: LaunchObserver, number: int, fastest: Mapping[Key, float]) -> Job:
    """A job with the work that it really had."""
    state = observer.state
    job, a = state.job_of[number], state.columns
    job = replace(job, submitted_s=float(a["submitted_s"][number]), command="", schedule=())
    phase, ran_s = Phase(int(a["phase"][number])), float(a["settled_run_s"][number])
    work = observer.work.get(number, job.steps)
    if (job.kind == TIMED or (job.kind, job.workers) in fastest) and work > 0:
        job = replace(job, steps=work)
    else:
        job = replace(job, kind=TIMED, steps=ran_s if phase is Phase.FINISHED and ran_s > 0 else job.steps)
    if phase is Phase.FAILED and ran_s > 0 and observer.failure_reasons[number] != "time limit":
        most = ran_s * fastest.get((job.kind, job.workers), 1.0)  # more than it can do before its limit
        job = replace(job, time_limit_s=ran_s, steps=max(job.steps, 2 * most))
    return replace(job, steps=job.steps + observer.repeated_steps[number])


def _outages(events: Iterable[ev.Event]) -> Iterable[Outage]:
    since: dict[int, float] = {}
    for event in events:
        if isinstance(event, ev.NodeLost):
            since.setdefault(event.node, event.time)
        elif isinstance(event, ev.NodeRepaired) and since.get(event.node, event.time) < event.time:
            yield Outage(event.node, since.pop(event.node), event.time)
        elif isinstance(event, ev.NodeRepaired):
            since.pop(event.node, None)
    for node, second in since.items():
        yield Outage(node, second)


def _others(events: Iterable[ev.Event], state: State, jobs: Mapping[int, Job]) -> Iterable[Other]:
    """Cancellations and drains. An open-ended job that runs at the end of the journal is cancelled there."""
    row = {number: row for row, number in enumerate(jobs)}
    for event in events:
        if isinstance(event, ev.JobCancelled):
            yield replace(event, number=row[event.number])
        elif isinstance(event, ev.NodeDrained):
            yield event
    for number, job in jobs.items():
        if job.steps == UNKNOWN_STEPS and state.columns["phase"][number] <= int(Phase.RUNNING):
            yield ev.JobCancelled(state.time, row[number])


def _guesses(jobs: Iterable[Job], rates: _Measured, types: Sequence[str]) -> tuple[str, ...]:
    signatures = dict.fromkeys((job.kind, job.workers) for job in jobs if job.kind != TIMED)
    return tuple(
        f"{workers} × {kind} on {type_name}"
        for kind, workers in signatures
        for type_name in types
        if not {(kind, workers, type_name, spread) for spread in (False, True)} & rates.keys()
    )


@dataclass(frozen=True)
class RecordedRun:
    """A run that is over: its inputs and its record."""

    world: ExogenousInputs
    record: RunRecord

    @classmethod
    def read(cls, where: str) -> RecordedRun:
        """Read a journal: a file x.jsonl or x.sqlite, or a PostgreSQL address."""
        name = "journal" if "://" in where else where
        world, record = exogenous_inputs(tuple(read_journal(where)), name)
        return cls(world, replace(record, scheduler=f"as it was: {record.scheduler}"))

    def under(self, policy: Part) -> SchedulerConfig:
        """The scheduler that it ran under, with another policy: rounds, placement, admission and estimation stay."""
        return replace(SchedulerConfig.from_data(self.world.scheduler), policy=policy, name="")


def resimulation(run: RecordedRun, schedulers: Sequence[SchedulerConfig], metrics: MetricOptions = DEFAULTS) -> Comparison:
    """The comparison of these schedulers on the inputs of a recorded run."""
    world = run.world
    jobs, faults, others = Workload(world.trace, world.table), Faults(world.outages), world.others
    return Comparison(jobs, world.cluster, schedulers, costs=world.costs, faults=faults, metrics=metrics, others=others)


def comparison_rows(run: RecordedRun, given: Comparison, outcomes: Sequence[CaseOutcome]) -> list[tuple[str, Summary]]:
    """A row for what happened, and one for each simulation."""
    simulated = [(given.schedulers[outcome.case.scheduler].label, outcome.summary) for outcome in outcomes]
    return [(run.record.scheduler, summarize(run.record, given.metrics)), *simulated]


def resimulation_records(run: RecordedRun, given: Comparison, outcomes: Sequence[CaseOutcome]) -> list[RunRecord]:
    """The records of the same, for a report; the simulations must have kept theirs."""
    kept = [(o.record, given.schedulers[o.case.scheduler].label) for o in outcomes]
    return [run.record, *(replace(record, scheduler=label) for record, label in kept if record is not None)]
