"""Admission: everybody at once, or until the demand exceeds a multiple of the cluster."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.admission.accept import AcceptAll, AcceptUpTo
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job, Phase
from fairlead.core.reasons import Code, Reasons
from fairlead.testing import Harness, job
from scenes import state_of, view_of

ACCELERATORS = 8
sizes = st.lists(st.integers(1, 12), max_size=12)


def view_with(inside: list[int], queued: list[int]):
    jobs = [Job(f"j{i}", workers=size) for i, size in enumerate([*inside, *queued])]
    cluster = Cluster.parse(f"{ACCELERATORS}xv100:4")
    return view_of(state_of(cluster, jobs, waiting=list(range(len(inside)))))


@given(sizes, sizes, st.sampled_from([0.5, 1.0, 1.5, 3.0]))
@settings(max_examples=200)
def test_demand_stays_within_the_limit_and_order_is_kept(inside, queued, factor):
    admitted = AcceptUpTo(factor).admit(view_with(inside, queued)).jobs.tolist()
    first = len(inside)
    assert admitted == list(range(first, first + len(admitted))), "first come, first served"
    demand = sum(inside) + sum(queued[: len(admitted)])
    limit = factor * ACCELERATORS
    if admitted:
        alone = not inside and len(admitted) == 1
        assert demand <= limit or alone, "only a job larger than the limit itself may exceed it, and only alone"
    if len(admitted) < len(queued):
        assert demand + queued[len(admitted)] > limit, "the next one would have had room"


def test_a_job_larger_than_the_limit_enters_when_nobody_else_is_inside():
    assert AcceptUpTo(0.5).admit(view_with([], [6, 1])).jobs.tolist() == [0]
    assert AcceptUpTo(0.5).admit(view_with([1], [6, 1])).jobs.tolist() == []


def test_a_limit_that_is_a_whole_number_is_reached():
    cluster, jobs = Cluster.parse("45xv100:5"), [Job(f"j{i}") for i in range(70)]
    assert 1.4 * 45 < 63
    assert len(AcceptUpTo(1.4).admit(view_of(state_of(cluster, jobs, waiting=[]))).jobs) == 63


def test_nobody_overtakes_the_first_in_line_however_small():
    assert AcceptUpTo(1.0).admit(view_with([4], [6, 1, 1])).jobs.tolist() == []


def test_who_is_not_let_in_is_told_the_demand_and_the_limit():
    admitted = AcceptUpTo(1.5).admit(view_with([8, 2], [4]))
    assert admitted.others == Reasons.not_admitted("GPUs requested by admitted jobs", demand=10, limit=12.0)
    assert AcceptUpTo(1.5).admit(view_with([8], [2, 4])).others == admitted.others, "with those who enter now"
    assert str(admitted.others) == "admission: Not admitted: GPUs requested by admitted jobs (10 of at most 12)"


def test_the_limit_follows_the_accelerators_that_are_up():
    made = Harness(SchedulerConfig(admission=Part("accept-up-to", {"factor": 1.0}))).cluster("v100:2,v100:2")
    made.outage(1, 0.0, 350.0).submit(*(job(f"j{i}").lasting(1e4) for i in range(4)))
    assert len(made.round().running) == 2
    made.round()
    assert len(made.round().running) == 4
    made.run()


def test_the_door_stays_open_for_whoever_can_never_run():
    made = Harness(SchedulerConfig(admission=Part("accept-up-to", {"factor": 1.0}))).cluster("v100:2")
    plan = made.submit(job("wide").workers(3), job("a").workers(2), job("b")).round()
    assert plan.refused == {"wide"}
    assert plan.running == {"a"}
    assert plan.reason("b").code is Code.NOT_ADMITTED


def test_everybody_gets_in_and_through_in_the_end():
    made = Harness(SchedulerConfig(Part("las"), Part("accept-up-to", {"factor": 1.0}), round_s=60.0)).cluster("v100:4")
    made.submit(*(job(f"j{i}").workers(1 + i % 4).lasting(100.0 + i).at(float(i)) for i in range(20))).run()
    assert all(made.phase(f"j{i}") is Phase.FINISHED for i in range(20))


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan])
def test_a_factor_that_lets_nobody_in_is_refused(factor):
    with pytest.raises(InputError, match=r"admission accept-up-to: field 'factor' is .*: expected a number above 0"):
        AcceptUpTo(factor)


def test_accept_all_lets_everybody_in():
    assert AcceptAll().admit(view_with([1], [12, 1])).jobs.tolist() == [1, 2]
    assert len(AcceptAll().admit(view_with([1], [])).jobs) == 0
