"""The inputs of a forward simulation from a running cluster: its state, and the step rates that its jobs are assumed to have.
It does not know what is simulated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, make, scheduler_of
from fairlead.core.cluster import Floats
from fairlead.core.events import Event
from fairlead.core.job import TIMED, Job
from fairlead.core.snapshot import Snapshot
from fairlead.engine.codec import decode
from fairlead.engine.state import State
from fairlead.engine.state_codec import load
from fairlead.estimators.colocated_rates import ColocationModel
from fairlead.experiments.scenarios import RunTimes, run_s
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.workloads.throughput_tables import MeasuredRate, ThroughputTable, draft_table

ASSUMED_RUN_S = 3600.0
"""Assumed run time of a job type without measurements, and assumed remaining time of a job whose end is unknown."""


def fetch_state(plane: ControlPlaneClient) -> State:
    """Fetch the present state of a cluster."""
    now, saved = plane.state()
    state = load(saved)
    state.time = max(state.time, now)
    return state


class JournalFollower:
    """The events of a running cluster's journal, as they come. `fetch` returns encoded events behind a number. A journal that
    was replaced meanwhile, as by a backup, is read again."""

    def __init__(self, fetch: Callable[[int], Sequence[bytes]]) -> None:
        self.events: list[Event] = []
        self._fetch, self._last = fetch, b""

    def catch_up(self) -> bool:
        """Fetch what is new; return whether anything is."""
        news = False
        while True:
            known = len(self.events)
            lines = self._fetch(max(0, known - 1))
            if known and [*lines[:1]] != [self._last]:
                self.events, self._last, news = [], b"", True
                continue
            if not (lines := lines[bool(known) :]):
                return news
            self.events += map(decode, lines)
            self._last, news = lines[-1], True


def recent_jobs(state: State, table: ThroughputTable) -> Iterator[Job]:
    """The jobs submitted to a cluster, most recent first, that `table` has rates for: others cannot be simulated again."""
    for number in sorted(state.job_of, reverse=True):
        job = state.job_of[number]
        if job.kind == TIMED or (job.kind, job.workers) in table.row_of:
            yield job


def measured_table(measured: Mapping[str, Any], state: State, assumed_s: float = ASSUMED_RUN_S) -> ThroughputTable:
    """A throughput table from the rates that a cluster has measured and those of its running jobs.

    Missing rates are guessed: from the same job type on another GPU type, in proportion from another gang size, or such that
    the job runs for `assumed_s`. A job type with unknown steps has one step per second, as `measured` assumes."""
    types = state.cluster.type_names
    rates = _known_rates(measured, state)
    known = {(rate.kind, rate.workers) for rate in rates}
    by_kind: dict[str, list[MeasuredRate]] = {}
    for rate in rates:
        by_kind.setdefault(rate.kind, []).append(rate)
    # Ended jobs may be forecast to arrive again. Jobs with unknown steps come last.
    for job in sorted(state.job_of.values(), key=lambda job: job.steps == UNKNOWN_STEPS):
        if job.kind != TIMED and (job.kind, job.workers) not in known:
            known.add((job.kind, job.workers))
            if job.kind in by_kind:
                rates += _scaled(by_kind[job.kind], job.workers)
                continue
            guess = 1.0 if job.steps == UNKNOWN_STEPS else job.steps / assumed_s
            rates += [MeasuredRate(job.kind, job.workers, name, False, guess) for name in types]
    if not rates:
        return ThroughputTable.timed(types)
    return draft_table(rates, types, Path("rates")).finish().for_types(types)


def _known_rates(measured: Mapping[str, Any], state: State) -> list[MeasuredRate]:
    """Measured rates, then present rates of running jobs without one: an estimator stores no rate for the job type of an
    elastic job that chooses its batch size."""
    rates = [
        MeasuredRate(one["kind"], one["workers"], one["type"], one["placement"] == "spread", one["steps_per_s"])
        for one in measured["rates"]
    ]
    known, a = {(rate.kind, rate.workers) for rate in rates}, state.columns
    now: dict[tuple[str, int, str], list[float]] = {}
    for number in state.live.tolist():
        kind, held, rate = state.job_of[number].kind, int(a["held"][number]), float(a["rate"][number])
        if held and rate > 0 and kind != TIMED and (kind, held) not in known:
            now.setdefault((kind, held, state.cluster.type_names[int(a["type"][number])]), []).append(rate)
    return rates + [MeasuredRate(*where, False, sum(each) / len(each)) for where, each in now.items()]


def _scaled(measured: Sequence[MeasuredRate], workers: int) -> list[MeasuredRate]:
    """The rates of the nearest gang size, in proportion, as the simulator scales sizes that a table lacks."""
    nearest = min({rate.workers for rate in measured}, key=lambda size: (abs(size - workers), size))
    same_size = (rate for rate in measured if rate.workers == nearest)
    return [rate._replace(workers=workers, steps_per_s=workers / nearest * rate.steps_per_s) for rate in same_size]


@dataclass(frozen=True)
class RateGuesses:
    """Job types, by job number, whose rates are guessed: `scaled` from another gang size, or `unmeasured`."""

    scaled: Mapping[int, str] = field(default_factory=dict)
    unmeasured: Mapping[int, str] = field(default_factory=dict)


def rate_guesses(measured: Mapping[str, Any], state: State) -> RateGuesses:
    """Which jobs have guessed rates. Open-ended jobs do not count: their remaining time is assumed, whatever their rate."""
    known = {(rate.kind, rate.workers) for rate in _known_rates(measured, state)}
    kinds, open_ended = {kind for kind, _ in known}, set(open_ended_jobs(state))
    jobs = {n: state.job_of[n] for n in (*state.live.tolist(), *state.queue.tolist()) if n not in open_ended}
    lacking = {n: job.kind for n, job in jobs.items() if job.kind != TIMED and (job.kind, job.workers) not in known}
    scaled = {n: kind for n, kind in lacking.items() if kind in kinds}
    return RateGuesses(scaled, {n: kind for n, kind in lacking.items() if kind not in kinds})


def open_ended_jobs(state: State) -> list[int]:
    """The jobs that have not ended and declared no steps, or have done more than they declared."""
    done = state.columns["base_steps"]
    alive = [*state.live.tolist(), *state.queue.tolist()]
    return [n for n in alive if (steps := state.job_of[n].steps) == UNKNOWN_STEPS or done[n] > steps]


@dataclass(frozen=True)
class RunTimePrior:
    """How long an open-ended job should still run in the median, `left_s`. It rests on the run times of `finished` jobs of its
    closest group, `median_s` in the median and within `range_s`."""

    left_s: float
    finished: int
    median_s: float
    range_s: tuple[float, float]


def run_time_priors(state: State, open_ended: Collection[int], times: RunTimes | None = None) -> dict[int, RunTimePrior]:
    """By number, for open-ended jobs; none if no job at all has ended."""
    if not open_ended:
        return {}
    times = times or RunTimes(state)
    found: dict[int, RunTimePrior] = {}
    for number in open_ended:
        job, ran_s = state.job_of[number], times.ran_s[number]
        if run_time := times.of(job, ran_s):
            runs, left_s = times.peers(job), run_time.median_s - ran_s
            found[number] = RunTimePrior(left_s, len(runs), float(np.median(runs)), (float(runs[0]), float(runs[-1])))
    return found


def with_assumed_ends(
    state: State,
    table: ThroughputTable,
    open_ended: Collection[int],
    unknown_s: float = ASSUMED_RUN_S,
    priors: Mapping[int, RunTimePrior] | None = None,
) -> State:
    """The same state, changed in place: each open-ended job ends when jobs of its kind did, or after `unknown_s` more. A job
    that has ended, and may be forecast to arrive again, has the run time that it had, or `unknown_s` if it never ran.

    A job that reports no steps is protected from preemption as long as a job without its first step."""
    a, still_open = state.columns, frozenset(open_ended)
    priors = run_time_priors(state, open_ended) if priors is None else priors
    reporting = {job.kind for n, job in state.job_of.items() if job.steps != UNKNOWN_STEPS or a["base_steps"][n] > 0}
    first_step_s = scheduler_of(state.scheduler).first_step_s or 0.0
    for number, job in state.job_of.items():
        if number in still_open:
            done = steps_done(state, number)
            left_s = priors[number].left_s if number in priors else unknown_s
        elif job.steps == UNKNOWN_STEPS and (job.kind == TIMED or (job.kind, job.workers) in table.row_of):
            done, left_s = 0.0, run_s(state, number) or unknown_s
        else:
            continue
        min_run_s = job.min_run_s if job.kind in reporting else max(job.min_run_s, first_step_s)
        state.assume(number, steps=done + min(left_s, unknown_s) * fastest_rate(job, table), min_run_s=min_run_s)
    return state


def steps_done(state: State, number: int) -> float:
    """The steps that a job has done by now, at its last rate."""
    a = state.columns
    return float(a["base_steps"][number] + a["rate"][number] * max(0.0, state.time - a["since_s"][number]))


def fastest_rate(job: Job, table: ThroughputTable) -> float:
    """The rate of a job on the GPU type where it is fastest."""
    return float(table.alone[table.row(job.kind, job.workers)].max())


def busy_s(view: Snapshot, table: ThroughputTable, horizon_s: float = 30 * 86400.0) -> float:
    """A rough upper bound of the time in which the jobs of a snapshot end: arrivals after it are not drawn."""
    left = [
        ((job := view.job_of[number]).workers, max(0.0, job.steps - done) / fastest_rate(job, table))
        for jobs in (view.jobs, view.queued)
        for number, done in zip(jobs.number.tolist(), jobs.steps_done.tolist())
    ]
    known = [(workers, left_s) for workers, left_s in left if left_s < horizon_s]
    work, longest = sum(workers * left_s for workers, left_s in known), max((left_s for _, left_s in known), default=0.0)
    return float(86400.0 + 3.0 * (longest + work / max(1, int(view.capacity.sum()))))


def with_estimated_interference(table: ThroughputTable, state: State, scheduler: SchedulerConfig) -> ThroughputTable:
    """The table with the co-located rates that the scheduler's estimator predicts; rates that the table has stay."""
    estimator = make("estimator", scheduler.estimator, Registry.installed(), {"table": table})
    if not isinstance(estimator, ColocationModel):
        return table
    paired, _, _ = estimator.colocated_rates(state.snapshot(), [kind for kind, _ in table.keys], table.alone)
    return replace(table, paired=np.where(table.paired > 0, table.paired, paired))


def with_colocated_rates(table: ThroughputTable, state: State) -> ThroughputTable:
    """The same, and with the present rates of jobs that share GPUs, so that these can stay co-located."""
    table = with_estimated_interference(table, state, scheduler_of(state.scheduler))
    return replace(table, paired=_present_paired_rates(table, state.snapshot()))


def _present_paired_rates(table: ThroughputTable, view: Snapshot) -> Floats:
    jobs, paired = view.jobs.runners, table.paired.copy()
    columns = (jobs.number, jobs.held, jobs.type, jobs.rate)
    placed = {number: (held, type_, rate) for number, held, type_, rate in zip(*(column.tolist() for column in columns))}
    row = {n: table.row_of.get((view.job_of[n].kind, placed[n][0]), 0) for n in placed}  # 0: jobs in seconds
    sharing: dict[int, list[int]] = {}
    for number, device in zip(*(column.tolist() for column in view.device_map.places(jobs.number))):
        sharing.setdefault(device, []).append(number)
    for one, other in sorted({(one, other) for there in sharing.values() for one in there for other in there if one != other}):
        _, type_, rate = placed[one]
        if paired[row[one], row[other], type_] <= 0:
            paired[row[one], row[other], type_] = rate if rate > 0 else table.alone[row[one], type_] / 2
    return paired
