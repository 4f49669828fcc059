"""The physical cluster's traces (Gavel §7.2): Table 3 on 8 V100, 16 P100 and 24 K80, and what preemption costs, Table 4.

Table 4 is modelled: saving and loading a model takes as long as makes the paper's overhead without lease renewals if it is paid
in every round of six minutes. With renewals a job pays it only when it is suspended and started again: the overhead is what the
restarts of a simulation took, of the time that its jobs ran."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fairlead.experiments.cases import Answer, Answers, CaseFailed
from fairlead_papers.arms import HOUR, average_jct, figure
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.gavel.las import GAVEL, HIGH, LAS
from fairlead_papers.gavel.runs import ROUND_S, Jobs, Run
from fairlead_papers.gavel.scale import Scale
from fairlead_papers.study import Study

CLUSTER = "8xv100:4,16xp100:4,24xk80:4"
SIZE = "8 V100, 16 P100, 24 K80, the whole trace"
CONTINUOUS, STATIC = Jobs(trace="max_min_fairness.trace"), Jobs(trace="minimize_makespan.trace")

TABLE_4 = (
    # model in the table of rates, in the paper, overhead without renewals and with them, in percent
    ("ResNet-18", "ResNet-18", 0.94, 0.17),
    ("ResNet-50", "ResNet-50", 1.58, 0.25),
    ("A3C", "A3C", 0.22, 0.0),
    ("LM", "LSTM", 2.91, 0.47),
    ("Transformer", "Transformer", 0.77, 0.11),
    ("CycleGAN", "CycleGAN", 0.77, 0.11),
)
COSTS = tuple((model, ROUND_S * without / 100.0) for model, _, without, _ in TABLE_4)


def table_3() -> dict[str, Run]:
    return {
        "Gavel": Run(GAVEL.policy, CLUSTER, CONTINUOUS),
        "LAS": Run(LAS.policy, CLUSTER, CONTINUOUS),
        "makespan": Run("min-total-duration-perf", CLUSTER, STATIC),
        "Gandiva": Run("gandiva-packing", CLUSTER, STATIC),
    }


def read_3(scale: Scale, answers: Answers) -> Findings:
    runs = table_3()

    def hours(name: str, what: str) -> float:
        return figure(answers.of(runs[name]), what) / HOUR

    jct, span = "average_jct_s", "makespan_s"
    rows = [
        row("average JCT, continuous trace, Gavel", 3.7, lambda: hours("Gavel", jct), "h", Wants.NEAR),
        row("average JCT, continuous trace, LAS", 5.4, lambda: hours("LAS", jct), "h", Wants.NEAR),
        row("average JCT, LAS / Gavel", 5.4 / 3.7, lambda: hours("LAS", jct) / hours("Gavel", jct)),
        row("makespan, static trace, Gavel", 17.6, lambda: hours("makespan", span), "h", Wants.NEAR),
        row("makespan, static trace, Gandiva packing", 22.1, lambda: hours("Gandiva", span), "h", Wants.NEAR),
        row("makespan, Gandiva packing / Gavel", 22.1 / 17.6, lambda: hours("Gandiva", span) / hours("makespan", span)),
    ]
    notes = [
        "the paper's simulated figures; 8 V100, 16 P100 and 24 K80 at every scale",
        "average JCT over all jobs of the trace: the paper averages 25 of them and does not say which",
    ]
    return Findings(rows, (), notes)


def costly() -> Run:
    """The continuous physical trace, on which the paper measured, with the costs."""
    return Run(GAVEL.policy, CLUSTER, CONTINUOUS, costs_s=COSTS)


def loaded(scale: Scale, costs_s: tuple[tuple[str, float], ...]) -> list[Run]:
    """Figure 9's jobs at its high load: many more jobs than accelerators, so that nearly everybody takes turns."""
    jobs = Jobs(scale.load(HIGH["single"]), measure=scale.measure)
    return [Run(GAVEL.policy, scale.cluster, jobs, seed, costs_s=costs_s) for seed in scale.seeds]


def read_4(scale: Scale, answers: Answers) -> Findings:
    rows = []
    for model, name, without, paper in TABLE_4:
        seconds = f"modelled: {ROUND_S * without / 100:.1f} s to save and load; {without} % if paid in every round"
        ours, high = (partial(_overhead, answers, runs, model, without) for runs in ([costly()], loaded(scale, COSTS)))
        rows.append(row(f"{name}, with lease renewals", paper, ours, "%", Wants.MOST, seconds, SIZE))
        rows.append(row(f"{name}, at Figure 9's high load", None, high, "%", Wants.NOTHING))

    def slower() -> float:
        with_costs, without = (sum(average_jct(answers.of(run)) for run in loaded(scale, costs)) for costs in (COSTS, ()))
        return with_costs / without

    rows.append(row("average JCT with these costs / without, at Figure 9's high load", None, slower, wants=Wants.NOTHING))
    notes = [
        "half of the seconds are paid for saving when a job is suspended, half for loading when it starts again",
        "the claims are held against the continuous physical trace, as in the paper; the high load is for comparison",
    ]
    return Findings(rows, (), notes)


def _overhead(answers: Answers, runs: Sequence[Run], model: str, without: float) -> float:
    found: list[Answer] = [answers.of(run)["models"].get(model, {"restarts": 0.0, "run_s": 0.0}) for run in runs]
    ran = sum(sums["run_s"] for sums in found)
    if not ran:
        raise CaseFailed(f"no measured job was of model {model}")
    return float(without * ROUND_S * sum(sums["restarts"] for sums in found) / ran)


STUDIES = (
    Study("table3", "Table 3: the physical cluster's traces", lambda _: table_3().values(), read_3, lambda _: SIZE),
    Study(
        "table4",
        "Table 4: what preemption costs (modelled)",
        lambda scale: [costly(), *loaded(scale, COSTS), *loaded(scale, ())],
        read_4,
    ),
)
