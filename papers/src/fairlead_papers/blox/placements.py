"""Placement (Blox §4.3): Tiresias' by the look of a model against consolidation for all on V100s with 10 Gb/s between nodes
(Figure 10), and against profiles, with more and more models that profiles alone give away (Figure 11)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import yaml

from fairlead.experiments.cases import Answers, Case
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.arms import HOUR, Sweep, average_jct
from fairlead_papers.blox.policies import LOADS_ARE
from fairlead_papers.blox.runs import Arm, Run, made
from fairlead_papers.blox.scale import DURATIONS, HIGH, SHOWN, Scale, load_told
from fairlead_papers.blox.traces import KINDS, SKEWED, Workload
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.study import Study

LOOK = Arm("Tiresias", "policy: tiresias, placement: tiresias")
ALL = Arm("consolidated", "policy: tiresias, placement: consolidated")
LOW = 4.0

_SKEWS = yaml.safe_dump({kind: 0.9 if kind in SKEWED else 0.0 for kind in KINDS}, default_flow_style=True, width=10_000).strip()
BY_LOOK = Arm("Tiresias", f"policy: tiresias, placement: {{name: tiresias, skews: {_SKEWS}}}")
BY_PROFILE = Arm("Tiresias+", "policy: tiresias, placement: tiresias-plus")


def sweep(scale: Scale, durations: str) -> Sweep[Arm]:
    return Sweep((LOOK, ALL), scale.points(durations, (LOW, HIGH)), scale.seeds, partial(made, scale, durations), LOADS_ARE)


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for durations in DURATIONS:
        given = sweep(scale, durations)
        for load in given.loads:
            gains = partial(given.gains, answers, LOOK.label, ALL.label, load, average_jct)
            claimed = None if load <= LOW else 1.0
            told = load_told(durations, load)
            rows.append(row(f"average JCT, Tiresias / consolidated: {told}", claimed, gains, wants=Wants.MORE))
    pictures = tuple(
        sweep(scale, durations).against_load(
            answers, f"fig10-{durations}", f"Placements, {SHOWN[durations]} durations", "average JCT, hours", average_jct
        )
        for durations in DURATIONS
    )
    return Findings(rows, pictures, ["Tiresias' policy under both; the paper's claim is for more than 4 jobs/hr"])


def sensitive(scale: Scale, durations: str, models: int, arm: Arm, load: float, seed: int) -> Run:
    return Run(arm.scheduler, scale.cluster, Workload(durations, scale.load(load), scale.measure, sensitive=models), seed)


def models(scale: Scale, durations: str, count: int) -> Sweep[Arm]:
    make = partial(sensitive, scale, durations, count)
    return Sweep((BY_LOOK, BY_PROFILE), scale.points(durations), scale.seeds, make, LOADS_ARE)


def model_cases(scale: Scale) -> Iterable[Case]:
    return (case for durations in DURATIONS for count in scale.sensitive for case in models(scale, durations, count).cases())


def read_models(scale: Scale, answers: Answers) -> Findings:
    def gains(count: int, durations: str, load: float) -> list[float]:
        given = models(scale, durations, count)
        return given.gains(answers, BY_LOOK.label, BY_PROFILE.label, load, average_jct)

    rows: list[Row] = []
    fewest, most = scale.sensitive[0], scale.sensitive[-1]
    for durations in DURATIONS:
        for load in scale.points(durations):

            def growth(durations: str = durations, load: float = load) -> list[float]:
                return [late / soon for soon, late in zip(*(gains(count, durations, load) for count in (fewest, most)))]

            told = load_told(durations, load)
            for count in (fewest, most):
                what = f"average JCT, Tiresias / Tiresias+, {count} of 8 models sensitive: {told}"
                claimed = None if count == fewest else 1.0
                rows.append(row(what, claimed, partial(gains, count, durations, load), wants=Wants.MORE))
            rows.append(row(f"that gain with {most} / with {fewest}: {told}", 1.0, growth, wants=Wants.MORE))
    notes = ["Tiresias takes the first five models for sensitive; one that is not sensitive is as fast spread as together"]
    return Findings(rows, tuple(_against_models(scale, answers, durations) for durations in DURATIONS), notes)


def _against_models(scale: Scale, answers: Answers, durations: str) -> Lines:
    x, lines = [float(count) for count in scale.sensitive], []
    for arm in (BY_LOOK, BY_PROFILE):
        found = [row("", None, partial(_hours, scale, answers, durations, count, arm)) for count in scale.sensitive]
        if all(one.ours is not None for one in found):
            spread = [one.within or 0.0 for one in found]
            lines.append(PlotLine(arm.label, x, [one.ours or 0.0 for one in found], spread))
    title = f"Sensitive models, {SHOWN[durations]} durations, {HIGH:g} jobs/hr"
    return Lines(f"fig11-{durations}", title, "sensitive models of 8", "average JCT, hours", lines)


def _hours(scale: Scale, answers: Answers, durations: str, count: int, arm: Arm) -> list[float]:
    return [average_jct(one) / HOUR for one in models(scale, durations, count).answers(answers, arm.label, HIGH)]


STUDIES = (
    Study(
        "fig10",
        "Figure 10: placement on V100s with 10 Gb/s",
        lambda scale: (case for durations in DURATIONS for case in sweep(scale, durations).cases()),
        read,
    ),
    Study("fig11", "Figure 11: placement by profiles, with more sensitive models", model_cases, read_models),
)
