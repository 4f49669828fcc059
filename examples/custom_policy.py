"""A policy as a plain Python object, without a package: earliest deadline first, looked at round by round and then simulated.

Run it from anywhere: `python examples/custom_policy.py`. `third_party_policy/` is the same thing as a package with a name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fairlead.config import Part, SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.core.cluster import Cluster
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.ranking.base import in_order
from fairlead.testing import Harness, job
from fairlead.workloads.generate import Generator


@dataclass(frozen=True)
class EarliestDeadlineFirst:
    """Run first whoever is due first: key = submission + deadline; who has none comes last."""

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        due = view.jobs.submitted_s + view.jobs.deadline_s
        return in_order(view, due, valid_until=math.inf), memo  # deadlines stand still: the order holds until something happens


def look_at_decisions() -> None:
    """A few jobs on one node, decision by decision: what tests of a policy are made of."""
    harness = Harness().cluster("v100:4").policy(EarliestDeadlineFirst())
    harness.submit(job("relaxed").workers(4), job("urgent").at(60).workers(2).with_(deadline_s=5000.0))
    for _ in range(2):
        now = harness.round()
        print(f"second {now.time:4.0f}: run {sorted(now.running)}, wait {{", end="")
        print(", ".join(f"{name}: {reason}" for name, reason in now.reasons.items()), end="}\n")
    harness.run()  # to the end; every event is held against the invariants


def simulate_it() -> None:
    """The same policy under a name of its own in a registry of one's own, against two that come with Fairlead."""
    registry = Registry.installed().plus("policy", "edf", EarliestDeadlineFirst)
    trace = Generator(jobs=200, jobs_per_hour=2.0, slos=(1.5, 4.0, 20.0)).trace(seed=0)
    for name in ("fifo", "srtf", "edf"):
        given = Simulation(trace, Cluster.parse("16xv100:4,16xp100:4"), SchedulerConfig(Part(name)))
        summary = summarize(run_simulation(given, registry=registry).record)
        late, mean_h = summary.deadline_misses, summary.average_jct_s / 3600
        print(f"{name:5}  {late:3} of {summary.jobs} jobs late, mean JCT {mean_h:.1f} h")


if __name__ == "__main__":
    look_at_decisions()
    simulate_it()
