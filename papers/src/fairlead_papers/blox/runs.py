"""The case most of Blox' studies are made of: a workload on V100s under a scheduler of parts, in rounds of five minutes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import yaml

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.job import Phase
from fairlead.experiments.cases import Answer
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import MetricOptions, measured_rows, summarize
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.catalogue import accelerator_types
from fairlead_papers.blox.scale import Scale
from fairlead_papers.blox.traces import PublicTraces, Workload


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a label, and the fields of a scheduler file."""

    label: str
    scheduler: str

    @property
    def config(self) -> SchedulerConfig:
        return SchedulerConfig.from_data({**yaml.safe_load(f"{{{self.scheduler}}}"), "name": self.label}, "study")


@dataclass(frozen=True)
class Run:
    """One simulation. `restart_s` is what it takes to go on after a suspension."""

    scheduler: str
    cluster: str
    workload: Workload
    seed: int
    restart_s: float = 0.0

    def run(self, inputs: ExperimentInputs) -> Answer:
        given = simulation(
            Arm("studied", self.scheduler).config, self.cluster, self.workload, self.seed, inputs, self.restart_s
        )
        return answer(run_simulation(given).record, self.workload, len(given.trace))


def simulation(
    config: SchedulerConfig, cluster: str, workload: Workload, seed: int, inputs: ExperimentInputs, restart_s: float = 0.0
) -> Simulation:
    assert isinstance(inputs, PublicTraces)
    machine = Cluster.parse(cluster, accelerator_types())
    trace, table = inputs.jobs(workload, seed), inputs.table_with(workload.sensitive)
    return Simulation(trace, machine, config, table, Costs(restart_s=restart_s), seed=seed, measure=workload.measure)


def answer(record: RunRecord, asked: Workload, came: int) -> Answer:
    options = MetricOptions(measure=asked.measure)
    jobs = record.jobs
    done = measured_rows(record, options) & (jobs.phase == Phase.FINISHED)
    return {
        "figures": summarize(record, options).to_dict(),
        "jct_s": (jobs.ended_s - jobs.submitted_s)[done].round(1).tolist(),
        "load_ended_early": len(jobs) >= came,
        "demand": demand(record, asked.measure),
    }


def demand(record: RunRecord, measure: tuple[int, int]) -> float:
    """While the measured jobs come, the share of the cluster that would be in use if nobody had to wait."""
    jobs = record.jobs
    begin, end = jobs.submitted_s[measure[0]], jobs.submitted_s[: measure[1]][-1]
    there = np.minimum(jobs.submitted_s + jobs.exclusive_s, end) - np.maximum(jobs.submitted_s, begin)
    used = float((jobs.workers * np.maximum(there, 0.0)).sum())
    return used / (record.cluster.size * max(float(end - begin), 1.0))


def made(
    scale: Scale,
    durations: str,
    arm: Arm,
    load: float,
    seed: int,
    *,
    restart_s: float = 0.0,
    spike: int = 0,
    losses: bool = False,
) -> Run:
    """An arm at one of the paper's loads, with the cluster and the window of a scale."""
    here = scale.load(load)
    workload = Workload(durations, here, scale.measure, round(scale.load(spike)), losses=losses)
    return Run(arm.scheduler, scale.cluster, workload, seed, restart_s)
