"""What a snapshot's jobs are expected to be: what they announced is known, what their mode may bring is foreseen, and nothing
else is."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import BATCH_SIZE, Job
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.policies.shockwave.planning.regime_forecast import (
    Trajectories,
    changing_jobs,
    forecast_trajectories,
    restatement,
)
from fairlead.policies.shockwave.policy import Shockwave
from fairlead.testing import Harness, job
from scenes import state_of, table_of, view_of

TABLE = table_of(["v100"], {("A (batch size 8)", 1): [1.0], ("A (batch size 16)", 1): [0.75], ("A (batch size 32)", 1): [0.5]})
"""In steps of the size 8: 1, 1.5 and 2 a second."""


def of_mode(mode: str, **more: object) -> Job:
    return Job(mode, steps=900.0, kind="A (batch size 8)", mode=mode, **more)  # type: ignore[arg-type]


def announce(state: State, second: float, number: int, size: int) -> None:
    apply_event(state, ev.MetricsReported(second, BATCH_SIZE, np.array([number]), np.array([float(size)])))


def foreseen(view: Snapshot) -> Trajectories:
    step_s = 1.0 / view.rates.of_jobs[:, 0]
    types = np.zeros(len(view.jobs), dtype=np.int64)
    return forecast_trajectories(view, restatement, step_s, types, changing_jobs(view), min_left_s=120.0)


def test_what_a_mode_may_bring_is_foreseen_at_the_speed_that_the_table_has_there() -> None:
    state = state_of(Cluster.parse("4xv100:4"), [of_mode(mode) for mode in ("static", "gns", "accordion", "expert")])
    found = foreseen(view_of(state, table=TABLE))
    assert found.remaining.tolist() == [[900, 0, 0], [300, 300, 300], [450, 450, 0], [900, 0, 0]]
    assert found.step_s[1] == pytest.approx([1.0, 1 / 1.5, 0.5])
    assert found.left_s == pytest.approx([900.0, 300 + 200 + 150, 450 + 225, 900.0])
    assert found.longest_s.tolist() == [900.0] * 4, "nobody is sure to become faster"
    assert found.past_s.tolist() == [0.0] * 4


def test_what_was_announced_is_known_and_the_rest_is_divided_anew() -> None:
    state = state_of(Cluster.parse("1xv100:1"), [of_mode("gns")], {0: [0]})
    announce(state, 0.0, 0, 8)
    announce(state, 100.0, 0, 16)
    found = foreseen(view_of(state, 250.0, TABLE))
    assert found.trained.tolist() == [[100.0, 150.0, 0.0]]
    assert found.remaining.tolist() == [[0.0, 250.0, 400.0]]
    assert found.past_s == pytest.approx([100 + 150 / 1.5])
    assert found.left_s == pytest.approx([250 / 1.5 + 400 / 2])


def planned(*schedule: tuple[int, float]) -> Job:
    return of_mode("expert", schedule=schedule)


def test_an_owners_schedule_is_foreseen_as_it_was_declared_and_counted_on() -> None:
    state = state_of(Cluster.parse("2xv100:2"), [planned((8, 0.25), (32, 0.75)), of_mode("accordion")])
    found = foreseen(view_of(state, table=TABLE))
    assert found.remaining.tolist() == [[225.0, 675.0], [450.0, 450.0]]
    assert found.left_s == pytest.approx([225 + 675 / 2, 675.0])
    assert found.longest_s == pytest.approx([225 + 675 / 2, 900.0]), "an owner's word counts, what a mode may bring does not"
    slower = state_of(Cluster.parse("1xv100:1"), [planned((32, 0.5), (8, 0.5))])
    assert foreseen(view_of(slower, table=TABLE)).left_s == pytest.approx([225 + 450]), "also where it begins at another size"


def test_a_schedule_is_restated_by_what_is_announced() -> None:
    state = state_of(Cluster.parse("1xv100:1"), [planned((8, 0.2), (16, 0.3), (32, 0.5))], {0: [0]})
    announce(state, 0.0, 0, 8)
    announce(state, 200.0, 0, 16)
    found = foreseen(view_of(state, 200.0, TABLE))
    assert found.trained.tolist() == [[200.0, 0.0, 0.0]]
    assert found.remaining == pytest.approx(np.array([[0.0, 700 * 3 / 8, 700 * 5 / 8]]))
    assert found.scheduled.tolist() == [True], "so little is no departure"


def test_who_departs_from_its_schedule_is_foreseen_from_where_it_is_and_no_longer_counted_on() -> None:
    state = state_of(Cluster.parse("1xv100:1"), [planned((8, 0.2), (16, 0.3), (32, 0.5))], {0: [0]})
    announce(state, 0.0, 0, 8)
    late = foreseen(view_of(state, 450.0, TABLE))
    assert late.remaining == pytest.approx(np.array([[0.0, 450 * 3 / 8, 450 * 5 / 8]])), "it may still come"
    assert late.longest_s.tolist() == [450.0], "and nobody counts on it"
    announce(state, 450.0, 0, 32)
    skipped = foreseen(view_of(state, 450.0, TABLE))
    assert skipped.remaining.tolist() == [[0.0, 450.0]]
    announce(state, 600.0, 0, 16)
    elsewhere = foreseen(view_of(state, 600.0, TABLE))
    assert elsewhere.remaining.tolist() == [[0.0, 0.0, 300.0]], "nothing of the schedule is ahead"


def test_plans_know_a_schedule_and_not_the_course_that_a_job_really_takes() -> None:
    """Two jobs that differ in their declaration alone: the one that will speed up is treated unfairly by an equal wait."""
    jobs = [of_mode("expert"), planned((8, 0.1), (32, 0.9))]
    view = view_of(state_of(Cluster.parse("1xv100:1"), jobs), 3000.0, TABLE)
    _, memo = Shockwave().select(view, None)
    assert memo["rho"][1] > memo["rho"][0]
    assert memo["longest"].tolist() == [0, 1]


def test_a_size_that_nobody_declared_or_measured_is_taken_as_it_comes() -> None:
    state = state_of(Cluster.parse("1xv100:1"), [of_mode("static")], {0: [0]})
    announce(state, 0.0, 0, 8)
    announce(state, 90.0, 0, 12)
    found = foreseen(view_of(state, 300.0, TABLE))
    assert found.trained.tolist() == [[90.0, 210.0]]
    assert found.remaining.tolist() == [[0.0, 600.0]]


@pytest.mark.parametrize("done", [900.0, 870.0])
def test_who_goes_on_behind_its_last_step_is_expected_to_need_a_little_more(done: float) -> None:
    """It has said so, or should have ended by now."""
    state = state_of(Cluster.parse("1xv100:1"), [of_mode("static")], {0: [0]}, done={0: done})
    found = foreseen(view_of(state, 60.0, TABLE))
    assert found.left_s.tolist() == [120.0]
    assert found.steps.tolist() == [1020.0]


def test_a_job_that_overran_is_scheduled_on_among_others() -> None:
    jobs = [of_mode("static"), *(Job(f"j{i}", steps=9000.0, kind="A (batch size 8)") for i in range(3))]
    state = state_of(Cluster.parse("1xv100:1"), jobs, {0: [0]}, done={0: 900.0})
    _, memo = Shockwave().select(view_of(state, 6000.0, TABLE), None)
    assert Shockwave().schedule(memo)[0].any()


def test_a_change_that_is_foreseen_is_part_of_what_is_fair_and_nobody_counts_on_it_for_the_makespan() -> None:
    jobs = [
        Job("gns", steps=4800.0, kind="A (batch size 16)", mode="gns"),
        Job("static", steps=4800.0, kind="A (batch size 16)"),
    ]
    view = view_of(state_of(Cluster.parse("1xv100:1"), jobs), 3000.0, TABLE)
    foretold, blind = (Shockwave(forecast=rule).select(view, None)[1] for rule in ("restatement", "greedy"))
    assert foretold["rho"][0] > foretold["rho"][1] == blind["rho"][0] == blind["rho"][1]
    assert foretold["longest"].tolist() == blind["longest"].tolist() == [0, 1], "as long as each other: by submission"


def test_what_is_expected_can_be_wrong_on_purpose_and_is_so_the_same_way_each_time() -> None:
    jobs = [Job(f"j{i}", steps=6000.0, kind="A (batch size 8)") for i in range(6)]
    view = view_of(state_of(Cluster.parse("2xv100:2"), jobs), table=TABLE)
    once, again, other = (Shockwave(noise=0.6, seed=seed).select(view, None)[1]["longest"].tolist() for seed in (1, 1, 2))
    assert once == again != other


def test_who_waits_is_told_when_its_turn_is_how_unfair_that_will_be_and_what_a_round_costs(harness: Harness) -> None:
    harness.policy(Shockwave(rounds=10, round_s=300.0)).cluster("v100:1").submit(
        *(job(f"j{i}").lasting(1500) for i in range(3))
    )
    now = harness.round()
    told = [now.reason(name) for name in ("j0", "j1", "j2") if name not in now.running]
    assert len(told) == 2
    for reason in told:
        facts = dict(reason.facts)
        assert (reason.by, str(reason.code), facts["rho"]) == ("policy", "planned-later", 1.0)
        assert 0 < facts["rounds"] < facts["window"] == 10
        assert 0 < facts["cost"] < 1
        assert "predicted to take 1.00 times its fair completion time" in reason.text
