"""What every placement does; spread, first free, pinned accelerators and combinations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Node
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.engine.apply import apply_event
from fairlead.placement.bandwidth_aware import BandwidthAware
from fairlead.placement.basic import Consolidated, FirstFree, SpreadPlacement
from fairlead.placement.least_network import LeastNetwork
from fairlead.placement.resource_aware import ResourceAware
from fairlead.placement.tiresias_placement import TiresiasPlacement, TiresiasPlusPlacement
from scenes import places_in, selection_of, state_of, view_of

ALL = (
    Consolidated(),
    SpreadPlacement(),
    FirstFree(),
    TiresiasPlacement(),
    TiresiasPlacement(otherwise=1.0),
    TiresiasPlusPlacement(),
    LeastNetwork(),
    BandwidthAware(),
    ResourceAware(),
)
by_name = pytest.mark.parametrize("placement", ALL, ids=lambda placement: type(placement).__name__)


@st.composite
def scenes(draw):
    """Nodes of two types, some down, some accelerators taken; a selection that fits."""
    nodes = tuple(
        Node(f"n{i}", draw(st.sampled_from(["v100", "k80"])), draw(st.integers(1, 4))) for i in range(draw(st.integers(1, 6)))
    )
    cluster = Cluster(nodes)
    down = draw(st.sets(st.integers(0, len(nodes) - 1), max_size=len(nodes) - 1))
    up = [place for place in range(cluster.size) if int(cluster.node_of[place]) not in down]
    taken = sorted(draw(st.sets(st.sampled_from(up), max_size=max(0, len(up) - 1)))) if up else []
    free = Counter(int(cluster.type_of[place]) for place in up if place not in taken)
    wants = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.integers(0, len(cluster.types) - 1))
        size = draw(st.integers(1, 4))
        if size <= free[kind]:
            free[kind] -= size
            wants.append((kind, size))
    return cluster, sorted(down), taken, wants


def place(case, placement, **others):
    cluster, down, taken, wants = case
    first = len(taken)
    jobs = [*(Job(f"old-{i}") for i in range(first)), *(Job(f"new-{i}", workers=size) for i, (_, size) in enumerate(wants))]
    state = state_of(cluster, jobs, {i: [at] for i, at in enumerate(taken)}, down=down)
    types = [*(int(cluster.type_of[at]) for at in taken), *(kind for kind, _ in wants)]
    workers = [*(1 for _ in taken), *(size for _, size in wants)]
    return placement.place(selection_of(range(len(jobs)), types, workers, **others), view_of(state))


@given(scenes())
@settings(max_examples=60)
@by_name
def test_whatever_fits_is_placed_whole_on_free_accelerators_of_its_type_that_are_up(placement, case):
    cluster, down, taken, wants = case
    placed = place(case, placement)
    assert not placed.unplaced
    assert placed.kept.tolist() == list(range(len(taken)))
    places = places_in(placed)
    flat = [at for held in places.values() for at in held]
    assert len(flat) == len(set(flat))
    assert not set(flat) & set(taken)
    for number, (kind, size) in enumerate(wants, len(taken)):
        assert len(places[number]) == size
        assert {int(cluster.type_of[at]) for at in places[number]} == {kind}
        assert not {int(cluster.node_of[at]) for at in places[number]} & set(down)
    left = Counter(
        int(cluster.type_of[at])
        for at in range(cluster.size)
        if int(cluster.node_of[at]) not in down and at not in {*flat, *taken}
    )
    assert placed.free == tuple(left[kind] for kind in range(len(cluster.types)))


@by_name
def test_what_does_not_fit_is_told_and_nobody_is_left_half_placed(placement):
    state = state_of(Cluster.parse("3xv100:3"), [Job("a", workers=2), Job("b", workers=2), Job("c"), Job("d")])
    placed = placement.place(selection_of(range(4), [0] * 4, [2, 2, 1, 1]), view_of(state))
    places = places_in(placed)
    assert sorted(len(held) for held in places.values()) == [1, 2]
    assert len(placed.unplaced) == 2
    assert all(reason.by == "placement" for reason in placed.unplaced.values())


@by_name
def test_nobody_selected_is_nobody_placed(placement):
    placed = placement.place(selection_of([], [], []), view_of(state_of(Cluster.parse("3xv100:3"), [Job("a")], {0: [1]})))
    assert (len(placed.kept), len(placed.launches), placed.free) == (0, 0, (3,))


# Spread.


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 8))
@settings(max_examples=100)
def test_spread_stands_on_as_many_nodes_as_there_are(sizes, want):
    cluster = Cluster(tuple(Node(f"n{i}", "v100", size) for i, size in enumerate(sizes)))
    if want > cluster.size:
        return
    state = state_of(cluster, [Job("a", workers=want)])
    places = places_in(SpreadPlacement().place(selection_of([0], [0], [want]), view_of(state)))[0]
    assert len({int(cluster.node_of[at]) for at in places}) == min(want, len(sizes))
    on_node = Counter(int(cluster.node_of[at]) for at in places)
    assert all(count == cluster.node_size[node] or count >= max(on_node.values()) - 1 for node, count in on_node.items())


def test_spread_takes_the_emptiest_nodes_first():
    cluster = Cluster.parse("12xv100:4")
    state = state_of(cluster, [Job("x"), Job("y"), Job("z"), Job("a", workers=2)], {0: [0], 1: [1], 2: [4]})
    places = places_in(SpreadPlacement().place(selection_of([0, 1, 2, 3], [0] * 4, [1, 1, 1, 2]), view_of(state)))[3]
    assert {int(cluster.node_of[at]) for at in places} == {1, 2}


def test_spread_deals_single_workers_out_over_the_nodes():
    cluster = Cluster.parse("6xv100:2")
    state = state_of(cluster, [Job(f"j{i}") for i in range(3)])
    places = places_in(SpreadPlacement().place(selection_of(range(3), [0] * 3, [1] * 3), view_of(state)))
    assert {int(cluster.node_of[held[0]]) for held in places.values()} == {0, 1, 2}


# First free.


def test_first_free_takes_the_lowest_numbers():
    state = state_of(Cluster.parse("8xv100:4"), [Job("old"), Job("pair", workers=2), Job("single")], {0: [1]})
    placed = FirstFree().place(selection_of([0, 1, 2], [0] * 3, [1, 2, 1]), view_of(state))
    assert places_in(placed) == {1: [0, 2], 2: [3]}


def test_first_free_does_not_return_to_where_one_was():
    state = state_of(Cluster.parse("8xv100:4"), [Job("a")], {0: [6]})
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, suspended=np.array([0]))))
    assert places_in(FirstFree().place(selection_of([0], [0], [1]), view_of(state, 20.0))) == {0: [0]}


# Pinned.


@by_name
def test_a_pinned_job_gets_its_accelerators_and_no_others(placement):
    state = state_of(Cluster.parse("4xv100:4"), [Job("a", workers=2), Job("b"), Job("c")])
    selection = selection_of([0, 1, 2], [0] * 3, [2, 1, 1], pinned={0: np.array([1, 3]), 2: np.array([0])})
    assert places_in(placement.place(selection, view_of(state))) == {0: [1, 3], 1: [2], 2: [0]}


@by_name
def test_a_pinned_place_that_is_taken_or_down_is_a_reason(placement):
    jobs = [Job("old"), Job("a"), Job("b"), Job("c")]
    state = state_of(Cluster.parse("4xv100:2"), jobs, {0: [0]}, down=[1])
    pinned = {1: np.array([0]), 2: np.array([2])}
    placed = placement.place(selection_of([0, 1, 2, 3], [0] * 4, [1] * 4, pinned=pinned), view_of(state))
    reason = Reasons.not_placed("its pinned GPUs are not free")
    assert placed.unplaced == {1: reason, 2: reason}
    assert places_in(placed) == {3: [1]}


@by_name
def test_who_runs_elsewhere_than_pinned_is_moved_and_who_runs_there_stays(placement):
    state = state_of(Cluster.parse("4xv100:4"), [Job("a"), Job("b")], {0: [0], 1: [1]})
    pinned = {0: np.array([2]), 1: np.array([1])}
    placed = placement.place(selection_of([0, 1], [0, 0], [1, 1], pinned=pinned), view_of(state))
    assert placed.kept.tolist() == [1]
    assert places_in(placed) == {0: [2]}


# Combinations.


@by_name
def test_the_members_of_a_combination_get_the_same_accelerators(placement):
    jobs = [Job(f"j{i}", workers=1 + i // 2) for i in range(4)]
    selection = selection_of(range(4), [0] * 4, [1, 1, 2, 2], combination=np.array([0, 0, 1, 1]))
    placed = placement.place(selection, view_of(state_of(Cluster.parse("4xv100:4"), jobs)))
    places = places_in(placed)
    assert places[0] == places[1]
    assert places[2] == places[3]
    assert not set(places[0]) & set(places[2])
    assert placed.free == (1,)


@by_name
def test_a_newcomer_joins_its_partner_where_that_is(placement):
    state = state_of(Cluster.parse("4xv100:4"), [Job("here"), Job("new")], {0: [2]})
    placed = placement.place(selection_of([1, 0], [0, 0], [1, 1], combination=np.array([5, 5])), view_of(state))
    assert placed.kept.tolist() == [0]
    assert places_in(placed) == {1: [2]}


@by_name
def test_partners_that_run_apart_are_brought_together(placement):
    state = state_of(Cluster.parse("4xv100:4"), [Job("a"), Job("b")], {0: [0], 1: [3]})
    placed = placement.place(selection_of([0, 1], [0, 0], [1, 1], combination=np.array([0, 0])), view_of(state))
    assert placed.kept.tolist() == [0]
    assert places_in(placed) == {1: [0]}


@by_name
def test_partners_that_are_to_part_do_not_stay_on_one_accelerator(placement):
    state = state_of(Cluster.parse("4xv100:4"), [Job("a"), Job("b")], {0: [0], 1: [0]})
    placed = placement.place(selection_of([0, 1], [0, 0], [1, 1], combination=np.array([0, 1])), view_of(state))
    held = {**{n: [0] for n in placed.kept.tolist()}, **places_in(placed)}
    assert set(held) == {0, 1}
    assert held[0] != held[1]


@by_name
def test_a_combination_without_room_is_told_member_by_member(placement):
    jobs = [Job("big", workers=2), Job("a", workers=2), Job("b", workers=2)]
    selection = selection_of(range(3), [0] * 3, [2, 2, 2], combination=np.array([0, 1, 1]))
    placed = placement.place(selection, view_of(state_of(Cluster.parse("3xv100:3"), jobs)))
    assert set(places_in(placed)) == {0}
    assert set(placed.unplaced) == {1, 2}


@by_name
def test_partners_that_are_to_run_alone_part_even_where_nobody_shares_any_more(placement):
    state = state_of(Cluster.parse("4xv100:4"), [Job("a"), Job("b")], {0: [0], 1: [0]})
    placed = placement.place(selection_of([0, 1], [0, 0], [1, 1]), view_of(state))
    assert placed.kept.tolist() == [0]
    assert places_in(placed)[1] != [0]


@by_name
def test_of_partners_that_part_the_one_that_must_be_left_alone_stays(placement):
    jobs = [Job("a"), Job("b", min_run_s=500.0)]
    state = state_of(Cluster.parse("4xv100:4"), jobs, {0: [0], 1: [0]})
    placed = placement.place(selection_of([0, 1], [0, 0], [1, 1], combination=np.array([0, 1])), view_of(state, 10.0))
    assert placed.kept.tolist() == [1]
    assert set(places_in(placed)) == {0}


@by_name
def test_many_pairs_that_change_partners_end_two_by_two(placement):
    jobs = [Job(f"j{i}", workers=2) for i in range(16)]
    state = state_of(Cluster.parse("16xv100:4"), jobs, {i: [2 * (i // 2), 2 * (i // 2) + 1] for i in range(16)})
    partners = np.array([(i + 1) // 2 % 8 for i in range(16)])
    placed = placement.place(selection_of(range(16), [0] * 16, [2] * 16, combination=partners), view_of(state))
    held = {**{n: [2 * (n // 2), 2 * (n // 2) + 1] for n in placed.kept.tolist()}, **places_in(placed)}
    assert set(held) == set(range(16))
    assert len({(int(partners[n]), tuple(place)) for n, place in held.items()}) == len({tuple(p) for p in held.values()}) == 8
