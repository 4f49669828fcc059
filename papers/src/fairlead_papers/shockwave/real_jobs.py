"""The jobs of Table 3's real runs, and those on which the machine is measured before: an hour compressed to minutes, with
rounds of seconds and processes that sleep in the place of computing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import yaml

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.job import Job, batch_size_of, kind_of, model_of
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.dynamics import JobDynamics, Regimes
from fairlead.workloads.generate import Generator, batch_sizes_of
from fairlead.workloads.trace import Trace
from fairlead_papers.fidelity import RealCluster, in_whole_steps
from fairlead_papers.shockwave.runs import ROUND_S

TYPE, PER_NODE = "v100", 4
GANGS = {1: 0.6, 2: 0.3, 4: 0.1}
SPAN = 0.2
"""In which part of the time that all the work takes jobs arrive, as in the trace of 120."""
LOOKED_AT_S = 2.0
"""Agents tell of a job's size about once a second. In the paper's time a regime so short is of 48 s, less than half a round."""
SEEN_STEPS = 12
"""At least so many a job does at each batch size at which it is measured: then its speed counts as of that size."""


@dataclass(frozen=True)
class Real:
    """How large a real run is: so small that two cores are idle most of the time, and starts do not wait for each other."""

    jobs: int
    accelerators: int
    durations_s: tuple[float, float]  # the shortest and the longest, alone; even by the logarithm between them
    round_s: float = 5.0
    models: tuple[str, ...] = ("ResNet-18", "Transformer")
    gangs: tuple[int, ...] = tuple(GANGS)
    snapshot_s: float = 2.5  # at each batch size of a job that is measured: so long that its speed is told at least once
    stays_s: float = 10.0  # run time of those that keep their batch size meanwhile

    @property
    def cluster(self) -> RealCluster:
        machines = f"{self.accelerators}x{TYPE}:{min(PER_NODE, self.accelerators)}"
        return RealCluster(machines, catalogue().for_types((TYPE,)))

    def trace(self, seed: int) -> Trace:
        """Jobs as in the other studies, adapting by Accordion and by GNS. They come amid a round: at its boundary nobody could
        say whether a submission is in time for it."""
        least, most = self.durations_s
        total = sum(GANGS[size] for size in self.gangs)
        gangs = {size: GANGS[size] / total for size in self.gangs}
        work_s = self.jobs * (most - least) / np.log(most / least) * sum(size * share for size, share in gangs.items())
        made = Generator(
            self.jobs,
            jobs_per_hour=3600.0 * self.jobs / (SPAN * work_s / self.accelerators),
            table=catalogue(),
            kinds=self.models,
            reference_type=TYPE,
            durations=tuple(np.geomspace(least, most, 100).tolist()),
            workers=gangs,
            users=0,
            modes={"accordion": 0.5, "gns": 0.5},
            name="table3",
        ).trace(seed)
        jobs = [replace(job, submitted_s=self.round_s * (job.submitted_s // self.round_s + 0.5)) for job in made.jobs]
        dynamics = {job.name: self._to_be_seen(job, made.dynamics[job.name]) for job in jobs if job.name in made.dynamics}
        return in_whole_steps(replace(made, jobs=tuple(jobs), dynamics=dynamics), self.cluster.table)

    def _to_be_seen(self, job: Job, job_dynamics: JobDynamics) -> Regimes:
        """Without regimes that compressed time has made too short for anybody to see: their work is done at the size before, or
        for the first one, that of the next at its own."""
        assert isinstance(job_dynamics, Regimes)
        parts = list[tuple[int, float]]()
        for size, share in job_dynamics.parts:
            if parts and (self._lasts_s(job, size, share) < LOOKED_AT_S or self._lasts_s(job, *parts[-1]) < LOOKED_AT_S):
                parts[-1] = parts[-1][0], parts[-1][1] + share
            else:
                parts.append((size, share))
        return Regimes.of(job, parts)

    def _lasts_s(self, job: Job, size: int, share: float) -> float:
        steps = share * job.steps * (batch_size_of(job.kind) or 1) / size
        return steps / self._rate(kind_of(model_of(job.kind), size), job.workers)

    def calibration(self) -> Trace:
        """More jobs than there is room for: of each model and size of gang one that goes through all batch sizes, and others
        that keep theirs, which tell what a start costs."""
        jobs, dynamics = list[Job](), dict[str, JobDynamics]()
        for model in self.models:
            for workers in self.gangs:
                grows = self._job(f"grows-{model}-{workers}", model, workers)
                parts = self._all_sizes(grows)
                jobs.append(replace(grows, mode="gns", steps=sum(steps for _, steps in parts)))
                dynamics[grows.name] = Regimes.of(jobs[-1], [(size, steps / jobs[-1].steps) for size, steps in parts])
        for number, workers in enumerate((*self.gangs, *self.gangs[:1], *self.gangs[:2])):
            job = self._job(f"stays-{number}", self.models[0], workers)
            jobs.append(replace(job, steps=self.stays_s * self._rate(job.kind, workers)))
        return in_whole_steps(Trace.of(jobs, "calibration", dynamics=dynamics), self.cluster.table)

    def _job(self, name: str, model: str, workers: int) -> Job:
        kinds = [kind for kind, many in catalogue().keys if many == workers and model_of(kind) == model]
        smallest = min(kinds, key=lambda kind: batch_size_of(kind) or 0)
        return Job(name, kind=smallest, workers=workers, submitted_s=self.round_s / 2)

    def _all_sizes(self, job: Job) -> list[tuple[int, float]]:
        """Each batch size with the work to be done at it, in steps of the smallest."""
        model, own = model_of(job.kind), batch_size_of(job.kind) or 1
        sizes = batch_sizes_of(catalogue(), job.kind, job.workers)
        steps = {size: max(SEEN_STEPS, self.snapshot_s * self._rate(kind_of(model, size), job.workers)) for size in sizes}
        return [(size, steps[size] * size / own) for size in sizes]

    def _rate(self, kind: str, workers: int) -> float:
        table = self.cluster.table
        return float(table.alone[table.row(kind, workers), 0])

    def scheduler(self, arm: str) -> dict[str, Any]:
        """An arm with rounds of this length; what it has in seconds goes with them."""
        told: dict[str, Any] = yaml.safe_load(f"{{{arm}}}")
        turns = SchedulerConfig.from_data(told, "study").mechanism
        if turns.parameters:
            lengths = {
                name: turns.parameters[name] * self.round_s / ROUND_S for name in ("min_interval_s", "prior_s", "lease_s")
            }
            told["mechanism"] = {"name": turns.name, **turns.parameters, **lengths}
        return {**told, "rounds": self.round_s}
