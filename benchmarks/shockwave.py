"""How long Shockwave's planner thinks about a window of twenty rounds, and how far its plans are from their bounds.

    python benchmarks/shockwave.py          # a table
    python benchmarks/shockwave.py --json   # the same as one JSON object

Jobs are drawn, from a fixed seed: one to four regimes of random lengths, each up to 1.7 times as fast as the one before;
run times from ten minutes to five hours, evenly by their logarithm; 60, 30, 9 and 1 % are gangs of one, two, four and
eight; two of five have done nothing yet; ρ̂ is log-normal (σ = 0.25), to the fifth power. In half of the windows three jobs
are twelve times as long, so that the longest and not the load is what the makespan is judged by. Of each case the worst
gap, (bound − value)/Σw in nats, and the worst CPU time over all windows."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.rng import stream
from fairlead.policies.shockwave.planner import plan
from fairlead.policies.shockwave.window import EPSILON, Window, progress, window

ROUND_S, ROUNDS, REGIMES = 120.0, 20, 4
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


def drawn(jobs: int, accelerators: int, makespan: float, seed: int) -> tuple[Window, Floats]:
    """A window and each job's ρ̂."""
    rng = stream(seed, "windows", jobs)
    regimes = np.arange(REGIMES) < rng.integers(1, REGIMES + 1, jobs)[:, None]
    run_s = np.exp(rng.uniform(np.log(600.0), np.log(18000.0), jobs))
    if seed % 2:
        run_s[:3] *= 12.0
    epoch_s = rng.uniform(30.0, 300.0, jobs)[:, None] / rng.uniform(1.0, 1.7, (jobs, 1)) ** np.arange(REGIMES)
    epoch_s = np.where(regimes, epoch_s, 0.0)
    share = np.where(regimes, rng.dirichlet(np.ones(REGIMES), jobs), 0.0)
    share /= share.sum(axis=1, keepdims=True)
    epochs = run_s / (share * epoch_s).sum(axis=1)
    done = np.where(rng.random(jobs) < 0.4, 0.0, rng.random(jobs)) * epochs
    planned = share * epochs[:, None]
    ahead = planned - np.clip(done[:, None] - (planned.cumsum(axis=1) - planned), 0.0, planned)
    rho = np.exp(rng.normal(0.0, 0.25, jobs))
    made = window(
        progress(done, ahead, epoch_s, epochs, ROUNDS, ROUND_S),
        (ahead * epoch_s).sum(axis=1),
        rng.choice([1, 2, 4, 8], jobs, p=[0.6, 0.3, 0.09, 0.01]),
        rho**5,
        accelerators,
        round_s=ROUND_S,
        makespan=makespan,
        scale_s=float(run_s.sum()),
        epsilon=EPSILON,
    )
    return made, rho


def rows() -> Iterator[dict[str, Any]]:
    for jobs, accelerators, makespan, seconds, nats in CASES:
        spent, gaps, starts = [], [], []
        for seed in range(WINDOWS):
            made, rho = drawn(jobs, accelerators, makespan, seed)
            before = time.process_time()
            found = plan(made, rho)
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
