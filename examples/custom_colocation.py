"""A policy that co-locates jobs: when no GPU is free, a job joins another if both stay fast enough.

Run it from anywhere: `python examples/custom_colocation.py`. It simulates twelve jobs of four types on two V100s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

import fairlead
from fairlead.plugin import Memo, Selection, Snapshot


@dataclass(frozen=True)
class CoLocate:
    """First come, first served; then two jobs share if T_i ≤ slowest · T_i(k) for both, T_i(k) being the rate of i with k."""

    slowest: float = 1.6

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs, rates, free, single, chosen = view.jobs, view.rates, view.capacity.tolist(), dict[int, int](), []
        for i, workers in enumerate(jobs.workers.tolist()):
            types = [t for t in rates.preferred_types[rates.row[i]] if jobs.fits[i] >> t & 1]  # fastest first
            if (room := next((t for t in types if free[t] >= workers), None)) is not None:
                free[room], single[i] = free[room] - workers, room
                chosen.append((i, room, i))
            elif mates := [k for k, t in single.items() if t in types and self.tolerated(view, i, k, t)]:
                chosen.append((i, single.pop(mates[0]), mates[0]))
        row, types, combination = np.array(chosen, dtype=np.int64).reshape(-1, 3).T
        return Selection(jobs.number[row], types, jobs.workers[row], combination, valid_until=math.inf), memo

    def tolerated(self, view: Snapshot, i: int, k: int, t: int) -> bool:
        of, jobs, rates = view.rates.row, view.jobs, view.rates
        limit = {one: min(self.slowest, view.job_of[int(jobs.number[one])].max_slowdown) for one in (i, k)}
        fast = [rates.alone[of[a], t] <= limit[a] * rates.paired[of[a], of[b], t] for a, b in ((i, k), (k, i))]
        return bool(jobs.workers[i] == jobs.workers[k] and all(fast))


def main() -> None:
    steps = {"A3C": 55_000, "ResNet-50 (batch size 64)": 55_000, "LM (batch size 10)": 350_000}
    steps["Recommendation (batch size 512)"] = 180_000
    jobs = [fairlead.Job(f"{n}", 600.0 * n, float(steps[kind]), kind) for n, kind in enumerate([*steps] * 3)]
    for policy in ("fifo", CoLocate()):
        run = fairlead.simulate(jobs, "2xv100:2", policy)
        jct_h, makespan_h = run.summary["average_jct_s"] / 3600, run.summary["makespan_s"] / 3600
        print(f"{run.record.scheduler:22}  mean JCT {jct_h:.1f} h, makespan {makespan_h:.1f} h")


if __name__ == "__main__":
    main()
