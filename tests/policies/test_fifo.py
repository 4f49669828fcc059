"""First in, first out: strict or backfilling, never pushing out who runs, and with priorities pushing."""

from __future__ import annotations

import pytest

from fairlead.policies.ranking.fifo import FifoAnyType
from fairlead.testing import PolicyContract, job


class TestFifoOnAnyType(PolicyContract):
    make = FifoAnyType


def test_jobs_run_in_the_order_of_their_submission(harness):
    harness.cluster("v100:1").policy("fifo")
    harness.submit(job("c").lasting(100.0).at(3), job("a").lasting(100.0).at(1), job("b").lasting(100.0).at(2)).run()
    assert harness.ended_s("a") < harness.ended_s("b") < harness.ended_s("c")


def test_strict_order_lets_nobody_overtake_the_head(harness):
    harness.cluster("v100:4").policy("fifo").submit(job("a").workers(3), job("wide").workers(2), job("narrow").workers(1))
    plan = harness.round()
    assert plan.running == {"a"}
    assert plan.waiting == {"wide", "narrow"}


def test_the_head_takes_what_others_leave_for_a_faster_type_in_the_same_round(harness):
    harness.cluster("v100:4,k80:4").policy("fifo")
    harness.submit(job("short").workers(2).lasting(350.0), job("long").workers(2), job("slow").workers(2))
    harness.submit(job("wide").workers(4), job("wider").workers(4), job("narrow").workers(1))
    assert harness.round().running == {"short", "long", "slow"}
    assert harness.round().running == {"short", "long", "slow"}
    plan = harness.round()
    assert "slow" in plan.suspended & plan.launched, "it goes where the short one was"
    assert plan.running == {"long", "slow", "wide"}, "and the head where it was; nobody overtakes the next one"


def test_backfilling_lets_the_small_overtake(harness):
    harness.cluster("v100:4").policy("fifo", backfill=True)
    plan = harness.submit(job("a").workers(3), job("wide").workers(2), job("narrow").workers(1)).round()
    assert plan.running == {"a", "narrow"}


def test_who_runs_is_not_pushed_out_by_an_earlier_job_that_could_not_start(harness):
    harness.cluster("v100:4").policy("fifo", backfill=True)
    harness.submit(job("a").workers(3).lasting(450.0), job("wide").workers(4), job("narrow").workers(1))
    harness.round()
    harness.round()
    assert harness.round().running == {"narrow"}


def test_with_preemption_the_order_of_submission_is_kept_at_any_price(harness):
    harness.cluster("v100:4").policy("fifo", backfill=True, preempt=True)
    harness.submit(job("a").workers(3).lasting(450.0), job("wide").workers(4), job("narrow").workers(1))
    harness.round()
    harness.round()
    plan = harness.round()
    assert plan.running == {"wide"}
    assert plan.suspended == {"narrow"}


def test_fifo_looks_at_no_priority(harness):
    harness.cluster("v100:1").policy("fifo")
    assert harness.submit(job("a"), job("b").with_(priority=9)).round().running == {"a"}


# With priorities.


def test_a_higher_priority_goes_first_and_equals_by_submission(harness):
    harness.cluster("v100:1").policy("fifo-priority")
    harness.submit(*(job(name).lasting(100.0).with_(priority=p) for name, p in (("a", 0), ("b", 2), ("c", 2), ("d", 1)))).run()
    order = sorted("abcd", key=harness.ended_s)
    assert order == ["b", "c", "d", "a"]


def test_a_higher_priority_pushes_aside_who_has_less(harness):
    harness.cluster("v100:2").policy("fifo-priority").submit(job("low").workers(1), job("lower").workers(1).with_(priority=-1))
    assert harness.round().running == {"low", "lower"}
    plan = harness.submit(job("high").workers(1).with_(priority=5).at(10)).round()
    assert plan.suspended == {"lower"}
    assert plan.running == {"low", "high"}


def test_without_preemption_a_higher_priority_waits_for_who_runs(harness):
    harness.cluster("v100:1").policy("fifo-priority", preempt=False).submit(job("low").lasting(450.0), job("other"))
    harness.round()
    assert harness.submit(job("high").with_(priority=5).at(10)).round().running == {"low"}
    assert harness.round().running == {"high"}


@pytest.mark.parametrize(("backfill", "running"), [(False, {"a"}), (True, {"a", "narrow"})])
def test_strict_or_backfilling_is_a_choice_with_priorities_too(harness, backfill, running):
    harness.cluster("v100:4").policy("fifo-priority", backfill=backfill)
    wide, narrow = job("wide").workers(3).with_(priority=1), job("narrow").workers(1)
    assert harness.submit(job("a").workers(2).with_(priority=2), wide, narrow).round().running == running


# On any type.


def test_on_any_type_the_draw_looks_at_no_throughput(harness):
    harness.cluster("v100:40,k80:40").policy("fifo-any-type")
    harness.submit(*(job(f"j{i}").lasting(100.0) for i in range(40)))
    plan = harness.round()
    assert len(plan.running) == 40
    used = {harness.state.cluster.type_of[harness.state.device_map.of(n)[0]] for n in range(40)}
    assert used == {0, 1}


def test_on_any_type_the_line_is_strict_and_nobody_is_moved(harness):
    harness.cluster("v100:2,k80:2").policy("fifo-any-type")
    harness.submit(job("a").workers(2).lasting(1e4), job("b").workers(2).lasting(1e4), job("c"), job("d"))
    assert harness.round().running == {"a", "b"}
    later = harness.round()
    assert later.running == {"a", "b"}
    assert not later.suspended
