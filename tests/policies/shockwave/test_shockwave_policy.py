"""The policy: a plan stands until somebody comes or goes, everybody works, and the memo is the plan."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import pytest

from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.events import MemoChanged
from fairlead.core.job import Job
from fairlead.policies.shockwave.policy import Shockwave
from fairlead.testing import Harness, job
from scenes import state_of, table_of, view_of


def memos(harness: Harness) -> int:
    return sum(isinstance(event, MemoChanged) for event in harness.journal.events)


def test_a_plan_stands_until_somebody_comes(harness: Harness) -> None:
    policy = Shockwave(rounds=10, round_s=300.0)
    harness.policy(policy).cluster("v100:2").submit(*(job(f"j{i}").lasting(6000) for i in range(4)))
    harness.round()
    planned = memos(harness)
    assert planned == 1
    harness.round()
    harness.round()
    assert memos(harness) == planned
    harness.submit(job("new").lasting(600))
    harness.round()
    assert memos(harness) == planned + 1
    assert policy.schedule(harness.state.memo)[-1].any()


@pytest.mark.parametrize("reactive", [True, False])
def test_a_job_that_changes_its_speed_is_planned_anew_at_once_or_at_the_next_plan(reactive: bool) -> None:
    policy = Shockwave(rounds=10, round_s=300.0, reactive=reactive)
    state = state_of(Cluster.parse("2xv100:2"), [Job(f"j{i}", steps=6000.0, kind="model") for i in range(4)])
    slow, fast = (table_of(["v100"], {("model", 1): [rate]}) for rate in (1.0, 2.0))
    _, memo = policy.select(view_of(state, table=slow), None)
    assert policy.select(view_of(state, 300.0, slow), memo)[1] is memo
    assert (policy.select(view_of(state, 300.0, fast), memo)[1] is not memo) == reactive


def test_accelerators_do_not_idle_while_somebody_waits(harness: Harness) -> None:
    harness.policy(Shockwave(rounds=6, round_s=300.0)).cluster("v100:4").submit(
        job("wide").workers(4).lasting(900), *(job(f"j{i}").lasting(1500) for i in range(5))
    )
    for _ in range(6):
        now = harness.round()
        assert len(now.running) == 4 or now.running == {"wide"}


def test_who_would_make_the_makespan_goes_first_where_that_counts(harness: Harness) -> None:
    harness.policy(Shockwave(rounds=10, round_s=300.0, power=0.0, makespan=100.0)).cluster("v100:2")
    harness.submit(*(job(f"j{i}").lasting(1200) for i in range(8)), job("long").lasting(30_000))
    assert all("long" in harness.round().running for _ in range(10))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("rounds", 0), ("round_s", 0.0), ("epsilon", 0.0), ("rho_max", -1.0), ("power", -1.0), ("makespan", -1.0)],
        *[("nodes", -1), ("stay", -0.1), ("noise", 1.5), ("forecast", "oracle"), ("program", "mine")],
        *[("rounds", 1001), ("power", 101.0), ("nodes", 10**7)],
        *product(("round_s", "power", "makespan", "epsilon", "rho_max", "stay"), (inf, nan, 1e300)),
    ],
)
def test_parameters_that_make_no_sense_are_told(field: str, value: float | str) -> None:
    with pytest.raises(InputError, match=f"policy shockwave: field '{field}'"):
        Shockwave(**{field: value})  # type: ignore[arg-type]


def test_what_the_policy_remembers_is_its_plan(harness: Harness) -> None:
    policy = Shockwave(rounds=5, round_s=300.0)
    harness.policy(policy).cluster("v100:2").submit(*(job(f"j{i}").lasting(3000) for i in range(3)))
    harness.round()
    memo = harness.state.memo
    assert policy.schedule(memo).sum(axis=0).tolist() == [2] * 5
    assert memo["gap"] <= 1e-3
    assert len(memo["rho"]) == 3
