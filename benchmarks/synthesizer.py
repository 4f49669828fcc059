"""How long a look ahead takes: nine combinations (Blox §5.2) with 200 jobs alive on 128 accelerators, on one core and on two.

python benchmarks/synthesizer.py [--jobs 200] [--json]
"""

from __future__ import annotations

import argparse
import json
import time

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.snapshot import Snapshot
from fairlead.engine.journal import NoJournal
from fairlead.experiments.inputs import table_for
from fairlead.experiments.simulate import Simulation, begin
from fairlead.experiments.synthesize import Advisor, Objective, combinations
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable

POLICIES = [Part("fifo"), Part("srtf"), Part("las")]
DOORS = [Part("accept-all"), *(Part("accept-up-to", {"factor": factor}) for factor in (1.2, 1.4))]


def crowded(alive: int, seed: int) -> tuple[Snapshot, ThroughputTable, SchedulerConfig]:
    """A run of Gavel's durations, stopped when so many jobs are alive for the first time."""
    cluster = Cluster.parse("128xv100:4")
    trace = Generator(jobs=6 * alive, jobs_per_hour=40.0, workers="multiple").trace(seed)
    table = table_for(trace, cluster, None)
    running = combinations(SchedulerConfig(), POLICIES, DOORS)[0]
    begun = begin(Simulation(trace, cluster, running, table), NoJournal())
    begun.loop.run(stop=lambda state: len(state.live) >= alive)
    return begun.loop.state.snapshot(begun.loop.backend.now), table, running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for seed in range(given.seeds):
        view, table, running = crowded(given.jobs, seed)
        for metrics in ({"jct": 1.0}, {"jct": 1.0, "responsiveness": 1.0}):
            row: dict[str, object] = {"seed": seed, "metric": "+".join(metrics), "jobs": len(view.jobs)}
            for processes in (1, 2):
                with Advisor(
                    combinations(running, POLICIES, DOORS), table, objective=Objective(metrics), processes=processes
                ) as advisor:
                    advisor.advise(view, running)  # processes start once, not at every look
                    began = time.perf_counter()
                    advice = advisor.advise(view, running)
                    row[f"{processes} cores: s"] = round(time.perf_counter() - began, 3)
            row["chosen"] = advice.chosen.label
            row["given up"] = sum(not outlook.complete for _, outlook in advice.forecasts)
            rows.append(row)
    if given.json:
        print(json.dumps({"looks": rows}))
        return
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(map(str, row.values())))


if __name__ == "__main__":
    main()
