"""How long Shockwave's planner thinks about a window of twenty rounds, and how far its plans are from their bounds.

    python benchmarks/shockwave.py          # a table
    python benchmarks/shockwave.py --json   # the same as one JSON object

Windows are drawn from fixed seeds, as those of Figure 12 are (`fairlead_papers.shockwave.windows` says how). Of each
case the worst gap, (bound − value)/Σw in nats, and the worst CPU time over all windows."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairlead.policies.shockwave.planning.planner import plan_window
from fairlead_papers.shockwave.windows import drawn

WINDOWS = 10

CASES: tuple[tuple[int, int, float, float, float], ...] = (
    (2000, 256, 1e-3, 1.0, 1e-3),
    (2000, 256, 10.0, 1.0, 5e-3),
    (500, 256, 1e-3, 0.2, 1e-3),
    (500, 256, 10.0, 0.2, 5e-3),
    (120, 32, 1e-3, 1.0, 1e-3),
    (120, 32, 10.0, 1.0, 1e-3),
    (60, 14, 1e-3, 1.0, 1e-3),
)
"""Jobs, accelerators, λ, and the limits: seconds, and nats per weight."""


def rows() -> Iterator[dict[str, Any]]:
    for jobs, accelerators, makespan, seconds, nats in CASES:
        spent, gaps, starts = [], [], []
        for seed in range(WINDOWS):
            made, rho = drawn(jobs, accelerators, makespan, seed)
            before = time.process_time()
            found = plan_window(made, rho)
            spent.append(time.process_time() - before)
            gaps.append(found.gap)
            starts.append(found.starts / np.count_nonzero(found.rounds))
        above = [what for what, over in (("too long", max(spent) > seconds), ("too far", max(gaps) > nats)) if over]
        yield {"jobs": jobs, "accelerators": accelerators, "lambda": makespan,
               "seconds": max(spent), "median_s": float(np.median(spent)),
               "gap": max(gaps), "median_gap": float(np.median(gaps)), "starts": float(np.mean(starts)),
               "limits": {"seconds": seconds, "gap": nats}, "above": above}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    found = []
    if not as_json:
        print(f"{'jobs':>5}{'accelerators':>14}{'λ':>8}{'CPU s':>9}{'limit':>7}{'gap':>10}{'limit':>8}{'starts a job':>14}")
    for row in rows():
        found.append(row)
        if not as_json:
            times = f"{row['seconds']:>9.3f}{row['limits']['seconds']:>7.1f}"
            gaps = f"{row['gap']:>10.1e}{row['limits']['gap']:>8.0e}{row['starts']:>14.2f}"
            print(f"{row['jobs']:>5}{row['accelerators']:>14}{row['lambda']:>8g}{times}{gaps}", *row["above"], flush=True)
    if as_json:
        print(json.dumps({"rows": found}))
    if any(row["above"] for row in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
