"""Pollux' own jobs (§8.7 and appendix J): Shockwave beside Pollux, which changes the number of workers too (Figure 11), and
beside others who do not (Figure 17). All have the batch sizes that jobs had under Pollux (`replayed.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import yaml

from fairlead.config.schedulers import SchedulerConfig
from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import MetricOptions, finish_time_fairness, summarize
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.reporting.pictures import Distribution, Picture
from fairlead.simulator.costs import Costs
from fairlead_papers.arms import known
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.shockwave.jobs import AdaptiveJobs
from fairlead_papers.shockwave.replayed import START_S, Replayed, cluster_of, every_so_many, replayed
from fairlead_papers.shockwave.runs import FAIR, SHOCKWAVE, Arm, average_jct, makespan, unfair, worst_rho
from fairlead_papers.shockwave.scale import Scale
from fairlead_papers.study import Study

OWN, FEWER = 64, 32
"""Accelerators: of Pollux' own cluster, which Figure 11 is taken to be of, and of Figure 17."""

DEMAND = MetricOptions(contention="demand", makespan_from="zero", unfair_above=1.0)
"""Jobs come for hours and ask for seven accelerators on average: how many of these are asked for at a time is the contention,
and not how many jobs there are in all."""


@dataclass(frozen=True)
class Elastic:
    """One in `every` jobs of a workload under Pollux. What a job would take alone is as for the others."""

    workload: int
    every: int
    accelerators: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        found = _found(inputs, self.workload, self.every, self.accelerators)
        return _answer(replace(found.record, jobs=replace(found.record.jobs, exclusive_s=found.alone_s)))


@dataclass(frozen=True)
class Rigid:
    """The same jobs under another scheduler, each with the workers it asked for."""

    scheduler: str
    workload: int
    every: int
    accelerators: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        found = _found(inputs, self.workload, self.every, self.accelerators)
        config = SchedulerConfig.from_data(yaml.safe_load(f"{{{self.scheduler}}}"), "study")
        cluster, costs = cluster_of(self.accelerators), Costs(launch_s=START_S, restart_s=START_S)
        return _answer(run_simulation(Simulation(found.trace, cluster, config, found.table, costs)).record)


def _found(inputs: ExperimentInputs, workload: int, every: int, accelerators: int) -> Replayed:
    assert isinstance(inputs, AdaptiveJobs)
    return _kept(inputs, workload, every, accelerators)


@lru_cache(maxsize=4)
def _kept(inputs: AdaptiveJobs, workload: int, every: int, accelerators: int) -> Replayed:
    """Pollux is most of the work, and all cases of a workload rest on it."""
    return replayed(every_so_many(inputs.pollux_jobs(workload), every, accelerators), accelerators)


def _answer(record: RunRecord) -> Answer:
    jobs = record.jobs
    return {
        "figures": summarize(record, DEMAND).to_dict(),
        "rho": finish_time_fairness(record, DEMAND.contention).round(4).tolist(),
        "accelerator_h": float(np.nanmean(jobs.accelerator_s)) / 3600.0,
    }


def elastic(scale: Scale) -> list[Elastic]:
    return [Elastic(workload, scale.every, OWN // scale.every) for workload in scale.workloads]


def rigid(scale: Scale, arm: Arm, accelerators: int) -> list[Rigid]:
    return [Rigid(arm.scheduler, workload, scale.every, accelerators // scale.every) for workload in scale.workloads]


def beside_pollux(scale: Scale) -> Iterable[Case]:
    return (*elastic(scale), *rigid(scale, SHOCKWAVE, OWN))


def beside_others(scale: Scale) -> Iterable[Case]:
    return (case for arm in (SHOCKWAVE, *FAIR) for case in rigid(scale, arm, FEWER))


def hours(answer: Answer) -> float:
    return float(answer["accelerator_h"])


def _figures(answers: Answers, cases: Iterable[Case], pick: Callable[[Answer], float]) -> list[float]:
    return [pick(answers.of(case)) for case in cases]


def read_pollux(scale: Scale, answers: Answers) -> Findings:
    def of(ours: bool, pick: Callable[[Answer], float]) -> list[float]:
        return _figures(answers, rigid(scale, SHOCKWAVE, OWN) if ours else elastic(scale), pick)

    def times(pick: Callable[[Answer], float]) -> list[float]:
        """Shockwave's, in Pollux'."""
        return [mine / theirs for mine, theirs in zip(of(True, pick), of(False, pick))]

    def fairer(pick: Callable[[Answer], float]) -> list[float]:
        return [1 / each for each in times(pick)]

    rows = [
        row("average JCT, Shockwave / Pollux", 3.0, partial(times, average_jct), wants=Wants.NEAR),
        row("accelerator time of a job, Shockwave / Pollux", 2.4, partial(times, hours), wants=Wants.NEAR),
        row(
            "makespan, Shockwave / Pollux",
            1.1,
            partial(times, makespan),
            wants=Wants.MOST,
            note="similar, in the paper's words",
        ),
        row("worst ρ, Pollux / Shockwave", 1.0, partial(fairer, worst_rho), wants=Wants.MORE),
        row("unfair jobs of Shockwave", None, partial(of, True, unfair), "%"),
        row("unfair jobs of Pollux", None, partial(of, False, unfair), "%"),
    ]
    sides = (("Shockwave", rigid(scale, SHOCKWAVE, OWN)), ("Pollux", elastic(scale)))
    return Findings(rows, _distribution(answers, "fig11", sides))


def read_others(scale: Scale, answers: Answers) -> Findings:
    def gains(pick: Callable[[Answer], float]) -> list[float]:
        others = np.mean([_figures(answers, rigid(scale, arm, FEWER), pick) for arm in FAIR], axis=0).tolist()
        return [old / new for old, new in zip(others, _figures(answers, rigid(scale, SHOCKWAVE, FEWER), pick))]

    def own(pick: Callable[[Answer], float]) -> list[float]:
        return _figures(answers, rigid(scale, SHOCKWAVE, FEWER), pick)

    rows = [
        row("makespan, mean of Themis, Gavel and AlloX / Shockwave", 1.2, partial(gains, makespan)),
        row("worst ρ, the same", 1.0, partial(gains, worst_rho), wants=Wants.MORE),
        row("average JCT, the same", None, partial(gains, average_jct)),
        row("unfair jobs of Shockwave", None, partial(own, unfair), "%"),
    ]
    sides = tuple((arm.label, rigid(scale, arm, FEWER)) for arm in (SHOCKWAVE, *FAIR))
    return Findings(rows, _distribution(answers, "fig17", sides))


def _distribution(answers: Answers, name: str, sides: Iterable[tuple[str, Iterable[Case]]]) -> tuple[Picture, ...]:
    values = []
    for label, cases in sides:
        try:
            values.append((label, [one for case in cases for one in known(answers.of(case)["rho"])]))
        except CaseFailed:
            continue
    return (Distribution(name, "Finish-time fairness on Pollux' jobs", "ρ", values),)


def _told(scale: Scale, accelerators: int) -> str:
    jobs = f"one in {scale.every} jobs" if scale.every > 1 else "all jobs"
    which = ", ".join(map(str, scale.workloads))
    return f"{jobs} of Pollux' workload {which} on {accelerators // scale.every} GPUs"


STUDIES = (
    Study("fig11", "Figure 11: compared with Pollux", beside_pollux, read_pollux, lambda scale: _told(scale, OWN)),
    Study("fig17", "Figure 17: Pollux' jobs", beside_others, read_others, lambda scale: _told(scale, FEWER)),
)
