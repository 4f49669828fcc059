"""How true the simulator is: the same 20 jobs on a real cluster of this machine and in simulation, and how far apart they end.

    python benchmarks/fidelity.py            # about ten minutes, a table
    python benchmarks/fidelity.py --json     # the same as one JSON object

Jobs are real processes under `fairlead up` that sleep in the place of computing, twice as long on a k80 as on a v100; three of
the twenty are gangs of two. The policy preempts (Tiresias, with a queue for those that have had more than 35 s). Rates, and
what a start and a start after a preemption cost, are measured in a run of its own on other jobs; the simulator is given these
and the trace, and nothing of the run that it is compared with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairlead.core.job import TIMED, Job
from fairlead.core.rng import stream
from fairlead.experiments.metrics import summarize
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead_papers.fidelity import Measured, RealCluster, beside, measured

MACHINES = "2xv100:2,2xk80:2"
ROUND_S = 10.0
STEP_S = {"quick": 0.2, "slow": 0.5}  # on a v100; twice as long on a k80
SLOWER = {"v100": 1.0, "k80": 2.0}
SUBMITTED_AT_S = 4.0  # into a round, so that nobody comes at its very boundary
TIRESIAS = {"policy": {"name": "tiresias", "thresholds": [35.0]}, "rounds": ROUND_S}
TAKING_TURNS = {"policy": "las", "rounds": ROUND_S}


def rates() -> ThroughputTable:
    """Steps per second, by kind and workers: gangs are as fast as single workers."""
    keys = ((TIMED, 1), *((kind, workers) for kind in STEP_S for workers in (1, 2)))
    alone = np.array([[1 / (STEP_S[kind] * slow) if kind else 1.0 for slow in SLOWER.values()] for kind, _ in keys])
    return ThroughputTable(tuple(SLOWER), keys, alone, alone, np.zeros((len(keys), len(keys), len(SLOWER))), "as told to sleep")


def other_jobs() -> Trace:
    """Of every kind and size on every type, more than there is room for, that take turns."""
    jobs = [
        Job(f"{kind}-{workers}-{type_}-{n}", steps=round(seconds / (slow * STEP_S[kind])), kind=kind, workers=workers,
            allowed_types=(type_,), submitted_s=SUBMITTED_AT_S)
        for n, seconds in enumerate((22.0, 37.0))
        for kind in STEP_S
        for workers in (1, 2)
        for type_, slow in SLOWER.items()
    ]  # fmt: skip
    return Trace(tuple(jobs), "calibration")


def the_trace(seed: int) -> Trace:
    chance = stream(seed, "fidelity")
    jobs, second = [], SUBMITTED_AT_S
    for number in range(20):
        kind = ("quick", "slow")[int(chance.integers(2))]
        seconds = float(chance.uniform(10.0, 60.0))
        workers = 2 if number in (3, 9, 14) else 1
        jobs.append(Job(f"job-{number}", steps=round(seconds / STEP_S[kind]), kind=kind, workers=workers, submitted_s=second))
        second += ROUND_S * int(chance.integers(0, 3))
    return Trace(tuple(jobs), "fidelity")


def compare(seed: int) -> dict[str, Any]:
    real = RealCluster(MACHINES, rates())
    told, trace = measured(real.run(other_jobs(), TAKING_TURNS), real.table), the_trace(seed)
    found = beside(trace, TIRESIAS, told, real.run(trace, TIRESIAS))
    sides = {"real": summarize(found.real), "simulated": summarize(found.simulated)}
    average = {side: summary.average_jct_s for side, summary in sides.items()}
    columns = (*(jct.tolist() for jct in found.jct_s), found.by_job.tolist())
    return {
        "rates": _rates(told),
        "launch_s": told.costs.launch_s,
        "restart_s": told.costs.restart_s,
        "jobs": [
            {"name": job.name, "workers": job.workers, "real_s": r, "simulated_s": s, "apart": d}
            for job, r, s, d in zip(trace.jobs, *columns)
        ],
        "preemptions": {side: summary.preemptions for side, summary in sides.items()},
        "average_jct_s": average,
        "average_apart": average["simulated"] / average["real"] - 1,
        "mean_apart": float(found.by_job.mean()),
    }


def _rates(told: Measured) -> Mapping[str, list[float]]:
    columns = [told.table.types.index(name) for name in SLOWER]
    rows = [(key, told.table.alone[row, columns]) for row, key in enumerate(told.table.keys) if key[0] != TIMED]
    return {f"{kind} × {workers}": rates.round(3).tolist() for (kind, workers), rates in rows}


def main() -> None:
    options = argparse.ArgumentParser(description="the simulator against a real cluster")
    options.add_argument("--json", action="store_true")
    options.add_argument("--seed", type=int, default=1, help="another trace")
    chosen = options.parse_args()
    found = compare(chosen.seed)
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'steps per second':<20}{'v100':>8}{'k80':>8}")
    for what, (v100, k80) in found["rates"].items():
        print(f"{what:<20}{v100:8.3f}{k80:8.3f}")
    print(f"a first start costs {found['launch_s']:.2f} s, a later one {found['restart_s']:.2f} s\n")
    print(f"{'job':<10}{'workers':>8}{'real s':>9}{'simulated s':>13}{'apart':>8}")
    for job in found["jobs"]:
        print(f"{job['name']:<10}{job['workers']:8}{job['real_s']:9.1f}{job['simulated_s']:13.1f}{job['apart']:8.1%}")
    print(f"\npreemptions: {found['preemptions']['real']} real, {found['preemptions']['simulated']} simulated")
    average, off = found["average_jct_s"], found["average_apart"]
    print(f"average completion time: {average['real']:.1f} s real, {average['simulated']:.1f} s simulated, {off:+.1%}")
    print(f"mean over jobs of |difference| / real: {found['mean_apart']:.1%}")


if __name__ == "__main__":
    main()
