"""The shipped harness, builders and invariants: they say what happened, and they see what must not happen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.engine.apply import replay_events
from fairlead.policies.ranking.las import LeastAttainedService
from fairlead.testing import Harness, InvariantBroken, check_events, check_state, cluster, job, random_jobs, random_table
from fairlead.testing.contracts import every_event, play
from fairlead.testing.invariants import check_reasons
from scenes import state_of

TWO = Cluster.parse("2xv100:2")
OPENED = ev.JournalOpened(0.0, TWO, {}, "invariants", None)


# Harness and builders.


def test_a_round_tells_who_started_who_runs_and_who_waits(harness):
    harness.cluster("v100:2").submit(job("a"), job("b"), job("c"))
    first = harness.round()
    assert (first.time, first.launched, first.running, first.waiting) == (0.0, {"a", "b"}, {"a", "b"}, {"c"})
    second = harness.round()
    assert (second.time, second.launched, second.suspended, second.running) == (300.0, frozenset(), frozenset(), {"a", "b"})
    assert harness.places("a") == [0]
    assert harness.number("c") == 2


def test_a_policy_can_be_given_by_name_or_as_an_object(harness):
    assert harness.policy(LeastAttainedService()).cluster("v100:1").submit(job("a"), job("b")).round().running == {"a"}
    assert Harness().policy("las", by="time").cluster("v100:1").submit(job("a"), job("b")).round().running == {"a"}
    assert harness.round().running == {"b"}


def test_a_builder_makes_a_job_in_a_few_words():
    made = job("wide").workers(8).lasting(600.0).at(30).with_(user="ann").value
    assert made == Job("wide", 30.0, 600.0, workers=8, user="ann")
    assert job("of").of_kind("LM", 10.0).value == Job("of", 0.0, 10.0, "LM")


def test_a_cluster_is_written_node_by_node_or_in_short():
    assert cluster("v100:4,v100:4,k80:2").node_size.tolist() == [4, 4, 2]
    assert cluster("8xv100:4").node_size.tolist() == [4, 4]
    assert cluster("v100").size == 1


def test_made_up_workloads_follow_their_seed():
    table = random_table(1, ("v100", "k80"))
    assert random_jobs(1, 9, table=table) == random_jobs(1, 9, table=table)
    assert random_jobs(1, 9, table=table) != random_jobs(2, 9, table=table)
    assert (table.alone > 0).all()
    assert all(made.workers <= 2 for made in random_jobs(1, 50, largest=2))


def test_the_harness_runs_to_the_end_and_checks_itself():
    made = Harness().cluster("v100:2").outage(0, 100.0, 200.0)
    made.submit(job("a").workers(2), job("b").lasting(50.0).at(10)).run()
    assert (made.phase("a"), made.phase("b")) == (Phase.FINISHED, Phase.FINISHED)


# Invariants: every one of them can be broken.


def submitted(count: int, workers: int = 1) -> list[ev.Event]:
    return [ev.JobSubmitted(0.0, number, Job(f"j{number}", 0.0, 100.0, workers=workers)) for number in range(count)]


def launched(time: float, places: dict[int, list[int]], **others) -> ev.RoundPlanned:
    numbers = np.array(list(places))
    offsets = np.concatenate(([0], np.cumsum([len(place) for place in places.values()])))
    flat = np.array([at for place in places.values() for at in place])
    return ev.RoundPlanned(RoundPlan(time, launches=Launches(numbers, numbers * 0, offsets, flat), **others))


def test_a_good_journal_passes_and_gives_the_last_state():
    state = check_events(every_event())
    assert state.time == 12.0
    assert not state.busy


def test_a_journal_that_does_not_begin_with_the_cluster_is_seen():
    with pytest.raises(InvariantBroken, match="begins with a JournalOpened event"):
        check_events(submitted(1))


def test_two_jobs_on_one_accelerator_are_seen():
    events = [OPENED, *submitted(2), launched(1.0, {0: [0], 1: [0]}, admitted=np.array([0, 1]))]
    with pytest.raises(InvariantBroken, match="a GPU holds 2 jobs, at most 1"):
        check_events(events)
    check_events(events, residents=2)


def test_an_accelerator_given_twice_to_one_job_is_seen():
    events = [OPENED, *submitted(1, workers=2), launched(1.0, {0: [1, 1]}, admitted=np.array([0]))]
    with pytest.raises(InvariantBroken, match="j0 runs with 1 GPUs instead of 2"):
        check_events(events, residents=2)


def test_a_gang_on_two_types_is_seen():
    mixed = Cluster.parse("1xv100:1,1xk80:1")
    events = [ev.JournalOpened(0.0, mixed, {}), *submitted(1, workers=2), launched(1.0, {0: [0, 1]}, admitted=np.array([0]))]
    with pytest.raises(InvariantBroken, match="j0 runs on several types"):
        check_events(events)


def test_progress_that_goes_backwards_without_a_reason_is_seen():
    one = np.array([0])
    events = [
        OPENED,
        *submitted(1),
        launched(1.0, {0: [0]}, admitted=one),
        ev.ProgressReported(1.0, one, np.array([50.0]), np.array([1.0]), np.array([1.0])),
        ev.JobsInterrupted(11.0, one, np.array([20.0])),
    ]
    with pytest.raises(InvariantBroken, match="fell back behind their last checkpoint"):
        check_events(events)


def test_a_job_that_holds_what_it_should_not_is_seen():
    state = state_of(TWO, [Job("a")], {0: [0]})
    check_state(state)
    state.device_map.release(np.array([0]))
    with pytest.raises(InvariantBroken, match="not a whole gang"):
        check_state(state)


def test_whoever_waits_can_be_told_why_by_the_plan_or_from_its_numbers():
    state = state_of(TWO, [Job("a", workers=2), Job("b")], {0: [0, 1]})
    view = state.snapshot()
    check_reasons(RoundPlan(0.0, up=(2,), free=(0,)), view)
    told = RoundPlan(0.0, free=(0,), reasons={1: Reasons.waiting(1, free=0)})
    check_reasons(told, view)
    with pytest.raises(InvariantBroken, match="waits for no reason: policy: Waiting for resources"):
        check_reasons(replace(told, reasons={1: Reasons.waiting(1, free=2)}), view)
    with pytest.raises(InvariantBroken, match=r"says that \[1\] GPUs are free, by type, and \[0\] are"):
        check_reasons(replace(told, free=(1,)), view)


def test_a_played_scene_ends_and_replays():
    state, events = play(lambda table: SchedulerConfig().build(table), "v100:4", 3, count=10, faults=True)
    assert replay_events(events).digest() == state.digest()
    assert (state.all_jobs().phase > int(Phase.RUNNING)).all()
