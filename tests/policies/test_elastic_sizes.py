"""The best sizes under one capacity, and accelerators for them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairlead.policies.elastic.base import Nodes, least_cost, sizes_on


@pytest.mark.parametrize("seed", range(20))
def test_sizes_are_the_best_there_are(seed):
    rng = np.random.default_rng(seed)
    jobs, capacity = int(rng.integers(1, 5)), int(rng.integers(0, 12))
    sizes = np.concatenate((rng.integers(1, 7, (jobs, 3)), np.zeros((jobs, 1), np.int64)), axis=1)
    costs = rng.uniform(0, 1, (jobs, 4)) - 0.3 * sizes
    costs[:, :3][rng.uniform(size=(jobs, 3)) < 0.2] = np.inf
    chosen = least_cost(sizes, costs, capacity)
    best = min(
        sum(costs[job, option] for job, option in enumerate(options))
        for options in itertools.product(range(4), repeat=jobs)
        if sum(sizes[job, option] for job, option in enumerate(options)) <= capacity
    )
    rows = np.arange(jobs)
    assert sizes[rows, chosen].sum() <= capacity
    assert costs[rows, chosen].sum() == pytest.approx(best)


def test_sizes_fill_nodes():
    assert sizes_on(4, 16) == [1, 2, 4, 8, 12, 16]
    assert sizes_on(8, 20) == [1, 2, 4, 8, 16]
    assert sizes_on(6, 12) == [1, 3, 6, 12]
    assert sizes_on(1, 3) == [1, 2, 3]
    assert sizes_on(4, 3) == [1, 2]


def nodes_of(count: int, each: int, fixed: frozenset[int] = frozenset()) -> Nodes:
    node_of = [place // each for place in range(count * each)]
    return Nodes(node_of, {node: list(range(node * each, node * each + each)) for node in range(count)}, fixed)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fits_into_the_nodes_finds_its_place_beside_who_stays(seed):
    rng = np.random.default_rng(seed)
    nodes, sizes, left = nodes_of(6, 4), dict[int, int](), 24
    for job in itertools.count():
        size = int(rng.choice([s for s in sizes_on(4, 24) if s <= left]))
        sizes[job], left = size, left - size
        if not left:
            break
    nodes.place(sizes)
    first = {job: list(places) for job, places in nodes.places.items()}
    check(first, sizes)
    stay = [job for job in sizes if rng.uniform() < 0.5]
    again, room = nodes_of(6, 4), sum(size for job, size in sizes.items() if job not in stay)
    for job in stay:
        again.keep(job, first[job])
    coming = dict[int, int]()
    for job in itertools.count(100):
        if not room:
            break
        coming[job] = int(rng.choice([s for s in sizes_on(4, 24) if s <= room]))
        room -= coming[job]
    again.place(coming)
    check(again.places, {**{job: sizes[job] for job in stay}, **coming})


def check(places: dict[int, list[int]], sizes: dict[int, int]) -> None:
    flat = [place for mine in places.values() for place in mine]
    assert len(flat) == len(set(flat))
    assert {job: len(mine) for job, mine in places.items()} == sizes
    wide = [{place // 4 for place in mine} for mine in places.values()]
    on_several = [node for nodes in wide if len(nodes) > 1 for node in nodes]
    assert len(on_several) == len(set(on_several)), "two jobs that stand on several nodes share one"


def test_who_must_be_left_alone_is():
    nodes = nodes_of(2, 4, frozenset({0, 1}))
    nodes.keep(0, [1])
    nodes.keep(1, [4])
    nodes.place({2: 4})
    assert nodes.places == {0: [1], 1: [4], 2: [0, 2, 3, 5]}
    nodes.place({3: 3, 4: 2})
    assert 3 not in nodes.places
    assert nodes.places[4] == [6, 7]


def test_a_small_job_makes_room_for_a_large_one():
    nodes = nodes_of(2, 4)
    nodes.keep(0, [1])
    nodes.keep(1, [4, 5])
    nodes.place({2: 4})
    assert sorted(nodes.places[2]) == [0, 1, 2, 3]
    assert nodes.places[0] == [6]
