"""Finish-time fairness: how a job's completion time compares with what an equal share would have given it. It looks at
when jobs came and went; it does not know what any policy was trying to do.

    ρ = JCT / (exclusive run time × N),    N = max(1, contention)

The contention is jobs in the system per accelerator (Shockwave, NSDI'23, appendix on its estimators): averaged over the
job's own life, which is the definition in the paper, or one figure for the whole trace, as its artifact computes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.job import Phase
from fairlead.report.record import JobOutcomes, RunRecord

Contention: TypeAlias = Literal["average", "static", "demand"]


def finish_time_fairness(record: RunRecord, contention: Contention = "average") -> Floats:
    """ρ of each job; NaN where the job did not finish or its exclusive run time is not known."""
    jobs = record.jobs
    jct: Floats = np.where(jobs.phase == Phase.FINISHED, jobs.ended_s - jobs.submitted_s, np.nan)
    fair = jobs.exclusive_s * contention_factor(record, contention)
    rho = np.full(len(jobs), np.nan)
    np.divide(jct, fair, out=rho, where=fair > 0)
    return rho


def contention_factor(record: RunRecord, contention: Contention = "average") -> Floats:
    """N of each job: by how much an equal share stretches its exclusive run time, at least 1."""
    jobs, size = record.jobs, max(record.cluster.size, 1)
    if contention == "static":
        entered = int(np.count_nonzero(jobs.phase != Phase.REFUSED))
        return np.full(len(jobs), max(1.0, entered / size))
    asked = jobs.workers.astype(np.float64) if contention == "demand" else np.ones(len(jobs))
    return np.maximum(1.0, average_while_present(jobs, asked, last_seen_s(record)) / size)


def last_seen_s(record: RunRecord) -> float:
    """The last moment the record tells of: jobs that have not ended are taken to be there until then."""
    jobs = record.jobs
    seen = [jobs.submitted_s, jobs.first_started_s, jobs.ended_s]
    if record.stretches is not None:
        seen.append(record.stretches.end_s)
    known = [float(np.nanmax(times)) for times in seen if np.isfinite(times).any()]
    return max(known, default=0.0)


def present(jobs: JobOutcomes, last_s: float) -> tuple[Floats, Floats]:
    """From when to when each job is in the system. A refused job never is: its stay is empty."""
    left = np.where(np.isnan(jobs.ended_s), last_s, jobs.ended_s)
    left = np.where(jobs.phase == Phase.REFUSED, jobs.submitted_s, left)
    return jobs.submitted_s, np.maximum(left, jobs.submitted_s)


def average_while_present(jobs: JobOutcomes, amount: Floats, last_s: float) -> Floats:
    """For each job the average, over its stay, of the amounts of all jobs present: one sort and one running integral.

    Every stay begins and ends at a moment of the sorted sequence, so the difference of the integral there is exact.
    """
    count = len(jobs)
    came, left = present(jobs, last_s)
    moments = np.concatenate((came, left))
    order = np.argsort(moments, kind="stable")
    level = np.cumsum(np.concatenate((amount, -amount))[order])
    pieces = level[:-1] * np.diff(moments[order])
    integral = np.empty(2 * count)
    integral[order] = np.concatenate(([0.0], np.cumsum(pieces)))[: 2 * count]
    stay = left - came
    average = amount.copy()
    np.divide(integral[count:] - integral[:count], stay, out=average, where=stay > 0)
    return average
