"""What the test bed's makespans could be at best, and what Horus owes to run times, slowdowns and pairs: against a bound, with
true slowdowns for predictions, and with jobs that come longest first, so that all know that much of run times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from fairlead.experiments.cases import Answers, Case
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus.bound import Bound
from fairlead_papers.horus.jobs import SHARES
from fairlead_papers.horus.makespan import case, makespan_s
from fairlead_papers.horus.runs import HORUS, OBP, PLAIN, SOONEST, Arm
from fairlead_papers.horus.scale import Scale
from fairlead_papers.study import Study

LEAST = "the least there can be"
TOLD, SORTED = ", true slowdowns", ", jobs longest first"


def runs(scale: Scale, workload: str, seed: int) -> dict[str, Case]:
    """By what rows call them."""

    def of(arm: Arm, told: bool = False, longest_first: bool = False) -> Case:
        return replace(case(scale, workload, arm, seed), told=told, longest_first=longest_first)

    return {
        LEAST: Bound(scale.cluster, workload, scale.jobs, seed),
        **{arm.label: of(arm) for arm in (OBP, HORUS, SOONEST)},
        **{arm.label + TOLD: of(arm, told=True) for arm in (HORUS, SOONEST, PLAIN)},
        **{arm.label + SORTED: of(arm, longest_first=True) for arm in (OBP, SOONEST)},
    }


def cases(scale: Scale) -> Iterable[Case]:
    return (one for workload in SHARES for seed in scale.seeds for one in runs(scale, workload, seed).values())


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for workload in SHARES:
        for arm in (OBP, HORUS, SOONEST):
            rows.append(_over(scale, answers, workload, arm.label, LEAST))
        for arm in (HORUS, SOONEST, PLAIN):
            rows.append(_over(scale, answers, workload, OBP.label, arm.label + TOLD))
        rows.append(_over(scale, answers, workload, OBP.label, OBP.label + SORTED))
        rows.append(_over(scale, answers, workload, OBP.label + SORTED, SOONEST.label + SORTED, Wants.MORE))
    return Findings(rows, notes=(_NOTE,))


_NOTE = (
    "The least there can be deals accelerator time out to pairs by their true slowdowns, as if jobs could be cut and moved at"
    " will, and is no less than the longest job alone. Where jobs come longest first, OBP has of run times what Horus has by"
    " `critical`; what Horus is ahead by there is due to the pairs."
)


def _over(scale: Scale, answers: Answers, workload: str, worse: str, better: str, wants: Wants = Wants.NOTHING) -> Row:
    found = partial(_ratios, scale, answers, workload, worse, better)
    return row(f"makespan, {worse} / {better}: {workload}", 1.0 if wants is Wants.MORE else None, found, wants=wants)


def _ratios(scale: Scale, answers: Answers, workload: str, worse: str, better: str) -> list[float]:
    every = [runs(scale, workload, seed) for seed in scale.seeds]
    return [makespan_s(answers.of(each[worse])) / makespan_s(answers.of(each[better])) for each in every]


STUDIES = (Study("limits", "What limits the makespan (not in the paper)", cases, read),)
