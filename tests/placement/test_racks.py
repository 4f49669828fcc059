"""Racks: one node, else one rack, else as few racks as there are; held against every other choice, and in simulations."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Node
from fairlead.core.device_map import ragged
from fairlead.core.job import Job
from fairlead.core.reasons import Reasons
from fairlead.engine.codec import decode, encode
from fairlead.placement.bandwidth_aware import BandwidthAware
from fairlead.placement.basic import Consolidated
from fairlead.placement.free_by_node import FreeByRack
from fairlead.placement.least_network import LeastNetwork
from fairlead.placement.resource_aware import ResourceAware
from fairlead.placement.synergy import Synergy
from fairlead.placement.tiresias_placement import TiresiasPlacement
from fairlead.simulator.costs import Costs
from fairlead.testing import Harness, job
from scenes import places_in, selection_of, state_of, table_of, view_of

BY_RACK = [
    Consolidated(),
    BandwidthAware(),
    LeastNetwork(),
    ResourceAware(),
    Synergy(),
    TiresiasPlacement(otherwise=1.0),
]


@st.composite
def half_full(draw):
    """A small cluster with racks, some of whose GPUs are taken, and a gang that wants some."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["a", "b", "c", ""])), min_size=1, max_size=7))
    cluster = Cluster(tuple(Node(f"n{i}", "v100", size, rack=rack) for i, (size, rack) in enumerate(shapes)))
    taken = sorted(draw(st.sets(st.integers(0, cluster.size - 1), max_size=cluster.size - 1)))
    return cluster, taken, draw(st.integers(2, 9))


def place_one(case, placement):
    cluster, taken, want = case
    jobs = [*(Job(f"old-{i}", steps=1e6) for i in range(len(taken))), Job("new", steps=1e6, workers=want)]
    state = state_of(cluster, jobs, {i: [place] for i, place in enumerate(taken)})
    selection = selection_of(range(len(jobs)), [0] * len(jobs), [1] * len(taken) + [want])
    placed = placement.place(selection, view_of(state))
    return placed, places_in(placed).get(len(taken), [])


def free_by_node(cluster: Cluster, taken) -> list[int]:
    gone = np.bincount(cluster.node_of[taken], minlength=len(cluster.nodes)) if taken else 0
    return (cluster.node_size - gone).tolist()


def fewest_racks(cluster: Cluster, free: list[int], want: int) -> int | None:
    """By trying all sets of racks."""
    names = sorted({node.rack for node in cluster.nodes})
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            if sum(had for had, node in zip(free, cluster.nodes) if node.rack in chosen) >= want:
                return count
    return None


def fewest_nodes(free: list[int], want: int, inside: list[int] | None = None) -> int | None:
    """By trying all sets of nodes, or all of those `inside`."""
    nodes = range(len(free)) if inside is None else inside
    for count in range(1, len(nodes) + 1):
        if any(sum(free[node] for node in chosen) >= want for chosen in itertools.combinations(nodes, count)):
            return count
    return None


def fewest_nodes_by_rack(cluster: Cluster, free: list[int], want: int) -> list[int | None]:
    names = {node.rack for node in cluster.nodes}
    return [fewest_nodes(free, want, [n for n, one in enumerate(cluster.nodes) if one.rack == name]) for name in names]


def nodes_and_racks(cluster: Cluster, places) -> tuple[set[int], set[str]]:
    nodes = {int(cluster.node_of[place]) for place in places}
    return nodes, {cluster.nodes[node].rack for node in nodes}


@pytest.mark.parametrize("placement", BY_RACK, ids=lambda one: type(one).__name__)
@given(case=half_full())
@settings(max_examples=150)
def test_a_gang_is_on_the_fewest_racks_and_there_on_the_fewest_nodes(placement, case):
    cluster, taken, want = case
    free = free_by_node(cluster, taken)
    _, places = place_one(case, placement)
    least = fewest_racks(cluster, free, want)
    if least is None:
        assert places == []
        return
    assert len(set(places)) == want
    assert not set(places) & set(taken)
    nodes, racks = nodes_and_racks(cluster, places)
    assert len(racks) == least
    inside = [node for node, about in enumerate(cluster.nodes) if about.rack in racks]
    assert len(nodes) == fewest_nodes(free, want, inside)
    if least == 1:  # no other rack would need fewer nodes
        assert len(nodes) == min(filter(None, fewest_nodes_by_rack(cluster, free, want)))


@given(half_full())
@settings(max_examples=200)
def test_a_gang_that_waits_for_a_rack_is_placed_only_on_as_few_as_it_needs(case):
    cluster, taken, want = case
    placed, places = place_one(case, Consolidated(wait_for_rack=True))
    needed = fewest_racks(cluster, cluster.node_size.tolist(), want)
    if needed is not None and fewest_racks(cluster, free_by_node(cluster, taken), want) == needed:
        assert len(nodes_and_racks(cluster, places)[1]) == needed
        return
    assert places == []
    several = len({node.rack for node in cluster.nodes}) > 1
    how = "on as few racks as it needs" if several else "as it needs them"
    assert placed.unplaced[len(taken)] == Reasons.not_placed(f"{want} GPUs of type v100 {how}")


@given(half_full())
@settings(max_examples=200)
def test_a_gang_that_waits_for_few_nodes_does_so_with_racks_as_without(case):
    cluster, taken, want = case
    _, places = place_one(case, Consolidated(wait=True))
    plain = Cluster(tuple(replace(node, rack="") for node in cluster.nodes))
    _, before = place_one((plain, taken, want), Consolidated(wait=True))
    nodes, racks = nodes_and_racks(cluster, places)
    assert len(nodes) == len(nodes_and_racks(plain, before)[0])
    free = free_by_node(cluster, taken)
    if len(nodes) in fewest_nodes_by_rack(cluster, free, want):
        assert len(racks) == 1


@given(half_full())
@settings(max_examples=100)
def test_with_one_rack_every_gang_is_where_it_is_without_racks(case):
    cluster, taken, want = case
    plain = Cluster(tuple(replace(node, rack="") for node in cluster.nodes))
    alone = Cluster(tuple(replace(node, rack="a") for node in cluster.nodes))
    for placement in BY_RACK:
        assert place_one((plain, taken, want), placement)[1] == place_one((alone, taken, want), placement)[1]


def test_gangs_in_a_row_leave_each_other_whole_racks():
    nodes = [Node(f"n{i}", "v100", 4, rack="ab"[i % 2]) for i in range(8)]  # every second node is in rack a
    jobs = [Job(name, steps=1e6, workers=16) for name in ("one", "two")]
    cluster = Cluster(tuple(nodes))
    placed = Consolidated().place(selection_of([0, 1], [0, 0], [16, 16]), view_of(state_of(cluster, jobs)))
    assert [nodes_and_racks(cluster, places)[1] for places in places_in(placed).values()] == [{"a"}, {"b"}]


@given(half_full(), st.data())
@settings(max_examples=100)
def test_the_gangs_across_racks_are_those_with_workers_in_several(case, data):
    cluster, _, _ = case
    gangs = data.draw(st.lists(st.lists(st.integers(0, cluster.size - 1), min_size=1, max_size=4, unique=True), min_size=1))
    offsets, places = ragged(np.array(gang) for gang in gangs)
    expected = [len(nodes_and_racks(cluster, gang)[1]) > 1 for gang in gangs]
    assert cluster.across_racks(places, offsets).tolist() == expected


def rack_cluster(sizes: list[int], racks: str) -> Cluster:
    return Cluster(tuple(Node(f"n{i}", "v100", size, rack=rack) for i, (size, rack) in enumerate(zip(sizes, racks))))


@pytest.mark.parametrize(("racks", "rate"), [("aaa", 0.5), ("abb", 0.5), ("aab", 0.5 * 0.8)])
def test_a_gang_is_slower_across_racks_than_over_the_nodes_of_one(racks, rate):
    table = table_of(("v100",), {("m", 2): [1.0]}, spread=np.array([[1.0], [0.5]]))
    costs = Costs(by_kind={"m": Costs(rack_speed=0.8)})
    made = Harness(SchedulerConfig(round_s=0.0), table=table, costs=costs).cluster(rack_cluster([2, 1, 1], racks))
    made.submit(Job("gang", 0.0, 100.0, "m", 2))
    made.outage(0, 0.0, 1e4).run()  # so it is on two nodes of one GPU each
    assert made.ended_s("gang") == pytest.approx(100.0 / rate)


def test_an_event_has_the_rack_of_a_node_only_where_there_is_one():
    for rack in ("", "a"):
        node = Node("n1", "v100", 4, rack=rack)
        added = ev.NodeAdded(0.0, 0, node, None)
        assert decode(encode(added)) == added
        assert orjson.loads(encode(added))["spec"].get("rack") == (rack or None)
        assert ("rack" in orjson.loads(encode(added))["spec"]) is bool(rack)


def test_in_a_run_with_racks_the_invariants_hold():
    made = Harness(SchedulerConfig(round_s=60.0), costs=Costs(rack_speed=0.7)).cluster(rack_cluster([2] * 6, "abcabc"))
    made.submit(*(job(f"j{i}").workers(1 + i % 5).lasting(200.0 + 7 * i).at(20.0 * i) for i in range(20))).run()
    made.check()


@given(half_full(), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), max_size=6))
@settings(max_examples=200)
def test_searches_in_a_row_find_what_a_search_of_the_rest_does(case, requests):
    """Counts by rack are kept from one search to the next."""
    cluster, taken, _ = case
    free = np.ones(cluster.size, dtype=np.bool_)
    free[taken] = False
    kept = FreeByRack(cluster, free)
    for want, how in requests:
        fresh = FreeByRack(cluster, free)
        node, most = int(np.argmax(kept.counts)), len(cluster.nodes) if how == 1 else 2
        found, expected = (
            one.fewest(0, want, most) if how else one.take(node, min(want, one.counts[node])) for one in (kept, fresh)
        )
        assert sorted(found) == sorted(expected)
        free[found] = False
