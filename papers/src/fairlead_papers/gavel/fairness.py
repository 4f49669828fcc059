"""Finish-time fairness with gangs (Gavel §7.3, Figure 11)."""

from __future__ import annotations

from functools import partial

from fairlead.experiments.cases import Answers
from fairlead_papers.arms import Sweep, average_jct, average_of
from fairlead_papers.findings import Findings, row
from fairlead_papers.gavel.las import HIGH, continuous
from fairlead_papers.gavel.runs import Arm
from fairlead_papers.gavel.scale import Scale
from fairlead_papers.study import Study

AGNOSTIC = Arm("Minimize FTF", "finish-time-fairness")
AWARE = Arm("Gavel", "finish-time-fairness-perf")


def sweep(scale: Scale) -> Sweep[Arm]:
    loads = scale.few_loads(HIGH["multiple"])
    return Sweep((AGNOSTIC, AWARE), loads, scale.seeds, partial(continuous, scale, "multiple", 0.0))


def read(scale: Scale, answers: Answers) -> Findings:
    given, high = sweep(scale), HIGH["multiple"]
    own, alike = average_of("ftf"), average_of("ftf_alike")
    pair = (AGNOSTIC.label, AWARE.label, high)
    rows = [
        row(f"average JCT, agnostic / Gavel, at {high} jobs/hr", 3.0, lambda: given.gain(answers, *pair, average_jct)),
        row(f"average FTF, agnostic / Gavel, at {high} jobs/hr", 2.8, lambda: given.gain(answers, *pair, own),
            note="n: jobs in the system while the job is there, in its own run"),
        row("the same, with one n for both", None, lambda: given.gain(answers, *pair, alike),
            note="n: the number of GPUs"),
    ]  # fmt: skip
    pictures = (
        given.against_load(answers, "fig11-jct", "Average JCT against load", "average JCT, hours", average_jct),
        given.distribution(
            answers, "fig11-cdf", f"Finish-time fairness at {high} jobs per hour", "finish-time fairness ρ", "ftf", high, 1.0
        ),
    )
    return Findings(rows, pictures, given.notes(answers))


STUDIES = (Study("fig11", "Figure 11: finish-time fairness, gangs", lambda scale: sweep(scale).cases(), read),)
