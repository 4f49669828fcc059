"""The round mechanism at the paper's high load (Gavel §7.3): CPU seconds until jobs 4,000 to 5,000 are done, and their JCT.

    python benchmarks/rounds.py                                    # all policies, both workloads, seed 0: a table
    python benchmarks/rounds.py --policies max-min-fairness --seeds 0,1,2 --json
    python benchmarks/rounds.py --profile max-min-fairness         # where the time of one run goes

36 + 36 + 36 accelerators on nodes of 4, six-minute rounds, starts that cost nothing; Gavel's 26 kinds of one worker at 5.6 jobs
an hour (`single`), or its mix of one to eight workers at 2.6 (`multiple`). Runs are whole processes, one at a time. Gavel's
table is read from `../shared/data` where it lies there; else the bundled catalogue stands in, and the output says so.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.job import Phase
from fairlead.experiments.inputs import read_table
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.generate import Generator

TABLE = (Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "gavel" / "simulation_throughputs.json").resolve()
CLUSTER = "36xv100:4,36xp100:4,36xk80:4"
MEASURED = (4000, 5000)
JOBS_PER_HOUR = {"single": 5.6, "multiple": 2.6}
POLICIES = (
    "max-min-fairness",
    "max-min-fairness-perf",
    "finish-time-fairness",
    "finish-time-fairness-perf",
    "fifo-perf",
)
LIMIT_CPU_S, LIMIT_SHARING_CPU_S = 30.0, 180.0


def one(policy: str, mechanism: str, workload: str, seed: int, jobs: int, restart_s: float) -> dict[str, float]:
    """A run in this process: what came of it."""
    table = read_table(TABLE) if TABLE.is_file() else catalogue()
    generator = Generator(jobs=jobs, jobs_per_hour=JOBS_PER_HOUR[workload], table=table, workers=workload)
    scheduler = SchedulerConfig(parse_part(policy), mechanism=parse_part(mechanism), round_s=360.0)
    costs = Costs(restart_s=restart_s)
    run = run_simulation(
        Simulation(generator.trace(seed), Cluster.parse(CLUSTER), scheduler, table, costs=costs, measure=MEASURED)
    )
    everybody = run.state.all_jobs()
    first, last = MEASURED
    jct_s = (everybody.ended_s - everybody.submitted_s)[first:last]
    return {
        "average_jct_h": float(jct_s.mean()) / 3600,
        "moves": float(everybody.moves[first:last].mean()),
        "preemptions": float(everybody.preemptions[first:last].mean()),
        "submitted": len(everybody),
        "alive": int(np.count_nonzero(everybody.phase <= int(Phase.RUNNING))),
        "rounds": run.loop.rounds,
        "decisions": run.loop.decisions,
        "peak_rss_mb": run.record.facts["peak_rss_mb"],
    }


def child(arguments: list[str]) -> dict[str, float]:
    """The same as a whole process, with its CPU seconds as the operating system counts them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found: dict[str, float] = json.loads(done.stdout)
    return {**found, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--workloads", default=",".join(JOBS_PER_HOUR))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--mechanism", default="gavel-rounds:carried=priority:stickiness=0")
    parser.add_argument("--jobs", type=int, default=30_000, help="in the trace; more are there than a run needs")
    parser.add_argument("--restart-cost", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", metavar="POLICY")
    parser.add_argument("--one", action="store_true", help="the first of the runs asked for, in this process")
    chosen = parser.parse_args()
    policies, workloads = chosen.policies.split(","), chosen.workloads.split(",")
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    rest = (chosen.jobs, chosen.restart_cost)
    if chosen.profile:
        watch = cProfile.Profile()
        watch.runcall(one, chosen.profile, chosen.mechanism, workloads[0], seeds[0], *rest)
        pstats.Stats(watch).sort_stats("tottime").print_stats(40)
        return
    if chosen.one:
        print(json.dumps(one(policies[0], chosen.mechanism, workloads[0], seeds[0], *rest)))
        return
    if not chosen.json:
        print(f"Gavel's table: {TABLE}" if TABLE.is_file() else "no table of Gavel's: the bundled catalogue")
        print(f"{'workload':<10}{'policy':<36}{'seed':>4}{'CPU s':>8}{'MB':>6}{'decided':>9}", end="")
        print(f"{'submitted':>11}{'alive':>7}{'moves':>8}{'preempt.':>9}{'JCT h':>8}")
    rows = []
    common = ["--mechanism", chosen.mechanism, "--jobs", str(chosen.jobs), "--restart-cost", str(chosen.restart_cost)]
    for workload in workloads:
        for policy in policies:
            for seed in seeds:
                which = ["--policies", policy, "--workloads", workload, "--seeds", str(seed)]
                row = {"workload": workload, "policy": policy, "seed": seed, **child(["--one", *which, *common])}
                rows.append(row)
                if chosen.json:
                    continue
                line = f"{workload:<10}{policy:<36}{seed:>4}{row['cpu_s']:>8.1f}{row['peak_rss_mb']:>6.0f}"
                line += f"{row['decisions']:>9.0f}{row['submitted']:>11.0f}{row['alive']:>7.0f}{row['moves']:>8.1f}"
                line += f"{row['preemptions']:>9.1f}{row['average_jct_h']:>8.1f}"
                limit = LIMIT_SHARING_CPU_S if "space_sharing" in policy else LIMIT_CPU_S
                print(line + ("" if row["cpu_s"] <= limit else "  above the limit"), flush=True)
    limits = f"limits: {LIMIT_CPU_S:g} CPU s, with space sharing {LIMIT_SHARING_CPU_S:g}"
    print(json.dumps({"runs": rows}) if chosen.json else limits)


if __name__ == "__main__":
    main()
