"""Finish-time fairness as Gavel §7.3 has it: the time a job took over the time it would have taken with 1/n of the cluster,

    ρ_m = JCT_m / (steps_m / throughput(m, X^isolated)),    X^isolated_mj = N_j / (n·s_m), scaled to sum to 1 at most.

n is the number of jobs in the system, averaged over the job's own stay; or one and the same number for all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.job import Phase
from fairlead.experiments.metrics import average_while_present, last_seen_s
from fairlead.experiments.run_record import RunRecord


def jobs_around(record: RunRecord) -> Floats:
    """n of each job: the average number in the system while it was there, itself included."""
    return np.maximum(average_while_present(record.jobs, np.ones(len(record.jobs)), last_seen_s(record)), 1.0)


def isolated_fairness(record: RunRecord, rates: Mapping[str, tuple[float, ...]], n: Floats) -> Floats:
    """ρ of each job; NaN where it did not finish. `rates` are by "kind|workers", by type of the cluster."""
    jobs, have = record.jobs, record.cluster.size_of_type
    speeds = np.array([rates[f"{kind}|{size}"] for kind, size in zip(jobs.kinds, jobs.workers.tolist())])
    part = have / (n * jobs.workers)[:, None]
    part = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    relative = (speeds * part).sum(axis=1) / speeds.max(axis=1)  # of the speed that `exclusive_s` is about
    jct = np.where(jobs.phase == Phase.FINISHED, jobs.ended_s - jobs.submitted_s, np.nan)
    rho: Floats = jct * relative / jobs.exclusive_s
    return rho
