"""The frozen values: clusters and their text, kinds and batch sizes, reasons, round boundaries, keyed randomness, holdings."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.columns import canonical, significant
from fairlead.core.device_map import DeviceMap, ragged
from fairlead.core.errors import InputError, InvalidPlan
from fairlead.core.job import Failure, Job, batch_size_of, kind_of, model_of
from fairlead.core.plan import Selection, boundary_after, boundary_at, decision_at
from fairlead.core.reasons import Code, Reasons
from fairlead.core.rng import stream

# Clusters.


def test_a_cluster_text_counts_accelerators_and_numbers_them_through_the_nodes():
    cluster = Cluster.parse("8xv100:4, 6×K80:4")
    assert cluster.type_names == ("v100", "k80")
    assert cluster.node_size.tolist() == [4, 4, 4, 2]
    assert cluster.node_of.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 2
    assert cluster.type_of.tolist() == [0] * 8 + [1] * 6
    assert cluster.first_of.tolist() == [0, 4, 8, 12]
    assert cluster.bounds_of_node == [(0, 4), (4, 8), (8, 12), (12, 14)]
    assert cluster.size_of_type.tolist() == [8, 6]
    assert cluster.largest_node_of_type.tolist() == [4, 4]
    assert cluster.size == 14
    assert str(cluster) == "8 × v100, 6 × k80"


def test_without_a_number_per_node_there_are_eight():
    assert Cluster.parse("20xp100").node_size.tolist() == [8, 8, 4]


def test_what_is_known_about_a_type_comes_along():
    known = [AcceleratorType("k80", 12.0, 0.5), AcceleratorType("v100", 16.0, 2.5)]
    cluster = Cluster.parse("4xv100:4,4xt4:4", known)
    assert cluster.types == (AcceleratorType("v100", 16.0, 2.5), AcceleratorType("t4"))


def test_types_of_nodes_that_nobody_described_are_added():
    cluster = Cluster((Node("a", "x", 1), Node("b", "y", 2)), (AcceleratorType("y", 8.0),))
    assert cluster.type_names == ("y", "x")
    assert cluster.node_type.tolist() == [1, 0]


@pytest.mark.parametrize("text", ["", "v100", "0xv100", "4xv100:0", "4xv100:4,", "-4xv100", "4x100", "4.5xv100", "4xv100:4:4"])
def test_a_cluster_text_that_is_none_is_shown_with_what_was_expected(text):
    with pytest.raises(InputError, match=r"cluster: field 'cluster' is .*: expected GPUs×type:per-node"):
        Cluster.parse(text)


def test_a_cluster_beyond_a_million_accelerators_is_refused_before_it_is_built():
    with pytest.raises(InputError, match="at most 1,000,000 GPUs"):
        Cluster.parse("99999999999xv100:8")


def test_a_clusters_columns_cannot_be_written():
    cluster = Cluster.parse("8xv100:4")
    for name in ("node_type", "node_size", "node_of", "type_of", "first_of", "size_of_type", "largest_node_of_type"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(cluster, name)[0] = 7


def test_jobs_nodes_and_clusters_are_frozen():
    for value, field in ((Job("a"), "steps"), (Node("n", "v100", 1), "type"), (Cluster.parse("1xv100"), "nodes")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, None)


# Kinds.


@given(st.text(alphabet="abcXYZ-0 ()", min_size=1).filter(lambda m: "batch size" not in m), st.none() | st.integers(1, 4096))
@settings(max_examples=50)
def test_a_kind_is_taken_apart_into_what_it_was_put_together_from(model, batch_size):
    model = model.rstrip() or "m"
    kind = kind_of(model, batch_size)
    assert model_of(kind) == model
    assert batch_size_of(kind) == batch_size


# Reasons.


def test_a_reasons_text_is_made_from_its_numbers():
    assert (
        str(Reasons.needs(8, "GPUs", of_at_most=4))
        == "feasibility: Too large for this cluster: needs 8 GPUs, and there are at most 4"
    )
    assert str(Reasons.waiting(2, free=1)) == "policy: Waiting for resources: needs 2 GPUs; 1 eligible GPUs are free"
    assert str(Reasons.behind("big", needed=4)) == ("policy: Waiting behind the head of the queue, job big, which needs 4 GPUs")
    assert Reasons.waiting(1, free=0).text == "Waiting for resources: needs 1 GPU; 0 eligible GPUs are free"
    assert str(Reasons.nodes_down(4, up=2)) == "placement: Waiting for nodes: needs 4 GPUs; 2 eligible GPUs are up"
    assert str(Reasons.not_admitted("demand", demand=9, limit=6.5)) == "admission: Not admitted: demand (9 of at most 6.5)"


def test_reasons_with_the_same_facts_are_equal_and_told_as_plain_data():
    reason = Reasons.needs(8, "GPUs", of_at_most=4)
    assert reason == Reasons.needs(8.0, "GPUs", of_at_most=4.0)
    assert reason != Reasons.needs(8, "GPUs", of_at_most=5)
    assert reason.code is Code.TOO_LARGE
    told = reason.to_dict()
    assert told == {"by": "feasibility", "code": "too-large", "needed": 8, "what": "GPUs", "at_most": 4, "text": str(reason)}


@pytest.mark.parametrize(
    "reason",
    [
        Reasons.needs(1, "x", of_at_most=0),
        Reasons.unsuitable("x"),
        Reasons.not_admitted("x", demand=1, limit=2),
        Reasons.waiting(1, free=0),
        Reasons.behind("x", needed=1),
        Reasons.nodes_down(1, up=0),
        Reasons.not_placed("x"),
        Reasons.next_decision(),
        Reasons.not_selected(1, free=1),
        Reasons.retrying(Failure(), 1, 4),
        Reasons.failed(Failure("exit code 1"), 0, 1),
        Reasons.time_limit(60.0),
    ],
    ids=lambda reason: str(reason.code),
)
def test_every_reason_there_is_can_be_told(reason):
    assert str(reason).startswith(f"{reason.by}: ")


# Rounds.


@given(st.integers(0, 10**7), st.sampled_from([0.1, 0.3, 1.0, 7.0, 120.0, 300.0, 360.0, 1 / 3]))
@settings(max_examples=200)
def test_a_round_begins_at_a_multiple_and_the_next_one_behind_it(count, length):
    at = count * length
    assert boundary_at(at, length) == at
    assert boundary_after(at, length) == (count + 1) * length
    between = at + length / 2
    assert boundary_at(between, length) == boundary_after(between, length) == (count + 1) * length


@given(st.floats(0, 1e9), st.floats(1e-3, 1e5))
@settings(max_examples=200)
def test_no_boundary_lies_before_the_moment_and_none_is_passed_over(time, length):
    at, after = boundary_at(time, length), boundary_after(time, length)
    assert at >= time
    assert after > time
    assert at <= after
    assert (round(at / length) - 1) * length < time or at == 0  # `at - length` may be rounded to `time`
    assert boundary_at(at, length) == at


@pytest.mark.parametrize("length", [0.1, 120.0, 360.0, 1 / 3])
@pytest.mark.parametrize("count", [0, 1, 7, 10**6])
def test_an_event_just_after_a_boundary_is_decided_on_with_it(count, length):
    at = count * length
    late = decision_at(at + 1e-6, length)
    assert at < late < at + 1e-3
    assert decision_at(at + 2e-4, length) == decision_at(late, length) == late, "all events up to then are decided on together"
    assert decision_at(at, length) == at
    assert decision_at(at + 1e-3, length) == boundary_after(at, length)


def test_without_rounds_every_moment_is_a_boundary():
    assert decision_at(12.34, 0.0) == 12.34
    assert decision_at(math.inf, 300.0) == math.inf
    assert boundary_at(12.34, 0.0) == 12.34
    assert boundary_at(math.inf, 300.0) == math.inf


# Randomness.


def test_the_same_key_gives_the_same_numbers_and_another_key_others():
    first = stream(7, "arrivals").random(4).tolist()
    assert stream(7, "arrivals").random(4).tolist() == first
    for other in (stream(8, "arrivals"), stream(7, "kinds"), stream(7, "arrivals", 0), stream(7, "arri", "vals")):
        assert other.random(4).tolist() != first


# Holdings.


@st.composite
def takings(draw):
    """Turns in which jobs take or let go of accelerators."""
    return draw(st.lists(st.tuples(st.integers(0, 7), st.sets(st.integers(0, 9), min_size=1, max_size=4)), max_size=30))


@given(takings(), st.booleans())
@settings(max_examples=100)
def test_holdings_know_who_holds_what_after_any_taking_and_letting_go(turns, shared):
    device_map, plain = DeviceMap(10, 2), {}
    device_map.reserve(8)
    for number, places in turns:
        places = sorted(places)
        if number in plain:
            device_map.release(np.array([number]))
            del plain[number]
        elif shared or not set(places) & {p for held in plain.values() for p in held}:
            device_map.take(np.array([number]), *ragged([np.array(places)]))
            plain[number] = places
        occupied = np.bincount([p for held in plain.values() for p in held], minlength=10)
        assert device_map.occupancy.tolist() == occupied.tolist()
        for job in range(8):
            assert device_map.of(job).tolist() == plain.get(job, [])
        here = np.array(sorted(plain), dtype=np.int64)
        assert device_map.held_by(here).tolist() == (occupied > 0).tolist()
        assert device_map.shared == bool((occupied > 1).any())


def test_a_copy_of_holdings_goes_its_own_way():
    device_map = DeviceMap(4)
    device_map.take(np.array([0, 1]), np.array([0, 2, 3]), np.array([0, 1, 2]))
    copy = device_map.copy()
    device_map.release(np.array([0]))
    assert copy.of(0).tolist() == [0, 1]
    assert copy.occupancy.tolist() == [1, 1, 1, 0]
    assert device_map.occupancy.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("types", "workers", "told"),
    [
        ([0, 0, 0], [1, 2, 1], "jobs 5 and 6 share GPUs with different numbers of workers: 1 and 2"),
        ([0, 1, 0], [2, 2, 2], "jobs 5 and 6 share GPUs with different types: 0 and 1"),
    ],
)
def test_a_combination_has_one_type_and_one_number_of_workers(types, workers, told):
    columns = (np.array([5, 6, 7]), np.array(types), np.array(workers))
    with pytest.raises(InvalidPlan, match=told):
        Selection(*columns, combination=np.array([3, 3, 4]))
    assert len(Selection(*columns, combination=np.array([3, 4, 5]))) == 3


def test_a_combination_is_told_for_every_job():
    one = np.array([0, 1])
    with pytest.raises(InvalidPlan, match="differ in length"):
        Selection(one, one * 0, one * 0 + 1, combination=np.array([0]))


def test_derived_numbers_are_not_rounded_at_midpoints() -> None:
    rates = significant(np.random.default_rng(0).uniform(0.1, 100.0, (1000, 3)))
    for some in (rates, rates.mean(axis=1), rates[:, :2].mean(axis=1), rates[:, 0] / 3, rates[:, 0] * 1.5, rates.sum(axis=1)):
        for off in (-1e-15, 1e-15):
            assert (canonical(some * (1.0 + off)) == canonical(some)).all()
    assert (canonical(rates) == rates).all()
    halves = rates[:, :2].mean(axis=1)
    assert (significant(halves * (1.0 + 1e-15)) != significant(halves * (1.0 - 1e-15))).any()
