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
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fairlead.backends.costs import Costs
from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import TIMED, Job, Phase
from fairlead.core.rng import stream
from fairlead.engine.state import State
from fairlead.journals.opening import read_journal
from fairlead.runtime.embedded import JOURNAL, embedded
from fairlead.study.launches import Watched
from fairlead.study.simulate import Simulation, simulate
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.trace import Trace

MACHINES = "2xv100:2,2xk80:2"
ROUND_S = 10.0
STEP_S = {"quick": 0.2, "slow": 0.5}  # on a v100; twice as long on a k80
SUBMITTED_AT_S = 4.0  # into a round, so that nobody comes at its very boundary
TIRESIAS = {"policy": {"name": "tiresias", "thresholds": [35.0]}, "estimation": "measured", "rounds": ROUND_S}
TAKING_TURNS = {"policy": "las", "estimation": "measured", "rounds": ROUND_S}
PATIENCE_S = 1200.0

SLEEPER = """
import os, sys, time
import fairlead

slow = 2.0 if "/k80-" in os.environ["FAIRLEAD_REPORTS"] else 1.0  # the path names the node
for step in fairlead.lease(range(int(sys.argv[1])), save=lambda folder: None):
    time.sleep(slow * float(sys.argv[2]))
"""


@dataclass(frozen=True)
class Measured:
    """What the simulator is told of this machine: steps per second by kind and workers for each type, and costs."""

    rates: dict[tuple[str, int], tuple[float, ...]]
    costs: Costs

    def table(self, types: Sequence[str]) -> ThroughputTable:
        keys = ((TIMED, 1), *self.rates)
        alone = np.array([[1.0] * len(types), *self.rates.values()])
        return ThroughputTable(tuple(types), keys, alone, alone, np.zeros((len(keys), len(keys), len(types))), "measured")


# The real cluster.


def run_real(jobs: Sequence[Job], scheduler: dict[str, Any]) -> list[ev.Event]:
    """The jobs on the real cluster, each submitted at its second; the journal of it, with second 0 where the trace has it."""
    with tempfile.TemporaryDirectory() as folder:
        root, script, config = Path(folder) / "up", Path(folder) / "sleeper.py", Path(folder) / "scheduler.yaml"
        script.write_text(SLEEPER)
        config.write_text(yaml.safe_dump(scheduler))
        with embedded(root, "--cluster", MACHINES, "--config", str(config)) as plane:
            now = plane._ask("GET", "/v1/health")["second"]
            zero = ROUND_S * np.ceil(now / ROUND_S)
            began = time.monotonic() - now + zero
            for job in sorted(jobs, key=lambda job: job.submitted_s):
                time.sleep(max(0.0, began + job.submitted_s - time.monotonic()))
                run = [sys.executable, str(script), str(int(job.steps)), str(STEP_S[job.kind])]
                about = {"name": job.name, "kind": job.kind, "workers": job.workers, "steps": job.steps, "run": run}
                plane.submit([{**about, "types": list(job.allowed_types), "env": {"PYTHONPATH": os.pathsep.join(sys.path)}}])
            _until(lambda: not plane.jobs(["queued", "waiting", "running"]))
            return list(read_journal(str(root / JOURNAL)))


# What is measured.


def calibrate() -> Measured:
    """Jobs of every kind and size on every type, more than there is room for, that take turns: what a launch did in how long
    gives the costs. Rates are as jobs report them."""
    jobs = [
        Job(f"{kind}-{workers}-{type_}-{n}", steps=round(seconds / (slow * STEP_S[kind])), kind=kind, workers=workers,
            allowed_types=(type_,), submitted_s=SUBMITTED_AT_S)
        for n, seconds in enumerate((22.0, 37.0))
        for kind in STEP_S
        for workers in (1, 2)
        for type_, slow in (("v100", 1.0), ("k80", 2.0))
    ]  # fmt: skip
    events = run_real(jobs, TAKING_TURNS)
    types, seen = Cluster.parse(MACHINES).type_names, Watched(State(Cluster.parse(MACHINES)))
    for event in events:
        seen.see(event)
    together_last = sorted(seen.rates().values(), key=lambda one: not one.spread)
    rate_of = {(one.kind, one.workers, one.type): one.steps_per_s for one in together_last}
    costs: dict[bool, list[float]] = {True: [], False: []}
    for launch in seen.launches:
        costs[launch.first].append(launch.seconds - launch.steps / rate_of[launch.kind, launch.workers, launch.type])
    rates = {(kind, n): tuple(rate_of[kind, n, type_] for type_ in types) for kind in STEP_S for n in (1, 2)}
    return Measured(rates, Costs(launch_s=float(np.mean(costs[True])), restart_s=float(np.mean(costs[False]))))


# The comparison.


def the_trace(seed: int) -> list[Job]:
    chance = stream(seed, "fidelity")
    jobs, second = [], SUBMITTED_AT_S
    for number in range(20):
        kind = ("quick", "slow")[int(chance.integers(2))]
        seconds = float(chance.uniform(10.0, 60.0))
        workers = 2 if number in (3, 9, 14) else 1
        jobs.append(Job(f"job-{number}", steps=round(seconds / STEP_S[kind]), kind=kind, workers=workers, submitted_s=second))
        second += ROUND_S * int(chance.integers(0, 3))
    return jobs


def ends_of(events_or_state: Sequence[ev.Event] | State) -> tuple[np.ndarray, int]:
    """Completion times of all jobs, in order of submission, and how often anybody was preempted."""
    state = events_or_state if isinstance(events_or_state, State) else State.replay(events_or_state)
    a, n = state.store.arrays, state.next_number
    assert (a["phase"][:n] == int(Phase.FINISHED)).all(), "not everybody finished"
    return (a["ended_s"] - a["submitted_s"])[:n].copy(), int(a["preemptions"][:n].sum())


def compare(seed: int) -> dict[str, Any]:
    measured, cluster = calibrate(), Cluster.parse(MACHINES)
    jobs = the_trace(seed)
    real, real_preemptions = ends_of(run_real(jobs, TIRESIAS))
    trace = Trace(tuple(jobs), "fidelity")
    scheduler = SchedulerConfig.from_data(TIRESIAS)
    run = simulate(Simulation(trace, cluster, scheduler, measured.table(cluster.type_names), measured.costs))
    simulated, simulated_preemptions = ends_of(run.state)
    apart = np.abs(simulated - real) / real
    return {
        "rates": {f"{kind} × {workers}": [round(r, 3) for r in rates] for (kind, workers), rates in measured.rates.items()},
        "launch_s": measured.costs.launch_s,
        "restart_s": measured.costs.restart_s,
        "jobs": [
            {"name": job.name, "workers": job.workers, "real_s": r, "simulated_s": s, "apart": d}
            for job, r, s, d in zip(jobs, real.tolist(), simulated.tolist(), apart.tolist())
        ],
        "preemptions": {"real": real_preemptions, "simulated": simulated_preemptions},
        "average_jct_s": {"real": float(real.mean()), "simulated": float(simulated.mean())},
        "average_apart": float(simulated.mean() / real.mean() - 1),
        "mean_apart": float(apart.mean()),
    }


def _until(reached: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit("in vain: the cluster did not come to where it should")
        time.sleep(0.2)


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
