"""Resource-aware placement: CPUs and host memory beside accelerators, never more than a node has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Node
from fairlead.core.job import Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.engine.apply import apply_event
from fairlead.placement.basic import Consolidated
from fairlead.placement.resource_aware import ResourceAware
from fairlead.testing import Harness, InvariantBroken, check_events, check_hosts, job
from fairlead.testing.contracts import SCENES, InPairs, play
from scenes import places_in, selection_of, state_of, view_of


@st.composite
def scenes(draw):
    """Nodes with CPUs and memory, jobs that run there and fit, and others that come."""
    amounts = st.sampled_from([0.0, 1.0, 2.0, 3.5, 8.0])
    nodes = tuple(
        Node(f"n{i}", draw(st.sampled_from(["v100", "k80"])), draw(st.integers(1, 4)), draw(amounts) * 3, draw(amounts) * 4)
        for i in range(draw(st.integers(1, 4)))
    )
    cluster = Cluster(nodes)
    jobs = [
        Job(f"j{i}", workers=draw(st.integers(1, 4)), cpus=draw(amounts), host_memory_gb=draw(amounts))
        for i in range(draw(st.integers(1, 7)))
    ]
    types = [draw(st.integers(0, len(cluster.types) - 1)) for _ in jobs]
    combination = [draw(st.integers(0, 3)) for _ in jobs] if draw(st.booleans()) else None
    return cluster, jobs, types, combination


def apply(state, placed, time):
    """Make a plan of it that the state will take."""
    running = state.snapshot(time).jobs.runners.number
    gone = np.setdiff1d(running, placed.kept)
    apply_event(state, ev.RoundPlanned(RoundPlan(time, suspended=gone, launches=placed.launches)))


@given(scenes())
@settings(max_examples=150)
def test_no_node_gets_more_than_it_has_in_any_of_several_rounds(case):
    cluster, jobs, types, combination = case
    state = state_of(cluster, jobs)
    for time, chosen in ((10.0, slice(None, None, 2)), (20.0, slice(None)), (30.0, slice(1, None))):
        numbers = list(range(len(jobs)))[chosen]
        if combination is None:
            selection = selection_of(numbers, [types[n] for n in numbers], [jobs[n].workers for n in numbers])
        else:  # of one combination are those with one type and number of workers
            groups = [100 * combination[n] + 10 * types[n] + jobs[n].workers for n in numbers]
            columns = ([types[n] for n in numbers], [jobs[n].workers for n in numbers])
            selection = selection_of(numbers, *columns, combination=np.array(groups, dtype=np.int64))
        placed = ResourceAware().place(selection, view_of(state, time))
        told = {*placed.kept.tolist(), *placed.launches.jobs.tolist(), *placed.unplaced}
        assert told == set(numbers)
        apply(state, placed, time)
        check_hosts(state)
        left = state.snapshot(time).up & (state.device_map.occupancy == 0)
        assert placed.free == tuple(np.bincount(cluster.type_of[left], minlength=len(cluster.types)).tolist())


@given(scenes())
@settings(max_examples=100)
def test_one_job_alone_is_placed_wherever_it_can_be(case):
    cluster, jobs, types, _ = case
    one, kind = jobs[0], types[0]
    placed = ResourceAware().place(selection_of([0], [kind], [one.workers]), view_of(state_of(cluster, [one])))
    hosted = cluster.workers_hosted(cluster.type_names[kind], one.cpus, one.host_memory_gb)
    assert bool(places_in(placed)) == (hosted >= one.workers)


NODES = Cluster((Node("a", "v100", 4, cpus=8.0, memory_gb=100.0), Node("b", "v100", 4, cpus=32.0, memory_gb=100.0)))


def test_a_gang_goes_where_there_are_cpus_for_it_though_another_node_is_fuller():
    jobs = [Job("old"), Job("gang", workers=2, cpus=6.0)]
    selection = selection_of([0, 1], [0, 0], [1, 2])
    view = view_of(state_of(NODES, jobs, {0: [0]}))
    assert places_in(ResourceAware().place(selection, view)) == {1: [4, 5]}
    assert places_in(Consolidated().place(selection, view)) == {1: [1, 2]}


def test_who_finds_accelerators_but_no_cpus_is_told_so():
    jobs = [Job("a", workers=4, cpus=8.0), Job("b", workers=2, cpus=5.0)]
    placed = ResourceAware().place(selection_of([0, 1], [0, 0], [4, 2]), view_of(state_of(NODES, jobs)))
    assert set(places_in(placed)) == {0}
    wanted = "2 GPUs of type v100 on nodes with CPUs and memory left for its workers"
    assert placed.unplaced == {1: Reasons.not_placed(wanted)}


def test_a_newcomer_that_the_host_of_its_partner_has_no_room_for_does_not_join():
    jobs = [Job("here", cpus=6.0), Job("small", cpus=2.0), Job("large", cpus=3.0)]
    state = state_of(NODES, jobs, {0: [2]})
    together = selection_of([0, 1], [0, 0], [1, 1], combination=np.array([0, 0]))
    assert places_in(ResourceAware().place(together, view_of(state))) == {1: [2]}
    too_much = selection_of([0, 2], [0, 0], [1, 1], combination=np.array([0, 0]))
    placed = ResourceAware().place(too_much, view_of(state))
    assert (placed.kept.tolist(), list(placed.unplaced)) == ([0], [2])


def test_partners_are_placed_where_there_is_room_for_both():
    jobs = [Job("one", cpus=6.0), Job("two", cpus=6.0)]
    selection = selection_of([0, 1], [0, 0], [1, 1], combination=np.array([0, 0]))
    places = places_in(ResourceAware().place(selection, view_of(state_of(NODES, jobs))))
    assert places == {0: [4], 1: [4]}


def test_a_pinned_place_without_cpus_is_not_given():
    selection = selection_of([0], [0], [2], pinned={0: np.array([0, 1])})
    placed = ResourceAware().place(selection, view_of(state_of(NODES, [Job("a", workers=2, cpus=5.0)])))
    assert not places_in(placed)
    assert list(placed.unplaced) == [0]


def test_a_single_worker_returns_to_its_last_accelerator_if_there_are_cpus():
    state = state_of(NODES, [Job("a", cpus=4.0), Job("b", cpus=6.0)], {0: [2]})
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, suspended=np.array([0]))))
    alone = ResourceAware().place(selection_of([0], [0], [1]), view_of(state, 20.0))
    assert places_in(alone) == {0: [2]}


def test_a_gang_that_all_hosts_together_cannot_hold_is_refused_at_the_door(harness):
    harness.cluster(NODES).submit(job("wide").workers(6).with_(cpus=8.0), job("fits").workers(5).with_(cpus=8.0))
    plan = harness.round()
    assert plan.refused == {"wide"}
    wanted = "its nodes have 8 CPUs and 0 GB for a worker 5 times at most, and it has 6"
    assert plan.reason("wide") == Reasons.unsuitable(wanted)
    assert plan.launched == {"fits"}


def test_in_a_run_what_does_not_fit_beside_others_waits_for_them():
    made = Harness(SchedulerConfig(Part("fifo"), placement=Part("resource-aware"), round_s=100.0)).cluster(NODES)
    made.submit(job("first").workers(4).with_(cpus=8.0).lasting(150.0), job("second").workers(2).with_(cpus=5.0).lasting(50.0))
    assert made.round().launched == {"first"}
    assert "CPUs" in str(made.round().reason("second"))
    assert made.round().launched == {"second"}
    made.run()


def test_the_invariant_sees_what_other_placements_do():
    state = state_of(NODES, [Job("a", workers=2, cpus=5.0)], {0: [0, 1]})
    with pytest.raises(InvariantBroken, match="10 CPUs are in use on a, which has 8"):
        check_hosts(state)


def test_in_runs_with_two_jobs_to_an_accelerator_hosts_hold_what_they_have():
    def stages(table):
        standard = SchedulerConfig(placement=Part("resource-aware")).build(table)
        return replace(standard, policy=InPairs())

    for where, seed in SCENES:
        state, events = play(stages, where, seed, faults=True, hosts=True)
        check_events(events, residents=2, hosts=True)
        assert (state.all_jobs().phase > int(Phase.RUNNING)).all()
