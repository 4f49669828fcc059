"""How long questions about a large cluster take: the smallest change for waiting jobs, the start of a new job, and a what-if.

    python benchmarks/questions.py --policy fifo --pending 1000

The processes are those of a control plane, so their times include the encoded state on its way, but no HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from typing import Any

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.job import Job
from fairlead.engine.state import State
from fairlead.engine.state_codec import freeze
from fairlead.experiments.lookahead_process import WarmLookahead
from fairlead.testing import Harness


def crowded(policy: str, pending: int, nodes: int = 64) -> State:
    """The state of a cluster with a queue, one round after the jobs came."""
    draw = np.random.default_rng(0)
    sizes, steps = draw.choice([1, 2, 4, 8], pending + 2 * nodes), draw.integers(600, 36000, pending + 2 * nodes)
    jobs = [
        Job(f"job-{place}", steps=float(length), workers=int(size), user=f"user-{place % 20}")
        for place, (size, length) in enumerate(zip(sizes, steps))
    ]
    harness = Harness(SchedulerConfig(Part(policy), round_s=60.0)).cluster(",".join(["v100:8"] * nodes)).submit(*jobs)
    harness.round()
    return harness.state


async def measure(state: State, asked: int) -> None:
    saved, short, long = freeze(state)(), WarmLookahead(60.0), WarmLookahead(60.0)
    running = {*state.running.tolist()}
    waiting = [number for number in (*state.live.tolist(), *state.queue.tolist()) if number not in running]

    async def timed(warm: WarmLookahead, budget_s: float, **question: Any) -> tuple[float, dict[str, Any]]:
        began = time.monotonic()
        found = await warm.ask(state.time, saved, {"rates": []}, {"all_users": False, **question}, budget_s)
        return time.monotonic() - began, found

    print(f"{len(waiting)} jobs wait, {len(running)} run; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for number in waiting[:: max(1, len(waiting) // asked)][:asked]:
        took_s, found = await timed(short, 4.0, kind="fix", user=state.job_of[number].user, number=number)
        kinds = ", ".join(one["kind"] for one in found["changes"]) or ("starts" if found["starts"] else "none")
        print(
            f"fix of job {number}: {took_s:.2f} s; {kinds}; not searched to the end: {', '.join(found['unsearched']) or 'none'}"
        )
    task = {"run": "true", "workers": 8, "time_limit_s": 600}
    took_s, found = await timed(short, 4.0, kind="start", user="user-0", tasks=[task])
    print(f"start of a new job: {took_s:.2f} s; {found['jobs'][0]}")
    took_s, found = await timed(long, 60.0, kind="whatif", user="user-0", request={"add": "64xv100:8", "timelines": True})
    print(f"what-if: {took_s:.2f} s; {found['scenarios']} scenarios; {'; '.join(found['guesses'])}")
    for warm in (short, long):
        await warm.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--pending", type=int, default=1000)
    parser.add_argument("--asked", type=int, default=8, help="waiting jobs for which the smallest change is asked")
    given = parser.parse_args()
    asyncio.run(measure(crowded(given.policy, given.pending), given.asked))


if __name__ == "__main__":
    main()
