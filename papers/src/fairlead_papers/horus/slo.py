"""The interference SLO, which the original lacks: who is seen to be more than 1.5 times slower than alone is parted from its
company. How long is anybody beyond it, and how much company is left?"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fairlead.experiments.cases import Answers, Case
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus.jobs import SHARES
from fairlead_papers.horus.makespan import case, each, makespan_s, over
from fairlead_papers.horus.runs import CHOOSING, FIFO, HORUS, ROUND_S, SLO, Arm
from fairlead_papers.horus.scale import Scale
from fairlead_papers.study import Study

KEPT = Arm(f"Horus, SLO {SLO:g}", f"{{name: horus, {CHOOSING}, slo: {SLO}}}")
KEPT_SOONEST = Arm(f"Horus for makespan, SLO {SLO:g}", f"{{name: horus, {CHOOSING}, critical: true, slo: {SLO}}}")
KEPT_PLAIN = Arm(f"Horus, Algorithm 1, SLO {SLO:g}", f"{{name: horus, slo: {SLO}}}")
ROUNDS, SHARED = 2.0, 30.0
"""Nobody beyond it for more rounds; so many percent of accelerator time in company at least."""


def cases(scale: Scale) -> Iterable[Case]:
    arms = (FIFO, HORUS, KEPT, KEPT_SOONEST, KEPT_PLAIN)
    return (case(scale, workload, arm, seed) for workload in SHARES for arm in arms for seed in scale.seeds)


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for workload in SHARES:
        of = partial(each, scale, answers, workload)
        for arm in (HORUS, KEPT, KEPT_SOONEST, KEPT_PLAIN):
            free = arm is HORUS  # it has no SLO to keep, so nothing is asked of it
            at_most, wants = (None, Wants.NOTHING) if free else (ROUNDS, Wants.MOST)
            longest = partial(_longest, scale, answers, workload, arm)
            rows.append(row(f"longest stretch beyond it, {arm.label}: {workload}", at_most, longest, "rounds", wants))
            shared = partial(of, arm, lambda answer: 100 * float(answer["shared"]))
            at_least, wants = (None, Wants.NOTHING) if free else (SHARED, Wants.LEAST)
            rows.append(row(f"accelerator time in company, {arm.label}: {workload}", at_least, shared, "%", wants))
            beyond = partial(of, arm, lambda answer: 100 * float(answer["beyond"]))
            rows.append(row(f"job time beyond it, {arm.label}: {workload}", None, beyond, "%", Wants.NOTHING))
            gain = partial(over, scale, answers, workload, FIFO, arm, makespan_s)
            rows.append(row(f"makespan, FIFO / {arm.label}: {workload}", None, gain))
    return Findings(rows)


def _longest(scale: Scale, answers: Answers, workload: str, arm: Arm) -> float:
    """The worst of all seeds."""
    return max(each(scale, answers, workload, arm, lambda answer: float(answer["longest_beyond_s"]) / ROUND_S))


STUDIES = (Study("slo", f"An interference SLO of {SLO:g} (not in the paper)", cases, read),)
