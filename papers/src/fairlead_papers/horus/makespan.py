"""The test bed (Horus §6.1): makespan of 100 jobs on 12 accelerators (Table 6), their completion times (Figure 8) and how busy
the accelerators are (Figure 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.reporting.pictures import Distribution, Lines, PlotLine
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus.jobs import SHARES
from fairlead_papers.horus.runs import FIFO, HORUS, OBP, PAB, PLAIN, SOONEST, TESTBED, Arm, Run, percent
from fairlead_papers.horus.scale import Scale
from fairlead_papers.study import Study

MINUTES = {
    "W-Large": {"FIFO": 306.9, "PAB": 277.6, "OBP": 238.6, "Horus": 204.0},
    "W-Small": {"FIFO": 267.3, "PAB": 250.4, "OBP": 225.3, "Horus": 212.8},
}
"""Table 6."""
SLOWER = {"W-Large": 21.8, "W-Small": 30.3}
"""Figure 8: by how many percent jobs take longer than under FIFO, at most."""
BUSY = 69.0
"""Figure 9: the average utilization under Horus, in percent."""


def case(scale: Scale, workload: str, arm: Arm, seed: int) -> Run:
    return Run(arm.policy, scale.cluster, workload, scale.jobs, seed)


def cases(scale: Scale) -> Iterable[Case]:
    return (case(scale, workload, arm, seed) for workload in SHARES for arm in TESTBED for seed in scale.seeds)


def each(scale: Scale, answers: Answers, workload: str, arm: Arm, pick: Callable[[Answer], float]) -> list[float]:
    return [pick(answers.of(case(scale, workload, arm, seed))) for seed in scale.seeds]


def over(
    scale: Scale, answers: Answers, workload: str, worse: Arm, better: Arm, pick: Callable[[Answer], float]
) -> list[float]:
    """Seed by seed, by which factor a figure is smaller under `better`."""
    sides = (each(scale, answers, workload, arm, pick) for arm in (worse, better))
    return [one / other for one, other in zip(*sides)]


def makespan_s(answer: Answer) -> float:
    return float(answer["makespan_s"])


def read_makespan(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for workload, paper in MINUTES.items():
        gain = partial(over, scale, answers, workload)
        rows.append(
            row(
                f"makespan, FIFO: {workload}",
                paper["FIFO"],
                partial(each, scale, answers, workload, FIFO, lambda a: makespan_s(a) / 60),
                "min",
                Wants.NOTHING,
            )
        )
        for arm in (PAB, OBP, HORUS):
            known = paper["FIFO"] / paper[arm.label]
            rows.append(row(f"makespan, FIFO / {arm.label}: {workload}", known, partial(gain, FIFO, arm, makespan_s)))
        for arm in (SOONEST, PLAIN):
            rows.append(row(f"makespan, FIFO / {arm.label}: {workload}", None, partial(gain, FIFO, arm, makespan_s)))
        for better in (HORUS, SOONEST, PLAIN):
            for worse in (OBP, PAB):
                what = f"makespan, {worse.label} / {better.label}: {workload}"
                rows.append(row(what, 1.0, partial(gain, worse, better, makespan_s), wants=Wants.MORE))
    return Findings(rows, notes=(_NOTE,))


_NOTE = (
    "The packers here lose less than the paper's: no job runs out of memory on 141 GB with these trainings, and two heavy ones"
    " that take turns on an accelerator still do a little more together than one after the other. After the first minutes one"
    " place becomes free at a time; Algorithm 1 gives it to the next in line, as OBP does. Horus here chooses among the β in"
    " front (`match`), and two heavy ones hardly meet; then what a makespan hangs on is who begins last. For makespan, jobs go"
    " first that would last as long as all that is left (`critical`): by the steps that jobs say they make, which the paper's"
    " does not know."
)


def read_completion(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    pictures = []
    for workload in SHARES:
        for arm in (PAB, OBP, HORUS, SOONEST, PLAIN):
            for field, how in (("mean_jct_s", "from its start"), ("mean_jct_from_submission_s", "from submission")):
                slower = partial(_slower, scale, answers, workload, arm, field)
                paper, wants = (SLOWER[workload], Wants.MOST) if field == "mean_jct_s" else (None, Wants.NOTHING)
                rows.append(row(f"JCT {how}, {arm.label} over FIFO: {workload}", paper, slower, "%", wants))
        values = [
            (arm.label, [t / 60 for seed in scale.seeds for t in answers.of(case(scale, workload, arm, seed))["jct_s"]])
            for arm in TESTBED
        ]
        pictures.append(Distribution(f"fig8-{workload.lower()}", f"Completion from first start, {workload}", "minutes", values))
    return Findings(rows, pictures)


def _slower(scale: Scale, answers: Answers, workload: str, arm: Arm, field: str) -> list[float]:
    factors = over(scale, answers, workload, arm, FIFO, lambda answer: float(answer[field]))
    return [percent(factor - 1) for factor in factors]


def read_utilization(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    pictures = []
    for workload in SHARES:
        for arm in TESTBED:
            busy = partial(each, scale, answers, workload, arm, lambda answer: percent(answer["utilization"]))
            paper, wants = (BUSY, Wants.NEAR) if arm is HORUS else (None, Wants.NOTHING)
            rows.append(row(f"mean utilization, {arm.label}: {workload}", paper, busy, "%", wants))
        lines = [PlotLine(arm.label, *answers.of(case(scale, workload, arm, scale.seeds[0]))["busy"]) for arm in TESTBED]
        title = f"Utilization of the cluster, {workload}, seed {scale.seeds[0]}"
        pictures.append(Lines(f"fig9-{workload.lower()}", title, "minutes", "percent", lines))
    note = (
        "A job keeps a GPU busy for the same total time, whatever it is co-located with: the mean utilization is that work over"
        " the makespan, and gains are those of the makespan."
    )
    return Findings(rows, pictures, (note,))


STUDIES = (
    Study("table6", "Makespan on the test bed (Table 6)", cases, read_makespan),
    Study("fig8", "Completion times on the test bed (Figure 8)", cases, read_completion),
    Study("fig9", "Utilization on the test bed (Figure 9)", cases, read_utilization),
)
