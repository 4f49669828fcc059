"""Cost with and without deadlines (Gavel §7.3): ResNet-50 and A3C jobs of half a day to eight days, each due within
1.2, 2 or 10 times its duration. Only shares are realised (no leftovers): an accelerator that
nobody was allocated costs nothing."""

from __future__ import annotations

from functools import partial

from fairlead.experiments.cases import Answer, Answers
from fairlead_papers.arms import Sweep, figure
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.gavel.runs import Arm, Jobs, Run
from fairlead_papers.gavel.scale import Scale
from fairlead_papers.study import Study

BASE = Arm("most throughput", "max-sum-throughput-perf")
CHEAP = Arm("least cost", "min-cost")
IN_TIME = Arm("least cost, deadlines kept", "min-cost-slo")
EXACT = Arm("least cost, deadlines kept, exact shares", "min-cost-slo", ideal=True)
DAY_S = 86_400.0
DAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
SLOS = (1.2, 2.0, 10.0)
KINDS = ("ResNet-50 (batch size 64)", "A3C")  # one batch size, so that half of the jobs are of either model
LOAD = 0.3
"""Jobs per hour; the paper does not tell. At 0.3 all of them would keep 22 of 36 V100s busy: every deadline can be kept."""


def made(scale: Scale, arm: Arm, load: float, seed: int) -> Run:
    durations = tuple(days * DAY_S for days in DAYS)
    jobs = Jobs(scale.load(load), scale.cost_jobs, kinds=KINDS, durations_s=durations, slos=SLOS)
    return Run(
        arm.policy, scale.cluster, jobs, seed, mechanism="gavel-rounds:carried=ties:work_conserving=false", ideal=arm.ideal
    )


def sweep(scale: Scale) -> Sweep[Arm]:
    return Sweep((BASE, CHEAP, IN_TIME, EXACT), (LOAD,), scale.seeds, partial(made, scale))


def cost(answer: Answer) -> float:
    return figure(answer, "cost")


def late(answer: Answer) -> float:
    return 100.0 * figure(answer, "deadline_misses") / figure(answer, "jobs")


def _size(scale: Scale) -> str:
    return f"{scale.per_type} of each type, {scale.cost_jobs:,} jobs, seeds: {len(scale.seeds)}"


def read(scale: Scale, answers: Answers) -> Findings:
    given = sweep(scale)

    def gain(better: Arm) -> float:
        return given.gain(answers, BASE.label, better.label, LOAD, cost)

    def violated(arm: Arm) -> float:
        return given.mean(answers, arm.label, LOAD, late)

    rows = [
        row("cost, most throughput / least cost", 1.4, lambda: gain(CHEAP)),
        row("deadlines missed at least cost", 35.0, lambda: violated(CHEAP), "%", Wants.NEAR),
        row("cost, most throughput / least cost with deadlines", 1.2, lambda: gain(IN_TIME)),
        row("deadlines missed at least cost with deadlines", 0.0, lambda: violated(IN_TIME), "%", Wants.MOST),
        row(
            "the same, were shares realised exactly",
            None,
            lambda: violated(EXACT),
            "%",
            Wants.NOTHING,
            note="one run without rounds: it tells the policy's misses from those of rounds; its cost is not known",
        ),
        row("deadlines missed at most throughput", None, lambda: violated(BASE), "%", Wants.NOTHING),
    ]
    notes = [
        f"{scale.cost_jobs:,} jobs, half {KINDS[0]}, half {KINDS[1]}, arriving at {LOAD} per hour (the paper does not say how)",
        "prices per hour: V100 2.48, P100 1.46, K80 0.45; the cost of GPUs while jobs hold them",
        *given.notes(answers),
    ]
    return Findings(rows, (), notes)


STUDIES = (Study("cost", "Cost, with and without deadlines", lambda scale: sweep(scale).cases(), read, _size),)
