"""The case most of Shockwave's studies are made of, its jobs on a cluster of one type under a scheduler; and who is
compared."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.engine.journal import Journal
from fairlead.experiments.cases import Answer
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import MetricOptions, finish_time_fairness, summarize
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead_papers.arms import figure
from fairlead_papers.shockwave.jobs import AdaptiveJobs, Jobs

ROUND_S, RESTART_S = 120.0, 20.0
STATIC = MetricOptions(contention="static", makespan_from="zero", unfair_above=1.0)


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a label, and the fields of a scheduler file."""

    label: str
    scheduler: str


SHOCKWAVE = Arm("Shockwave", "preset: shockwave")
THEMIS = Arm("Themis", "preset: themis-as-in-shockwave")
GAVEL = Arm("Gavel", "preset: gavel-as-in-shockwave")
ALLOX = Arm("AlloX", "preset: allox-as-in-shockwave")
OSSP = Arm("OSSP", "preset: ossp-as-in-shockwave")
MST = Arm("MST", "preset: mst-as-in-shockwave")
GANDIVA_FAIR = Arm("Gandiva-Fair", "preset: gandiva-fair-as-in-shockwave")
FAIR = (THEMIS, GAVEL, ALLOX)


def noisy(noise: float) -> Arm:
    """The preset's policy, told wrong run times."""
    return _preset_but(f"{100 * noise:.0f} %", noise=noise)


def cut_short(levels: int) -> Arm:
    """The preset's policy, whose plans are searched for on so many levels and no more."""
    return _preset_but(f"{levels} levels", levels=levels)


def _preset_but(label: str, **changed: float) -> Arm:
    parameters = SchedulerConfig.preset("shockwave").policy.parameters
    told = ", ".join(f"{name}: {value}" for name, value in {**parameters, **changed}.items())
    return Arm(label, f"preset: shockwave, policy: {{name: shockwave, {told}}}")


@dataclass(frozen=True)
class Run:
    """One simulation."""

    scheduler: str
    jobs: Jobs
    accelerators: int
    seed: int

    def record(self, inputs: ExperimentInputs, *, gantt: bool = False, journal: Journal | None = None) -> RunRecord:
        assert isinstance(inputs, AdaptiveJobs)
        trace, table = inputs.jobs(self.jobs, self.seed)
        config = SchedulerConfig.from_data(yaml.safe_load(f"{{{self.scheduler}}}"), "study")
        cluster = Cluster.parse(f"{self.accelerators}xv100:{self.accelerators}")
        given = Simulation(trace, cluster, config, table, Costs(restart_s=RESTART_S))
        return run_simulation(given, journal=journal, gantt=gantt).record

    def run(self, inputs: ExperimentInputs) -> Answer:
        record = self.record(inputs)
        rho = finish_time_fairness(record, STATIC.contention).round(4).tolist()
        return {"figures": summarize(record, STATIC).to_dict(), "rho": rho}


def makespan(answer: Answer) -> float:
    return figure(answer, "makespan_s")


def average_jct(answer: Answer) -> float:
    return figure(answer, "average_jct_s")


def worst_rho(answer: Answer) -> float:
    return figure(answer, "worst_ftf")


def unfair(answer: Answer) -> float:
    """In percent."""
    return 100.0 * figure(answer, "unfair_fraction")
