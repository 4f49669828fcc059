"""A shadow scheduler: it decides about the inputs that a cluster has had so far, and carries nothing out. Three runs of the
same inputs are compared: what happened (live), the live schedulers simulated (control), and the shadow simulated.

Each comparison simulates from the beginning, because a job's work is only known when it ends: decisions that assumed other work
could not be corrected. Until a job ends, it has the steps that it declared; without these, it keeps running. Only jobs that
have finished in all three runs are compared. This module does not know where events come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import FairleadError
from fairlead.core.job import Phase
from fairlead.experiments.compare import ComparisonCase
from fairlead.experiments.differences import MIN_JOBS_PER_WINDOW, MIN_WINDOWS, WINDOWS, PairedDifference
from fairlead.experiments.metrics import DEFAULTS, completion_times, disjoint, finish_time_fairness
from fairlead.experiments.resimulate import ExogenousInputs, RecordedRun, exogenous_inputs, resimulation
from fairlead.experiments.run_record import RunRecord
from fairlead.files import finite_or_none
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS

SHADOW_METRICS = {
    "average_jct_s": "average JCT",
    "average_ftf": "average ρ",
    "utilization": "utilization",
    "preemptions": "preemptions per job",
}
"""What is compared, and its name in tables."""


@dataclass(frozen=True)
class ShadowMetric:
    """A metric of the three runs, and shadow − control with its interval over windows; NaN where there are too few jobs."""

    live: float
    control: float
    shadow: float
    difference: PairedDifference


@dataclass(frozen=True)
class ShadowComparison:
    """A shadow compared with its cluster up to a second: of so many jobs, those that finished in all runs."""

    scheduler: str
    live_scheduler: str
    second: float
    jobs: int
    compared: int
    metrics: Mapping[str, ShadowMetric]
    guessed: tuple[str, ...] = ()
    undeclared: int = 0  # jobs without declared steps: the simulated schedulers know more of them than a real one

    @property
    def model_error(self) -> float:
        """(control − live) / live of the average JCT: how far simulations of this cluster can be trusted."""
        one = self.metrics.get("average_jct_s")
        return (one.control - one.live) / one.live if one is not None and one.live else math.nan

    @property
    def verdict(self) -> str:
        """What the difference in average JCT says, in words."""
        one = self.metrics.get("average_jct_s")
        if one is None:
            return "no job has finished in all runs so far"
        if not math.isfinite(one.difference.half_width):
            return f"too few jobs for an interval: {MIN_WINDOWS * MIN_JOBS_PER_WINDOW} are needed"
        if not one.difference.significant:
            return "no significant difference in average JCT"
        word = "lower" if one.shadow < one.control else "higher"
        return f"average JCT would be {100 * abs(one.shadow / one.control - 1):.0f} % {word}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

        def row(one: ShadowMetric) -> dict[str, float | None]:
            middle, half = one.difference.difference, one.difference.half_width
            values = {"live": one.live, "control": one.control, "shadow": one.shadow, "difference": one.shadow - one.control}
            values |= {"low": middle - half, "high": middle + half}
            return {name: finite_or_none(value) for name, value in values.items()}

        about = {"scheduler": self.scheduler, "live_scheduler": self.live_scheduler, "second": self.second}
        counts = {"jobs": self.jobs, "compared": self.compared}
        metrics, error = {name: row(one) for name, one in self.metrics.items()}, finite_or_none(self.model_error)
        found = {**about, **counts, "metrics": metrics, "model_error": error}
        return found | {"verdict": self.verdict, "unmeasured": list(self.guessed), "undeclared": self.undeclared}


def compare_shadow(
    events: Sequence[ev.Event], scheduler: SchedulerConfig, *, name: str = "journal", registry: Registry | None = None
) -> ShadowComparison:
    """Simulate the inputs of a cluster's events under its own schedulers and under another one, and compare.

    Raises:
        JournalError: The events do not begin with the journal's first one, or cannot have happened.
        FairleadError: A part of the scheduler failed.
    """
    world, live = exogenous_inputs(events, name)
    second = events[-1].time
    label = SchedulerConfig.from_data(world.scheduler, name).label
    if not world.trace.jobs:
        return ShadowComparison(scheduler.label, label, second, 0, 0, {}, world.guessed)
    control, shadow = _simulated(world, live, scheduler, registry)
    both = [finished.jobs.phase == Phase.FINISHED for finished in (live, control, shadow)]
    rows = np.flatnonzero(both[0] & both[1] & both[2])
    rows = rows[np.argsort(live.jobs.submitted_s[rows], kind="stable")]
    metrics = _metrics((live, control, shadow), rows, second) if len(rows) else {}
    undeclared = sum(isinstance(event, ev.JobSubmitted) and event.job.steps == UNKNOWN_STEPS for event in events)
    return ShadowComparison(scheduler.label, label, second, len(live.jobs), len(rows), metrics, world.guessed, undeclared)


def _simulated(
    world: ExogenousInputs, live: RunRecord, scheduler: SchedulerConfig, registry: Registry | None
) -> tuple[RunRecord, RunRecord]:
    given = resimulation(RecordedRun(world, live), [scheduler])
    given = replace(given, registries=[registry or Registry.installed()] * 2)
    try:
        control, shadow = (ComparisonCase(place, None, 0, keep_record=True).run(given).record for place in range(2))
    except FairleadError:
        raise
    except Exception as problem:  # a plug-in may raise anything
        raise FairleadError(f"cannot simulate {scheduler.label}: {type(problem).__name__}: {problem}") from problem
    assert control is not None
    assert shadow is not None
    return control, shadow


def _metrics(runs: Sequence[RunRecord], rows: Ints, second: float) -> dict[str, ShadowMetric]:
    count = min(WINDOWS, len(rows) // MIN_JOBS_PER_WINDOW)
    windows = np.array_split(rows, count if count >= MIN_WINDOWS else 1)
    by_job = {
        "average_jct_s": [completion_times(run.jobs, DEFAULTS) for run in runs],
        "average_ftf": [finish_time_fairness(run) for run in runs],
        "preemptions": [run.jobs.preemptions.astype(np.float64) for run in runs],
    }
    found = {name: _metric([[each[part] for part in windows] for each in values]) for name, values in by_job.items()}
    begin = float(runs[0].jobs.submitted_s.min())
    edges = np.linspace(begin, max(second, begin + 1e-6), len(windows) + 1)
    found["utilization"] = _metric([[np.array([_held(run, *edges[k : k + 2])]) for k in range(len(windows))] for run in runs])
    return {name: found[name] for name in SHADOW_METRICS if math.isfinite(found[name].shadow)}


def _metric(runs: Sequence[Sequence[Floats]]) -> ShadowMetric:
    """From the values of a metric in each window of the live run, the control and the shadow."""
    live, control, shadow = (_mean(np.concatenate(windows)) for windows in runs)
    pairs = [(_mean(shadow), _mean(control)) for control, shadow in zip(runs[1], runs[2])]
    return ShadowMetric(live, control, shadow, PairedDifference.of(pairs))


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _held(run: RunRecord, begin_s: float, end_s: float) -> float:
    """The share of the GPUs that were held within a time."""
    kept = run.device_intervals
    if kept is None or not run.cluster.size:
        return math.nan
    busy = disjoint(kept.accelerator, kept.start_s, kept.end_s).clipped(begin_s, end_s)
    return busy.total_s() / (run.cluster.size * (end_s - begin_s))
