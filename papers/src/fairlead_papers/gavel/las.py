"""Least attained service over loads (Gavel §7.3): Figure 9 with single workers, Figure 10 with gangs, and with priorities."""

from __future__ import annotations

from functools import partial

import numpy as np

from fairlead.experiments.cases import Answer, Answers, CaseFailed
from fairlead_papers.arms import Sweep, average_jct
from fairlead_papers.findings import Findings, row
from fairlead_papers.gavel.runs import IN_FULL, Arm, Jobs, Run
from fairlead_papers.gavel.scale import Scale
from fairlead_papers.study import Study

LAS = Arm("LAS", "max-min-fairness")
GAVEL = Arm("Gavel", "max-min-fairness-perf")
GAVEL_SS = Arm("Gavel with space sharing", "max-min-fairness-perf:space_sharing=true")
FILLED = Arm("Gavel with water filling", "max-min-fairness-water-filling-perf")
ALLOX = Arm("AlloX", "allox")
GANDIVA = Arm("LAS with Gandiva packing", "gandiva-packing")
ARMS = {"single": (LAS, GAVEL, GAVEL_SS, ALLOX, GANDIVA), "multiple": (LAS, GAVEL, GAVEL_SS, GANDIVA)}
HIGH = {"single": 5.6, "multiple": 2.6}
PAPER_GAIN = {"single": 3.5, "multiple": 2.2}
HIGH_PRIORITY = 5.0


def continuous(scale: Scale, workers: str, priorities: float, arm: Arm, load: float, seed: int) -> Run:
    jobs = Jobs(scale.load(load), measure=scale.measure, workers=workers, priorities=priorities)
    return Run(arm.policy, scale.cluster, jobs, seed, mechanism=IN_FULL, estimator=arm.estimator, ideal=arm.ideal)


def sweep(scale: Scale, workers: str) -> Sweep[Arm]:
    return Sweep(ARMS[workers], scale.loads(HIGH[workers]), scale.seeds, partial(continuous, scale, workers, 0.0))


def prioritised(scale: Scale) -> Sweep[Arm]:
    high = HIGH["multiple"]
    return Sweep((LAS, FILLED, GAVEL), (high,), scale.seeds, partial(continuous, scale, "multiple", 0.2))


def read(workers: str, name: str, scale: Scale, answers: Answers) -> Findings:
    given, high = sweep(scale, workers), HIGH[workers]

    def gain(worse: Arm, better: Arm) -> float:
        return given.gain(answers, worse.label, better.label, high, average_jct)

    rows = [
        row(f"average JCT, LAS / Gavel, at {high} jobs/hr", PAPER_GAIN[workers], lambda: gain(LAS, GAVEL)),
        row(
            f"average JCT, Gandiva packing / Gavel with space sharing, at {high} jobs/hr", 2.2, lambda: gain(GANDIVA, GAVEL_SS)
        ),
        row(f"average JCT, LAS / Gavel with space sharing, at {high} jobs/hr", None, lambda: gain(LAS, GAVEL_SS)),
    ]
    if ALLOX in given.arms:
        rows.append(row(f"average JCT, AlloX / Gavel, at {high} jobs/hr", None, lambda: gain(ALLOX, GAVEL)))
    pictures = (
        given.against_load(answers, f"{name}-jct", "Average JCT against load", "average JCT, hours", average_jct),
        given.distribution(answers, f"{name}-cdf", f"JCT at {high} jobs per hour", "job completion time, hours", "jct_s", high),
    )
    return Findings(rows, pictures, given.notes(answers))


def read_priorities(scale: Scale, answers: Answers) -> Findings:
    given = prioritised(scale)

    def gain(better: Arm, high: bool) -> float:
        return given.gain(answers, LAS.label, better.label, given.high, partial(_average_at, high=high))

    at = f"average JCT of {{}}-priority jobs, LAS / {{}}, at {given.high} jobs/hr"
    rows = [
        row(at.format("high", "Gavel"), 1.5, lambda: gain(FILLED, True)),
        row(at.format("low", "Gavel"), 2.7, lambda: gain(FILLED, False)),
        row(at.format("high", "Gavel without water filling"), None, lambda: gain(GAVEL, True)),
        row(at.format("low", "Gavel without water filling"), None, lambda: gain(GAVEL, False)),
    ]
    notes = [
        "gangs as in Figure 10; 20 % of jobs have weight 5, the others 1",
        "LAS and Gavel both fill by weight until nothing is left; without water filling weights count up to the lowest level,"
        " and what is beyond it goes to the jobs that gain the most from it",
        *given.notes(answers),
    ]
    return Findings(rows, (), notes)


def _average_at(answer: Answer, *, high: bool) -> float:
    jct, weight = np.array(answer["jct_s"]), np.array(answer["weight"])
    chosen = jct[(weight >= HIGH_PRIORITY) == high]
    if not len(chosen):
        raise CaseFailed(f"no measured job has {'high' if high else 'low'} priority")
    return float(chosen.mean())


STUDIES = (
    Study(
        "fig9",
        "Figure 9: least attained service, single workers",
        lambda scale: sweep(scale, "single").cases(),
        partial(read, "single", "fig9"),
    ),
    Study(
        "fig10",
        "Figure 10: least attained service, gangs",
        lambda scale: sweep(scale, "multiple").cases(),
        partial(read, "multiple", "fig10"),
    ),
    Study("priorities", "Least attained service with priorities", lambda scale: prioritised(scale).cases(), read_priorities),
)
