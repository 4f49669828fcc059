"""Packings of inference sessions on random mixes: accelerators beside the least, and the part of requests answered in time.

    .venv/bin/python benchmarks/inference.py [mixes of each kind, 100] [seconds of requests, 20]

docs/papers/inference.md has the results."""

from __future__ import annotations

import math
import sys
import time

from fairlead_papers.serving_mixes import MIXES, Tried, allowed, try_mixes


def line(name: str, packing: str, arrivals: str, trials: list[Tried], took_s: float) -> str:
    most = max(one.accelerators / math.ceil(one.least) for one in trials)
    at_rate = sum(one.accelerators <= allowed(one.at_rate) for one in trials)
    mean = sum(one.attainment for one in trials) / len(trials)
    least = min(one.attainment for one in trials)
    good = sum(one.attainment >= 0.99 for one in trials)
    within = sum(one.within for one in trials)
    return (
        f"| {name} | {packing} | {arrivals} | {most:.3f} | {within} | {at_rate} | {mean:.2%} | {least:.2%} | {good} | "
        f"{min(one.worst for one in trials):.1%} | {took_s:.0f} |"
    )


def main(count: int, duration_s: float) -> None:
    print(f"{count} mixes of each kind, {duration_s:g} s of requests")
    print("| mix | packing | arrivals | most / least | within | within at rate | mean | lowest | ≥ 99 % | worst session | s |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, mix in MIXES.items():
        for packing in ("pooled", "squishy"):
            for arrivals in ("poisson", "uniform"):
                began = time.perf_counter()
                trials = try_mixes(mix, range(count), packing=packing, arrivals=arrivals, duration_s=duration_s)
                print(line(name, packing, arrivals, trials, time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, float(sys.argv[2]) if len(sys.argv) > 2 else 20.0)
