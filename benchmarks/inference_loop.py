"""Inference sessions through the one loop, beside training: random mixes at steady rates, and with rates that change.

    .venv/bin/python benchmarks/inference_loop.py [mixes of each kind, 20] [seconds of requests, 6]

docs/papers/inference.md has the results."""

from __future__ import annotations

import math
import sys

from fairlead.simulator.world import Costs
from fairlead_papers.serving_loop import Looped, Swings, through_loop
from fairlead_papers.serving_mixes import MIXES

HEADINGS = "| mix | most / least | within | in time, mean | lowest | ≥ 99 % | worst session | starts | gave way |"
SWINGS = ((0.9, 1.1), (0.7, 1.3), (0.5, 1.5))
STARTS = {"replicas that stay go on": Costs(restart_s=10.0), "as a whole": Costs(restart_s=10.0, checkpoint_s=1e-3)}
"""Who has to save something first stops as a whole."""


def line(name: str, found: list[Looped]) -> str:
    most = max(one.accelerators / math.ceil(one.least) for one in found)
    times = [one.attainment for one in found]
    starts, gave_way = (sum(getattr(one, what) for one in found) / len(found) for what in ("starts", "gave_way"))
    good, within = sum(one >= 0.99 for one in times), sum(one.within for one in found)
    mean, worst = sum(times) / len(times), min(one.worst for one in found)
    told = f"{most:.3f} | {within} | {mean:.2%} | {min(times):.2%} | {good} | {worst:.1%} | {starts:.2f} | {gave_way:.2f}"
    return f"| {name} | {told} |"


def main(count: int, duration_s: float) -> None:
    print(f"{count} mixes of each kind, {duration_s:g} s of requests", HEADINGS, "|---|" + "---:|" * 8, sep="\n", flush=True)
    for name, mix in MIXES.items():
        print(line(name, through_loop(mix, range(count), duration_s=duration_s)), flush=True)
    for told, costs in STARTS.items():
        print(f"an hour of `usual` mixes, rates drawn anew every 5 minutes, starts that take 10 s: {told}", flush=True)
        for low, high in SWINGS:
            found = through_loop(
                MIXES["usual"],
                range(max(1, count // 7)),
                duration_s=3600.0,
                swings=Swings(300.0, low, high),
                costs=costs,
                most_requests=2e7,
            )
            print(line(f"× {low:g} to {high:g}", found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, float(sys.argv[2]) if len(sys.argv) > 2 else 6.0)
