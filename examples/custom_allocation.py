"""An allocation policy as a plain Python object: every user the same part of the cluster, however many jobs it has.

Run it from anywhere: `python examples/custom_allocation.py`. It simulates seven jobs of two users.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.config import Part, SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Cluster
from fairlead.core.events import Memo
from fairlead.core.job import Job
from fairlead.core.snapshot import Snapshot
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.trace import Trace


@dataclass(frozen=True)
class EqualUsers:
    """Every user has an equal part of every type, and its jobs equal parts of that: X_mj = N_j / (users · its jobs · s_m)."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        jobs, capacity = view.jobs, view.capacity
        _, user, count = np.unique(jobs.user, return_inverse=True, return_counts=True)
        share = capacity / (len(count) * count[user] * jobs.workers)[:, None]
        fits = (jobs.fits[:, None] >> np.arange(len(capacity))) & 1 == 1
        share = share * (fits & (view.rates.of_jobs > 0) & (jobs.workers[:, None] <= capacity))
        share = share / np.maximum(share.sum(axis=1, keepdims=True), 1.0)  # nobody has more time than there is
        return Allocation.alone(jobs.number, share), memo


def main() -> None:
    registry = Registry.installed().plus("policy", "equal-users", EqualUsers)
    jobs = [Job(f"ann-{n}", steps=7200.0, user="ann") for n in range(6)] + [Job("bob-0", steps=7200.0, user="bob")]
    for name in ("fifo", "max-min-fairness", "equal-users"):
        given = Simulation(Trace.of(jobs), Cluster.parse("2xv100:2"), SchedulerConfig(Part(name)))
        record = run_simulation(given, registry=registry).record
        bob = record.jobs.ended_s[record.jobs.names.index("bob-0")] / 3600
        print(f"{name:16}  bob's only job is done after {bob:.1f} h, mean JCT {summarize(record).average_jct_s / 3600:.1f} h")


if __name__ == "__main__":
    main()
