"""The test bed with more seeds: of five, makespans vary more than packers differ, and many tell them apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from fairlead.experiments.cases import Answers, Case
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus import makespan
from fairlead_papers.horus.jobs import SHARES
from fairlead_papers.horus.makespan import makespan_s
from fairlead_papers.horus.runs import FIFO, HORUS, OBP, PAB, PLAIN, SOONEST
from fairlead_papers.horus.scale import Scale
from fairlead_papers.study import Study


def others(scale: Scale) -> Scale:
    return replace(scale, seeds=scale.more_seeds)


def cases(scale: Scale) -> Iterable[Case]:
    return makespan.cases(others(scale))


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for workload in SHARES:
        for better in (HORUS, SOONEST, PLAIN):
            for worse in (FIFO, OBP, PAB):
                gain = partial(makespan.over, others(scale), answers, workload, worse, better, makespan_s)
                rows.append(row(f"makespan, {worse.label} / {better.label}: {workload}", 1.0, gain, wants=Wants.AHEAD))
    first, last = scale.more_seeds[0], scale.more_seeds[-1]
    return Findings(rows, notes=(f"Seeds {first} to {last}. " + _NOTE,))


_NOTE = (
    "One makespan hangs on who begins last, which is chance for all who do not know run times: of one seed it differs by a"
    " tenth between schedulers that pack equally well."
)
STUDIES = (Study("seeds", "The test bed with other seeds (not in the paper)", cases, read),)
