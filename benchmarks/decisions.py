"""How long one decision takes, against jobs and nodes: CPU seconds of the decisions that a control plane would make.

    python benchmarks/decisions.py                            # a table, and the exponents
    python benchmarks/decisions.py --policies las --rounds 20
    python benchmarks/decisions.py --picture                  # also draws docs/img/decisions.png

Nodes have one GPU each, of three types. The loop is that of a control plane: it copies the snapshot, then the scheduler
decides and the plan is checked. The times are those of `fairlead_decision_seconds`, in CPU seconds. Jobs are simulated; they
come and end between two decisions. An exponent is the slope of a line through the logarithms of size and median.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.engine.loop import Decision, Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.generate import Generator

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "img" / "decisions.png"
POLICIES = {"las": "LAS", "max-min-fairness-perf": "max-min fairness", "shockwave": "Shockwave"}
NODES, PENDING = 5000, 10_000
SIZES = (0.25, 0.5, 1.0, 2.0)
ROUND_S = 360.0
LIMIT_S = 1.0


@dataclass
class InlineDecisions:
    """Makes each decision at once, and keeps its CPU seconds."""

    lead_s: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        began = time.process_time()
        made = decision()
        self.seconds.append(time.process_time() - began)
        return lambda: made

    def late(self) -> None:
        raise RuntimeError("a decision took longer than a round of virtual time")

    def failed(self, problem: Exception) -> Any:
        raise problem


def measure(policy: str, pending: int, nodes: int, rounds: int) -> dict[str, Any]:
    """The decisions of so many rounds with at least so many pending jobs; the first, in an empty cluster, apart."""
    parts = (("v100", 0.4), ("p100", 0.4), ("k80", 0.2))
    cluster = Cluster.parse(",".join(f"{round(nodes * share)}x{name}:1" for name, share in parts))
    first = pending + nodes  # so many, or more, wait: gangs run on several nodes
    often = max(1, first // 1000)  # new jobs in each round
    jobs = Generator(jobs=first + often * rounds, jobs_per_hour=None, workers="multiple").trace(0).jobs
    coming = [replace(job, submitted_s=max(0, at - first) // often * ROUND_S) for at, job in enumerate(jobs)]
    runner, table = InlineDecisions(), catalogue().for_types(cluster.type_names)
    stages = SchedulerConfig(parse_part(policy), round_s=ROUND_S).build(table)
    loop = Loop(
        State(cluster), SimulatedBackend(cluster, table, coming), stages, skip_quiet_rounds=False, decision_runner=runner
    )
    loop.run(until=ROUND_S * rounds)
    times = np.sort(runner.seconds[1:])
    return {
        "policy": policy,
        "nodes": cluster.size,
        "pending": len(loop.state.live) - len(loop.state.running),
        "running": len(loop.state.running),
        "decisions": len(times),
        "first_s": runner.seconds[0],
        "median_s": float(np.median(times)),
        "p99_s": float(times[math.ceil(0.99 * len(times)) - 1]),
    }


def exponent(rows: Sequence[dict[str, Any]], along: str) -> float:
    x, y = (np.log([row[name] for row in rows]) for name in (along, "median_s"))
    return float(np.polyfit(x, y, 1)[0])


def rows_of(policies: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    for policy in policies:
        for size in SIZES:
            yield {"along": "pending", **measure(policy, round(PENDING * size), NODES, rounds)}
        for size in SIZES:
            yield {"along": "nodes", **measure(policy, PENDING, round(NODES * size), rounds)}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, both = pyplot.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
    for axes, along, what in zip(
        both, ("pending", "nodes"), (f"pending jobs ({NODES:,} nodes)", f"nodes ({PENDING:,} pending jobs)")
    ):
        for policy, colour in zip(POLICIES, ("#3b6ea5", "#bf5040", "#4c9f70")):
            if mine := [row for row in rows if row["along"] == along and row["policy"] == policy]:
                label = f"{POLICIES[policy]}: exponent {exponent(mine, along):.2f}"
                axes.plot([row[along] for row in mine], [row["median_s"] for row in mine], "o-", color=colour, label=label)
        axes.axhline(LIMIT_S, color="#888888", linestyle=":", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel=what)
        axes.set_xticks([1000, 2000, 5000, 10_000, 20_000], ["1,000", "2,000", "5,000", "10,000", "20,000"])
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.legend(frameon=False, fontsize=8)
    both[0].set_ylabel("CPU seconds of a decision, median")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--policies", default=",".join(POLICIES), help="names, separated by commas")
    options.add_argument("--rounds", type=int, default=20, help="decisions of each case")
    options.add_argument("--picture", action="store_true")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    rows = []
    print(f"{'policy':24} {'nodes':>7} {'pending':>8} {'running':>8} {'first s':>8} {'median s':>9} {'p99 s':>8}")
    for row in rows_of(given.policies.split(","), given.rounds):
        rows.append(row)
        mark = "" if row["p99_s"] <= LIMIT_S else "  above the limit"
        line = f"{row['policy']:24} {row['nodes']:7,} {row['pending']:8,} {row['running']:8,} {row['first_s']:8.3f}"
        print(f"{line} {row['median_s']:9.4f} {row['p99_s']:8.4f}{mark}", flush=True)
    for policy in given.policies.split(","):
        for along in ("pending", "nodes"):
            mine = [row for row in rows if (row["policy"], row["along"]) == (policy, along)]
            print(f"{policy}: exponent by {along} {exponent(mine, along):.2f}")
    if given.picture:
        draw(rows, PICTURE)
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
