"""Policies against load (Blox §4.2, Figures 6 and 7): completion times, and responsiveness, which is the time from submission
to the first start. All gangs are consolidated, as in the paper. Optimus may give every job another number of workers, at the
sizes that the catalogue knows, and knows how long jobs are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.reporting.pictures import Lines
from fairlead_papers.arms import Sweep, average_jct, figure
from fairlead_papers.blox.runs import Arm, made
from fairlead_papers.blox.scale import DURATIONS, HIGH, SHOWN, Scale, load_told
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.study import Study

FIFO = Arm("FIFO", "policy: fifo")
SRTF = Arm("SRTF", "policy: srtf")
LAS = Arm("LAS", "policy: las")
TIRESIAS = Arm("Tiresias", "policy: tiresias")
OPTIMUS = Arm("Optimus", "policy: {name: optimus, oracle: true, resizes_all: true}")
RESTART_S = 60.0
LOW = 4.0
"""Jobs per hour below which the paper has Optimus with the shortest JCT."""

LOADS_ARE = "jobs per hour (for 128 GPUs)"


def sweep(scale: Scale, durations: str) -> Sweep[Arm]:
    loads = scale.points(durations, scale.loads)
    return Sweep((FIFO, SRTF, LAS, TIRESIAS, OPTIMUS), loads, scale.seeds, partial(made, scale, durations), LOADS_ARE)


def costly(scale: Scale, durations: str) -> Sweep[Arm]:
    """The same two at the high load, where going on after a suspension takes a minute."""
    make = partial(made, scale, durations, restart_s=RESTART_S)
    return Sweep((FIFO, TIRESIAS), (HIGH,), scale.seeds, make, LOADS_ARE)


def cases(scale: Scale) -> Iterable[Case]:
    return (
        case
        for durations in DURATIONS
        for given in (sweep(scale, durations), costly(scale, durations))
        for case in given.cases()
    )


def responsiveness(answer: Answer) -> float:
    """With a second more, so that nobody divides by none."""
    return figure(answer, "average_responsiveness_s") + 1.0


def read_jct(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for durations in DURATIONS:
        given, dear = sweep(scale, durations), costly(scale, durations)
        least = given.loads[0]

        def gains(load: float, pick: Callable[[Answer], float] = average_jct, given: Sweep[Arm] = given) -> list[float]:
            return given.gains(answers, TIRESIAS.label, FIFO.label, load, pick)

        told = load_told(durations, least)
        rows.append(row(f"average JCT, Tiresias / FIFO: {told}", 1.0, partial(gains, least), wants=Wants.NEAR))
        for load in scale.points(durations):
            told = load_told(durations, load)
            rows.append(row(f"average JCT, Tiresias / FIFO: {told}", 1.0, partial(gains, load), wants=Wants.MORE))
        told = load_told(durations, HIGH)
        rows.append(
            row(
                f"the same where a restart takes {RESTART_S:.0f} s: {told}",
                1.0,
                partial(gains, HIGH, given=dear),
                wants=Wants.MORE,
            )
        )
        rows += _optimus(given, durations, answers, scale)
    notes = [
        "the paper's claims: below 4 jobs/hr FIFO and Tiresias are alike, and Optimus has the shortest JCT; above 7 Tiresias"
        " has the longest",
        *(f"{SHOWN[durations]} durations: {told}" for durations in DURATIONS if (told := _early(scale, durations, answers))),
    ]
    return Findings(rows, _pictures(scale, answers, "fig6", "Average JCT", "average JCT, hours", average_jct), notes)


def _optimus(given: Sweep[Arm], durations: str, answers: Answers, scale: Scale) -> list[Row]:
    """Beside FIFO and Tiresias at low loads, and beside Tiresias at high ones."""

    def best_other(load: float) -> list[float]:
        others = (given.gains(answers, arm.label, OPTIMUS.label, load, average_jct) for arm in (FIFO, TIRESIAS))
        return [min(seed) for seed in zip(*others)]

    rows = [
        row(
            f"average JCT, better of FIFO and Tiresias / Optimus: {load_told(durations, load)}",
            1.0,
            partial(best_other, load),
            wants=Wants.MORE,
        )
        for load in given.loads
        if load < LOW
    ]
    for load in scale.points(durations):
        if load >= LOW:
            gains = partial(given.gains, answers, TIRESIAS.label, OPTIMUS.label, load, average_jct)
            rows.append(row(f"average JCT, Tiresias / Optimus: {load_told(durations, load)}", 1.0, gains, wants=Wants.MORE))
    return rows


def read_responsiveness(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for durations in DURATIONS:
        given = sweep(scale, durations)

        def best_other(load: float, given: Sweep[Arm] = given) -> list[float]:
            others = (
                given.gains(answers, arm.label, LAS.label, load, responsiveness)
                for arm in given.arms
                if arm not in (LAS, OPTIMUS)
            )
            return [min(seed) for seed in zip(*others)]

        for load in scale.points(durations):
            told = load_told(durations, load)
            worse = partial(given.gains, answers, FIFO.label, TIRESIAS.label, load, responsiveness)
            rows.append(row(f"responsiveness, FIFO / Tiresias: {told}", 1.0, worse, wants=Wants.MORE))
            patient = partial(given.gains, answers, OPTIMUS.label, TIRESIAS.label, load, responsiveness)
            rows.append(row(f"responsiveness, Optimus / Tiresias: {told}", 1.0, patient, wants=Wants.MORE))
            rows.append(
                row(f"responsiveness, best of the others / LAS: {told}", 1.0, partial(best_other, load), wants=Wants.LEAST)
            )
    notes = [
        "the paper's claims: at high load FIFO has the worst responsiveness, Optimus a longer one than Tiresias, and LAS a good"
        " one (§4.2)",
        "Optimus is left out: it first gives every job one worker, however many the job asks for",
    ]
    shown = _pictures(scale, answers, "fig7", "Responsiveness", "first start − submission, hours", responsiveness)
    return Findings(rows, shown, notes)


def _pictures(
    scale: Scale, answers: Answers, name: str, title: str, y: str, pick: Callable[[Answer], float]
) -> tuple[Lines, ...]:
    return tuple(
        sweep(scale, durations).against_load(answers, f"{name}-{durations}", f"{title}, {SHOWN[durations]} durations", y, pick)
        for durations in DURATIONS
    )


def _early(scale: Scale, durations: str, answers: Answers) -> str:
    """What the reader should know of single points."""
    return "; ".join(sweep(scale, durations).notes(answers))


STUDIES = (
    Study("fig6", "Figure 6: completion times against load", cases, read_jct),
    Study("fig7", "Figure 7: responsiveness against load", cases, read_responsiveness),
)
