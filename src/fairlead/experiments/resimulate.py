"""Simulate a recorded run again: under the schedulers that it had, as a control, and under others.

The inputs come from the journal: jobs with the work that they really did, cancellations, outages, drains, measured rates and
start costs. The cluster has all nodes that it ever had; a node is down before it was added and after it was removed. A finished
job has the steps that it did, including those that its own failures repeated. A cancelled job leaves at the same second. A
failed job fails after the same run time, as if that were its limit. A job that never reported steps counts in seconds. A real
cluster does not preempt a job before its first report, so a simulated job is protected for as long.

The control replays the scheduler switches. How far its metrics are from the recorded ones says how far the other simulations
can be trusted.

Left out: metrics that jobs reported, batch size schedules, and checkpoints that jobs made by themselves, so that an outage sets
a job back to its last start. Interference between co-located jobs is what the last estimator predicted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.job import ELASTIC, TIME_LIMIT, TIMED, Job, Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.state import State
from fairlead.experiments.compare import CaseOutcome, Comparison, Workload
from fairlead.experiments.inputs import used_rates
from fairlead.experiments.launch_observer import LaunchObserver, PlacementKey
from fairlead.experiments.live_inputs import with_estimated_interference
from fairlead.experiments.metric_columns import COLUMNS, format_value
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
    first_scheduler: Mapping[str, Any] = field(default_factory=dict)
    switches: tuple[ev.SchedulerSwitched, ...] = ()
    until_s: float = math.inf  # where jobs have not ended, the last second of the journal
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
    state, types = observer.state, observer.state.cluster.type_names
    measured = {**_recorded_rates(opened), **observer.rates()}
    rates = {**_in_proportion(state.job_of.values(), measured), **measured}
    fastest: dict[Key, float] = {}
    for one in sorted(rates.values(), key=lambda rate: rate.steps_per_s):
        fastest[one.kind, one.workers] = one.steps_per_s
    switches = tuple(event for event in events if isinstance(event, ev.SchedulerSwitched))
    first_step_s = max(float(one.get("first_step_s") or 0.0) for one in (opened.scheduler, *(s.scheduler for s in switches)))
    protected = observer.first_reports(first_step_s)
    jobs = {number: _in_hindsight(observer, number, fastest, protected[number]) for number in sorted(state.job_of)}
    if any(isinstance(event, ev.JobUpdated) for event in events):
        jobs |= {e.number: _as_submitted(jobs[e.number], e.job) for e in events if isinstance(e, ev.JobSubmitted)}
    table = ThroughputTable.timed(types)
    if rates:
        table = draft_table(rates.values(), types, Path(name)).finish().for_types(types)
        table = with_estimated_interference(table, state, SchedulerConfig.from_data(state.scheduler, name))
    trace = Trace(tuple(jobs.values()), name)
    world = ExogenousInputs(
        state.cluster.with_removed,
        trace,
        table,
        observer.costs(table, types),
        tuple(_outages(events)),
        tuple(_others(events, state, jobs)),
        state.scheduler,
        opened.scheduler,
        switches,
        math.inf if not state.busy else state.time,
        _guesses(jobs.values(), measured, types),
    )
    in_hindsight = [replace(e, job=jobs[e.number]) if isinstance(e, ev.JobSubmitted) else e for e in events]
    label = _decided(events, name)
    plans = sum(isinstance(event, ev.RoundPlanned) for event in events)
    facts = {"decisions_with_changes": float(plans)} | ({"until_s": state.time} if state.busy else {})
    return world, record_of(replay_events(in_hindsight), label, name, used_rates(trace.jobs, table), facts, in_hindsight)


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


def _in_hindsight(observer: LaunchObserver, number: int, fastest: Mapping[Key, float], protected_s: float) -> Job:
    """A job with the work that it really had, and protected until its first report."""
    state = observer.state
    job, a = state.job_of[number], state.columns
    min_run_s = max(job.min_run_s, protected_s)
    job = replace(job, submitted_s=float(a["submitted_s"][number]), command="", schedule=(), min_run_s=min_run_s)
    phase, ran_s = Phase(int(a["phase"][number])), float(a["settled_run_s"][number])
    work = observer.work.get(number, job.steps)
    if (job.kind == TIMED or (job.kind, job.workers) in fastest) and work > 0:
        job = replace(job, steps=work)
    else:
        job = replace(job, kind=TIMED, steps=ran_s if phase is Phase.FINISHED and ran_s > 0 else job.steps)
    if phase is Phase.FAILED and ran_s > 0 and observer.failure_reasons[number] != TIME_LIMIT:
        most = ran_s * fastest.get((job.kind, job.workers), 1.0)  # more than it can do before its limit
        job = replace(job, time_limit_s=ran_s, steps=max(job.steps, 2 * most))
    return replace(job, steps=job.steps + observer.repeated_steps[number])


def _outages(events: Iterable[ev.Event]) -> Iterable[Outage]:
    """When nodes were down. A node that was added later is down before, and a removed one from then on."""
    since: dict[int, float] = {}
    for event in events:
        if isinstance(event, (ev.NodeLost, ev.NodeRemoved)):
            since.setdefault(event.node, event.time)
        elif isinstance(event, ev.NodeAdded):
            since.setdefault(event.node, 0.0)
        elif isinstance(event, ev.NodeRepaired) and since.get(event.node, event.time) < event.time:
            yield Outage(event.node, since.pop(event.node), event.time)
        elif isinstance(event, ev.NodeRepaired):
            since.pop(event.node, None)
    for node, second in since.items():
        yield Outage(node, second)


_REPLAYED = ("account", "priority", "weight", "deadline_s")
"""Fields of a job whose changes are simulated; its time limit is the last one from the beginning."""


def _as_submitted(job: Job, submitted: Job) -> Job:
    return replace(job, **{name: getattr(submitted, name) for name in _REPLAYED})


def _others(events: Sequence[ev.Event], state: State, jobs: Mapping[int, Job]) -> Iterable[Other]:
    """Cancellations, drains, and what users did to waiting and running jobs. An ended job that was requeued has the work of its
    last run, from the beginning. An open-ended job that runs at the end of the journal is cancelled there."""
    row = {number: row for row, number in enumerate(jobs)}
    revived = {event.number for event in events if isinstance(event, ev.JobRequeued)}
    cancelled = {number for number in jobs if state.columns["phase"][number] == int(Phase.CANCELLED)}
    for event in events:
        if isinstance(event, ev.JobCancelled) and event.number in revived - cancelled:
            continue
        if isinstance(event, (ev.JobCancelled, ev.JobHeld, ev.JobReleased, ev.JobRequeued)):
            yield replace(event, number=row[event.number])
        elif isinstance(event, ev.JobUpdated):
            changes = {name: value for name, value in event.changes.items() if name in _REPLAYED}
            yield replace(event, number=row[event.number], changes=changes)
        elif isinstance(event, ev.NodeDrained):
            yield event
        elif isinstance(event, ev.NodeRemoved):
            yield ev.NodeDrained(event.time, event.node, undo=True)  # where it is added again, it is not drained
    for number, job in jobs.items():
        if state.node_changes and state.columns["phase"][number] == int(Phase.REFUSED):  # by the cluster of that time
            yield ev.JobCancelled(float(state.columns["ended_s"][number]), row[number])
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
        return cls(world, replace(record, scheduler=f"recorded: {record.scheduler}"))

    def under(self, policy: Part) -> SchedulerConfig:
        """The scheduler that it ran under last, with another policy: rounds, placement, admission and estimator stay."""
        return replace(SchedulerConfig.from_data(self.world.scheduler), policy=policy, name="")

    @property
    def control(self) -> SchedulerConfig:
        """The scheduler that it began with, named as the control."""
        same = "schedulers" if self.world.switches else "scheduler"
        return replace(SchedulerConfig.from_data(self.world.first_scheduler), name=f"control: the same {same}, simulated")


def resimulation(run: RecordedRun, schedulers: Sequence[SchedulerConfig], metrics: MetricOptions = DEFAULTS) -> Comparison:
    """The comparison of the control and these schedulers on the inputs of a recorded run."""
    world = run.world
    return Comparison(
        Workload(world.trace, world.table),
        world.cluster,
        [run.control, *schedulers],
        costs=world.costs,
        faults=Faults(world.outages),
        metrics=metrics,
        others=world.others,
        switches={0: world.switches},
        until_s=world.until_s,
    )


def comparison_rows(run: RecordedRun, given: Comparison, outcomes: Sequence[CaseOutcome]) -> list[tuple[str, Summary]]:
    """A row for what was recorded, one for the control, and one for each other scheduler."""
    simulated = [(given.schedulers[outcome.case.scheduler].label, outcome.summary) for outcome in outcomes]
    return [(run.record.scheduler, summarize(run.record, given.metrics)), *simulated]


def resimulation_records(run: RecordedRun, given: Comparison, outcomes: Sequence[CaseOutcome]) -> list[RunRecord]:
    """The records of the same, for a report; the simulations must have kept theirs."""
    kept = [(o.record, given.schedulers[o.case.scheduler].label) for o in outcomes]
    return [run.record, *(replace(record, scheduler=label) for record, label in kept if record is not None)]


MAIN_METRICS = (
    *("average_jct_s", "p99_jct_s", "makespan_s", "average_responsiveness_s", "utilization", "average_ftf"),
    *("preemptions", "finished"),
)
MAX_CONTROL_ERROR = 0.1


@dataclass(frozen=True)
class ControlCheck:
    """How far the control is from the recorded run: (control − recorded) / recorded of each main metric. None: the recorded
    value is 0 or unknown and the control's is not."""

    errors: Mapping[str, float | None]
    warning: str  # empty: no error is above 10 %

    @classmethod
    def of(cls, recorded: Summary, control: Summary) -> ControlCheck:
        """Compare the first two rows of a resimulation."""
        real, simulated = recorded.to_dict(), control.to_dict()
        errors = {
            name: _relative(simulated[name], real[name])
            for name in MAIN_METRICS
            if (real[name], simulated[name]) != (None,) * 2
        }
        columns = [column for column in COLUMNS if column.key in errors]
        above = [
            f"{one.heading} {_percent(error)} ({format_value(real[one.key], one.shows)} recorded,"
            f" {format_value(simulated[one.key], one.shows)} simulated)"
            for one in columns
            if (error := errors[one.key]) is None or abs(error) > MAX_CONTROL_ERROR
        ]
        if not above:
            return cls(errors, "")
        why = "differences between the simulated policies may be wrong by as much"
        return cls(
            errors,
            f"the control differs from the recorded run by more than {100 * MAX_CONTROL_ERROR:g} %: {'; '.join(above)}; {why}",
        )

    @property
    def text(self) -> str:
        """The errors in one line."""
        headings = {column.key: column.heading for column in COLUMNS}
        return "error of the control: " + ", ".join(
            f"{headings[name]} {_percent(error)}" for name, error in self.errors.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"errors": dict(self.errors), "warning": self.warning or None}


def _relative(simulated: float | None, real: float | None) -> float | None:
    if simulated == real:
        return 0.0
    return None if simulated is None or not real else (simulated - real) / abs(real)


def _percent(error: float | None) -> str:
    return "n/a" if error is None else f"{100 * error:+.1f} %".replace("-", "−")
