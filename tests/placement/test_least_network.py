"""Least network: pairs of gangs on one node's link, held against every other choice of nodes."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.placement.least_network import LeastNetwork, cheapest_nodes
from scenes import places_in, selection_of, state_of, view_of


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=7), st.integers(2, 12))
@settings(max_examples=300)
def test_no_choice_of_nodes_has_fewer_users_or_as_few_and_fewer_nodes(nodes, want):
    free, users = [f for f, _ in nodes], [u for _, u in nodes]
    costs = [
        (sum(users[n] for n in chosen), len(chosen))
        for size in range(1, len(nodes) + 1)
        for chosen in itertools.combinations(range(len(nodes)), size)
        if sum(free[n] for n in chosen) >= want
    ]
    parts = cheapest_nodes(list(range(len(nodes))), free, users, want)
    if not costs:
        assert parts == []
        return
    assert (sum(users[n] for n, _ in parts), len(parts)) == min(costs)
    assert sum(part for _, part in parts) == want
    assert all(0 < part <= free[n] for n, part in parts)


CLUSTER = Cluster.parse("24xv100:4")


def placed(placement, wants, running):
    old = [Job(f"old-{n}", workers=len(at)) for n, at in running.items()]
    jobs = [*old, *(Job(f"new-{i}", workers=want) for i, want in enumerate(wants))]
    selection = selection_of(range(len(jobs)), [0] * len(jobs), [job.workers for job in jobs])
    return placement.place(selection, view_of(state_of(CLUSTER, jobs, running)))


def nodes_of(places) -> set[int]:
    return {int(CLUSTER.node_of[place]) for place in places}


CROSSING = {0: [0, 1, 4, 5], 1: [8, 9, 10], 2: [12, 13, 14], 3: [16, 17], 4: [20, 21]}
"""Job 0 stands on nodes 0 and 1, which have two accelerators left each; nodes 2 and 3 have one left, 4 and 5 two."""


def test_a_gang_that_must_cross_nodes_takes_those_whose_links_nobody_uses():
    places = places_in(placed(LeastNetwork(), [4], CROSSING))
    assert nodes_of(places[5]) == {4, 5}


def test_a_gang_that_fits_into_a_node_goes_there_whoever_uses_its_link():
    places = places_in(placed(LeastNetwork(), [2], {0: [0, 1, 4, 5], 1: [8, 9, 10], 2: [12, 13, 14], 3: [16, 17, 18], 4: [20]}))
    assert nodes_of(places[5]) == {0}


def test_two_gangs_that_cross_nodes_do_not_meet_where_they_need_not():
    taken = {0: [4], 1: [8, 9, 10], 2: [12, 13, 14], 3: [16, 17, 18], 4: [20, 21, 22, 23]}  # left: 4, 3, 1, 1, 1, 0
    places = places_in(placed(LeastNetwork(), [6, 2], taken))
    assert nodes_of(places[5]) == {0, 1}
    assert nodes_of(places[6]) == {2, 3}  # though 1 has one left too


def test_where_links_must_be_shared_a_gang_that_rather_waits_does():
    assert len(nodes_of(places_in(placed(LeastNetwork(), [7], CROSSING))[5])) == 4
    answer = placed(LeastNetwork(wait=True), [7], CROSSING)
    assert not places_in(answer)
    assert list(answer.unplaced) == [5]
    assert nodes_of(places_in(placed(LeastNetwork(wait=True), [5], CROSSING))[5]) <= {2, 3, 4, 5}
