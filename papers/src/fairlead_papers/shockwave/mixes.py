"""What is gained by foresight: static and dynamic jobs mixed (§8.6, Figure 10), and forecasts that are wrong on purpose (§8.10,
Figure 13)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.shockwave.jobs import Jobs
from fairlead_papers.shockwave.runs import (
    ALLOX,
    FAIR,
    SHOCKWAVE,
    THEMIS,
    Arm,
    Run,
    average_jct,
    makespan,
    noisy,
    unfair,
    worst_rho,
)
from fairlead_papers.shockwave.scale import Scale
from fairlead_papers.study import Study

DYNAMIC = (0.0, 0.4, 0.7, 1.0)
PAPER_NOISE = {
    0.2: (0.99, 1.01, 1.01),
    0.4: (1.14, 1.01, 1.11),
    0.6: (1.22, 1.03, 1.04),
    0.8: (1.23, 1.03, 1.07),
    1.0: (1.36, 1.06, 1.51),
}
"""Figure 13's makespan, average JCT and worst ρ, in those without noise."""


def made(scale: Scale, arm: Arm, dynamic: float, seed: int) -> Run:
    return Run(arm.scheduler, Jobs(scale.jobs, dynamic), scale.accelerators, seed)


def all_of(scale: Scale, answers: Answers, arm: Arm, dynamic: float, pick: Callable[[Answer], float]) -> list[float]:
    return [pick(answers.of(made(scale, arm, dynamic, seed))) for seed in scale.seeds]


def over(old: list[float], new: list[float]) -> list[float]:
    return [before / after for before, after in zip(old, new)]


def cases_mixed(scale: Scale) -> Iterable[Case]:
    return (made(scale, arm, d, seed) for d in DYNAMIC for arm in (SHOCKWAVE, *FAIR) for seed in scale.seeds)


def read_mixed(scale: Scale, answers: Answers) -> Findings:
    of = partial(all_of, scale, answers)

    def shorter(dynamic: float) -> list[float]:
        others = np.mean([of(arm, dynamic, makespan) for arm in FAIR], axis=0).tolist()
        return over(others, of(SHOCKWAVE, dynamic, makespan))

    rows = [
        row("makespan, mean of Themis, Gavel and AlloX / Shockwave, all static", 1.18, partial(shorter, 0.0)),
        row("the same, all dynamic", 1.3, partial(shorter, 1.0)),
        row("unfair jobs of Shockwave, all static", 5.0, partial(of, SHOCKWAVE, 0.0, unfair), "%", Wants.MOST),
        row("unfair jobs of Shockwave, all dynamic", 9.0, partial(of, SHOCKWAVE, 1.0, unfair), "%", Wants.MOST),
        row("unfair jobs of Themis, all dynamic", 28.0, partial(of, THEMIS, 1.0, unfair), "%", Wants.NOTHING),
        row("unfair jobs of AlloX, all dynamic", 22.0, partial(of, ALLOX, 1.0, unfair), "%", Wants.NOTHING),
    ]
    pictures = [
        _against(scale, answers, "fig10-makespan", "makespan, s", makespan),
        _against(scale, answers, "fig10-unfair", "unfair jobs, %", unfair),
        _against(scale, answers, "fig10-rho", "worst ρ", worst_rho),
    ]
    return Findings(rows, pictures)


def _against(scale: Scale, answers: Answers, name: str, told: str, pick: Callable[[Answer], float]) -> Lines:
    lines = []
    for arm in (SHOCKWAVE, *FAIR):
        points = []
        for dynamic in DYNAMIC:
            try:
                points.append((dynamic, float(np.mean(all_of(scale, answers, arm, dynamic, pick)))))
            except CaseFailed:
                continue
        if points:
            x, y = zip(*points)
            lines.append(PlotLine(arm.label, x, y))
    return Lines(name, f"{told[0].upper()}{told[1:]}", "part of the jobs that adapt", told, lines)


def cases_noisy(scale: Scale) -> Iterable[Case]:
    return (made(scale, noisy(noise), 1.0, seed) for noise in scale.noises for seed in scale.seeds)


def read_noisy(scale: Scale, answers: Answers) -> Findings:
    of = partial(all_of, scale, answers)

    def worse(noise: float, pick: Callable[[Answer], float]) -> list[float]:
        return over(of(noisy(noise), 1.0, pick), of(noisy(0.0), 1.0, pick))

    rows: list[Row] = []
    picks = (("makespan", makespan), ("average JCT", average_jct), ("worst ρ", worst_rho))
    for noise in scale.noises[1:]:
        for (what, pick), paper in zip(picks, PAPER_NOISE[noise]):
            told = f"{what} at {100 * noise:.0f} % noise, in that without"
            rows.append(row(told, paper, partial(worse, noise, pick), wants=Wants.MOST))
    lines = []
    for what, pick in picks:
        try:
            lines.append(PlotLine(what, scale.noises, [float(np.mean(worse(noise, pick))) for noise in scale.noises]))
        except CaseFailed:
            continue
    picture = Lines("fig13", "Wrong forecasts", "noise of run times", "in those without noise", lines)
    return Findings(rows, (picture,), ["each job's run time is off by a factor of its own, evenly drawn, for all of its life"])


STUDIES = (
    Study("fig10", "Figure 10: static and dynamic jobs mixed", cases_mixed, read_mixed),
    Study("fig13", "Figure 13: forecasts that are wrong", cases_noisy, read_noisy),
)
