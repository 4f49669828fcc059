"""More and fewer jobs for each accelerator, on 14 of them (appendix I, Figure 16). The paper calls the contention of its other
traces, 120 jobs on 32 accelerators and 50 on 14, three; so two and one and a half are as many fewer jobs in the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from fairlead.experiments.cases import Answer, Answers, Case
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.shockwave.jobs import Jobs
from fairlead_papers.shockwave.mixes import over
from fairlead_papers.shockwave.runs import FAIR, SHOCKWAVE, Arm, Run, makespan, unfair, worst_rho
from fairlead_papers.shockwave.scale import Scale, jobs_on
from fairlead_papers.study import Study

USUAL = 3.0
SHORTER = {USUAL: 1.35, 2.0: 1.19, 1.5: 1.08}
"""By contention: how much longer the others' makespans are."""
UNFAIR = 8.67


def made(scale: Scale, arm: Arm, contention: float, seed: int) -> Run:
    return Run(arm.scheduler, Jobs(round(jobs_on(scale.fewer) * contention / USUAL)), scale.fewer, seed)


def cases(scale: Scale) -> Iterable[Case]:
    return (made(scale, arm, factor, seed) for factor in SHORTER for arm in (SHOCKWAVE, *FAIR) for seed in scale.seeds)


def read(scale: Scale, answers: Answers) -> Findings:
    def of(arm: Arm, factor: float, pick: Callable[[Answer], float]) -> list[float]:
        return [pick(answers.of(made(scale, arm, factor, seed))) for seed in scale.seeds]

    def gains(factor: float, pick: Callable[[Answer], float]) -> list[float]:
        others = np.mean([of(arm, factor, pick) for arm in FAIR], axis=0).tolist()
        return over(others, of(SHOCKWAVE, factor, pick))

    rows = []
    for factor, shorter in SHORTER.items():
        told = f"mean of Themis, Gavel and AlloX / Shockwave, contention {factor:g}"
        rows.append(row(f"makespan, {told}", shorter, partial(gains, factor, makespan)))
    rows.append(row("worst ρ, the same at 2", 1.27, partial(gains, 2.0, worst_rho)))
    rows.append(row("worst ρ of Shockwave at 2", 1.2, partial(of, SHOCKWAVE, 2.0, worst_rho), "ρ", Wants.MOST))
    rows.append(
        row(
            "unfair jobs of Shockwave, over all three",
            UNFAIR,
            lambda: [*np.mean([of(SHOCKWAVE, factor, unfair) for factor in SHORTER], axis=0).tolist()],
            "%",
            Wants.MOST,
        )
    )
    return Findings(rows)


def _told(scale: Scale) -> str:
    return f"generated jobs on {scale.fewer} accelerators, {len(scale.seeds)} seeds"


STUDIES = (Study("fig16", "Figure 16: contention", cases, read, _told),)
