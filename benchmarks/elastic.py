"""Elastic policies on Pollux' workloads: `python benchmarks/elastic.py [--workloads 6,7] [--folder ../shared/data/pollux]`.

Average completion times, processor time of a decision, and how much of the objective Pollux' sizes give away: beside the best
with every number of workers allowed, wherever they would have to stand, which no search can beat."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import fairlead.policies.elastic.pollux as pollux
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.engine.journal import NoJournal
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.simulate import Simulation, begin
from fairlead.simulator.costs import Costs

SCHEDULERS = {
    "tiresias": {"policy": {"name": "tiresias", "thresholds": [57600], "first": "submitted"}, "rounds": 60},
    "optimus, oracle": {"policy": {"name": "optimus", "oracle": True}, "rounds": 60},
    "optimus, fitted": {"policy": {"name": "optimus", "oracle": True}, "estimator": "fitted", "rounds": 60},
    "pollux": {"policy": "pollux", "estimator": "fitted", "rounds": 60},
}


@dataclass
class Gap:
    """A policy that looks at what it is asked: of every tenth decision, the mean of powers that its sizes reach over that
    which every size would reach."""

    policy: pollux.Pollux
    asked: int = 0
    reached: list[float] = field(default_factory=list)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        self.asked += 1
        if self.asked % 10 == 0 and len(view.jobs):
            self.look(self.policy, view)
        return self.policy.select(view, memo)

    def look(self, policy: pollux.Pollux, view: Snapshot) -> None:
        crowd = pollux._JobTable.of(view)
        rows, capacity = np.arange(len(view.jobs)), int(view.capacity[0])
        node = int(view.cluster.largest_node_of_type[0])
        costs = [self._best(policy, rows, crowd, capacity, node)]
        usual = pollux.sizes_on
        try:
            pollux.sizes_on = lambda node, most: list(range(1, most + 1))
            costs.append(self._best(policy, rows, crowd, capacity, node))
        finally:
            pollux.sizes_on = usual
        self.reached.append(costs[1] / costs[0])

    def _best(self, policy: pollux.Pollux, rows: Ints, crowd: pollux._JobTable, capacity: int, node: int) -> float:
        sizes, speedup = policy._options(rows, crowd, capacity, node, len(rows))
        costs: Floats = policy._cost(speedup)
        chosen = pollux.least_cost(sizes, costs, capacity)
        return float(costs[rows, chosen].sum())


def play(folder: Path, workload: int, scheduler: dict[str, object], *, look: bool = False) -> tuple[float, float, float, float]:
    """Average completion time; mean and worst milliseconds of a decision; the share of the bound."""
    trace = TraceFile(folder / "workloads" / f"workload-{workload}.csv", applications=folder).read()
    costs = Costs(launch_s=30.0, restart_s=30.0)
    given = Simulation(trace, Cluster.parse("64xv100:4"), SchedulerConfig.from_data(scheduler), costs=costs)
    begun = begin(given, NoJournal())
    loop, spent = begun.loop, list[float]()
    loop.stopwatch = time.process_time
    gap = Gap(loop.stages.policy) if look else None  # type: ignore[arg-type]
    if gap is not None:
        loop.stages = replace(loop.stages, policy=gap)
    before = 0.0

    def note(_: object) -> None:
        nonlocal before
        spent.append(loop.decide_s - before)
        before = loop.decide_s

    loop.on_decision = note
    loop.run()
    jobs = begun.finish(given).record.jobs
    share = float(np.mean(gap.reached)) if gap is not None else 1.0
    return float(np.mean(jobs.ended_s - jobs.submitted_s)), 1e3 * float(np.mean(spent)), 1e3 * max(spent), share


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__)
    wanted.add_argument("--workloads", default="6")
    wanted.add_argument("--folder", type=Path, default=Path("../shared/data/pollux"))
    wanted.add_argument("--only", default=",".join(SCHEDULERS).replace(", ", "-"))
    asked = wanted.parse_args()
    print(f"{'scheduler':18}{'workload':>9}{'avg JCT, s':>12}{'decision, ms':>14}{'worst, ms':>11}{'of the bound':>14}")
    for name, scheduler in SCHEDULERS.items():
        if name.replace(", ", "-") not in asked.only.split(","):
            continue
        means = []
        for workload in map(int, asked.workloads.split(",")):
            mean, decision, worst, _ = play(asked.folder, workload, scheduler)
            means.append(mean)
            looked = play(asked.folder, workload, scheduler, look=True)[3] if name == "pollux" else None
            share = "" if looked is None else f"{100 * looked:.2f} %"
            print(f"{name:18}{workload:>9}{mean:>12,.0f}{decision:>14.1f}{worst:>11.1f}{share:>14}", flush=True)
        if len(means) > 1:
            print(f"{name:18}{'mean':>9}{np.mean(means):>12,.0f}")


if __name__ == "__main__":
    main()
