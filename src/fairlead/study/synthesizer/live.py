"""Advice for a running cluster: its state comes over the wire as bytes, the forward simulations run here, beside it, and a
switch goes back as anybody's would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairlead.config.wall_time import scheduler_of
from fairlead.core.job import TIMED, Job
from fairlead.engine.saved import load
from fairlead.engine.state import State
from fairlead.runtime.people import ControlPlane
from fairlead.study.synthesizer.advisor import Advice, Advisor
from fairlead.workloads.measured_table import MeasuredRate, drafted
from fairlead.workloads.profiles import ThroughputTable

GUESS_S = 3600.0
"""A job of a kind that nobody has measured yet is taken to run for so long."""


def state_of(plane: ControlPlane) -> State:
    """The cluster's state of this moment."""
    now, saved = plane.state()
    state = load(saved)
    state.time = max(state.time, now)
    return state


def rates_of(told: Mapping[str, Any], state: State) -> ThroughputTable:
    """What the cluster has measured; what it has not is guessed, from the same kind elsewhere or from an hour's run."""
    types = state.cluster.type_names
    rates = [
        MeasuredRate(one["kind"], one["workers"], one["type"], one["placement"] == "spread", one["steps_per_s"])
        for one in told["rates"]
    ]
    known = {(rate.kind, rate.workers) for rate in rates}
    for job in state.job_of.values():  # those that ended may be forecast to come again
        if job.kind != TIMED and (job.kind, job.workers) not in known:
            known.add((job.kind, job.workers))
            rates += [MeasuredRate(job.kind, job.workers, name, False, job.steps / GUESS_S) for name in types]
    if not rates:
        return ThroughputTable.timed(types)
    return drafted(rates, types, Path("rates")).finish().for_types(types)


def live_jobs(state: State) -> Iterator[Job]:
    view = state.snapshot()
    for columns in (view.jobs, view.queued):
        yield from (state.job_of[number] for number in columns.number.tolist())


def advise(state: State, advisor: Advisor) -> Advice:
    """What should decide from now on, as the advisor sees it."""
    running = scheduler_of(state.scheduler)
    latest = (state.job_of[number] for number in sorted(state.job_of, reverse=True))
    return advisor.advise(state.snapshot(), running, memo=state.memo, past=latest)
