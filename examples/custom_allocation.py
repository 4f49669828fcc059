"""An allocation policy as a plain Python object: each user gets an equal part of the cluster, whatever its number of jobs.

Run it from anywhere: `python examples/custom_allocation.py`. It simulates seven jobs of two users.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import fairlead
from fairlead.plugin import Allocation, Memo, Snapshot


@dataclass(frozen=True)
class EqualUsers:
    """Each user has an equal part of every type, divided evenly among its jobs: X_mj = N_j / (users · its jobs · s_m)."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        jobs, capacity = view.jobs, view.capacity
        _, user, count = np.unique(jobs.user, return_inverse=True, return_counts=True)
        share = capacity / (len(count) * count[user] * jobs.workers)[:, None]
        fits = (jobs.fits[:, None] >> np.arange(len(capacity))) & 1 == 1
        share = share * (fits & (view.rates.of_jobs > 0) & (jobs.workers[:, None] <= capacity))
        share = share / np.maximum(share.sum(axis=1, keepdims=True), 1.0)  # at most all of a job's time
        return Allocation.alone(jobs.number, share), memo


def main() -> None:
    jobs = [fairlead.Job(f"ann-{n}", steps=7200.0, user="ann") for n in range(6)]
    jobs.append(fairlead.Job("bob-0", steps=7200.0, user="bob"))
    for policy in ("fifo", "max-min-fairness", EqualUsers()):
        run = fairlead.simulate(jobs, "2xv100:2", policy)
        ended = dict(zip(run.jobs["name"].to_pylist(), run.jobs["ended_s"].to_pylist()))
        mean_h = run.summary["average_jct_s"] / 3600
        print(f"{run.record.scheduler:16}  bob's only job ends after {ended['bob-0'] / 3600:.1f} h, mean JCT {mean_h:.1f} h")


if __name__ == "__main__":
    main()
