"""How true the simulator is (§8.5, Table 3): jobs whose batch sizes change, in real processes under a real cluster of this
machine, and the same in simulation (`real_jobs.py`). Time is compressed, except for what a start costs: that is measured, as
rates are, in a run before, on other jobs, and told to the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fairlead.core.events import Event
from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed, ReportProgress, silent
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import summarize
from fairlead.reporting.pictures import Points
from fairlead.runtime.embedded import ClusterStartError
from fairlead.runtime.http_client import RefusedRequest, Unreachable
from fairlead.workloads.trace import Trace
from fairlead_papers.fidelity import NotFinished, beside, measured
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.shockwave.real_jobs import Real
from fairlead_papers.shockwave.runs import (
    ALLOX,
    GANDIVA_FAIR,
    GAVEL,
    MST,
    OSSP,
    SHOCKWAVE,
    STATIC,
    THEMIS,
    Arm,
    average_jct,
    makespan,
    unfair,
)
from fairlead_papers.shockwave.scale import Scale
from fairlead_papers.study import Study

METRICS = replace(STATIC, makespan_from="first-submission")
TAKING_TURNS = {"policy": "las"}
MEASURED = "rates and what starts cost are measured in a run before each, on other jobs that take turns"


@dataclass(frozen=True)
class RealRun:
    """One policy, in real time and simulated. It wants the machine for itself: what it measures is how busy that is."""

    scheduler: str
    real: Real
    seed: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        return self.run_alone(inputs, silent)

    def run_alone(self, inputs: ExperimentInputs, report: ReportProgress) -> Answer:
        real, scheduler = self.real, self.real.scheduler(self.scheduler)
        cluster, trace = real.cluster, real.trace(self.seed)

        def ran(which: Trace, under: Mapping[str, Any], what: str) -> list[Event]:
            return cluster.run(which, under, lambda how_far: report(f"table3: {what} on a real cluster, {how_far}"))

        try:
            told = measured(ran(real.calibration(), {**TAKING_TURNS, "rounds": real.round_s}, "measuring"), cluster.table)
            found = beside(trace, scheduler, told, ran(trace, scheduler, scheduler.get("preset") or scheduler["policy"]))
        except (ClusterStartError, Unreachable, RefusedRequest, NotFinished, OSError) as problem:
            raise CaseFailed(f"a real cluster could not be run here: {problem}") from problem
        return {
            "real": summarize(found.real, METRICS).to_dict(),
            "simulated": summarize(found.simulated, METRICS).to_dict(),
            "by_job": found.by_job.round(6).tolist(),
            "launch_s": told.costs.launch_s,
            "restart_s": told.costs.restart_s,
        }


@dataclass(frozen=True)
class Reals:
    """What is run at a scale."""

    real: Real
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0,)

    @property
    def told(self) -> str:
        jobs = f"{self.real.jobs} jobs on {self.real.accelerators} GPUs in real time"
        return f"{jobs}, rounds of {self.real.round_s:g} s: {', '.join(arm.label for arm in self.arms)}"


BY_SCALE = {
    "tiny": Reals(Real(5, 2, (3.0, 8.0), 3.0, ("ResNet-18",), (1,), 1.5, 4.0), (SHOCKWAVE,)),
    "small": Reals(Real(24, 8, (8.0, 65.0)), (SHOCKWAVE, GAVEL, THEMIS)),
    "medium": Reals(Real(24, 8, (8.0, 65.0)), (SHOCKWAVE, GAVEL, THEMIS, ALLOX, OSSP), (0, 1)),
    "full": Reals(Real(30, 8, (10.0, 150.0)), (SHOCKWAVE, GAVEL, THEMIS, ALLOX, OSSP, MST, GANDIVA_FAIR), (0, 1)),
}
"""The first is for tests. Each policy takes as long as its jobs do, and a minute for measuring."""


def made(scale: Scale, arm: Arm, seed: int) -> RealRun:
    return RealRun(arm.scheduler, BY_SCALE[scale.name].real, seed)


def cases(scale: Scale) -> Iterable[Case]:
    size = BY_SCALE[scale.name]
    return (made(scale, arm, seed) for arm in size.arms for seed in size.seeds)


Apart = Callable[[Answer], float]


def part(pick: Callable[[Answer], float]) -> Apart:
    """|simulated − real| / real, in percent."""

    def apart(answer: Answer) -> float:
        real = pick(side(answer, "real"))
        return 100.0 * abs(pick(side(answer, "simulated")) - real) / real

    return apart


def side(answer: Answer, which: str) -> Answer:
    return {"figures": answer[which]}


def unfair_apart(answer: Answer) -> float:
    """In percentage points."""
    return abs(unfair(side(answer, "simulated")) - unfair(side(answer, "real")))


def job_by_job(answer: Answer) -> float:
    return 100.0 * float(np.mean(answer["by_job"]))


def read(scale: Scale, answers: Answers) -> Findings:
    size = BY_SCALE[scale.name]

    def over_policies(apart: Apart) -> list[float]:
        """A mean for each seed."""
        return [float(np.mean([apart(answers.of(made(scale, arm, seed))) for arm in size.arms])) for seed in size.seeds]

    mean = "|simulated − real| / real, mean over policies"
    told = "percentage points between simulated and real"
    rows = [
        row(f"makespan, {mean}", 4.97, partial(over_policies, part(makespan)), "%", Wants.MOST),
        row(f"average JCT, {mean}", 4.62, partial(over_policies, part(average_jct)), "%", Wants.MOST),
        row("unfair jobs, likewise", 3.83, partial(over_policies, unfair_apart), "%", Wants.MOST, note=told),
        row("JCT job by job, likewise", None, partial(over_policies, job_by_job), "%", Wants.NOTHING),
    ]
    known, labels = list(_known(size, scale, answers)), tuple(arm.label for arm in size.arms)
    places = [labels.index(arm.label) for arm, _, _ in known]
    figures = (("makespan", part(makespan)), ("average JCT", part(average_jct)), ("unfair jobs", unfair_apart))
    clouds = [(what, places, [apart(found) for _, _, found in known]) for what, apart in figures if known]
    notes = [MEASURED, *(f"{arm.label}, seed {seed}: {_figures(found)}" for arm, seed, found in known)]
    picture = Points("table3", "Simulated and real, by policy", "", "apart, %", clouds, ticks=labels)
    return Findings(rows, (picture,), notes)


def _known(size: Reals, scale: Scale, answers: Answers) -> Iterable[tuple[Arm, int, Answer]]:
    for arm in size.arms:
        for seed in size.seeds:
            try:
                yield arm, seed, answers.of(made(scale, arm, seed))
            except CaseFailed:
                continue


def _figures(found: Answer) -> str:
    picks = (("makespan {} s", makespan), ("average JCT {} s", average_jct), ("unfair {} %", unfair))
    told = [text.format(f"{pick(side(found, 'real')):.1f} / {pick(side(found, 'simulated')):.1f}") for text, pick in picks]
    starts = f"a first start cost {found['launch_s']:.2f} s, a later one {found['restart_s']:.2f} s"
    preemptions = f"preemptions {found['real']['preemptions']} / {found['simulated']['preemptions']}"
    return f"real / simulated {', '.join(told)}, {preemptions}; {starts}"


STUDIES = (Study("table3", "Table 3: simulated and real", cases, read, lambda scale: BY_SCALE[scale.name].told),)
