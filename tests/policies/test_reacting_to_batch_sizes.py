"""The schedulers that Shockwave is compared with know what a job is now, and nothing of what it will be: from the second in
which a batch size is announced decisions are as for a job of that speed, and before it as for one that never changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.allocation.allox import AlloX
from fairlead.policies.allocation.finish_time_fairness import FinishTimeFairness
from fairlead.policies.allocation.gandiva_fair import GandivaFair
from fairlead.policies.allocation.makespan import MinTotalDuration
from fairlead.policies.allocation.max_min import MaxMinFairness, MaxMinFairnessPerf
from fairlead.policies.allocation.sum_objectives import MaxSumThroughputPerf
from fairlead.policies.ranking.themis import ThemisRanking
from fairlead.simulator.costs import Costs
from fairlead.workloads.dynamics import Regimes
from fairlead.workloads.trace import Trace
from fairlead_papers.shockwave.runs import ALLOX, GANDIVA_FAIR, GAVEL, MST, OSSP, THEMIS, Arm
from scenes import state_of, table_of, view_of

SMALL, GROWN, ALIKE, OTHER = "A (batch size 8)", "A (batch size 32)", "C", "B"
TABLE = table_of(
    ["v100", "k80"], {(SMALL, 1): [1.0, 0.9], (GROWN, 1): [0.5, 0.05], (ALIKE, 1): [2.0, 0.2], (OTHER, 1): [1.5, 0.5]}
)
"""In steps of the size 8, A at the size 32 is as fast as C, which gains more by the fast type than B does."""


def decided(policy, kind: str, announced: int | None = None, *, second: float = 3000.0, on: str = "1xv100:1,1xk80:1"):
    """What it makes of four jobs that have waited, the first of a kind and perhaps of another batch size by now."""
    cluster = Cluster.parse(on)
    first = Job("first", steps=9000.0, kind=kind, user="ann", mode="gns" if kind == SMALL else "static")
    others = [Job(f"j{i}", steps=9000.0, kind=OTHER, user=user) for i, user in enumerate(("ann", "bob", "bob"))]
    state = state_of(cluster, [first, *others])
    if announced is not None:
        apply_event(state, ev.MetricsReported(second, BATCH_SIZE, np.array([0]), np.array([float(announced)])))
    view = view_of(state, second, TABLE.for_types(cluster.type_names))
    if hasattr(policy, "select"):
        return policy.select(view, None)[0].jobs.tolist()
    return policy.allocate(view, None)[0].matrix(view.jobs.number, len(cluster.type_names)).tolist()


def assert_reacts(policy, on: str) -> None:
    before, after = decided(policy, SMALL, on=on), decided(policy, SMALL, 32, on=on)
    assert decided(policy, SMALL, 8, on=on) == before, "what it began with is no change"
    assert after == decided(policy, ALIKE, on=on)
    assert after != before


@pytest.mark.parametrize(
    "policy",
    [MinTotalDuration(), FinishTimeFairness(), ThemisRanking()],
    ids=lambda policy: type(policy).__name__,
)
def test_sharing_policies_use_the_run_time_at_the_last_batch_size(policy) -> None:
    assert_reacts(policy, on="1xv100:1")


@pytest.mark.parametrize(
    "policy",
    [MaxMinFairnessPerf(), AlloX(alpha=1.0), MaxSumThroughputPerf(), GandivaFair()],
    ids=lambda policy: type(policy).__name__,
)
def test_type_aware_policies_use_rates_at_the_last_batch_size(policy) -> None:
    assert_reacts(policy, on="1xv100:1,1xk80:1")


def test_a_policy_without_rates_does_not_react() -> None:
    assert decided(MaxMinFairness(), SMALL) == decided(MaxMinFairness(), SMALL, 32)


def planned(arm: Arm, parts: tuple[tuple[int, float], ...]) -> tuple[list[bytes], list[bytes]]:
    """A run of four jobs, of which two change as told: the plans before the first change is announced, and those behind it."""
    kinds = (SMALL, OTHER, SMALL, OTHER)
    jobs = [Job(f"j{i}", 0.0, 9000.0 + 500 * i, kind, user="ab"[i % 2], mode="gns") for i, kind in enumerate(kinds)]
    dynamics = {job.name: Regimes.of(job, parts) for job in jobs if job.kind == SMALL}
    config = SchedulerConfig.from_data(yaml.safe_load(f"{{{arm.scheduler}}}"))
    journal, cluster = MemoryJournal(), Cluster.parse("1xv100:1,1xk80:1")
    run_simulation(
        Simulation(Trace.of(jobs, dynamics=dynamics), cluster, config, TABLE, Costs(restart_s=20.0)), journal=journal
    )
    before, behind, changed = list[bytes](), list[bytes](), False
    for each in journal.events:
        if isinstance(each, ev.RoundPlanned):
            (behind if changed else before).append(encode(each))
        changed |= isinstance(each, ev.MetricsReported) and each.name == BATCH_SIZE and bool((each.values > 8).any())
    return before, behind


AUCTION = Arm("Themis by auction", "preset: themis, rounds: 120")


@pytest.mark.parametrize("arm", [OSSP, THEMIS, AUCTION, GAVEL, ALLOX, MST, GANDIVA_FAIR], ids=lambda arm: arm.label)
def test_a_change_is_unknown_before_it_is_reported(arm: Arm) -> None:
    """Gavel's max-min fairness is the one that knows types: the other knows no speeds."""
    aware = replace(arm, scheduler=arm.scheduler.replace("max-min-fairness", "max-min-fairness-perf"))
    before, behind = planned(aware, ((8, 0.4), (32, 0.6)))
    never, _ = planned(aware, ((8, 1.0),))
    assert before
    assert before == never[: len(before)]
    assert behind != never[len(before) :]
