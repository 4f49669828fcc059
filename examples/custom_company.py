"""A policy that puts jobs together: when no accelerator is free, a job joins one that it gets on with.

Run it from anywhere: `python examples/custom_company.py`. It simulates twelve jobs of four kinds on two V100s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlead.config import Part, SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.core.cluster import Cluster
from fairlead.core.events import Memo
from fairlead.core.job import Job
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.trace import Trace


@dataclass(frozen=True)
class GoodCompany:
    """First come, first served; then two share if T_i ≤ slowest · T_i(k) for both, T_i(k) being the rate of i beside k."""

    slowest: float = 1.6

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs, rates, free, single, chosen = view.jobs, view.rates, view.capacity.tolist(), dict[int, int](), []
        for i, workers in enumerate(jobs.workers.tolist()):
            types = [t for t in rates.preferred_types[rates.row[i]] if jobs.fits[i] >> t & 1]  # fastest first
            if (room := next((t for t in types if free[t] >= workers), None)) is not None:
                free[room], single[i] = free[room] - workers, room
                chosen.append((i, room, i))
            elif mates := [k for k, t in single.items() if t in types and self.get_on(view, i, k, t)]:
                chosen.append((i, single.pop(mates[0]), mates[0]))
        row, types, together = np.array(chosen, dtype=np.int64).reshape(-1, 3).T
        return Selection(jobs.number[row], types, jobs.workers[row], together, valid_until=math.inf), memo

    def get_on(self, view: Snapshot, i: int, k: int, t: int) -> bool:
        of, jobs, rates = view.rates.row, view.jobs, view.rates
        most = {one: min(self.slowest, view.job_of[int(jobs.number[one])].max_slowdown) for one in (i, k)}
        bear = [rates.alone[of[a], t] <= most[a] * rates.paired[of[a], of[b], t] for a, b in ((i, k), (k, i))]
        return bool(jobs.workers[i] == jobs.workers[k] and all(bear))


def main() -> None:
    registry = Registry.installed().plus("policy", "good-company", GoodCompany)
    hours = {"A3C": 2, "ResNet-50 (batch size 64)": 3, "LM (batch size 10)": 1, "Recommendation (batch size 512)": 1}
    table = catalogue()
    fast = {kind: table.alone[table.row(kind, 1), table.types.index("v100")] for kind in hours}
    jobs = [Job(f"{n}", 600.0 * n, 3600 * hours[kind] * fast[kind], kind) for n, kind in enumerate([*hours] * 3)]
    for name in ("fifo", "good-company"):
        given = Simulation(Trace.of(jobs), Cluster.parse("2xv100:2"), SchedulerConfig(Part(name)))
        found = summarize(run_simulation(given, registry=registry).record)
        print(f"{name:12}  mean JCT {found.average_jct_s / 3600:.1f} h, all done after {found.makespan_s / 3600:.1f} h")


if __name__ == "__main__":
    main()
