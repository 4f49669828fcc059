"""Fairlead beside Gavel's own simulator, and how much tiny changes of arrivals move a result.

    python benchmarks/gavel.py                       # average JCT in all cases of `../shared/expected/gavel`; a few minutes
    python benchmarks/gavel.py a_single              # the cases whose name begins so
    python benchmarks/gavel.py --perturb             # spread of the mean JCT by policy, all built-in policies; many minutes
    python benchmarks/gavel.py --perturb allox,las:by=time --rounds 0

The settings of Gavel's simulator are in docs/reference/policies.md. A perturbation adds up to a microsecond to each arrival of
Gavel's loaded trace (5.6 jobs/h), of which 200 jobs are measured. By default the cluster has 12 GPUs of each type and the jobs
arrive a third as often, so that a run is short; `--full` takes 36 GPUs of each type, and jobs 800 to 999.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.rng import stream
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.trace import Trace

SHARED = (Path(__file__).resolve().parents[1] / ".." / "shared").resolve()
DATA = SHARED / "data" / "gavel"
GAVEL = "gavel-rounds:min_interval_s=1920:newcomers=wait:lease_s=360"
LOADED, FULL = "continuous_single_seed1_lam643.trace", "36xv100:1,36xp100:1,36xk80:1"
TRACES: dict[str, tuple[str, str, tuple[int, int] | None]] = {
    "a_single": ("continuous_single_seed0_lam900.trace", FULL, (50, 150)),
    "b_phys_continuous": ("max_min_fairness.trace", "8xv100:1,16xp100:1,24xk80:1", None),
    "hl_single": (LOADED, FULL, (800, 1000)),
}
AGNOSTIC, AWARE = f"{GAVEL}:types=shuffled", f"{GAVEL}:types=in-order"
POLICIES = {
    "max_min_fairness": ("max-min-fairness:optimum=centre", AGNOSTIC),
    "max_min_fairness_perf": ("max-min-fairness-perf:optimum=centre", AWARE),
    "fifo_perf": ("fifo-perf:greedy=true", f"{AWARE}:work_conserving=false"),
    "finish_time_fairness": ("finish-time-fairness:optimum=centre", AGNOSTIC),
    "finish_time_fairness_perf": ("finish-time-fairness-perf:optimum=centre", AWARE),
    "min_total_duration": ("min-total-duration:optimum=centre", AGNOSTIC),
    "min_total_duration_perf": ("min-total-duration-perf:optimum=centre", AWARE),
    "max_sum_throughput_perf": ("max-sum-throughput-perf", AWARE),
    "isolated": ("isolated", AGNOSTIC),
    "allox": ("allox:alpha=1:max_depth=100000", AWARE),
    "allox_alpha=0.3": ("allox:max_depth=100000", AWARE),
}
LIMIT = 0.01
"""The largest change of the mean JCT that a perturbation should cause."""

MOST_S = 1e-6


def completion_times(given: Simulation) -> np.ndarray:
    """The JCTs of the measured jobs, in seconds."""
    jobs = run_simulation(given).state.all_jobs()
    first, last = given.measure or (0, len(given.trace.jobs))
    times: np.ndarray = (jobs.ended_s - jobs.submitted_s)[first:last]
    return times


def beside_gavel(wanted: str) -> None:
    files = sorted((SHARED / "expected" / "gavel").glob(f"{wanted}*.json"))
    if not files:
        sys.exit(f"nothing at {SHARED / 'expected' / 'gavel'} begins with {wanted!r}")
    table = read_table(DATA / "simulation_throughputs.json")
    print(f"{'case':<42}{'Gavel s':>10}{'Fairlead s':>12}{'off':>8}{'CPU s':>8}")
    for file in files:
        case, _, policy = file.stem.partition("__")
        if case not in TRACES or policy not in POLICIES:
            continue
        trace, cluster, measure = TRACES[case]
        name, mechanism = POLICIES[policy]
        scheduler = SchedulerConfig(parse_part(name), mechanism=parse_part(mechanism), round_s=360.0)
        began = time.process_time()
        given = Simulation(TraceFile(DATA / trace).read(table), Cluster.parse(cluster), scheduler, table, measure=measure)
        ours, theirs = float(completion_times(given).mean()), json.loads(file.read_text())["average_jct_s"]
        spent = time.process_time() - began
        print(f"{file.stem:<42}{theirs:>10.0f}{ours:>12.0f}{ours / theirs - 1:>+8.1%}{spent:>8.1f}", flush=True)


def perturbed(trace: Trace, seed: int) -> Trace:
    later = stream(seed, "perturbation").uniform(0.0, MOST_S, len(trace.jobs)).tolist()
    jobs = (replace(job, submitted_s=job.submitted_s + more) for job, more in zip(trace.jobs, later))
    return replace(trace, jobs=tuple(sorted(jobs, key=lambda job: job.submitted_s)))


def spread(policies: Iterable[str], seeds: int, round_s: float, full: bool) -> None:
    table = read_table(DATA / "simulation_throughputs.json")
    trace, cluster, measure = TraceFile(DATA / LOADED).read(table), Cluster.parse(FULL), (800, 1000)
    if not full:
        jobs = tuple(replace(job, submitted_s=3 * job.submitted_s) for job in trace.jobs)
        trace, cluster, measure = replace(trace, jobs=jobs), Cluster.parse(FULL.replace("36", "12")), (200, 400)
    print(f"{'policy':<40}{'mean JCT s':>12}{'least':>9}{'most':>9}{'jobs moved':>12}{'CPU s':>8}")
    for name in policies:
        began = time.process_time()
        aware = {"mechanism": parse_part(POLICIES[name][1])} if name in POLICIES else {}
        policy = POLICIES[name][0] if name in POLICIES else name
        try:
            scheduler = SchedulerConfig(parse_part(policy), round_s=round_s, **aware)
            given = Simulation(trace, cluster, scheduler, table, measure=measure)
            plain = completion_times(given)
            others = [completion_times(replace(given, trace=perturbed(trace, seed))) for seed in range(seeds)]
        except FairleadError as error:
            print(f"{name:<40}  does not run: {error}", flush=True)
            continue
        off = [float(other.mean() / plain.mean() - 1) for other in others]
        moved = max(float(np.mean(np.abs(other / plain - 1) > LIMIT)) for other in others)
        line = f"{name:<40}{plain.mean():>12.0f}{min(off):>+9.2%}{max(off):>+9.2%}{moved:>12.0%}"
        line += f"{time.process_time() - began:>8.1f}"
        print(line + ("  above the limit" if max(map(abs, off)) > LIMIT else ""), flush=True)
    print(f"limit: {LIMIT:.0%} of the mean JCT; 'jobs moved' is the part of jobs whose own JCT changes by more, at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", default="", help="the beginning of the names of cases")
    parser.add_argument(
        "--perturb", nargs="?", const="", metavar="POLICIES", help="by default all; Gavel's names have its settings"
    )
    parser.add_argument("--seeds", type=int, default=3, help="perturbations")
    parser.add_argument("--rounds", type=float, default=360.0, metavar="SECONDS", help="0: decide at every event")
    parser.add_argument("--full", action="store_true", help="36 GPUs of each type, jobs 800 to 999")
    chosen = parser.parse_args()
    if chosen.perturb is None:
        beside_gavel(chosen.case)
    else:
        names = chosen.perturb.split(",") if chosen.perturb else [one.name for one in Registry.installed().of("policy")]
        spread(names, chosen.seeds, chosen.rounds, chosen.full)


if __name__ == "__main__":
    main()
