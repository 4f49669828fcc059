"""Estimated throughputs of jobs in company (Gavel §7.6, Figure 16), on 4 + 4 + 4 accelerators: a fifth of a kind's combinations
is timed, and the kind itself is none of the references it is compared with."""

from __future__ import annotations

from functools import partial

from fairlead.experiments.cases import Answers
from fairlead_papers.arms import Sweep, average_jct
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.gavel.las import GAVEL, GAVEL_SS, HIGH
from fairlead_papers.gavel.runs import IN_FULL, Arm, Jobs, Run
from fairlead_papers.gavel.scale import PAPER_PER_TYPE, Scale, cluster_of
from fairlead_papers.study import Study

PER_TYPE = 4
MOST = 1.05
"""Average JCT with estimated over that with true rates; the paper has lines that lie upon each other."""
ORACLE = Arm("space sharing, true rates", GAVEL_SS.policy)
ESTIMATED = Arm("space sharing, estimated rates", GAVEL_SS.policy, estimator="profiled:share=0.2:leave_out=true")
ALONE = Arm("no space sharing", GAVEL.policy)


def made(scale: Scale, arm: Arm, load: float, seed: int) -> Run:
    jobs = Jobs(load * PER_TYPE / PAPER_PER_TYPE, measure=scale.few_measure)
    return Run(arm.policy, cluster_of(PER_TYPE), jobs, seed, mechanism=IN_FULL, estimator=arm.estimator)


def sweep(scale: Scale) -> Sweep[Arm]:
    return Sweep((ORACLE, ESTIMATED, ALONE), scale.few_loads(HIGH["single"]), scale.seeds, partial(made, scale))


def _size(scale: Scale) -> str:
    first, last = scale.few_measure
    return f"4 + 4 + 4 GPUs, jobs {first:,}–{last - 1:,} measured, seeds: {len(scale.seeds)}"


def read(scale: Scale, answers: Answers) -> Findings:
    given, high = sweep(scale), HIGH["single"]
    rows = [
        row(
            f"average JCT, estimated / true rates, at {load:g} jobs/hr",
            MOST,
            lambda load=load: given.gains(answers, ESTIMATED.label, ORACLE.label, load, average_jct),  # type: ignore[misc]
            wants=Wants.MOST,
            note="the paper: a very small difference",
        )
        for load in given.loads
    ]
    rows.append(
        row(
            f"average JCT, no space sharing / estimated rates, at {high} jobs/hr",
            None,
            lambda: given.gains(answers, ALONE.label, ESTIMATED.label, high, average_jct),
        )
    )
    picture = given.against_load(answers, "fig16", "Estimated throughputs", "average JCT, hours", average_jct)
    notes = given.notes(answers)
    return Findings(rows, (picture,), notes)


STUDIES = (Study("fig16", "Figure 16: estimated throughputs", lambda scale: sweep(scale).cases(), read, _size),)
