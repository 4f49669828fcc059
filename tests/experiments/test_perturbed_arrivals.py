"""Arrivals a microsecond later: no job may wait for another round, and so no decision may change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.rng import stream
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.generate import Generator

pytestmark = pytest.mark.long

IN_ROUNDS = "gavel-rounds:min_interval_s=720:newcomers=wait:lease_s=360"
POLICIES = ("allox", "fifo", "fifo-perf:greedy=true", "las", "max-min-fairness-perf", "sjf-perf", "themis-ranking", "tiresias")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mechanism", ["gavel-rounds", IN_ROUNDS])
def test_microseconds_between_arrivals_and_rounds_do_not_matter(policy, mechanism):
    """The first job arrives at second 0, with a round; later jobs arrive inside rounds."""
    trace = Generator(jobs=40, jobs_per_hour=20.0, table=catalogue()).trace(3)
    jobs = trace.jobs
    later = np.sort(stream(0, "perturbation").uniform(0.0, 1e-6, len(jobs))).tolist()
    perturbed = tuple(replace(job, submitted_s=job.submitted_s + more) for job, more in zip(jobs, later))
    scheduler = SchedulerConfig(parse_part(policy), mechanism=parse_part(mechanism), round_s=360.0)
    times = []
    for one in (jobs, perturbed):
        run = run_simulation(Simulation(replace(trace, jobs=one), Cluster.parse("2xv100:1,2xk80:1"), scheduler, catalogue()))
        ended = run.state.all_jobs()
        times.append(ended.ended_s - ended.submitted_s)
    assert jobs[0].submitted_s == 0.0
    assert times[1] == pytest.approx(times[0], abs=0.1)
