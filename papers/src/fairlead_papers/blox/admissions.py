"""Admission with least attained service (Blox §5.1): jobs enter until their demand is 1.2, 1.4 or 1.5 times the cluster, at a
steady load (Figure 12) and with 16 jobs more in one hour of each day (Figure 13)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fairlead.experiments.cases import Answer, Answers, Case
from fairlead_papers.arms import Sweep, average_jct, figure
from fairlead_papers.blox.policies import LAS, LOADS_ARE
from fairlead_papers.blox.runs import Arm, made
from fairlead_papers.blox.scale import DURATIONS, Scale, load_told
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.study import Study

SPIKE = 16
FACTORS = (1.2, 1.5)
LIMITED = {
    factor: Arm(f"LAS, accept {factor}×", f"policy: las, admission: {{name: accept-up-to, factor: {factor}}}")
    for factor in FACTORS
}
SHORTER = {0: {1.2: 15.0}, SPIKE: {1.2: 27.3, 1.5: 15.4}}
"""By how many percent the paper's average JCT is shorter, without and with the extra jobs."""

WAITS = 46.0
"""Responsiveness of Accept-1.2×, in percent of the average JCT, at most."""


def sweep(scale: Scale, durations: str, spike: int) -> Sweep[Arm]:
    make = partial(made, scale, durations, spike=spike)
    return Sweep((LAS, *LIMITED.values()), scale.points(durations), scale.seeds, make, LOADS_ARE)


def cases(spike: int, scale: Scale) -> Iterable[Case]:
    return (case for durations in DURATIONS for case in sweep(scale, durations, spike).cases())


def waits(answer: Answer) -> float:
    return 100.0 * figure(answer, "average_responsiveness_s") / average_jct(answer)


def read(spike: int, scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for durations in DURATIONS:
        given = sweep(scale, durations, spike)
        for load in given.loads:
            told = load_told(durations, load)
            for factor, arm in LIMITED.items():
                shorter = SHORTER[spike].get(factor)
                paper = None if shorter is None else 1 / (1 - shorter / 100)
                gains = partial(given.gains, answers, LAS.label, arm.label, load, average_jct)
                rows.append(row(f"average JCT, LAS / {arm.label}: {told}", paper, gains))
            strict = LIMITED[FACTORS[0]].label
            shares = partial(_by_seed, given, answers, strict, load)
            rows.append(row(f"responsiveness of {strict}, of its JCT: {told}", WAITS, shares, "%", Wants.MOST))
    name = "fig13" if spike else "fig12"
    pictures = tuple(
        sweep(scale, durations, spike).distribution(
            answers, f"{name}-{durations}", f"JCT at {load_told(durations, load)}", "hours", "jct_s", load
        )
        for durations in DURATIONS
        for load in scale.points(durations)[:1]
    )
    notes = ["the paper says by how much the average JCT is shorter; here as a factor: 15 % shorter is 1.18×"]
    if spike:
        here = f"{round(scale.load(SPIKE))} on {scale.accelerators}"
        notes.append(f"{SPIKE} jobs more on 128 GPUs, {here}; they are copies of jobs of the trace")
    return Findings(rows, pictures, notes)


def _by_seed(given: Sweep[Arm], answers: Answers, label: str, load: float) -> list[float]:
    return [waits(one) for one in given.answers(answers, label, load)]


STUDIES = (
    Study("fig12", "Figure 12: admission with LAS", partial(cases, 0), partial(read, 0)),
    Study(
        "fig13", "Figure 13: admission with LAS, 16 jobs more in one hour a day", partial(cases, SPIKE), partial(read, SPIKE)
    ),
)
