"""A policy as a plain Python object, without a package: earliest deadline first, round by round and then simulated.

Run it from anywhere: `python examples/custom_policy.py`. `third_party_policy/` is a policy as a package with a name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import fairlead
from fairlead.plugin import Memo, Selection, Snapshot, in_order
from fairlead.testing import Harness, job


@dataclass(frozen=True)
class EarliestDeadlineFirst:
    """Run the job with the earliest deadline first: key = submission + deadline; jobs without a deadline come last."""

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        due = view.jobs.submitted_s + view.jobs.deadline_s
        return in_order(view, due, valid_until=math.inf), memo  # deadlines do not change: the order holds until an event


def print_decisions() -> None:
    """A few jobs on one node, decision by decision, as in the tests of a policy."""
    harness = Harness().cluster("v100:4").policy(EarliestDeadlineFirst())
    harness.submit(job("relaxed").workers(4), job("urgent").at(60).workers(2).with_(deadline_s=5000.0))
    for _ in range(2):
        now = harness.round()
        waiting = ", ".join(f"{name}: {reason}" for name, reason in now.reasons.items())
        print(f"second {now.time:4.0f}: run {sorted(now.running)}, wait {{{waiting}}}")
    harness.run()  # to the end; checks every event


def compare_it() -> None:
    """The same policy and two that ship with Fairlead, on the same jobs."""
    trace = fairlead.Generator(jobs=200, jobs_per_hour=2.0, slos=(1.5, 4.0, 20.0))
    for policy in ("fifo", "srtf", EarliestDeadlineFirst()):
        run = fairlead.simulate(trace, "16xv100:4,16xp100:4", policy, keep_events=False)
        late, mean_h = run.summary["deadline_misses"], run.summary["average_jct_s"] / 3600
        print(f"{run.record.scheduler:23}  {late:3} of {run.summary['jobs']} jobs late, mean JCT {mean_h:.1f} h")


if __name__ == "__main__":
    print_decisions()
    compare_it()
