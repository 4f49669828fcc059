"""The large simulation (Horus §6.2): waiting times (Table 7), utilization and makespan (Figure 10a, b), and the number of
queues (Figure 10c, d)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus.jobs import MONTH
from fairlead_papers.horus.makespan import makespan_s
from fairlead_papers.horus.runs import CHOOSING, FIFO, HORUS, OBP, PLAIN, SOONEST, Arm, Run, mean_wait_s, median_wait_s, percent
from fairlead_papers.horus.scale import Scale
from fairlead_papers.study import Study

BACKFILLING = Arm("FIFO, passing", "{name: fifo, backfill: true}")
FAIR = Arm("Horus-f", f"{{name: horus, queues: 3, {CHOOSING}}}")
ARMS = (FIFO, BACKFILLING, OBP, HORUS, FAIR, SOONEST, PLAIN)
WAITS = {"FIFO": 466.2, "OBP": 347.8, "Horus": 156.5, "Horus-f": 147.6}
"""Table 7, the mean in the paper's steps."""


def queues(k: int) -> Arm:
    return Arm(f"k = {k}", f"{{name: horus, queues: {k}, {CHOOSING}}}")


def case(scale: Scale, arm: Arm, seed: int) -> Run:
    return Run(arm.policy, scale.month_cluster, MONTH, scale.month_jobs, seed)


def cases(scale: Scale) -> Iterable[Case]:
    return (case(scale, arm, seed) for arm in ARMS for seed in scale.month_seeds)


def cases_of_k(scale: Scale) -> Iterable[Case]:
    return (case(scale, queues(k), seed) for k in scale.queues for seed in scale.month_seeds)


def each(scale: Scale, answers: Answers, arm: Arm, pick: Callable[[Answer], float]) -> list[float]:
    return [pick(answers.of(case(scale, arm, seed))) for seed in scale.month_seeds]


def over(scale: Scale, answers: Answers, worse: Arm, better: Arm, pick: Callable[[Answer], float]) -> list[float]:
    sides = list(zip(each(scale, answers, worse, pick), each(scale, answers, better, pick)))
    if not all(better for _, better in sides):
        raise CaseFailed("no job had to wait")
    return [one / other for one, other in sides]


def minutes(pick: Callable[[Answer], float]) -> Callable[[Answer], float]:
    return lambda answer: pick(answer) / 60


def read_waits(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for arm in ARMS:
        wait = partial(each, scale, answers, arm, minutes(mean_wait_s))
        rows.append(row(f"mean wait, {arm.label}", None, wait, "min", Wants.NOTHING))
    for arm in (OBP, HORUS, FAIR, SOONEST, PLAIN):
        known = WAITS["FIFO"] / WAITS[arm.label] if arm.label in WAITS else None
        rows.append(row(f"mean wait, FIFO / {arm.label}", known, partial(over, scale, answers, FIFO, arm, mean_wait_s)))
    rows.append(row("mean wait, FIFO, passing / Horus", None, partial(over, scale, answers, BACKFILLING, HORUS, mean_wait_s)))
    for arm in ARMS:
        median = partial(each, scale, answers, arm, minutes(median_wait_s))
        rows.append(row(f"median wait, {arm.label}", None, median, "min", Wants.NOTHING))
    return Findings(rows, notes=(_NOTE,))


_NOTE = (
    "FIFO lets nobody pass a gang that finds no room; FIFO, passing, does. What Horus gains over the latter it owes to sharing."
    " Only gangs of one size share GPUs here."
)


def read_large(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for arm in (OBP, HORUS, FAIR, SOONEST):
        shorter = partial(over, scale, answers, FIFO, arm, makespan_s)
        rows.append(row(f"makespan, FIFO / {arm.label}", None, shorter))
        busy = partial(_more, scale, answers, arm)
        paper, wants = (24.0, Wants.GAIN) if arm in (HORUS, FAIR) else (None, Wants.NOTHING)
        rows.append(row(f"mean utilization, {arm.label} over FIFO", paper, busy, "%", wants))
    lines = [PlotLine(arm.label, *answers.of(case(scale, arm, scale.month_seeds[0]))["busy"]) for arm in ARMS]
    picture = Lines("fig10a", f"Utilization of the large cluster, seed {scale.month_seeds[0]}", "minutes", "percent", lines)
    return Findings(rows, (picture,))


def _more(scale: Scale, answers: Answers, arm: Arm) -> list[float]:
    return [percent(one - 1) for one in over(scale, answers, arm, FIFO, lambda answer: float(answer["utilization"]))]


def read_k(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    base = queues(scale.queues[0])
    for k in scale.queues[1:]:
        for what, pick in (("mean wait", mean_wait_s), ("makespan", makespan_s)):
            more = partial(over, scale, answers, base, queues(k), pick)
            rows.append(row(f"{what}, {base.label} / k = {k}", None, more))
    wait = [sum(each(scale, answers, queues(k), minutes(mean_wait_s))) / len(scale.month_seeds) for k in scale.queues]
    length = [sum(each(scale, answers, queues(k), minutes(makespan_s))) / len(scale.month_seeds) for k in scale.queues]
    lines = [PlotLine("mean wait", scale.queues, wait), PlotLine("makespan", scale.queues, length)]
    return Findings(rows, (Lines("fig10cd", "The number of queues", "k", "minutes", lines),))


STUDIES = (
    Study("table7", "Waiting in the large simulation (Table 7)", cases, read_waits, lambda scale: scale.month_size),
    Study("fig10", "Makespan and utilization there (Figure 10a, b)", cases, read_large, lambda scale: scale.month_size),
    Study("queues", "The number of queues (Figure 10c, d)", cases_of_k, read_k, lambda scale: scale.month_size),
)
