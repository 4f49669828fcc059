"""The record of a run that reports are made of: one row per job, and one per interval on a GPU. It does not know whether a
simulation or a cluster ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.device_map import NONE
from fairlead.core.errors import FairleadError, InvalidPlan, JournalError
from fairlead.core.plan import Launches
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.journal.jsonl import read_events


@dataclass(frozen=True)
class JobOutcomes:
    """One row per submitted job, in order of submission. Times are seconds; what did not happen is NaN."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    phase: Ints  # core.job.Phase
    workers: Ints
    weight: Floats
    submitted_s: Floats
    first_started_s: Floats
    ended_s: Floats
    run_s: Floats  # time spent holding accelerators
    accelerator_s: Floats  # the same, times the accelerators held
    exclusive_s: Floats  # run time alone on its fastest type, never interrupted
    deadline_s: Floats  # after submission; inf where there is none
    preemptions: Ints  # times it was suspended by a decision, to wait
    moves: Ints  # times it was moved, or changed in size, by a decision
    restarts: Ints  # starts after the first, for any cause

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class DeviceIntervals:
    """Which job held which accelerator from when to when; a gang of four has four rows. Sorted by start."""

    job: Ints  # row in JobOutcomes
    accelerator: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True)
class RunRecord:
    """One run of one scheduler on one trace."""

    scheduler: str  # a short label, e.g. "tiresias"
    trace: str
    cluster: Cluster
    jobs: JobOutcomes
    device_intervals: DeviceIntervals | None = None  # only where they were kept
    service_by_type: Floats | None = None  # accelerator-seconds, by type of the cluster, where it is known
    facts: Mapping[str, float] = field(default_factory=dict)  # rounds, decide_s, wall_s, peak_rss_mb, …


def outcomes(state: State, rates: Mapping[str, tuple[float, ...]] | None) -> JobOutcomes:
    """One row per job, as the state knows them at its present moment. `rates` are by "kind|workers"."""
    jobs = state.all_jobs()
    described = [state.job_of[number] for number in jobs.number.tolist()]
    return JobOutcomes(
        names=tuple(job.name for job in described),
        kinds=tuple(job.kind for job in described),
        users=tuple(job.user for job in described),
        accounts=tuple(job.account for job in described),
        phase=jobs.phase,
        workers=jobs.workers,
        weight=jobs.weight,
        submitted_s=jobs.submitted_s,
        first_started_s=jobs.first_started_s,
        ended_s=jobs.ended_s,
        run_s=jobs.run_s,
        accelerator_s=jobs.accelerator_s,
        exclusive_s=_exclusive(state, rates),
        deadline_s=jobs.deadline_s,
        preemptions=jobs.preemptions,
        moves=jobs.moves,
        restarts=np.maximum(jobs.starts - 1, 0),
    )


def _exclusive(state: State, rates: Mapping[str, tuple[float, ...]] | None) -> Floats:
    """Run time alone on the fastest type that a job may use."""
    jobs = state.all_jobs()
    if rates is None:
        return np.full(len(jobs), np.nan)
    types = np.arange(len(state.cluster.types))
    fastest: dict[tuple[str, int], float] = {}
    speed = np.empty(len(jobs))
    for index, (number, fits) in enumerate(zip(jobs.number.tolist(), jobs.fits.tolist())):
        job = state.job_of[number]
        own = f"{job.kind}|{job.workers}|{job.name}"  # of a job with dynamics
        key = (own if own in rates else f"{job.kind}|{job.workers}", fits)
        if key not in fastest:
            allowed = np.array(rates[key[0]])[(fits >> types) & 1 == 1]
            fastest[key] = float(allowed.max(initial=0.0))
        speed[index] = fastest[key]
    exclusive = np.full(len(jobs), np.nan)
    np.divide(jobs.steps, speed, out=exclusive, where=speed > 0)
    return exclusive


def service_by_type(state: State) -> Floats:
    """Accelerator-seconds by type that were held, up to now."""
    jobs = state.all_jobs()
    if len(state.cluster.types) == 1:
        return state.service_by_type + float(jobs.accelerator_s.sum())
    present = (jobs.accelerator_s - jobs.settled_accelerator_s)[jobs.running]
    return state.service_by_type + np.bincount(jobs.type[jobs.running], present, minlength=len(state.cluster.types))


class IntervalRecorder:
    """Collects the intervals in which jobs hold accelerators from events."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[float, Ints]] = {}
        self._rows: list[tuple[int, float, float, Ints]] = []

    def resume(self, number: int, began_s: float, places: Ints) -> None:
        """A job holds accelerators when the events begin."""
        self._open[number] = (began_s, places)

    def observe(self, event: ev.Event) -> None:
        if isinstance(event, ev.RoundPlanned):
            plan = event.plan
            for number in (*plan.ended.tolist(), *plan.suspended.tolist()):
                self._close(number, plan.time)
            starts, bounds = plan.launches, plan.launches.offsets.tolist()
            for number, first, end in zip(starts.jobs.tolist(), bounds, bounds[1:]):
                self._open[number] = (plan.time, starts.accelerators[first:end])
        elif isinstance(event, (ev.JobsFinished, ev.JobsFailed)):
            for number, second in zip(event.jobs.tolist(), event.at.tolist()):
                self._close(number, second)
        elif isinstance(event, ev.JobsInterrupted):
            for number in event.jobs.tolist():
                self._close(number, event.at_s)
        elif isinstance(event, (ev.JobCancelled, ev.JobRequeued)):
            self._close(event.number, event.time)

    def runs(self, now: float) -> list[tuple[int, float, float, Ints]]:
        """Job, start, end and accelerators of all intervals, open ones up to now, in the order of their starts."""
        for number in list(self._open):
            self._close(number, now)
        return sorted(self._rows, key=lambda row: (row[1], row[0]))

    def device_intervals(self, now: float, rows: Mapping[int, int]) -> DeviceIntervals:
        """The same by accelerator; `rows` has the row of each job."""
        runs = self.runs(now)
        if not runs:
            return DeviceIntervals(NONE, NONE, np.empty(0), np.empty(0))
        numbers, start, end, places = zip(*runs)
        sizes = np.array([len(place) for place in places], dtype=np.int64)
        job = np.array([rows[n] for n in numbers], dtype=np.int64)
        return DeviceIntervals(
            np.repeat(job, sizes), np.concatenate(places), np.repeat(np.array(start), sizes), np.repeat(np.array(end), sizes)
        )

    def _close(self, number: int, second: float) -> None:
        begun = self._open.pop(number, None)
        if begun is not None and second > begun[0]:
            self._rows.append((number, begun[0], second, begun[1]))


def record_of(
    state: State,
    scheduler: str,
    trace: str,
    rates: Mapping[str, tuple[float, ...]] | None,
    facts: Mapping[str, float],
    events: Iterable[ev.Event] | None = None,
) -> RunRecord:
    """The record of a run; with its events, also the device intervals."""
    device_intervals = None
    if events is not None:
        recorder = IntervalRecorder()
        for event in events:
            recorder.observe(event)
        device_intervals = recorder.device_intervals(state.time, _row_of(state))
    jobs, service = outcomes(state, rates), service_by_type(state)
    return RunRecord(scheduler, trace, state.cluster, jobs, device_intervals, service, facts)


def record_from_journal(path: Path) -> RunRecord:
    """The record of the run in a journal file."""
    state: State | None = None
    opened: ev.JournalOpened | None = None
    recorder = IntervalRecorder()
    decisions = 0
    for line, event in enumerate(read_events(path), 1):
        if isinstance(event, ev.JournalOpened) and state is None:
            opened, state = event, State(event.cluster)
        if state is None:
            raise JournalError(f"{path}:1: not a journal: expected an 'opened' event")
        try:
            if isinstance(event, ev.RoundPlanned):
                _check_starts(event.plan.launches, state)
            apply_event(state, event)
            recorder.observe(event)
        except (FairleadError, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            raise JournalError(f"{path}:{line}: an event that cannot have happened: {error}") from error
        decisions += isinstance(event, ev.RoundPlanned)
    if state is None or opened is None:
        raise JournalError(f"{path}: the journal is empty")
    label = str(opened.scheduler.get("label") or opened.scheduler.get("name") or "run")
    facts = {"decisions_with_changes": float(decisions)}
    try:
        jobs = outcomes(state, opened.rates)
    except (KeyError, ValueError, IndexError) as error:
        raise JournalError(f"{path}:1: rates that do not match the jobs: {error}") from error
    device_intervals = recorder.device_intervals(state.time, _row_of(state))
    return RunRecord(label, opened.trace, state.cluster, jobs, device_intervals, service_by_type(state), facts)


def _check_starts(launches: Launches, state: State) -> None:
    places = launches.accelerators
    for number in launches.jobs.tolist():
        if number not in state.job_of:
            raise InvalidPlan(f"a plan starts job number {number}, which was never submitted")
    if len(places) and not (places.min() >= 0 and places.max() < state.cluster.size):
        raise InvalidPlan(f"a plan names a GPU that does not exist; GPUs are 0 to {state.cluster.size - 1}")


def _row_of(state: State) -> dict[int, int]:
    return {number: row for row, number in enumerate(sorted(state.job_of))}
