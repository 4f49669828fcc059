"""The test bed's makespans once more, with slowdowns that were measured in another session on another host: what of the gains
hangs on one session's noise. Schedulers believe what they did before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from fairlead.study.reproduce.case import Answers, Case
from fairlead.study.reproduce.findings import Findings, Row, Wants, row
from fairlead.study.reproduce.horus import makespan
from fairlead.study.reproduce.horus.jobs import SHARES
from fairlead.study.reproduce.horus.makespan import makespan_s
from fairlead.study.reproduce.horus.runs import FIFO, HORUS, OBP, PAB, SOONEST, Arm, Run
from fairlead.study.reproduce.horus.scale import Scale
from fairlead.study.reproduce.study import Study

ARMS = (FIFO, PAB, OBP, HORUS, SOONEST)


def case(scale: Scale, workload: str, arm: Arm, seed: int) -> Run:
    return replace(makespan.case(scale, workload, arm, seed), again=True)


def cases(scale: Scale) -> Iterable[Case]:
    return (case(scale, workload, arm, seed) for workload in SHARES for arm in ARMS for seed in scale.seeds)


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for workload in SHARES:
        for better in (HORUS, SOONEST):
            for worse in (FIFO, OBP, PAB):
                what = f"makespan, {worse.label} / {better.label}: {workload}"
                rows.append(row(what, 1.0, partial(_gain, scale, answers, workload, worse, better), wants=Wants.MORE))
    return Findings(rows, notes=(_NOTE,))


_NOTE = (
    "Each pair was seen once or twice for half a second, on a busy host. What is faster beside another than alone counts as"
    " equal, so that noise makes company look worse than it is, for all who pack."
)


def _gain(scale: Scale, answers: Answers, workload: str, worse: Arm, better: Arm) -> list[float]:
    each = [[makespan_s(answers.of(case(scale, workload, arm, seed))) for arm in (worse, better)] for seed in scale.seeds]
    return [one / other for one, other in each]


STUDIES = (Study("again", "Makespan with slowdowns of another session (not in the paper)", cases, read),)
