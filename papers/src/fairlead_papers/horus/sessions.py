"""The test bed once more, with what one session measured of all pairs for truth, session by session: what of the gains hangs on
one host's hour. Schedulers believe what they did before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from fairlead.experiments.cases import Answer, Answers, Case
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus import makespan
from fairlead_papers.horus.jobs import SHARES
from fairlead_papers.horus.makespan import makespan_s
from fairlead_papers.horus.runs import FIFO, HORUS, OBP, PAB, SOONEST, Arm, Run
from fairlead_papers.horus.scale import Scale
from fairlead_papers.horus.truth import MeasuredPairs
from fairlead_papers.study import Study

ARMS = (FIFO, PAB, OBP, HORUS, SOONEST)


def case(scale: Scale, session: str, workload: str, arm: Arm, seed: int) -> Run:
    return replace(makespan.case(scale, workload, arm, seed), session=session)


def cases(scale: Scale) -> Iterable[Case]:
    each = ((session, workload, arm) for session in MeasuredPairs().sessions for workload in SHARES for arm in ARMS)
    return (case(scale, *one, seed) for one in each for seed in scale.seeds)


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for session in MeasuredPairs().sessions:
        for workload in SHARES:
            of = partial(_each, scale, answers, session, workload)
            for better in (HORUS, SOONEST):
                for worse in (FIFO, OBP, PAB):
                    what = f"makespan, {worse.label} / {better.label}: {workload}, {session}"
                    rows.append(row(what, 1.0, partial(_gain, of(worse), of(better)), wants=Wants.MORE))
    return Findings(rows, notes=(_NOTE,))


_NOTE = (
    "What is faster beside another than alone counts as equal, so that the noise of one session makes company look worse than"
    " it is, for all who pack; the mean of several has less of it."
)


def _each(scale: Scale, answers: Answers, session: str, workload: str, arm: Arm) -> Iterable[Answer]:
    """Seed by seed, when asked for: a case may have failed."""
    return (answers.of(case(scale, session, workload, arm, seed)) for seed in scale.seeds)


def _gain(worse: Iterable[Answer], better: Iterable[Answer]) -> list[float]:
    return [makespan_s(one) / makespan_s(other) for one, other in zip(worse, better)]


STUDIES = (Study("sessions", "The test bed by each session's slowdowns (not in the paper)", cases, read),)
