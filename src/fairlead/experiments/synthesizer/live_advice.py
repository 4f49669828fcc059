"""Advice for a running cluster: its state comes over the wire as bytes, the forward simulations run here, beside it, and a
switch goes back as anybody's would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.config.schedulers import scheduler_of
from fairlead.core.job import TIMED, Job
from fairlead.engine.state import State
from fairlead.engine.state_codec import load
from fairlead.experiments.synthesizer.advisor import Advice, Advisor
from fairlead.experiments.synthesizer.arrivals import lately
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.workloads.throughput_tables import MeasuredRate, ThroughputTable, drafted

GUESS_S = 3600.0
"""A job of a kind that nobody has measured yet is taken to run for so long, and one of unknown steps for so much longer."""


def state_of(plane: ControlPlaneClient) -> State:
    """The cluster's state of this moment."""
    now, saved = plane.state()
    state = load(saved)
    state.time = max(state.time, now)
    return state


def rates_of(told: Mapping[str, Any], state: State) -> ThroughputTable:
    """What the cluster has measured, or sees running jobs do. What it has not is guessed: from the same kind elsewhere, from
    the same kind with another number of workers, in proportion, or from an hour's run."""
    types = state.cluster.type_names
    rates = _seen(told, state)
    known = {(rate.kind, rate.workers) for rate in rates}
    measured = _by_kind(rates)
    # those that ended may be forecast to come again; who did not say its steps is asked last, as they are no hour's run
    for job in sorted(state.job_of.values(), key=lambda job: job.steps == UNKNOWN_STEPS):
        if job.kind != TIMED and (job.kind, job.workers) not in known:
            known.add((job.kind, job.workers))
            if job.kind in measured:
                rates += _in_proportion(measured[job.kind], job.workers)
                continue
            rates += [MeasuredRate(job.kind, job.workers, name, False, job.steps / GUESS_S) for name in types]
    if not rates:
        return ThroughputTable.timed(types)
    return drafted(rates, types, Path("rates")).finish().for_types(types)


def _seen(told: Mapping[str, Any], state: State) -> list[MeasuredRate]:
    """What was measured, and behind it what running jobs do just now where nobody has remembered it: of an elastic job whose
    batch size is its own choice, estimation remembers nothing for its kind."""
    rates = [
        MeasuredRate(one["kind"], one["workers"], one["type"], one["placement"] == "spread", one["steps_per_s"])
        for one in told["rates"]
    ]
    known, a = {(rate.kind, rate.workers) for rate in rates}, state.store.arrays
    now: dict[tuple[str, int, str], list[float]] = {}
    for number in state.live.tolist():
        kind, held, rate = state.job_of[number].kind, int(a["held"][number]), float(a["rate"][number])
        if held and rate > 0 and kind != TIMED and (kind, held) not in known:
            now.setdefault((kind, held, state.cluster.type_names[int(a["type"][number])]), []).append(rate)
    return rates + [MeasuredRate(*where, False, sum(each) / len(each)) for where, each in now.items()]


def _by_kind(rates: Sequence[MeasuredRate]) -> dict[str, list[MeasuredRate]]:
    found: dict[str, list[MeasuredRate]] = {}
    for rate in rates:
        found.setdefault(rate.kind, []).append(rate)
    return found


def _in_proportion(measured: Sequence[MeasuredRate], workers: int) -> list[MeasuredRate]:
    """The rates of the size that is nearest, as the simulator takes those of a size that no table has."""
    nearest = min({rate.workers for rate in measured}, key=lambda size: (abs(size - workers), size))
    times = workers / nearest
    alike = (rate for rate in measured if rate.workers == nearest)
    return [rate._replace(workers=workers, steps_per_s=times * rate.steps_per_s) for rate in alike]


@dataclass(frozen=True)
class Guessed:
    """The kinds of those who are there, by number, whose rates are a guess: measured with other numbers of workers only, or not
    at all."""

    in_proportion: Mapping[int, str] = field(default_factory=dict)
    unmeasured: Mapping[int, str] = field(default_factory=dict)


def guessed(told: Mapping[str, Any], state: State) -> Guessed:
    """Of whoever has an end; the others are taken to go on for an hour, whatever their rate is."""
    known = {(rate.kind, rate.workers) for rate in _seen(told, state)}
    kinds, endless = {kind for kind, _ in known}, set(open_ended(state))
    jobs = {n: state.job_of[n] for n in (*state.live.tolist(), *state.queue.tolist()) if n not in endless}
    lacking = {n: job.kind for n, job in jobs.items() if job.kind != TIMED and (job.kind, job.workers) not in known}
    elsewhere = {n: kind for n, kind in lacking.items() if kind in kinds}
    return Guessed(elsewhere, {n: kind for n, kind in lacking.items() if kind not in kinds})


def open_ended(state: State) -> list[int]:
    """Of those who are there, who did not say how many steps it will do, or has done more than it said."""
    done = state.store.arrays["base_steps"]
    alive = [*state.live.tolist(), *state.queue.tolist()]
    return [n for n in alive if (steps := state.job_of[n].steps) == UNKNOWN_STEPS or done[n] > steps]


def with_ends(state: State, table: ThroughputTable) -> State:
    """The same, where each job of which nobody knows how many steps it will do ends after another hour's of them: nobody could
    look ahead to an end that is not known. Of those that have ended, which may be forecast to come again, an hour's is all."""
    a = state.store.arrays
    for number in open_ended(state):
        job = state.job_of[number]
        done = float(a["base_steps"][number] + a["rate"][number] * max(0.0, state.time - a["since_s"][number]))
        a["steps"][number] = steps = done + _an_hour(job, table)
        state.job_of[number] = replace(job, steps=steps)
    for job_number, job in state.job_of.items():
        if job.steps == UNKNOWN_STEPS and (job.kind == TIMED or (job.kind, job.workers) in table.row_of):
            state.job_of[job_number] = replace(job, steps=_an_hour(job, table))
    return state


def _an_hour(job: Job, table: ThroughputTable) -> float:
    return GUESS_S * float(table.alone[table.row(job.kind, job.workers)].max())


def advise(state: State, advisor: Advisor) -> Advice:
    """What should decide from now on, as the advisor sees it."""
    running, state = scheduler_of(state.scheduler), with_ends(state, advisor.table)
    return advisor.advise(state.snapshot(), running, memo=state.memo, past=lately(state, advisor.table))
