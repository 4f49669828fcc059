"""Bandwidth-aware placement: the best accelerators of a node, on every machine whose links are shipped."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.clusters import LINKS
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster, Node
from fairlead.core.job import Job
from fairlead.placement.bandwidth_aware import BandwidthAware, aggregate_bandwidth, best_devices, release_order
from fairlead.placement.basic import Consolidated
from fairlead.testing import Harness, random_jobs, random_table
from fairlead.testing.builders import JobBuilder
from scenes import places_in, selection_of, state_of, view_of


def machine(*names: str) -> Cluster:
    return Cluster(tuple(Node(f"{name}-{i}", "v100", len(LINKS[name]), links=LINKS[name]) for i, name in enumerate(names)))


def place(cluster: Cluster, wants, running=None):
    running = running or {}
    old = [Job(f"old-{n}", workers=len(at)) for n, at in running.items()]
    jobs = [*old, *(Job(f"new-{i}", workers=want) for i, want in enumerate(wants))]
    selection = selection_of(range(len(jobs)), [0] * len(jobs), [job.workers for job in jobs])
    return places_in(BandwidthAware().place(selection, view_of(state_of(cluster, jobs, running))))


def by_enumeration(links, free, want) -> float:
    """The most that any set has, pair by pair."""
    return max(sum(links[i][j] for i, j in itertools.combinations(chosen, 2)) for chosen in itertools.combinations(free, want))


SMALL = sorted(name for name in LINKS if len(LINKS[name]) <= 8)


@pytest.mark.parametrize("name", SMALL)
def test_on_every_machine_with_anything_free_no_other_choice_has_more_bandwidth(name):
    links = LINKS[name]
    for size in range(2, len(links) + 1):
        for free in itertools.combinations(range(len(links)), size):
            for want in range(2, size + 1):
                chosen = best_devices(links, free, want)
                assert set(chosen) <= set(free)
                assert len(set(chosen)) == want
                assert aggregate_bandwidth(links, chosen) == by_enumeration(links, free, want)


@pytest.mark.parametrize("name", sorted(LINKS.keys() - set(SMALL)))
def test_on_an_empty_larger_machine_no_other_choice_has_more_bandwidth_either(name):
    everybody = tuple(range(len(LINKS[name])))
    for want in (2, 3, 4, 8, 15):
        assert aggregate_bandwidth(LINKS[name], best_devices(LINKS[name], everybody, want)) == by_enumeration(
            LINKS[name], everybody, want
        )


@pytest.mark.parametrize("name", sorted(LINKS))
def test_links_are_symmetric_and_each_v100_has_six_of_them(name):
    links = LINKS[name]
    assert all(links[i][j] == links[j][i] > 0 for i, j in itertools.combinations(range(len(links)), 2))
    assert all(links[i][i] == 0 for i in range(len(links)))
    if name in ("p3.16xlarge", "dgx-1-v100"):
        assert all(sum(gbps for gbps in row if gbps >= 200) == 6 * 200 for row in links)


def test_on_a_p3_8xlarge_0_and_3_have_twice_the_bandwidth_of_0_and_1():
    links = LINKS["p3.8xlarge"]
    assert links[0][3] == 2 * links[0][1]


def test_two_pairs_on_a_p3_8xlarge_both_get_double_links():
    cluster = machine("p3.8xlarge")
    assert sorted(place(cluster, [2, 2]).values()) == [[0, 3], [1, 2]]


def test_single_workers_leave_the_good_links_to_gangs():
    cluster = machine("p3.8xlarge")
    (one,), (other,) = place(cluster, [1, 1]).values()
    left = [at for at in range(4) if at not in (one, other)]
    assert aggregate_bandwidth(LINKS["p3.8xlarge"], left) == 400
    assert sorted(release_order(LINKS["p3.8xlarge"], (0, 1, 2, 3))) == [0, 1, 2, 3]


def test_who_is_there_is_not_moved_and_the_best_of_the_rest_is_taken():
    cluster = machine("p3.16xlarge")
    assert place(cluster, [2], {0: [0], 1: [3, 4]})[2] in ([1, 2], [1, 5], [5, 6], [6, 7])


def test_in_a_run_with_gangs_of_all_sorts_the_invariants_hold():
    cluster = machine("p3.8xlarge", "p3.16xlarge")
    table = random_table(3, cluster.type_names)
    made = Harness(SchedulerConfig(Part("srtf"), placement=Part("bandwidth-aware")), table=table).cluster(cluster)
    made.submit(*(JobBuilder(each) for each in random_jobs(3, 30, table=table)))
    made.run()
    made.check()


matrices = st.integers(2, 6).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=size, max_size=size)
)


@given(matrices, st.data())
@settings(max_examples=150)
def test_any_matrix_is_served_best_and_what_is_left_is_best_among_equals(rows, data):
    links = tuple(tuple(map(float, row)) for row in rows)
    free = tuple(sorted(data.draw(st.sets(st.integers(0, len(links) - 1), min_size=1))))
    want = data.draw(st.integers(1, len(free)))
    value = {
        chosen: (aggregate_bandwidth(links, chosen), aggregate_bandwidth(links, [at for at in free if at not in chosen]))
        for chosen in itertools.combinations(free, want)
    }
    assert value[best_devices(links, free, want)] == max(value.values())


def test_nodes_too_large_to_try_everything_are_served_well():
    size = 24
    links = tuple(tuple(float(i // 4 == j // 4 and i != j) for j in range(size)) for i in range(size))  # islands of four
    assert aggregate_bandwidth(links, best_devices(links, tuple(range(size)), 12)) == 3 * 6


@st.composite
def half_full(draw):
    names = draw(st.lists(st.sampled_from(["p3.8xlarge", "p3.16xlarge", ""]), min_size=1, max_size=4))
    nodes = tuple(
        Node(f"n{i}", "v100", len(LINKS.get(name, "1234")), links=LINKS.get(name, ())) for i, name in enumerate(names)
    )
    cluster = Cluster(nodes)
    taken = sorted(draw(st.sets(st.integers(0, cluster.size - 1), max_size=cluster.size - 1)))
    wants = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    return cluster, {i: [at] for i, at in enumerate(taken)}, wants


@given(half_full())
@settings(max_examples=100)
def test_nodes_are_those_of_consolidated_and_each_part_of_a_gang_is_best_where_it_stands(case):
    cluster, running, wants = case
    jobs = [*(Job(f"old-{n}") for n in running), *(Job(f"new-{i}", workers=want) for i, want in enumerate(wants))]
    selection = selection_of(range(len(jobs)), [0] * len(jobs), [job.workers for job in jobs])
    view = view_of(state_of(cluster, jobs, running))
    ours, theirs = (places_in(placement.place(selection, view)) for placement in (BandwidthAware(), Consolidated()))
    assert ours.keys() == theirs.keys()
    free = set(range(cluster.size)) - {at for held in running.values() for at in held}
    for number in sorted((n for n in ours if jobs[n].workers > 1), key=lambda n: -jobs[n].workers):
        nodes = [[int(cluster.node_of[at]) for at in places[number]] for places in (ours, theirs)]
        assert nodes[0] == nodes[1]
        for node in set(nodes[0]):
            first, end = cluster.bounds_of_node[node]
            links = cluster.nodes[node].links
            mine = [at - first for at in ours[number] if first <= at < end]
            if links:
                assert aggregate_bandwidth(links, mine) == by_enumeration(
                    links, [at - first for at in free if first <= at < end], len(mine)
                )
        free -= set(ours[number])
