"""Simulate a recorded run again under other schedulers.

The inputs come from the journal: jobs with the work that they really did, cancellations, outages, drains, measured rates and
start costs. A finished job has the steps that it did, including those that its own failures repeated. A cancelled job leaves
at the same second. A failed job fails after the same run time, as if that were its limit. A job that never reported steps
counts in seconds.

Left out: metrics that jobs reported, batch size schedules, scheduler switches, and checkpoints that jobs made by themselves, so
that an outage sets a job back to its last start. Interference between co-located jobs is what the last estimator predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.config import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.job import ELASTIC, TIMED, Job, Phase
from fairlead.engine.state import State
from fairlead.experiments.compare import CaseOutcome, Comparison, Workload
from fairlead.experiments.inputs import used_rates
from fairlead.experiments.launch_history import LaunchObserver, PlacementKey, startup_costs
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
    opened = events[0] if events else None
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
    fastest = _fastest(rates)
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
    rates_found: _Measured = {}
    for key, rates in (opened.rates or {}).items():
        kind, _, workers = key.rpartition("|")
        for type_name, rate in zip(opened.cluster.type_names, rates, strict=True):
            if kind != TIMED:
                rates_found[kind, int(workers), type_name, False] = MeasuredRate(
                    kind, int(workers), type_name, False, float(rate)
                )
    return rates_found


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


def _fastest(rates: _Measured) -> dict[Key, float]:
    """The highest measured rate of each job type and gang size."""
    fastest: dict[Key, float] = {}
    for rate in rates.values():
        key = (rate.kind, rate.workers)
        fastest[key] = max(fastest.get(key, 0.0), rate.steps_per_s)
    return fastest


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
        elif isinstance(event, ev.NodeRepaired) and event.node in since:
            yield Outage(event.node, since.pop(event.node), event.time)
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
    looks = dict.fromkeys((job.kind, job.workers) for job in jobs if job.kind != TIMED)
    return tuple(
        f"{workers} × {kind} on {type_name}"
        for kind, workers in looks
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
    world = run.world
    return Comparison(
        Workload(world.trace, world.table),
        world.cluster,
        schedulers,
        costs=world.costs,
        faults=Faults(world.outages),
        metrics=metrics,
        others=world.others,
    )


def comparison_rows(run: RecordedRun, given: Comparison, outcomes: Sequence[CaseOutcome]) -> list[tuple[str, Summary]]:
    """A row for what happened, and one for each simulation."""
    simulated = [(given.schedulers[outcome.case.scheduler].label, outcome.summary) for outcome in outcomes]
    return [(run.record.scheduler, summarize(run.record, given.metrics)), *simulated]


def resimulation_records(run: RecordedRun, given: Comparison, outcomes: Sequence[CaseOutcome]) -> list[RunRecord]:
    """The records of the same, for a report; the simulations must have kept theirs."""
    kept = [(o.record, given.schedulers[o.case.scheduler].label) for o in outcomes]
    return [run.record, *(replace(record, scheduler=label) for record, label in kept if record is not None)]
