"""Efficiency and fairness on Shockwave's traces: 120 jobs on 32 accelerators (§8.3, Figure 7), and up to 900 on 256 (§8.5,
Figure 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.shockwave.jobs import Jobs
from fairlead_papers.shockwave.runs import (
    ALLOX,
    FAIR,
    GANDIVA_FAIR,
    GAVEL,
    MST,
    OSSP,
    SHOCKWAVE,
    THEMIS,
    Arm,
    Run,
    average_jct,
    makespan,
    unfair,
    worst_rho,
)
from fairlead_papers.shockwave.scale import Scale, accelerators_for
from fairlead_papers.study import Study

PHYSICAL = (SHOCKWAVE, OSSP, *FAIR, MST)
LARGE = (SHOCKWAVE, OSSP, *FAIR, GANDIVA_FAIR)
METRICS: tuple[tuple[str, str, Callable[[Answer], float]], ...] = (
    ("makespan", "makespan, s", makespan),
    ("jct", "average JCT, s", average_jct),
    ("rho", "worst ρ", worst_rho),
    ("unfair", "unfair jobs, %", unfair),
)


def made(arm: Arm, jobs: int) -> Run:
    return Run(arm.scheduler, Jobs(jobs, public=True), accelerators_for(jobs), 0)


def cases_small(scale: Scale) -> Iterable[Case]:
    return (made(arm, scale.physical) for arm in PHYSICAL)


def cases_large(scale: Scale) -> Iterable[Case]:
    return (made(arm, jobs) for jobs in scale.large for arm in LARGE)


def read_small(scale: Scale, answers: Answers) -> Findings:
    jobs = scale.physical
    one = 100.0 / jobs  # unfair job, in percent

    def of(arm: Arm, pick: Callable[[Answer], float]) -> float:
        return pick(answers.of(made(arm, jobs)))

    def mean(pick: Callable[[Answer], float]) -> float:
        return sum(of(arm, pick) for arm in FAIR) / len(FAIR)

    def over(pick: Callable[[Answer], float], arm: Arm | None = None) -> float:
        return (mean(pick) if arm is None else of(arm, pick)) / of(SHOCKWAVE, pick)

    rows = [
        row("makespan, mean of Themis, Gavel and AlloX / Shockwave", 1.3, partial(over, makespan)),
        row("makespan, MST / Shockwave", 1.37, partial(over, makespan, MST)),
        row("makespan, OSSP / Shockwave", 1.0, partial(over, makespan, OSSP), wants=Wants.LEAST),
        row("worst ρ of Shockwave", 1.82, partial(of, SHOCKWAVE, worst_rho), "ρ", Wants.MOST),
        row("worst ρ, mean of Themis, Gavel and AlloX / Shockwave", 2.0, partial(over, worst_rho)),
        row("unfair jobs, mean of Themis, Gavel and AlloX / Shockwave", 2.7,
            lambda: mean(unfair) / max(of(SHOCKWAVE, unfair), one), note="Shockwave's are taken as one at least"),
        row("average JCT, Gavel / Shockwave", 1.0, partial(over, average_jct, GAVEL), wants=Wants.LEAST,
            note="as long as each other in the paper's words; of the published runs 1.13"),
        row("average JCT, OSSP / Shockwave", None, partial(over, average_jct, OSSP)),
    ]  # fmt: skip
    return Findings(rows, _pictures(answers, "fig7", PHYSICAL, (jobs,)))


def read_large(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    claims = ((THEMIS, 1.26, 2.5), (GAVEL, 1.3, 2.4), (ALLOX, 1.35, 3.1), (GANDIVA_FAIR, 1.21, 3.9))
    for jobs in scale.large:
        told = f"{jobs} jobs on {accelerators_for(jobs)}"

        def gain(arm: Arm, pick: Callable[[Answer], float], jobs: int = jobs) -> float:
            return pick(answers.of(made(arm, jobs))) / pick(answers.of(made(SHOCKWAVE, jobs)))

        def own(pick: Callable[[Answer], float], jobs: int = jobs) -> float:
            return pick(answers.of(made(SHOCKWAVE, jobs)))

        for arm, shorter, fairer in claims:
            rows.append(row(f"makespan, {arm.label} / Shockwave: {told}", shorter, partial(gain, arm, makespan), scale=told))
            rows.append(row(f"worst ρ, {arm.label} / Shockwave: {told}", fairer, partial(gain, arm, worst_rho), scale=told))
        rows.append(row(f"worst ρ of Shockwave: {told}", 1.32, partial(own, worst_rho), "ρ", Wants.MOST, scale=told))
        rows.append(row(f"unfair jobs: {told}", 4.0, partial(own, unfair), "%", Wants.MOST, scale=told))
        longer = partial(_inverse, partial(gain, OSSP, makespan))
        rows.append(row(f"makespan, Shockwave / OSSP: {told}", 1.09, longer, wants=Wants.MOST, scale=told))
    note = "the paper's factors are the least of three sizes for makespans, and the mean of them for ρ and unfair jobs"
    return Findings(rows, _pictures(answers, "fig9", LARGE, scale.large), [note])


def _inverse(ratio: Callable[[], float]) -> float:
    return 1.0 / ratio()


def _pictures(answers: Answers, name: str, arms: tuple[Arm, ...], sizes: tuple[int, ...]) -> tuple[Lines, ...]:
    """A picture for each metric: a line for each size, a place for each scheduler."""
    pictures = []
    for metric, told, pick in METRICS:
        lines = []
        for jobs in sizes:
            points = []
            for place, arm in enumerate(arms):
                try:
                    points.append((float(place), pick(answers.of(made(arm, jobs)))))
                except CaseFailed:
                    continue
            if points:
                x, y = zip(*points)
                lines.append(PlotLine(f"{jobs} jobs on {accelerators_for(jobs)}", x, y))
        ticks = [arm.label for arm in arms]
        pictures.append(Lines(f"{name}-{metric}", told, "scheduler", told, lines, ticks=ticks))
    return tuple(pictures)


def _told(scale: Scale) -> str:
    return f"{scale.physical} jobs on {accelerators_for(scale.physical)}"


STUDIES = (
    Study("fig7", "Figure 7: 120 jobs on 32 GPUs", cases_small, read_small, _told),
    Study("fig9", "Figure 9: larger clusters", cases_large, read_large),
)
