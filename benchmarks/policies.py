"""CPU milliseconds of one allocation by allocation policies.

    python benchmarks/policies.py                # a table
    python benchmarks/policies.py --json         # the same as one JSON object
    python benchmarks/policies.py --only FIFO    # the lines with this in their name
    python benchmarks/policies.py --only "± 1 %" # jobs that all differ, with the simplex method beside

The cluster grows with the jobs: half as many accelerators, of three types. Kinds are those of Gavel's table where it lies in
`../shared/data`, else the bundled catalogue's: all of one worker ("single"), or of one to eight ("gangs"). *Cold* is a new
policy's first answer; *warm* the answer after one more job has come. Memory is the process's peak. In the rows with ± 1 % every
job's rates are its own, by up to so much: there are as many classes as jobs. There, *HiGHS* is the same policy without blocks
by job: the simplex method solves the program over classes. `benchmarks/peers.py` measures other programs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import make, parse_part
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocator
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.oracle import Oracle
from fairlead.experiments.simulate import peak_rss_mb
from fairlead.policies.allocation.lp import per_job_model
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.table_files import read_throughputs
from fairlead.workloads.throughput_tables import ThroughputTable

TABLE = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "gavel" / "simulation_throughputs.json"
TYPES = ("v100", "p100", "k80")

CASES: tuple[tuple[str, str, int, dict[str, float]], ...] = (
    ("max-min (LAS)", "max-min-fairness-perf", 2048, {"cold": 10, "warm": 1}),
    ("max-min (LAS)", "max-min-fairness-perf", 32768, {"cold": 100}),
    ("max-min, agnostic", "max-min-fairness", 2048, {}),
    ("max-min, centre", "max-min-fairness-perf:optimum=centre", 2048, {"cold": 5, "warm": 5}),
    ("finish-time, centre", "finish-time-fairness-perf:optimum=centre", 128, {"cold": 10}),
    ("finish-time fairness", "finish-time-fairness-perf", 2048, {"cold": 20}),
    ("makespan", "min-total-duration-perf", 2048, {"cold": 20}),
    ("cost with SLOs", "min-cost-slo", 2048, {"cold": 20}),
    ("water filling", "max-min-fairness-water-filling-perf", 2048, {"cold": 200}),
    ("hierarchical, fair", "hierarchical-perf", 2048, {"cold": 400}),
    ("hierarchical, FIFO", "hierarchical-perf:inside=fifo", 2048, {"cold": 400}),
    *(
        (f"{name}, sharing", f"{policy}:space_sharing=true", 2048, {"cold": 300})
        for name, policy in (
            ("max-min", "max-min-fairness-perf"),
            ("finish-time", "finish-time-fairness-perf"),
            ("makespan", "min-total-duration-perf"),
            ("total", "max-sum-throughput-perf"),
            ("cost", "min-cost"),
            ("cost with SLOs", "min-cost-slo"),
            ("water filling", "max-min-fairness-water-filling-perf"),
            ("hierarchical", "hierarchical-perf"),
            ("hierarchical FIFO", "hierarchical-perf:inside=fifo"),
            ("FIFO", "fifo-perf"),
            ("shortest first", "sjf-perf"),
        )
    ),
    ("placement sensitive", "max-min-fairness-perf:placement_sensitive=true", 2048, {}),
    ("finish-time, placement", "finish-time-fairness-perf:placement_sensitive=true", 2048, {}),
    ("water filling, placement", "max-min-fairness-water-filling-perf:placement_sensitive=true", 2048, {}),
    ("FIFO", "fifo-perf", 2048, {}),
    ("AlloX", "allox", 2048, {}),
)
"""What is measured: a name, the policy, how many jobs, and the limits in CPU milliseconds."""

SLOW_HIGHS = 8192
"""With more jobs that all differ than these, the simplex method takes minutes and is not measured."""

WITHOUT_BLOCKS = ("max-min, agnostic", "FIFO", "AlloX")

LIMITS = {
    "max-min (LAS)": 30,
    "finish-time fairness": 50,
    "makespan": 50,
    "cost with SLOs": 90,
    "water filling": 60,
}
PERTURBED: tuple[tuple[str, str, int, dict[str, float]], ...] = (
    *(
        (name, policy, jobs, {"cold": LIMITS[name]} if name in LIMITS else {})
        for name, policy, jobs, _ in CASES
        if jobs == 2048 and "=true" not in policy
    ),
    ("max-min (LAS)", "max-min-fairness-perf", 32768, {"cold": 400}),
)
"""What is also measured where no two jobs are alike. Not space sharing: two million pairs are no pairs of classes."""


class Moment:
    """A cluster full of waiting jobs; more can come."""

    def __init__(self, table: ThroughputTable, jobs: int, gangs: bool, *, alike: bool = True) -> None:
        self.rng = np.random.default_rng(0)
        keys = [key for row, key in enumerate(table.keys) if row and (gangs or key[1] == 1) and table.alone[row].max() > 0]
        self.table, self.keys, self.count, self.now = table, keys, 0, 0.0
        if not alike:  # no two jobs with the same rates: each a kind of its own
            picks = [keys[i] for i in self.rng.integers(len(keys), size=jobs)]
            rows = [table.row(*key) for key in picks]
            noise = self.rng.uniform(0.99, 1.01, (jobs + 1, len(TYPES)))
            rates = table.alone[[0, *rows]] * noise
            self.keys = [(f"own-{i}", key[1]) for i, key in enumerate(picks)]
            nobody = np.zeros((1, 1, 1))
            paired = np.broadcast_to(nobody, (jobs + 1, jobs + 1, len(TYPES)))
            self.table = ThroughputTable(TYPES, (table.keys[0], *self.keys), rates, rates, paired, "perturbed")
        per_type = 8 * max(1, round(jobs / 2 / len(TYPES) / 8))
        self.cluster = Cluster.parse(",".join(f"{per_type}x{name}:8" for name in TYPES))
        self.state = State(self.cluster)
        apply_event(self.state, ev.JournalOpened(0.0, self.cluster, {}, "benchmark", None))
        self.estimator = Oracle(self.table)
        self.more(jobs, in_order=not alike)

    def more(self, jobs: int, *, in_order: bool = False) -> None:
        for index in range(jobs):
            kind, workers = self.keys[index if in_order else int(self.rng.integers(len(self.keys)))]
            rate = float(self.table.alone[self.table.row(kind, workers)].max())
            hours = float(self.rng.uniform(1, 48))
            deadline = self.now + 3600 * hours * float(self.rng.choice([1.2, 2.0, 10.0])) * 8
            account = f"entity-{int(self.rng.integers(8))}"
            job = Job(f"job-{self.count}", 0.0, rate * hours * 3600, kind, workers, account=account, deadline_s=deadline)
            apply_event(self.state, ev.JobSubmitted(0.0, self.count, job))
            self.count += 1
        admitted = np.arange(self.count - jobs, self.count)
        apply_event(self.state, ev.RoundPlanned(RoundPlan(0.0, admitted=admitted)))

    def view(self) -> Snapshot:
        view = self.state.snapshot(0.0).with_changes(estimate=self.estimator.rates)
        view.rates  # noqa: B018 - what a decision has looked up before it asks the policy
        return view


def timed(work: Callable[[], Any]) -> float:
    """CPU milliseconds."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def measure(
    policy: str, table: ThroughputTable, jobs: int, gangs: bool, *, alike: bool = True, times: int = 3
) -> dict[str, float]:
    part, registry = parse_part(policy), Registry.installed()
    moment = Moment(table, jobs, gangs, alike=alike)
    cold, warm = [], []
    for _ in range(times):
        allocator: Allocator = make("policy", part, registry)
        view = moment.view()
        memo = None
        cold.append(timed(lambda a=allocator, v=view: a.allocate(v, None)))
    if alike:
        _, memo = allocator.allocate(moment.view(), None)
    for _ in range(9 if alike else 0):
        moment.more(1)
        view = moment.view()
        warm.append(timed(lambda a=allocator, v=view, m=memo: a.allocate(v, m)))
    return {"cold": float(np.median(cold)), "warm": float(np.median(warm)) if warm else float("nan"), "mb": peak_rss_mb()}


def by_simplex(policy: str, table: ThroughputTable, jobs: int, gangs: bool) -> float:
    """Cold CPU milliseconds where jobs that all differ have no blocks of their own."""
    kept, per_job_model.MIN_CLASSES = per_job_model.MIN_CLASSES, jobs + 1
    try:
        return measure(policy, table, jobs, gangs, alike=False, times=1)["cold"]
    finally:
        per_job_model.MIN_CLASSES = kept


def rows(only: str) -> Iterator[dict[str, Any]]:
    table = (read_throughputs(TABLE.resolve()) if TABLE.is_file() else catalogue()).for_types(TYPES)
    for name, policy, jobs, limits in (case for case in CASES if only in case[0]):
        for gangs in (False, True):
            found = measure(policy, table, jobs, gangs)
            above = [f"{what} above {limit:g}" for what, limit in limits.items() if found[what] > limit]
            yield {"name": name, "policy": policy, "jobs": jobs, "kinds": "gangs" if gangs else "single", **found,
                   "limits": limits, "HiGHS": None, "above": above}  # fmt: skip
    for plain, policy, jobs, limits in PERTURBED:
        name = f"± 1 %: {plain}"
        if only not in name:
            continue
        for gangs in (False, True):
            found = measure(policy, table, jobs, gangs, alike=False)
            blocks = plain not in WITHOUT_BLOCKS and jobs <= SLOW_HIGHS
            beside = by_simplex(policy, table, jobs, gangs) if blocks else None
            above = [f"{what} above {limit:g}" for what, limit in limits.items() if found[what] > limit]
            facts = {"policy": policy, "jobs": jobs, "kinds": "gangs" if gangs else "single", **found}
            yield {"name": name, **facts, "limits": limits, "HiGHS": beside, "above": above}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    given = parser.parse_args()
    found = []
    if not given.json:
        print(f"{'policy':<28}{'jobs':>7} {'kinds':<7}{'cold ms':>9}{'warm ms':>9}{'HiGHS ms':>10}{'MB':>6}")
    for row in rows(given.only):
        found.append(row)
        if not given.json:
            beside = "" if row["HiGHS"] is None else f"{row['HiGHS']:.0f}"
            times = f"{row['cold']:>9.2f}{row['warm']:>9.2f}{beside:>10}{row['mb']:>6.0f}"
            print(f"{row['name']:<28}{row['jobs']:>7} {row['kinds']:<7}{times}", *row["above"], flush=True)
    if given.json:
        print(json.dumps({"table": TABLE.name if TABLE.is_file() else "catalogue", "rows": found}))


if __name__ == "__main__":
    main()
