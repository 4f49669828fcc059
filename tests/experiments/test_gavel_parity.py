"""Gavel's own simulator as the yardstick: its options on, the average completion time within 3 %.

Its solver stops in the middle of the optima (`optimum=centre`), it recomputes at least 1,920 seconds apart, lets newcomers wait
until then, fills v100, p100 and k80 one after the other for policies that know types and in a random order for others, and puts
each worker on a server of its own at consolidated rates; of a round, a job has received the time of its whole steps. The
loaded cluster (jobs 800 to 999) takes a minute and is in `benchmarks/gavel.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.simulate import Simulation, run_simulation

pytestmark = pytest.mark.long

SHARED = Path(__file__).resolve().parents[2] / ".." / "shared"
needs_data = pytest.mark.skipif(not (SHARED / "expected" / "gavel").is_dir(), reason="Gavel's results are not at ../shared")

AWARE = "gavel-rounds:min_interval_s=1920:newcomers=wait:lease_s=360:types=in-order"
AGNOSTIC = "gavel-rounds:min_interval_s=1920:newcomers=wait:lease_s=360:types=shuffled"
SINGLE = ("continuous_single_seed0_lam900.trace", "36xv100:1,36xp100:1,36xk80:1", (50, 150), "a_single__")
PHYSICAL = ("max_min_fairness.trace", "8xv100:1,16xp100:1,24xk80:1", None, "b_phys_continuous__")


@needs_data
@pytest.mark.parametrize(
    ("case", "policy", "mechanism", "theirs"),
    [
        (SINGLE, "fifo_perf:greedy=true", f"{AWARE}:work_conserving=false", "fifo_perf"),
        (PHYSICAL, "max_min_fairness:optimum=centre", AGNOSTIC, "max_min_fairness"),
        (PHYSICAL, "max_min_fairness_perf:optimum=centre", AWARE, "max_min_fairness_perf"),
        (SINGLE, "max_min_fairness_perf:optimum=centre", AWARE, "max_min_fairness_perf"),
        (SINGLE, "max_min_fairness:optimum=centre", AGNOSTIC, "max_min_fairness"),
    ],
    ids=["single-fifo", "physical-agnostic", "physical-aware", "single-aware", "single-agnostic"],
)
def test_average_completion_times_are_gavels(case, policy, mechanism, theirs):
    trace, cluster, measure, prefix = case
    table = read_table(SHARED / "data" / "gavel" / "simulation_throughputs.json")
    jobs = TraceFile(SHARED / "data" / "gavel" / trace).read(table)
    scheduler = SchedulerConfig(parse_part(policy), mechanism=parse_part(mechanism), round_s=360.0)
    run = run_simulation(Simulation(jobs, Cluster.parse(cluster), scheduler, table, measure=measure))
    everybody = run.state.all_jobs()
    first, last = measure or (0, len(jobs.jobs))
    ours = float(np.mean((everybody.ended_s - everybody.submitted_s)[first:last]))
    expected = json.loads((SHARED / "expected" / "gavel" / f"{prefix}{theirs}.json").read_text())["average_jct_s"]
    assert ours == pytest.approx(expected, rel=0.03)
