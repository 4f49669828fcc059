"""The case most studies are made of: jobs on a cluster under a scheduler, simulated in rounds or by exact shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.job import Phase, model_of
from fairlead.experiments.cases import Answer
from fairlead.experiments.inputs import ExperimentInputs, table_for, used_rates
from fairlead.experiments.metrics import MetricOptions, measured_rows, summarize
from fairlead.experiments.run_record import RunRecord
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import Generator
from fairlead.workloads.trace import Trace
from fairlead_papers.gavel.isolation import isolated_fairness, jobs_around
from fairlead_papers.ideal import ideal
from fairlead_papers.public_data import GavelInputs

ROUND_S = 360.0
GOING_ON_H = {"single": 3_000.0, "multiple": 16_000.0}
"""Jobs come for so many hours, and as many as are measured, beyond the measured ones: the load goes on until these have ended,
which takes gangs longest. How many are generated moves none of the others."""

IN_FULL = "gavel-rounds:carried=priority:stickiness=0"
"""Shares realised to the letter, for studies in which jobs come and go in nearly every round and preemption is free: otherwise
the largest shares would go first for ever."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a label, and in what it differs from the others."""

    label: str
    policy: str
    estimator: str = "oracle"
    ideal: bool = False


@dataclass(frozen=True)
class Jobs:
    """Generated jobs, or those of a published trace. `measure` are jobs by submission; None: all of them, to the end."""

    load: float | None = None  # per hour; None: all there at the start
    count: int = 0  # 0: as many as it takes to go on until the measured have ended
    measure: tuple[int, int] | None = None
    workers: str = "single"
    kinds: tuple[str, ...] = ()
    durations_s: tuple[float, ...] = ()
    priorities: float = 0.0
    slos: tuple[float, ...] = ()
    trace: str = ""

    def read(self, inputs: ExperimentInputs, seed: int) -> Trace:
        if self.trace:
            assert isinstance(inputs, GavelInputs)
            return inputs.trace(self.trace)
        generator = Generator(
            jobs=self.count or self._enough(),
            jobs_per_hour=self.load,
            table=inputs.table,
            kinds=self.kinds,
            durations=self.durations_s or "gavel",
            workers=self.workers,
            priorities=self.priorities,
            users=0,
            slos=self.slos,
        )
        return generator.trace(seed)

    def _enough(self) -> int:
        last = (self.measure or (0, 1))[1]
        return 2 * last + math.ceil((self.load or 0.0) * GOING_ON_H[self.workers])


@dataclass(frozen=True)
class Run:
    """One simulation. `costs_s` is by model what it takes to save and load again; `ideal` realises shares exactly."""

    policy: str
    cluster: str
    jobs: Jobs
    seed: int = 0
    round_s: float = ROUND_S
    mechanism: str = "gavel-rounds:carried=ties"
    estimator: str = "oracle"
    costs_s: tuple[tuple[str, float], ...] = ()
    ideal: bool = False

    def run(self, inputs: ExperimentInputs) -> Answer:
        trace = self.jobs.read(inputs, self.seed)
        cluster = Cluster.parse(self.cluster, accelerator_types())
        scheduler = SchedulerConfig(
            policy=parse_part(self.policy),
            mechanism=parse_part(self.mechanism),
            estimator=parse_part(self.estimator),
            round_s=self.round_s,
        )
        by_kind = {model: Costs(restart_s=s / 2, checkpoint_s=s / 2) for model, s in self.costs_s}
        costs = Costs(by_kind=by_kind)
        given = Simulation(trace, cluster, scheduler, inputs.table, costs, seed=self.seed, measure=self.jobs.measure)
        record = ideal(given) if self.ideal else run_simulation(given).record
        rates = used_rates(trace.jobs, table_for(trace, cluster, inputs.table))
        return _answer(record, rates, self.jobs, len(trace))


def _answer(record: RunRecord, rates: dict[str, tuple[float, ...]], asked: Jobs, generated: int) -> Answer:
    options = MetricOptions(measure=asked.measure)
    jobs, rows = record.jobs, measured_rows(record, options)
    done = rows & (jobs.phase == Phase.FINISHED)
    own = isolated_fairness(record, rates, jobs_around(record))
    alike = isolated_fairness(record, rates, np.full(len(jobs), float(record.cluster.size)))
    models: dict[str, list[float]] = {}
    for row in done.nonzero()[0].tolist():
        sums = models.setdefault(model_of(jobs.kinds[row]), [0.0, 0.0])
        sums[0] += float(jobs.restarts[row])
        sums[1] += float(jobs.run_s[row])
    figures = summarize(record, options).to_dict()
    return {
        "figures": figures,
        "jct_s": (jobs.ended_s - jobs.submitted_s)[done].round(1).tolist(),
        "weight": jobs.weight[done].tolist(),
        "ftf": own[done].round(5).tolist(),
        "ftf_alike": alike[done].round(5).tolist(),
        "models": {name: {"restarts": sums[0], "run_s": sums[1]} for name, sums in sorted(models.items())},
        "load_ended_early": asked.load is not None and not asked.count and len(jobs) >= generated,
    }
