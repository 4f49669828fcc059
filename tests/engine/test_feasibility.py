"""A job that can never run on the cluster is refused by the feasibility check, and every waiting job has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import Job, Phase
from fairlead.core.reasons import Code, Reasons
from fairlead.engine.decide import decide, why_waiting
from fairlead.testing import Harness, job
from fairlead.workloads.throughput_tables import ThroughputTable
from scenes import selection_of, state_of, table_of

MIXED = Cluster(
    (Node("a", "v100", 4), Node("b", "k80", 2)),
    (AcceleratorType("v100", memory_gb=16.0), AcceleratorType("k80", memory_gb=12.0)),
)


def test_a_gang_is_all_or_nothing(harness):
    harness.cluster("v100:4").submit(job("wide").workers(8), job("narrow").workers(1))
    plan = harness.round()
    assert plan.launched == {"narrow"}
    assert plan.refused == {"wide"}
    assert plan.reason("wide") == Reasons.needs(8, "GPUs", of_at_most=4)
    assert str(plan.reason("wide")) == "feasibility: Too large for this cluster: needs 8 GPUs, and there are at most 4"
    assert harness.phase("wide") is Phase.REFUSED


def test_the_most_accelerators_are_those_of_the_largest_type_it_may_use(harness):
    harness.cluster(MIXED).submit(job("any").workers(5), job("small").workers(3).with_(allowed_types=("k80",)))
    plan = harness.round()
    of_one = "GPUs of one type"
    assert plan.reason("any") == Reasons.needs(5, of_one, of_at_most=4, there="there are 4 v100, 2 k80")
    assert plan.reason("small") == Reasons.needs(3, of_one, of_at_most=2, there="it may use 2 k80")
    assert (
        plan.reason("any").text
        == "Too large for this cluster: needs 5 GPUs of one type, and there are at most 4 (there are 4 v100, 2 k80)"
    )


def test_memory_that_no_type_has_is_a_reason(harness):
    harness.cluster(MIXED).submit(job("fat").with_(memory_gb=40.0), job("fit").with_(memory_gb=16.0))
    plan = harness.round()
    assert plan.reason("fat") == Reasons.needs(40.0, "GB of GPU memory", of_at_most=16.0)
    assert plan.launched == {"fit"}
    assert harness.places("fit")[0] < 4


def test_cpus_or_memory_that_no_node_has_for_a_worker_are_a_reason(harness):
    node = Cluster((Node("a", "v100", 4, cpus=16.0, memory_gb=64.0),))
    greedy, hungry = job("greedy").with_(cpus=17.0), job("hungry").with_(host_memory_gb=65.0)
    plan = harness.cluster(node).submit(greedy, hungry, job("modest").with_(cpus=16.0, host_memory_gb=64.0)).round()
    assert plan.refused == {"greedy", "hungry"}
    assert plan.reason("greedy") == Reasons.unsuitable("no node has 17 CPUs and 0 GB for a worker")
    assert plan.reason("hungry") == Reasons.unsuitable("no node has 0 CPUs and 65 GB for a worker")
    assert plan.launched == {"modest"}


def test_a_type_that_is_not_there_is_a_reason(harness):
    harness.cluster(MIXED).submit(job("fussy").with_(allowed_types=("h100", "h200")))
    plan = harness.round()
    assert plan.reason("fussy") == Reasons.unsuitable("it asks for h100, h200; there are v100, k80")
    assert plan.reason("fussy").code is Code.NO_SUITABLE_TYPE


def test_a_kind_without_throughput_anywhere_is_a_reason():
    table = table_of(("v100", "k80"), {("none", 1): (0.0, 0.0), ("some", 1): (0.0, 1.0)})
    made = Harness(table=table).cluster(MIXED)
    plan = made.submit(job("none").of_kind("none", 10.0), job("some").of_kind("some", 10.0)).round()
    assert plan.reason("none") == Reasons.unsuitable("no throughput above 0 for 'none' with 1 workers")
    assert made.places("some")[0] >= 4
    made.run()


def test_a_type_without_throughput_is_masked_however_empty_it_is():
    table = table_of(("v100", "k80"), {("some", 1): (0.0, 1.0)})
    made = Harness(table=table).cluster(MIXED)
    made.submit(*(job(f"s{i}").of_kind("some", 100.0) for i in range(3)))
    assert len(made.round().running) == 2
    made.run()
    assert made.ended_s("s2") == 400.0


def test_a_refused_job_does_not_stop_those_behind_it_in_strict_order(harness):
    harness.cluster("v100:2").policy("fifo").submit(job("wide").workers(3), job("next").workers(2))
    assert harness.round().running == {"next"}


def test_each_is_refused_in_the_round_it_comes(harness):
    harness.cluster("v100:1").submit(job("first").workers(2), job("second").workers(3).at(310))
    assert harness.round().refused == {"first"}
    assert harness.round().refused == frozenset()
    assert harness.round().refused == {"second"}


# Why somebody waits.


def test_in_strict_order_those_behind_the_head_are_told_its_name(harness):
    harness.cluster("v100:2").policy("fifo").submit(job("a").workers(1), job("head").workers(2), job("c").workers(1))
    plan = harness.round()
    assert plan.running == {"a"}
    assert plan.reason("c") == Reasons.behind("head", needed=2)
    assert plan.reason("head") == Reasons.waiting(2, free=1, eligible=2)


def test_with_backfilling_those_who_do_not_fit_are_told_what_is_left(harness):
    harness.cluster("v100:3").policy("fifo", backfill=True).submit(
        job("a").workers(2), job("b").workers(2), job("c").workers(1), job("d").workers(1)
    )
    plan = harness.round()
    assert plan.running == {"a", "c"}
    assert plan.reason("b") == Reasons.waiting(2, free=0, eligible=3)
    assert plan.reason("d") == Reasons.waiting(1, free=0, eligible=3)


def test_while_nodes_are_down_that_is_the_reason(harness):
    harness.cluster("v100:2,v100:2").outage(0, 0.0, 1000.0).submit(job("a").workers(3))
    assert harness.round().reason("a") == Reasons.nodes_down(3, up=2)
    harness.run()
    assert harness.phase("a") is Phase.FINISHED


def test_who_was_selected_and_found_no_place_is_told_by_placement():
    config = SchedulerConfig(placement=Part("consolidated", {"wait": True}), policy=Part("fifo", {"backfill": True}))
    made = Harness(config).cluster("v100:3,v100:3").submit(job("a").workers(2), job("b").workers(2), job("gang").workers(2))
    plan = made.round()
    assert plan.waiting == {"gang"}
    assert plan.reason("gang") == Reasons.not_placed("2 GPUs of type v100 as it needs them")


def test_admission_has_the_word_about_who_is_not_let_in():
    scheduler = SchedulerConfig(admission=Part("accept-up-to", {"factor": 1.0}))
    made = Harness(scheduler).cluster("v100:2").submit(job("a").workers(2), job("b").workers(1))
    assert made.round().reason("b").code is Code.NOT_ADMITTED
    assert made.round().reason("b") == Reasons.not_admitted("GPUs requested by admitted jobs", demand=2, limit=2.0)


def test_whoever_arrives_after_a_decision_waits_for_the_next():
    state = state_of(Cluster.parse("1xv100:1"), [Job("in"), Job("out")], waiting=[0])
    stages = SchedulerConfig().build(ThroughputTable.timed(("v100",)))
    plan, _ = decide(state.snapshot(), None, stages)
    assert plan.admitted.tolist() == [1]
    view = state.snapshot()
    assert why_waiting(plan, 1, view.job_of[1], view) == Reasons.next_decision()


def test_run_to_completion_leaves_whoever_runs_where_it_is():
    table = table_of(("fast", "slow"), {("m", 1): (2.0, 1.0)})
    scheduler = SchedulerConfig(Part("fifo"), round_s=100.0, run_to_completion=True)
    made = Harness(scheduler, table=table).cluster(Cluster.parse("1xfast:1,1xslow:1"))
    made.submit(Job("first", 0.0, 200.0, "m"), Job("second", 0.0, 1000.0, "m")).run()
    assert made.ended_s("second") == 1000.0
    assert made.state.all_jobs().starts.tolist() == [1, 1]


# A decision is a function.


def test_deciding_changes_nothing_and_says_the_same_twice():
    jobs = [Job(f"j{i}", steps=100.0 + i, workers=1 + i % 3) for i in range(6)]
    state = state_of(Cluster.parse("4xv100:4"), jobs, {2: [0, 1, 2]}, waiting=range(4))
    before = state.digest()
    stages = SchedulerConfig(Part("las")).build(ThroughputTable.timed(("v100",)))
    plans = [decide(state.snapshot(50.0), None, stages)[0] for _ in range(2)]
    assert state.digest() == before
    for name in ("admitted", "ended", "suspended"):
        assert getattr(plans[0], name).tolist() == getattr(plans[1], name).tolist()
    assert plans[0].launches.jobs.tolist() == plans[1].launches.jobs.tolist()
    assert plans[0].launches.accelerators.tolist() == plans[1].launches.accelerators.tolist()


def test_a_policy_that_selects_a_stranger_is_stopped():
    class Dreamer:
        def select(self, view, memo):
            return selection_of([7], [0], [1]), memo

    state = state_of(Cluster.parse("4xv100:4"), [Job("a")])
    stages = replace(SchedulerConfig().build(ThroughputTable.timed(("v100",))), policy=Dreamer())
    with pytest.raises(InvalidPlan, match="names a job that is not among the admitted"):
        decide(state.snapshot(), None, stages)


# Minimum runs.


def test_a_job_inside_its_minimum_run_is_left_alone_whatever_the_policy_thinks(harness):
    harness.cluster("v100:1").policy("srtf").submit(job("long").with_(min_run_s=900.0), job("short").lasting(10.0).at(100))
    assert harness.round().running == {"long"}
    assert harness.round().running == {"long"}
    harness.run()
    assert harness.ended_s("short") == 910.0


def test_a_job_inside_its_minimum_run_is_not_moved_to_a_faster_type_either():
    table = table_of(("fast", "slow"), {("m", 1): (2.0, 1.0)})
    made = Harness(SchedulerConfig(Part("fifo"), round_s=100.0), table=table).cluster(Cluster.parse("1xfast:1,1xslow:1"))
    made.submit(Job("first", 0.0, 200.0, "m"), Job("second", 0.0, 1000.0, "m", min_run_s=500.0)).run()
    # second does 500 steps on the slow type, then moves up and does the rest at two a second
    assert made.ended_s("second") == 750.0


def test_a_policy_that_forgets_who_is_protected_is_corrected(harness):
    class Youngest:
        def select(self, view, memo):
            return selection_of(view.jobs.number[-1:], [0], view.jobs.workers[-1:]), memo

    harness.cluster("v100:1").policy(Youngest()).submit(job("long").with_(min_run_s=900.0), job("short").lasting(10.0).at(100))
    harness.round()
    assert harness.round().running == {"long"}
    assert harness.round().running == {"long"}
    assert harness.round().running == {"short"}
