"""Our simulator beside Gavel's own, policy by policy: average completion times on the same traces, with its options on.

    python benchmarks/gavel.py            # all that `../shared/expected/gavel` has; a few minutes
    python benchmarks/gavel.py a_single   # those whose name begins so

What "its options" are is told in docs/reference/policies.md.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.config.schedulers import parse_part
from fairlead.core.cluster import Cluster
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.simulate import Simulation, run_simulation

SHARED = (Path(__file__).resolve().parents[1] / ".." / "shared").resolve()
GAVEL = "gavel-rounds:min_interval_s=1920:newcomers=wait:lease_s=360"
TRACES: dict[str, tuple[str, str, tuple[int, int] | None]] = {
    "a_single": ("continuous_single_seed0_lam900.trace", "36xv100:1,36xp100:1,36xk80:1", (50, 150)),
    "b_phys_continuous": ("max_min_fairness.trace", "8xv100:1,16xp100:1,24xk80:1", None),
    "hl_single": ("continuous_single_seed1_lam643.trace", "36xv100:1,36xp100:1,36xk80:1", (800, 1000)),
}
AGNOSTIC, AWARE = f"{GAVEL}:types=shuffled", f"{GAVEL}:types=in-order"
POLICIES = {
    "max_min_fairness": ("max-min-fairness:optimum=centre", AGNOSTIC),
    "max_min_fairness_perf": ("max-min-fairness-perf:optimum=centre", AWARE),
    "fifo_perf": ("fifo-perf:sticky=true", f"{AWARE}:work_conserving=false"),
    "finish_time_fairness": ("finish-time-fairness:optimum=centre", AGNOSTIC),
    "finish_time_fairness_perf": ("finish-time-fairness-perf:optimum=centre", AWARE),
    "min_total_duration": ("min-total-duration:optimum=centre", AGNOSTIC),
    "min_total_duration_perf": ("min-total-duration-perf:optimum=centre", AWARE),
    "max_sum_throughput_perf": ("max-sum-throughput-perf", AWARE),
    "isolated": ("isolated", AGNOSTIC),
}


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    files = sorted((SHARED / "expected" / "gavel").glob(f"{wanted}*.json"))
    if not files:
        sys.exit(f"nothing at {SHARED / 'expected' / 'gavel'} begins with {wanted!r}")
    table = read_table(SHARED / "data" / "gavel" / "simulation_throughputs.json")
    print(f"{'case':<42}{'Gavel s':>10}{'ours s':>10}{'off':>8}{'CPU s':>8}")
    for file in files:
        case, _, policy = file.stem.partition("__")
        if case not in TRACES or policy not in POLICIES:
            continue
        trace, cluster, measure = TRACES[case]
        jobs = TraceFile(SHARED / "data" / "gavel" / trace).read(table)
        name, mechanism = POLICIES[policy]
        scheduler = SchedulerConfig(parse_part(name), mechanism=parse_part(mechanism), round_s=360.0)
        began = time.process_time()
        run = run_simulation(Simulation(jobs, Cluster.parse(cluster), scheduler, table, measure=measure))
        everybody = run.state.all_jobs()
        first, last = measure or (0, len(jobs.jobs))
        ours = float(np.mean((everybody.ended_s - everybody.submitted_s)[first:last]))
        theirs = json.loads(file.read_text())["average_jct_s"]
        spent = time.process_time() - began
        print(f"{file.stem:<42}{theirs:>10.0f}{ours:>10.0f}{ours / theirs - 1:>+8.1%}{spent:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
