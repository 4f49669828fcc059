"""A closer look at one schedule of 50 jobs (§8.4, Figure 8): which sizes of jobs run when, and how ρ is distributed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import finish_time_fairness
from fairlead.experiments.run_record import RunRecord
from fairlead.reporting.pictures import Distribution, Picture, Stack
from fairlead_papers.arms import known
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.shockwave.jobs import Jobs
from fairlead_papers.shockwave.runs import ALLOX, GAVEL, OSSP, ROUND_S, SHOCKWAVE, STATIC, Arm, Run
from fairlead_papers.shockwave.scale import Scale, jobs_on
from fairlead_papers.study import Study

ARMS = (SHOCKWAVE, GAVEL, ALLOX, OSSP)
CLASSES = (("extra small", 0.0), ("small", 0.8), ("medium", 2.0), ("large", 6.0))
"""From so many accelerator-hours on."""
STEPS = 100


@dataclass(frozen=True)
class Schedule:
    """Who ran when, by classes of size."""

    scheduler: str
    jobs: int
    accelerators: int
    seed: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        record = Run(self.scheduler, Jobs(self.jobs), self.accelerators, self.seed).record(inputs, gantt=True)
        rho = finish_time_fairness(record, STATIC.contention)
        end = float(np.nanmax(record.jobs.ended_s))
        edges = np.linspace(0.0, end, STEPS + 1)
        return {"rho": rho.round(4).tolist(), "edges": (edges / ROUND_S).tolist(), "busy": _busy(record, edges).tolist()}


def _busy(record: RunRecord, edges: Floats) -> Floats:
    """Classes × steps: the accelerators that each class held, on average."""
    assert record.device_intervals is not None
    held, jobs = record.device_intervals, record.jobs
    hours = jobs.exclusive_s * jobs.workers / 3600.0
    of = np.searchsorted([least for _, least in CLASSES], hours, side="right") - 1
    inside = np.clip(np.minimum(held.end_s[:, None], edges[1:]) - np.maximum(held.start_s[:, None], edges[:-1]), 0.0, None)
    return np.array([inside[of[held.job] == place].sum(axis=0) for place in range(len(CLASSES))]) / np.diff(edges)


def made(scale: Scale, arm: Arm) -> Schedule:
    return Schedule(arm.scheduler, jobs_on(scale.fewer), scale.fewer, scale.seeds[0])


def cases(scale: Scale) -> Iterable[Case]:
    return (made(scale, arm) for arm in ARMS)


def read(scale: Scale, answers: Answers) -> Findings:
    def rho(arm: Arm) -> Floats:
        return np.array(known(answers.of(made(scale, arm))["rho"]))

    rows = [row("worst ρ of Shockwave", 1.23, lambda: float(rho(SHOCKWAVE).max()), "ρ", Wants.MOST)]
    for arm in (GAVEL, ALLOX):
        told = f"unfair jobs of {arm.label}"
        rows.append(row(told, 20.0, lambda arm=arm: 100.0 * float((rho(arm) > 1).mean()), "%", Wants.LEAST))  # type: ignore[misc]
    pictures: list[Picture] = []
    values = []
    for arm in ARMS:
        try:
            found = answers.of(made(scale, arm))
        except CaseFailed:
            continue
        title = f"Who runs when under {arm.label}"
        names = [name for name, _ in CLASSES]
        name = f"fig8-{arm.label.lower()}"
        pictures.append(Stack(name, title, "rounds", "accelerators", found["edges"], found["busy"], names))
        values.append((arm.label, known(found["rho"])))
    pictures.append(Distribution("fig8-rho", "Finish-time fairness", "ρ", values))
    return Findings(rows, pictures)


def _told(scale: Scale) -> str:
    given = made(scale, SHOCKWAVE)
    return f"{given.jobs} generated jobs on {given.accelerators} GPUs"


STUDIES = (Study("fig8", "Figure 8: a closer look at a schedule", cases, read, _told),)
