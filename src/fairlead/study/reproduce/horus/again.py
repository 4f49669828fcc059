"""The test bed once more, with slowdowns that were measured in another session on another host for truth: what of the gains,
and of keeping an interference SLO, hangs on one session's noise. Schedulers believe what they did before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from fairlead.study.reproduce.case import Answer, Answers, Case
from fairlead.study.reproduce.findings import Findings, Row, Wants, row
from fairlead.study.reproduce.horus import makespan
from fairlead.study.reproduce.horus.jobs import SHARES
from fairlead.study.reproduce.horus.makespan import makespan_s
from fairlead.study.reproduce.horus.runs import FIFO, HORUS, OBP, PAB, ROUND_S, SOONEST, Arm, Run
from fairlead.study.reproduce.horus.scale import Scale
from fairlead.study.reproduce.horus.slo import KEPT, ROUNDS, SHARED
from fairlead.study.reproduce.study import Study

ARMS = (FIFO, PAB, OBP, HORUS, SOONEST, KEPT)


def case(scale: Scale, workload: str, arm: Arm, seed: int) -> Run:
    return replace(makespan.case(scale, workload, arm, seed), again=True)


def cases(scale: Scale) -> Iterable[Case]:
    return (case(scale, workload, arm, seed) for workload in SHARES for arm in ARMS for seed in scale.seeds)


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for workload in SHARES:
        of = partial(_each, scale, answers, workload)
        for better in (HORUS, SOONEST):
            for worse in (FIFO, OBP, PAB):
                what = f"makespan, {worse.label} / {better.label}: {workload}"
                rows.append(row(what, 1.0, partial(_gain, of(worse), of(better)), wants=Wants.MORE))
        longest, shared = partial(_longest, of(KEPT)), partial(_shared, of(KEPT))
        rows.append(row(f"longest stretch beyond it, {KEPT.label}: {workload}", ROUNDS, longest, "rounds", Wants.MOST))
        rows.append(row(f"accelerator time in company, {KEPT.label}: {workload}", SHARED, shared, "%", Wants.LEAST))
    return Findings(rows, notes=(_NOTE,))


_NOTE = (
    "Each pair was seen once or twice for half a second, on a busy host. What is faster beside another than alone counts as"
    " equal, so that noise makes company look worse than it is, for all who pack."
)


def _each(scale: Scale, answers: Answers, workload: str, arm: Arm) -> Iterable[Answer]:
    """Seed by seed, when asked for: a case may have failed."""
    return (answers.of(case(scale, workload, arm, seed)) for seed in scale.seeds)


def _gain(worse: Iterable[Answer], better: Iterable[Answer]) -> list[float]:
    return [makespan_s(one) / makespan_s(other) for one, other in zip(worse, better)]


def _longest(seen: Iterable[Answer]) -> float:
    return max(float(answer["longest_beyond_s"]) for answer in seen) / ROUND_S


def _shared(seen: Iterable[Answer]) -> list[float]:
    return [100 * float(answer["shared"]) for answer in seen]


STUDIES = (Study("again", "The test bed with slowdowns of another session (not in the paper)", cases, read),)
