"""Consolidated: the fewest nodes, the fullest that still fits, and back to where one was; held against every other way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import Scheduler, simulate
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Node
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.core.rng import stream
from fairlead.engine.apply import apply_event
from fairlead.placement.basic import Consolidated
from fairlead.testing import Harness, job
from scenes import places_in, selection_of, state_of, view_of


def nodes_of(cluster: Cluster, places) -> set[int]:
    return {int(cluster.node_of[place]) for place in places}


@st.composite
def half_full(draw):
    """A small cluster of one type, some of whose accelerators are taken or down, and a gang that wants some."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    cluster = Cluster(tuple(Node(f"n{i}", "v100", size) for i, size in enumerate(sizes)))
    taken = sorted(draw(st.sets(st.integers(0, cluster.size - 1), max_size=cluster.size - 1)))
    down = sorted(draw(st.sets(st.integers(0, len(sizes) - 1), max_size=len(sizes) - 1)))
    taken = [place for place in taken if int(cluster.node_of[place]) not in down]
    want = draw(st.integers(1, 6))
    return cluster, taken, down, want


def free_by_node(cluster: Cluster, taken, down) -> dict[int, int]:
    left = {node: int(size) for node, size in enumerate(cluster.node_size) if node not in down}
    for place in taken:
        left[int(cluster.node_of[place])] -= 1
    return left


def fewest(free: dict[int, int], want: int) -> int | None:
    """Over how few nodes so many can be found, by trying all sets of nodes."""
    for count in range(1, len(free) + 1):
        if any(sum(free[node] for node in chosen) >= want for chosen in itertools.combinations(free, count)):
            return count
    return None


def place_one(case, placement=None, **others):
    cluster, taken, down, want = case
    jobs = [*(Job(f"old-{i}", steps=1e6) for i in range(len(taken))), Job("new", steps=1e6, workers=want)]
    state = state_of(cluster, jobs, {i: [place] for i, place in enumerate(taken)}, down=down)
    everybody = list(range(len(jobs)))
    workers = [*(1 for _ in taken), want]
    selection = selection_of(everybody, [0] * len(everybody), workers, **others)
    placed = (placement or Consolidated()).place(selection, view_of(state))
    return placed, places_in(placed).get(len(taken), [])


@given(half_full())
@settings(max_examples=200)
def test_a_gang_stands_on_the_fewest_nodes_there_are(case):
    cluster, taken, down, want = case
    free = free_by_node(cluster, taken, down)
    placed, places = place_one(case)
    best_devices = fewest(free, want)
    if best_devices is None:
        assert places == []
        assert list(placed.unplaced) == [len(taken)]
        return
    assert len(places) == len(set(places)) == want
    assert not set(places) & set(taken)
    assert not nodes_of(cluster, places) & set(down)
    assert len(nodes_of(cluster, places)) == best_devices
    assert placed.free == (sum(free.values()) - want,)


@given(half_full())
@settings(max_examples=200)
def test_where_one_node_will_do_it_is_the_fullest_that_still_fits(case):
    cluster, taken, down, want = case
    free = free_by_node(cluster, taken, down)
    fitting = {node: left for node, left in free.items() if left >= want}
    if want < 2 or not fitting:
        return
    (node,) = nodes_of(cluster, place_one(case)[1])
    assert free[node] == min(fitting.values())


@given(half_full())
@settings(max_examples=100)
def test_a_single_worker_goes_to_the_node_with_the_least_left(case):
    cluster, taken, down, _ = case
    free = {node: left for node, left in free_by_node(cluster, taken, down).items() if left}
    if not free:
        return
    _, places = place_one((cluster, taken, down, 1))
    (node,) = nodes_of(cluster, places)
    assert free[node] == min(free.values())


@given(half_full())
@settings(max_examples=200)
def test_who_would_rather_wait_is_placed_only_on_as_few_nodes_as_it_needs(case):
    cluster, taken, down, want = case
    if want < 2:
        return
    placed, places = place_one(case, Consolidated(wait=True))
    least = -(-want // int(cluster.largest_node_of_type[0]))
    if fewest(free_by_node(cluster, taken, down), want) == least:
        assert len(nodes_of(cluster, places)) == least
    else:
        assert places == []
        assert placed.unplaced[len(taken)] == Reasons.not_placed(f"{want} GPUs of type v100 as it needs them")


def test_a_gang_that_rather_waits_leaves_its_accelerators_to_others():
    cluster = Cluster.parse("6xv100:3")
    jobs = [Job("a", workers=2), Job("b", workers=2), Job("gang", workers=2), Job("one"), Job("two")]
    selection = selection_of(range(5), [0] * 5, [2, 2, 2, 1, 1])
    placed = Consolidated(wait=True).place(selection, view_of(state_of(cluster, jobs)))
    assert set(places_in(placed)) == {0, 1, 3, 4}
    assert placed.free == (0,)


def test_in_strict_order_a_gang_that_waits_for_few_nodes_holds_the_line():
    cluster = Cluster.parse("6xv100:3")
    jobs = [Job("a", workers=2), Job("b", workers=2), Job("gang", workers=2), Job("one"), Job("two")]
    selection = selection_of(range(5), [0] * 5, [2, 2, 2, 1, 1], strict=True)
    placed = Consolidated(wait=True).place(selection, view_of(state_of(cluster, jobs)))
    assert set(places_in(placed)) == {0, 1}
    assert list(placed.unplaced) == [2]
    assert placed.free == (2,)


def test_in_strict_order_a_larger_gang_does_not_take_the_place_of_one_before_it():
    cluster = Cluster((Node("a", "v100", 4), Node("b", "v100", 1), Node("c", "v100", 1)))
    jobs = [Job("pair", workers=2), Job("four", workers=4)]
    selection = selection_of(range(2), [0] * 2, [2, 4], strict=True)
    placed = Consolidated(wait=True).place(selection, view_of(state_of(cluster, jobs)))
    assert set(places_in(placed)) == {0}
    assert list(placed.unplaced) == [1]


@pytest.mark.parametrize("seed", range(3))
def test_strict_fifo_starts_jobs_as_they_came_where_gangs_wait_for_few_nodes(seed):
    chance = stream(seed, "strict fifo")
    jobs = [
        Job(
            f"job-{n}",
            steps=float(chance.integers(100, 5000)),
            workers=int(chance.choice([1, 2, 3, 4, 8])),
            submitted_s=60.0 * n,
        )
        for n in range(120)
    ]
    run = simulate(jobs, "16xv100:4", Scheduler("fifo", placement="consolidated:wait=true", round_s=0.0))
    started = run.jobs["first_started_s"].to_pylist()
    assert started == sorted(started)


def test_jobs_behind_a_gang_that_waits_for_few_nodes_are_told_so():
    harness = Harness(SchedulerConfig(Part("fifo"), placement=Part("consolidated", {"wait": True}))).cluster("8xv100:4")
    plan = harness.submit(job("a").workers(3), job("b").workers(3), job("wide").workers(2), job("narrow").workers(1)).round()
    assert plan.running == {"a", "b"}
    assert plan.reason("wide") == Reasons.not_placed("2 GPUs of type v100 as it needs them")
    assert plan.reason("narrow") == Reasons.behind("wide", needed=2)


def test_large_gangs_are_placed_before_small_ones_whatever_their_rank():
    cluster = Cluster.parse("8xv100:4")
    jobs = [Job("single"), Job("pair", workers=2), Job("four", workers=4)]
    places = places_in(Consolidated().place(selection_of(range(3), [0] * 3, [1, 2, 4]), view_of(state_of(cluster, jobs))))
    assert len(nodes_of(cluster, places[2])) == 1
    assert nodes_of(cluster, places[0]) == nodes_of(cluster, places[1]) != nodes_of(cluster, places[2])


def test_who_runs_and_stays_selected_stays_where_it_is():
    cluster = Cluster.parse("8xv100:4")
    state = state_of(cluster, [Job("a", workers=2), Job("b")], {0: [1, 6], 1: [3]})
    placed = Consolidated().place(selection_of([0, 1], [0, 0], [2, 1]), view_of(state))
    assert placed.kept.tolist() == [0, 1]
    assert len(placed.launches) == 0
    assert placed.free == (5,)


def suspended_state(cluster: Cluster, running: dict[int, list[int]], jobs: list[Job], again: list[int]):
    state = state_of(cluster, jobs, running)
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, suspended=np.array(again))))
    return state


def test_a_single_worker_returns_to_its_last_accelerator():
    state = suspended_state(Cluster.parse("8xv100:4"), {0: [6], 1: [1]}, [Job("a"), Job("b")], [0])
    placed = Consolidated().place(selection_of([0, 1], [0, 0], [1, 1]), view_of(state, 20.0))
    assert places_in(placed) == {0: [6]}


def test_a_gang_returns_to_its_last_node_although_another_is_fuller():
    jobs = [Job("gang", workers=2), Job("single", workers=1)]
    state = suspended_state(Cluster.parse("12xv100:4"), {0: [8, 9], 1: [0]}, jobs, [0])
    placed = Consolidated().place(selection_of([0, 1], [0, 0], [2, 1]), view_of(state, 20.0))
    assert nodes_of(state.cluster, places_in(placed)[0]) == {2}


def test_of_two_that_want_the_same_accelerator_back_the_one_selected_first_gets_it():
    jobs = [Job("a"), Job("b")]
    state = suspended_state(Cluster.parse("4xv100:4"), {0: [2]}, jobs, [0])
    one = np.array([1])
    apply_event(state, ev.RoundPlanned(RoundPlan(11.0, launches=Launches(one, one * 0, np.array([0, 1]), np.array([2])))))
    apply_event(state, ev.RoundPlanned(RoundPlan(12.0, suspended=one)))
    placed = places_in(Consolidated().place(selection_of([1, 0], [0, 0], [1, 1]), view_of(state, 20.0)))
    assert placed[1] == [2]
    assert placed[0] != [2]


def test_a_job_does_not_return_to_a_node_that_is_down():
    cluster = Cluster.parse("4xv100:2")
    state = suspended_state(cluster, {0: [0, 1]}, [Job("a", workers=2)], [0])
    apply_event(state, ev.NodeLost(15.0, 0))
    placed = Consolidated().place(selection_of([0], [0], [2]), view_of(state, 20.0))
    assert places_in(placed) == {0: [2, 3]}


def test_a_job_changed_in_size_is_placed_anew():
    state = state_of(Cluster.parse("4xv100:4"), [Job("a", workers=4)], {0: [0, 1, 2, 3]})
    placed = Consolidated().place(selection_of([0], [0], [2]), view_of(state))
    assert placed.kept.tolist() == []
    assert len(places_in(placed)[0]) == 2


def test_a_job_that_gets_another_batch_size_is_started_anew_and_one_that_keeps_it_is_not():
    state = state_of(Cluster.parse("4xv100:4"), [Job("a"), Job("b")], {0: [0], 1: [1]})
    selection = selection_of([0, 1], [0, 0], [1, 1], batch_sizes=np.array([64, 0]))
    placed = Consolidated().place(selection, view_of(state))
    assert placed.kept.tolist() == [1]
    assert placed.launches.jobs.tolist() == [0]
    assert placed.launches.batch_sizes.tolist() == [64]


def test_types_are_kept_apart():
    cluster = Cluster.parse("2xv100:2,2xk80:2")
    placed = places_in(
        Consolidated().place(
            selection_of([0, 1], [1, 0], [2, 2]), view_of(state_of(cluster, [Job("a", workers=2), Job("b", workers=2)]))
        )
    )
    assert placed == {0: [2, 3], 1: [0, 1]}


def test_in_a_run_a_job_comes_back_to_its_place_and_stays_there():
    made = Harness(SchedulerConfig(Part("srtf"), placement=Part("consolidated"), round_s=100.0)).cluster("v100:2,v100:2")
    made.submit(job("gang").workers(2).lasting(900.0), job("other").workers(2).lasting(800.0))
    made.round()
    before = made.places("gang")
    made.submit(job("short").workers(4).lasting(50.0).at(110))
    made.round()
    assert made.round().suspended == {"gang", "other"}
    made.round()
    assert made.places("gang") == before
    made.run()
