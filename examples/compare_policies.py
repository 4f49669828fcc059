"""Three schedulers on the same generated jobs, over three seeds, from Python. `fairlead compare` does the same.

Run it from anywhere: `python examples/compare_policies.py`.
"""

from __future__ import annotations

from pathlib import Path

import fairlead

HERE = Path(__file__).parent


def main() -> None:
    schedulers = ["fifo", fairlead.Scheduler("srtf", placement="spread"), HERE / "scheduler.yaml"]
    trace = fairlead.Generator(jobs=150, jobs_per_hour=4.0, workers="multiple")
    result = fairlead.compare(trace, HERE / "cluster.yaml", schedulers, seeds=range(3), processes=1)
    for row in result.summary:
        jct_h, half_h = row["average_jct_s"] / 3600, row["average_jct_s_ci95"] / 3600
        print(f"{row['scheduler']:22}  mean JCT {jct_h:5.1f} ± {half_h:.1f} h   utilization {row['utilization']:4.0%}")
    for label in result.schedulers[1:]:
        found = result.paired(label, "fifo")
        print(f"{label:22}  JCT / JCT of fifo, seed by seed: {found['ratio']:.2f} ± {found['ratio_ci95']:.2f}")


if __name__ == "__main__":
    main()
