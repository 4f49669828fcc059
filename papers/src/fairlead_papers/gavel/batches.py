"""Makespan of a batch, and first in, first out over loads (Gavel §7.3)."""

from __future__ import annotations

from functools import partial

from fairlead.experiments.cases import Answer, Answers
from fairlead_papers.arms import Sweep, average_jct, figure
from fairlead_papers.findings import Findings, row
from fairlead_papers.gavel.las import HIGH, continuous
from fairlead_papers.gavel.runs import Arm, Jobs, Run
from fairlead_papers.gavel.scale import Scale
from fairlead_papers.study import Study

GAVEL = Arm("Gavel", "min-total-duration-perf")
GAVEL_SS = Arm("Gavel with space sharing", "min-total-duration-perf:space_sharing=true")
FIFO = Arm("FIFO", "fifo-any-type")
GREEDY = Arm("FIFO, fastest free type", "fifo")
GANDIVA = Arm("Gandiva packing", "gandiva-packing")
OSSP = Arm("agnostic makespan (OSSP)", "min-total-duration")
FIFO_PERF = Arm("Gavel", "fifo-perf")
FIFO_SS = Arm("Gavel with space sharing", "fifo-perf:space_sharing=true")
KNOWS = "policy `fifo` knows types: it takes the fastest that has room, which the paper's baseline does not"


def batch(scale: Scale, arm: Arm, load: float, seed: int) -> Run:
    return Run(arm.policy, scale.cluster, Jobs(None, scale.static_jobs, workers="multiple"), seed)


def static(scale: Scale) -> Sweep[Arm]:
    return Sweep((GAVEL, GAVEL_SS, FIFO, GREEDY, GANDIVA, OSSP), (0.0,), scale.seeds, partial(batch, scale))


def makespan(answer: Answer) -> float:
    return figure(answer, "makespan_s")


def _batch_size(scale: Scale) -> str:
    return f"{scale.per_type} of each type, {scale.static_jobs:,} jobs, seeds: {len(scale.seeds)}"


def read_makespan(scale: Scale, answers: Answers) -> Findings:
    given = static(scale)

    def gain(worse: Arm, better: Arm = GAVEL) -> float:
        return given.gain(answers, worse.label, better.label, 0.0, makespan)

    rows = [
        row("makespan, FIFO / Gavel", 2.5, lambda: gain(FIFO)),
        row("makespan, Gandiva packing / Gavel", 1.4, lambda: gain(GANDIVA)),
        row("makespan, agnostic (OSSP) / Gavel", None, lambda: gain(OSSP)),
        row("makespan, FIFO on the fastest free type / Gavel", None, lambda: gain(GREEDY), note=KNOWS),
        row("makespan, Gavel / Gavel with space sharing", 1.08, lambda: gain(GAVEL, GAVEL_SS)),
    ]
    pictures = (given.distribution(answers, "makespan-cdf", "When jobs of the batch end", "hours", "jct_s", 0.0),)
    return Findings(rows, pictures, [f"{scale.static_jobs:,} jobs with gangs as in Figure 10, all there at the start"])


def in_line(scale: Scale) -> Sweep[Arm]:
    high = HIGH["single"]
    arms = (FIFO, GREEDY, FIFO_PERF, FIFO_SS)
    return Sweep(arms, scale.few_loads(high), scale.seeds, partial(continuous, scale, "single", 0.0))


def read_fifo(scale: Scale, answers: Answers) -> Findings:
    given, high = in_line(scale), HIGH["single"]
    rows = [
        row(
            f"average JCT, FIFO / Gavel, at {high} jobs/hr",
            2.7,
            lambda: given.gain(answers, FIFO.label, FIFO_PERF.label, high, average_jct),
            note="the paper does not say at which load; that of Figure 9",
        ),
        row(
            f"average JCT, FIFO on the fastest free type / Gavel, at {high} jobs/hr",
            None,
            lambda: given.gain(answers, GREEDY.label, FIFO_PERF.label, high, average_jct),
            note=KNOWS,
        ),
        row(
            f"average JCT, FIFO / Gavel with space sharing, at {high} jobs/hr",
            3.8,
            lambda: given.gain(answers, FIFO.label, FIFO_SS.label, high, average_jct),
        ),
    ]
    pictures = (given.against_load(answers, "fifo-jct", "Average JCT against load", "average JCT, hours", average_jct),)
    return Findings(rows, pictures, given.notes(answers))


STUDIES = (
    Study("makespan", "Makespan of a batch", lambda scale: static(scale).cases(), read_makespan, _batch_size),
    Study("fifo", "First in, first out, single workers", lambda scale: in_line(scale).cases(), read_fifo),
)
