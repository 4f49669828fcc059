"""How wrong forecasts of regimes are (§5, Figure 5): of generated jobs that adapt, at even points of their training, what each
rule expects of the share of each regime and of the whole run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.job import Job
from fairlead.estimators.oracle import TableBatches
from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.policies.shockwave.planning.regime_forecast import RULES, even_prior, next_batch_sizes, remaining_epochs, run_time
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead.workloads.dynamics import Regimes
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.shockwave.jobs import AdaptiveJobs, Jobs
from fairlead_papers.shockwave.scale import Scale
from fairlead_papers.study import Study

POINTS = 20
SHARES, RUN_TIME = 6.0, 16.0
"""The paper's mean errors by restatement, in percent."""


@dataclass(frozen=True)
class Errors:
    """Of one rule, by points of the training: mean error of regimes' shares, and of run times as a part of the true one."""

    rule: str
    jobs: int
    seed: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, AdaptiveJobs)
        trace, table = inputs.jobs(Jobs(self.jobs), self.seed)
        batches = TableBatches(table)
        column = table.types.index("v100")
        found = []
        for job in trace.jobs:
            job_dynamics = trace.dynamics.get(job.name)
            if isinstance(job_dynamics, Regimes) and len(job_dynamics.parts) > 1:
                rates = {size: float(rate[column]) for size, rate in batches.of(job.kind, job.workers).items()}
                found.append([_error(self.rule, job, job_dynamics, rates, point / POINTS) for point in range(POINTS)])
        share, time = np.mean(found, axis=0).T
        return {"shares": share.tolist(), "run_time": time.tolist(), "jobs": len(found)}


def _error(rule: str, job: Job, job_dynamics: Regimes, rates: Mapping[int, float], done: float) -> tuple[float, float]:
    """When a part of the steps is `done`; steps are parts of all here. Shares are by the regimes that the job has, so that to
    foresee others that never come makes no error smaller."""
    starts = np.cumsum([0.0, *(share for _, share in job_dynamics.parts[:-1])])
    current = int(np.searchsorted(starts, done, side="right")) - 1
    sizes = [size for size, _ in job_dynamics.parts[: current + 1]]
    sizes += [size for size in next_batch_sizes(job.mode, sizes[-1], max(rates)) if size in rates]
    width = max(len(sizes), len(job_dynamics.parts))
    trained, true = (
        _row([*np.diff([*starts[: current + 1], done])], width),
        _row([share for _, share in job_dynamics.parts], width),
    )
    pace = _row([1 / rates[size] for size in sizes], width)
    one, here = np.ones(1), np.array([current])
    expected = RULES[rule](one, trained, here, even_prior(np.array([len(sizes)]), width))
    total = run_time(trained, pace) + run_time(remaining_epochs(expected, one, trained, here), pace)
    truth = sum(share / rates[size] for size, share in job_dynamics.parts)
    return float(np.abs(expected - true).sum() / len(job_dynamics.parts)), float(abs(total[0] - truth) / truth)


def _row(values: list[float], width: int) -> Floats:
    return np.array([[*values, *([0.0] * (width - len(values)))]])


def cases(scale: Scale) -> Iterable[Case]:
    return (Errors(rule, scale.foreseen, scale.seeds[0]) for rule in RULES)


def read(scale: Scale, answers: Answers) -> Findings:
    def of(rule: str) -> Answer:
        return answers.of(Errors(rule, scale.foreseen, scale.seeds[0]))

    def mean(rule: str, what: str) -> float:
        return 100.0 * float(np.mean(of(rule)[what]))

    def times(rule: str, what: str) -> float:
        return mean(rule, what) / mean("restatement", what)

    rows = [
        row("mean error of regimes' shares", SHARES, partial(mean, "restatement", "shares"), "%", Wants.MOST),
        row("mean error of run times", RUN_TIME, partial(mean, "restatement", "run_time"), "%", Wants.MOST),
        row("error of shares, standard update / restatement", 1.0, partial(times, "standard", "shares"), wants=Wants.MORE),
        row("error of run times, standard update / restatement", 1.0, partial(times, "standard", "run_time"), wants=Wants.MORE),
        row("error of run times, greedy / restatement", 1.0, partial(times, "greedy", "run_time"), wants=Wants.MORE),
    ]  # fmt: skip
    points = [100 * point / POINTS for point in range(POINTS)]
    pictures = [
        Lines(f"fig5-{name}", title, "% of the training", "error, %",
              [PlotLine(rule, points, [100 * value for value in of(rule)[what]]) for rule in RULES])
        for name, what, title in (("shares", "shares", "Shares of regimes"), ("time", "run_time", "Run time"))
    ]  # fmt: skip
    return Findings(rows, pictures, [f"{of('restatement')['jobs']} of {scale.foreseen} jobs have several regimes"])


STUDIES = (
    Study(
        "fig5", "Figure 5: forecasts", cases, read, lambda scale: f"{scale.foreseen} generated jobs, those of several regimes"
    ),
)
