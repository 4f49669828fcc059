"""How long Shockwave's planner thinks about a window of twenty rounds, and how far its plans are from their bounds; and how
the policy does on batches, bursts and Poisson arrivals.

    python benchmarks/shockwave.py              # a table of windows
    python benchmarks/shockwave.py --json       # the same as one JSON object
    python benchmarks/shockwave.py --arrivals   # a table of arrivals: means over three seeds

Windows are drawn from fixed seeds, as those of Figure 12 are (`fairlead_papers.shockwave.windows` says how). Of each
case the worst gap, (bound − value)/Σw in nats, and the worst CPU time over all windows. Arrivals are of 60 jobs of 0.2 to 5 h
on 16 GPUs: all at once, 15 every hour, or one every 252 s on average; rounds take 120 s, and each start after the first 20 s. ρ
is JCT over exclusive run time × 60/16."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.experiments.metrics import MetricOptions, summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.shockwave.planning.planner import plan_window
from fairlead.simulator.costs import Costs
from fairlead.workloads.trace import Trace
from fairlead_papers.shockwave.windows import drawn

WINDOWS = 10

CASES: tuple[tuple[int, int, float, float, float], ...] = (
    (2000, 256, 1e-3, 1.0, 1e-3),
    (2000, 256, 10.0, 1.0, 5e-3),
    (500, 256, 1e-3, 0.2, 1e-3),
    (500, 256, 10.0, 0.2, 5e-3),
    (120, 32, 1e-3, 1.0, 1e-3),
    (120, 32, 10.0, 1.0, 1e-3),
    (60, 14, 1e-3, 1.0, 1e-3),
)
"""Jobs, accelerators, λ, and the limits: seconds, and nats per weight."""


def rows() -> Iterator[dict[str, Any]]:
    for jobs, accelerators, makespan, seconds, nats in CASES:
        spent, gaps, starts = [], [], []
        for seed in range(WINDOWS):
            made, rho = drawn(jobs, accelerators, makespan, seed)
            before = time.process_time()
            found = plan_window(made, rho)
            spent.append(time.process_time() - before)
            gaps.append(found.gap)
            starts.append(found.starts / np.count_nonzero(found.rounds))
        above = [what for what, over in (("too long", max(spent) > seconds), ("too far", max(gaps) > nats)) if over]
        yield {"jobs": jobs, "accelerators": accelerators, "lambda": makespan,
               "seconds": max(spent), "median_s": float(np.median(spent)),
               "gap": max(gaps), "median_gap": float(np.median(gaps)), "starts": float(np.mean(starts)),
               "limits": {"seconds": seconds, "gap": nats}, "above": above}  # fmt: skip


JOBS, GPUS, SEEDS = 60, 16, 3
SCHEDULERS = {
    "shockwave": SchedulerConfig(Part("shockwave"), round_s=120.0),
    "preset": SchedulerConfig.preset("shockwave"),
    "las": SchedulerConfig(Part("las"), round_s=120.0),
    "srtf": SchedulerConfig(Part("srtf"), round_s=120.0),
}


def arriving(how: str, gangs: bool, seed: int) -> Trace:
    draw = stream(seed, "arrivals", how)
    hours = np.exp(draw.uniform(np.log(0.2), np.log(5), JOBS))
    workers = draw.choice([1, 2, 4, 8], JOBS, p=[0.6, 0.3, 0.09, 0.01]) if gangs else np.ones(JOBS, dtype=np.int64)
    at = {
        "batch": np.zeros(JOBS),
        "bursts": np.repeat(np.arange(4) * 3600.0, JOBS // 4),
        "poisson": draw.exponential(252.0, JOBS).cumsum(),
    }[how]
    steps = (hours * 3600.0).round().tolist()
    return Trace.of(Job("", *each) for each in zip(at.tolist(), steps, [""] * JOBS, workers.tolist()))


def print_arrivals() -> None:
    print(f"{'jobs':8}{'arrivals':10}{'scheduler':11}{'makespan s':>11}{'JCT s':>8}{'worst ρ':>9}{'ρ > 1':>8}{'restarts':>10}")
    options = MetricOptions(contention="static", makespan_from="zero", unfair_above=1.0)
    for gangs in (False, True):
        for how in ("batch", "bursts", "poisson"):
            for name, scheduler in SCHEDULERS.items():
                found = []
                for seed in range(SEEDS):
                    cluster, costs = Cluster.parse(f"{GPUS}xv100:{GPUS}"), Costs(restart_s=20.0)
                    given = Simulation(arriving(how, gangs, seed), cluster, scheduler, None, costs)
                    one = summarize(run_simulation(given).record, options)
                    found.append((one.makespan_s, one.average_jct_s, one.worst_ftf, one.unfair_fraction, one.restarts))
                makespan, jct, worst, unfair, restarts = np.mean(found, axis=0).tolist()
                figures = f"{makespan:>11.0f}{jct:>8.0f}{worst:>9.2f}{unfair:>8.1%}{restarts:>10.0f}"
                print(f"{'gangs' if gangs else 'single':8}{how:10}{name:11}{figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--arrivals", action="store_true", help="print the table of arrivals")
    chosen = parser.parse_args()
    if chosen.arrivals:
        print_arrivals()
        return
    as_json = chosen.json
    found = []
    if not as_json:
        print(f"{'jobs':>5}{'accelerators':>14}{'λ':>8}{'CPU s':>9}{'limit':>7}{'gap':>10}{'limit':>8}{'starts a job':>14}")
    for row in rows():
        found.append(row)
        if not as_json:
            times = f"{row['seconds']:>9.3f}{row['limits']['seconds']:>7.1f}"
            gaps = f"{row['gap']:>10.1e}{row['limits']['gap']:>8.0e}{row['starts']:>14.2f}"
            print(f"{row['jobs']:>5}{row['accelerators']:>14}{row['lambda']:>8g}{times}{gaps}", *row["above"], flush=True)
    if as_json:
        print(json.dumps({"rows": found}))
    if any(row["above"] for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
