"""A shadow scheduler predicts what it would have done: from whole journals, from their beginnings, and as they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

import fairlead
from fairlead.cli.cmd_shadow import Pace
from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError, JournalError
from fairlead.engine.codec import encode
from fairlead.experiments.live_inputs import JournalFollower
from fairlead.experiments.shadow import compare_shadow
from fairlead.simulator.costs import Costs
from fairlead.workloads.generate import Generator

pytestmark = pytest.mark.long


@cache
def run(policy: str, jobs: int = 60) -> fairlead.Run:
    hours = 3600.0
    mix = Generator(jobs, jobs_per_hour=20, users=4, durations=(hours, 2 * hours, 5 * hours, 10 * hours))
    return fairlead.simulate(mix, "8xv100:4,8xp100:4", policy, round_s=300, seed=3, costs=Costs(10.0, 30.0))


def shadow_of(events: Sequence[ev.Event], policy: str) -> SchedulerConfig:
    return replace(SchedulerConfig.from_data(events[0].scheduler), policy=parse_part(policy), name="")


@pytest.mark.parametrize(("live", "shadow"), [("fifo", "srtf"), ("srtf", "las"), ("fifo", "max-min-fairness")])
def test_it_predicts_its_own_result_on_200_jobs(live: str, shadow: str) -> None:
    events = tuple(run(live, 200).events)
    found = compare_shadow(events, shadow_of(events, shadow))
    assert found.compared == found.jobs == 200
    assert abs(found.model_error) < 0.01
    rerun = run(shadow, 200).summary
    assert found.metrics["average_jct_s"].shadow == pytest.approx(rerun["average_jct_s"], rel=0.05)
    assert found.metrics["average_ftf"].shadow == pytest.approx(rerun["average_ftf"], rel=0.05)
    paired = found.metrics["average_jct_s"].difference
    assert 0 < paired.half_width < math.inf
    assert paired.pairs == 10
    assert found.verdict.endswith((" % lower", " % higher", "difference in average JCT"))
    assert found.undeclared == 0
    assert found.to_dict() == compare_shadow(events, shadow_of(events, shadow)).to_dict()


def test_a_journal_that_is_still_written_gives_what_has_finished_so_far() -> None:
    events = tuple(run("fifo").events)
    half = compare_shadow(events[: len(events) // 2], shadow_of(events, "srtf"))
    assert 0 < half.compared < half.jobs
    assert half.second < events[-1].time
    assert compare_shadow(events[:1], shadow_of(events, "srtf")).verdict == "no job has finished in all runs so far"
    few = next(n for n in range(1, len(events)) if compare_shadow(events[:n], shadow_of(events, "srtf")).compared)
    assert "too few jobs" in compare_shadow(events[:few], shadow_of(events, "srtf")).verdict
    with pytest.raises(JournalError, match="beginning is missing"):
        compare_shadow(events[1:], shadow_of(events, "srtf"))


def test_a_switch_of_the_live_scheduler_stays_in_the_control() -> None:
    events = list(run("fifo").events)
    place = len(events) // 3
    switched = ev.SchedulerSwitched(events[place - 1].time, shadow_of(events, "fifo").to_data(), "again")
    found = compare_shadow([*events[:place], switched, *events[place:]], shadow_of(events, "srtf"))
    assert abs(found.model_error) < 0.01


def test_a_faulty_policy_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.policies.ranking.job_size import ShortestRemainingTimeFirst

    events = tuple(run("fifo").events)
    monkeypatch.setattr(ShortestRemainingTimeFirst, "select", lambda *_: 1 // 0)
    with pytest.raises(FairleadError, match="cannot simulate srtf: ZeroDivisionError"):
        compare_shadow(events, shadow_of(events, "srtf"))


def test_a_follower_reads_pages_and_begins_again_if_the_journal_was_replaced() -> None:
    lines = [encode(event) for event in run("fifo").events]
    there = lines[:10]
    follower = JournalFollower(lambda after: there[after : after + 4])
    assert follower.catch_up()
    assert [encode(event) for event in follower.events] == there
    assert not follower.catch_up()
    there = lines[:12]
    assert follower.catch_up()
    assert len(follower.events) == 12
    there = lines[:5]  # as after a restored backup
    assert follower.catch_up()
    assert [encode(event) for event in follower.events] == there
    there = []
    assert follower.catch_up()
    assert follower.events == []


def test_comparisons_keep_to_their_share_of_a_core() -> None:
    now, cpu, slept = 0.0, 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    costs, pace = [4.0, 4.0, 0.1, 4.0], Pace(30.0, 0.05, 250.0, lambda: now, lambda: cpu, sleep)
    for turn, _ in enumerate(pace.turns()):
        cpu += costs[turn]
        now += 2 * costs[turn]  # a busy machine
    assert slept == pytest.approx([72.0, 72.0, 29.8])
    assert pace.used[0] / 0.05 <= pace.used[1] + 80.0
