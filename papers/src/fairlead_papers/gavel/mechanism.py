"""The round mechanism (Gavel §7.5, Figure 15): the length of rounds, and how near rounds come to exact shares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from fairlead.experiments.cases import Answers, CaseFailed
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.arms import HOUR, Sweep, average_jct
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.gavel.las import GAVEL, HIGH, continuous
from fairlead_papers.gavel.runs import ROUND_S, Arm, Run
from fairlead_papers.gavel.scale import Scale
from fairlead_papers.study import Study

ROUNDS = Arm("rounds of 6 minutes", GAVEL.policy)
IDEAL = Arm("ideal", GAVEL.policy, ideal=True)


def sweep(scale: Scale) -> Sweep[Arm]:
    return Sweep((ROUNDS, IDEAL), scale.few_loads(HIGH["single"]), scale.seeds, partial(continuous, scale, "single", 0.0))


def at_length(scale: Scale, length_s: float, load: float) -> list[Run]:
    return [replace(continuous(scale, "single", 0.0, GAVEL, load, seed), round_s=length_s) for seed in scale.seeds]


def lengths(scale: Scale) -> Iterable[Run]:
    return (run for s in scale.rounds_s for load in scale.few_loads(HIGH["single"]) for run in at_length(scale, s, load))


def read_lengths(scale: Scale, answers: Answers) -> Findings:
    high = HIGH["single"]

    def average(length_s: float, load: float) -> float:
        return float(np.mean([average_jct(answers.of(run)) for run in at_length(scale, length_s, load)]))

    rows = [
        row(
            f"average JCT, rounds of {length_s / 60:g} / 6 minutes, at {high} jobs/hr",
            None,
            lambda length_s=length_s: average(length_s, high) / average(ROUND_S, high),  # type: ignore[misc]
            wants=Wants.NOTHING,
            note="the paper: shorter rounds come nearer to the allocation" if length_s < ROUND_S else "",
        )
        for length_s in scale.rounds_s
        if length_s != ROUND_S
    ]
    lines = []
    for length_s in scale.rounds_s:
        points = []
        for load in scale.few_loads(high):
            try:
                points.append((load, average(length_s, load) / HOUR))
            except CaseFailed:
                continue
        if points:
            x, y = zip(*points)
            lines.append(PlotLine(f"{length_s / 60:g} minutes", x, y))
    axis = "jobs per hour (for 36 GPUs of each type)"
    return Findings(rows, (Lines("fig15a", "Length of rounds", axis, "average JCT, hours", lines),))


def read_ideal(scale: Scale, answers: Answers) -> Findings:
    given, high = sweep(scale), HIGH["single"]
    rows = [
        row(
            f"average JCT, rounds / ideal, at {load:g} jobs/hr",
            1.0,
            lambda load=load: given.gain(answers, ROUNDS.label, IDEAL.label, load, average_jct),  # type: ignore[misc]
            wants=Wants.NEAR,
            note="the paper: almost identical",
        )
        for load in given.loads
        if load <= high
    ]
    picture = given.against_load(answers, "fig15b", "Rounds and exact shares", "average JCT, hours", average_jct)
    return Findings(rows, (picture,), given.notes(answers))


STUDIES = (
    Study("fig15a", "Figure 15a: length of rounds", lengths, read_lengths),
    Study("fig15b", "Figure 15b: rounds and exact shares", lambda scale: sweep(scale).cases(), read_ideal),
)
