"""What a run costs on Ray beyond its own time: calls that do nothing, on a Ray cluster of this machine and in local processes.

    python benchmarks/ray_overhead.py                 # starts a small Ray cluster (the extra fairlead[ray])
    python benchmarks/ray_overhead.py --on ray:auto   # a cluster that runs
    python benchmarks/ray_overhead.py --runs 2000 --json

The first calls, which start the workers, do not count. Wall times depend on what else the machine does."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from fairlead.experiments.cases import ProcessPool
from fairlead.experiments.ray_pool import RayPool

GOAL_MS = 5.0
WORKERS = 2


def per_run_ms(submit: Callable[[int], Future[int]], runs: int) -> float:
    wait([submit(number) for number in range(20 * WORKERS)])
    begun = time.perf_counter()
    wait([submit(number) for number in range(runs)])
    return (time.perf_counter() - begun) / runs * 1e3


def measure(on: str, runs: int) -> dict[str, Any]:
    with RayPool(on, 1, WORKERS if on == "ray:local" else None) as there:
        ray_ms = per_run_ms(lambda number: there.submit(pow, number), runs)
    with ProcessPool(WORKERS) as here:
        local_ms = per_run_ms(lambda number: here.submit(pow, number, 1), runs)
    return {"runs": runs, "ray_ms": ray_ms, "local_ms": local_ms}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("--on", default="ray:local", help="the Ray cluster")
    given.add_argument("--runs", type=int, default=1000)
    given.add_argument("--json", action="store_true")
    asked = given.parse_args()
    found = measure(asked.on, asked.runs)
    if asked.json:
        print(json.dumps(found))
        return
    kept = "kept" if found["ray_ms"] - found["local_ms"] <= GOAL_MS else "missed"
    print(f"{found['runs']:,} runs: {found['ray_ms']:.2f} ms each on Ray, {found['local_ms']:.2f} ms in local processes")
    print(f"overhead: {found['ray_ms'] - found['local_ms']:.2f} ms; goal: at most {GOAL_MS:g} ms, {kept}")


if __name__ == "__main__":
    main()
