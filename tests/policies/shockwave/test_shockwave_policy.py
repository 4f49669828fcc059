"""The policy: a plan stands until somebody comes or goes, everybody works, and the memo is the plan."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.events import MemoChanged
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.core.plan import RoundPlan
from fairlead.engine.apply import apply_event
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


def test_a_plan_ends_with_its_window_and_when_somebody_goes_or_a_node_does() -> None:
    policy = Shockwave(rounds=10, round_s=300.0, reactive=False)
    jobs = [Job(f"j{i}", steps=60_000.0) for i in range(4)]

    def stands(second: float, happened: ev.Event | None = None) -> bool:
        state = state_of(Cluster.parse("4xv100:2"), jobs)
        _, memo = policy.select(view_of(state), None)
        if happened is not None:
            apply_event(state, happened)
        return policy.select(view_of(state, second), memo)[1] is memo

    assert stands(2999.0)
    assert not stands(3000.0), "the window is over"
    assert not stands(600.0, ev.JobCancelled(500.0, 2))
    assert not stands(600.0, ev.NodeLost(500.0, 1))


@pytest.mark.parametrize("reactive", [True, False])
def test_a_job_that_changes_its_speed_is_planned_anew_at_once_or_at_the_next_plan(reactive: bool) -> None:
    policy = Shockwave(rounds=10, round_s=300.0, reactive=reactive)
    state = state_of(Cluster.parse("2xv100:2"), [Job(f"j{i}", steps=6000.0, kind="model") for i in range(4)])
    slow, fast = (table_of(["v100"], {("model", 1): [rate]}) for rate in (1.0, 2.0))
    _, memo = policy.select(view_of(state, table=slow), None)
    assert policy.select(view_of(state, 300.0, slow), memo)[1] is memo
    assert (policy.select(view_of(state, 300.0, fast), memo)[1] is not memo) == reactive


@pytest.mark.parametrize("reactive", [True, False])
def test_a_batch_size_that_is_announced_is_planned_with_though_no_speed_is_known_of_it(reactive: bool) -> None:
    policy = Shockwave(rounds=10, round_s=300.0, reactive=reactive)
    jobs = [Job(f"j{i}", steps=6000.0, kind="model (batch size 32)", mode="gns") for i in range(2)]
    state = state_of(Cluster.parse("1xv100:1"), jobs, {0: [0]})
    table = table_of(["v100"], {("model (batch size 32)", 1): [1.0]})

    def announced(second: float, size: float) -> None:
        apply_event(state, ev.MetricsReported(second, BATCH_SIZE, np.array([0]), np.array([size])))

    _, memo = policy.select(view_of(state, table=table), None)
    announced(100.0, 32.0)
    assert policy.select(view_of(state, 100.0, table), memo)[1] is memo, "what it began with is no change"
    announced(200.0, 64.0)
    assert (policy.select(view_of(state, 300.0, table), memo)[1] is not memo) == reactive


def test_its_rounds_are_those_of_the_scheduler_unless_it_is_told_others() -> None:
    state = state_of(Cluster.parse("1xv100:1"), [Job("a", steps=960.0)])
    for given, scheduler, used in ((None, 10.0, 10.0), (None, 0.0, 120.0), (60.0, 10.0, 60.0)):
        policy = Shockwave(round_s=given)
        _, memo = policy.select(view_of(state, round_s=scheduler), None)
        assert memo["round_s"] == used
        assert policy.schedule(memo).sum() == min(20, 960 / used)


def test_an_old_plan_says_what_to_do_of_those_who_are_still_here_and_lets_others_fill_up() -> None:
    policy = Shockwave(rounds=4, round_s=10.0)
    state = state_of(Cluster.parse("2xv100:2"), [Job(f"j{i}", steps=1000.0) for i in range(4)])
    _, memo = policy.select(view_of(state), None)
    schedule = policy.schedule(memo)
    for second, now in ((0.0, 0), (29.9, 2), (30.0, 3), (75.0, 3)):  # behind its window, as in its last round
        found = policy.interim_selection(view_of(state, second), memo)
        assert set(found.jobs.tolist()) == set(np.flatnonzero(schedule[:, now]))
    apply_event(state, ev.JobSubmitted(80.0, 4, Job("new", steps=1000.0)))
    apply_event(state, ev.RoundPlanned(RoundPlan(80.0, admitted=np.array([4]))))
    for gone, left in ((3, {0, 1, 2, 4}), (0, {1, 2, 4}), (2, {1, 4}), (1, {4})):
        apply_event(state, ev.JobCancelled(80.0, gone))
        chosen = set(policy.interim_selection(view_of(state, 80.0), memo).jobs.tolist())
        assert len(chosen) == min(2, len(left))
        assert 4 not in chosen or len(left) <= 2, "who is in the plan comes first"


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


def test_a_long_job_goes_first_where_the_makespan_is_its_own_and_not_where_there_is_work_for_long_after_it() -> None:
    """One long job beside short ones on two accelerators: these are 0.8 of its work, or eight times as much."""

    def rounds(short: int, critical: float) -> int:
        policy = Shockwave(10, 300.0, program="published", rho_max=1000.0, makespan=1000.0, critical=critical)
        jobs = [Job("long", steps=30_000.0), *(Job(f"j{i}", steps=6000.0) for i in range(short))]
        _, memo = policy.select(view_of(state_of(Cluster.parse("2xv100:2"), jobs), 10.0), None)
        return int(policy.schedule(memo)[0].sum())

    assert rounds(4, critical=0.0) == rounds(40, critical=0.0) == rounds(4, critical=6.0) == 10
    assert rounds(40, critical=6.0) < 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[
            ("rounds", 0),
            ("round_s", 0.0),
            ("epsilon", 0.0),
            ("rho_max", -1.0),
            ("power", -1.0),
            ("makespan", -1.0),
            ("critical", -1.0),
        ],
        *[("levels", -1), ("nodes", -1), ("stay", -0.1), ("noise", 1.5), ("forecast", "oracle"), ("program", "mine")],
        *[("rounds", 1001), ("power", 101.0), ("nodes", 10**7)],
        *product(("round_s", "power", "makespan", "critical", "epsilon", "rho_max", "stay"), (inf, nan, 1e300)),
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
    assert 0 <= memo["gap"] <= 1e-3
    assert 0 <= memo["relative_gap"] < 0.05
    assert len(memo["rho"]) == 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("program", ["text", "published"])
def test_who_can_run_nowhere_keeps_nobody_from_being_planned(program: str) -> None:
    table = table_of(["v100"], {("none", 1): [0.0], ("some", 1): [1.0]})
    state = state_of(Cluster.parse("1xv100:2"), [Job("a", kind="none", steps=100.0), Job("b", kind="some", steps=600.0)])
    policy = Shockwave(rounds=5, round_s=60.0, critical=6.0, makespan=4000.0, program=program)
    selection, memo = policy.select(view_of(state, 60.0, table=table), None)
    assert selection.jobs.tolist() == [1]
    assert policy.schedule(memo).any(axis=1).tolist() == [False, True]
