"""Three schedulers on the same generated jobs, from Python: make a trace, simulate, summarise.

Run it from anywhere: `python examples/compare_policies.py`. The command `fairlead compare` does the same with more trimmings.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.config import Part, SchedulerConfig, read_cluster
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import Generator

HERE = Path(__file__).parent


def main() -> None:
    trace = Generator(jobs=150, jobs_per_hour=4.0, workers="multiple").trace(seed=1)
    cluster = read_cluster(str(HERE / "cluster.yaml"), accelerator_types())
    schedulers = [
        SchedulerConfig(Part("fifo")),
        SchedulerConfig(Part("srtf"), placement=Part("spread")),
        SchedulerConfig.from_file(HERE / "scheduler.yaml"),
    ]
    print(f"{len(trace)} jobs over {trace.span_s / 3600:.0f} hours on {cluster}")
    for scheduler in schedulers:
        summary = summarize(run_simulation(Simulation(trace, cluster, scheduler)).record)
        print(
            f"{scheduler.label:22}  mean JCT {summary.average_jct_s / 3600:5.1f} h   "
            f"first start {summary.average_responsiveness_s / 3600:5.1f} h   use {summary.utilization:4.0%}   "
            f"preempted {summary.preemptions}"
        )


if __name__ == "__main__":
    main()
