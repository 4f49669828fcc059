"""Nodes that fail and come back: who falls back, how far, and that a seed decides all of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.events import NodeLost, NodeRepaired
from fairlead.core.job import Job, Phase
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.simulate import Faults
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, either, outage_events, random_process
from fairlead.testing import Harness, check_events, job
from fairlead.workloads.throughput_tables import ThroughputTable


def harness_with(costs: Costs | None = None, where: str = "v100:1", round_s: float = 100.0) -> Harness:
    return Harness(SchedulerConfig(round_s=round_s), costs=costs).cluster(where)


def interruptions(made: Harness) -> list[tuple[float, list[int], list[float]]]:
    return [(e.time, e.jobs.tolist(), e.steps.tolist()) for e in made.journal if isinstance(e, ev.JobsInterrupted)]


def test_without_regular_saves_a_job_on_a_lost_node_starts_over():
    made = harness_with().outage(0, 350.0, 420.0).submit(job("a").lasting(500.0)).run()
    assert interruptions(made) == [(350.0, [0], [0.0])]
    assert made.ended_s("a") == 500.0 + 500.0


def test_a_job_falls_back_to_its_last_regular_save():
    costs = Costs(restart_s=30.0, checkpoint_s=20.0, checkpoint_every_s=80.0)
    made = harness_with(costs).outage(0, 350.0, 420.0).submit(job("a").lasting(500.0)).run()
    # Every 100 s it has done 80 steps and saved them: three saves by 350, so 240 steps. 260 are left at 500, plus 30 s restart.
    assert interruptions(made) == [(350.0, [0], [pytest.approx(240.0)])]
    assert made.ended_s("a") == pytest.approx(500.0 + 30.0 + 260.0 / 0.8)


def test_what_was_saved_at_a_suspension_is_not_lost_with_a_node():
    costs = Costs(checkpoint_s=10.0)
    made = Harness(SchedulerConfig(Part("srtf"), round_s=100.0), costs=costs).cluster("v100:1")
    made.outage(0, 450.0, 470.0)
    made.submit(job("long").lasting(500.0), job("short").lasting(50.0).at(150)).run()
    # long: 190 steps saved at 200, runs again 300–450, falls back to 190; 310 left at 500.
    assert interruptions(made) == [(450.0, [0], [190.0])]
    assert made.ended_s("long") == 810.0


def test_only_those_on_the_lost_node_are_touched_and_gangs_fall_with_any_of_their_nodes():
    made = harness_with(None, "v100:2,v100:2,v100:2").outage(1, 50.0, 60.0)
    made.submit(job("gang").workers(4).lasting(100.0), job("pair").workers(2).lasting(100.0)).run()
    assert interruptions(made) == [(50.0, [0], [0.0])]
    assert (made.ended_s("gang"), made.ended_s("pair")) == (200.0, 100.0)


def test_while_a_node_is_down_its_accelerators_are_not_used():
    made = harness_with(None, "v100:2,v100:2").outage(0, 0.0, 350.0)
    made.submit(*(job(f"j{i}").lasting(1000.0) for i in range(4)))
    assert len(made.round().running) == 2
    assert {place for i in range(4) for place in made.places(f"j{i}")} == {2, 3}
    made.round()
    made.round()
    assert len(made.round().running) == 2
    assert len(made.round().running) == 4
    made.run()


def test_lost_nodes_do_not_count_against_the_retry_limit():
    made = harness_with().submit(job("a").lasting(150.0).with_(retry_limit=0))
    for start in (50.0, 240.0, 440.0):
        made.outage(0, start, start + 10.0)
    made.run()
    assert made.phase("a") is Phase.FINISHED
    assert made.state.all_jobs().failures.tolist() == [0]
    assert made.state.all_jobs().starts.tolist() == [4]


def test_at_one_moment_repairs_come_before_losses():
    events = list(outage_events([Outage(0, 10.0, 20.0), Outage(1, 20.0, 30.0), Outage(2, 5.0)]))
    told = [(event.time, type(event).__name__, event.node) for event in events]
    assert told == [
        (5.0, "NodeLost", 2),
        (10.0, "NodeLost", 0),
        (20.0, "NodeRepaired", 0),
        (20.0, "NodeLost", 1),
        (30.0, "NodeRepaired", 1),
    ]


def test_a_node_lost_while_it_is_down_is_told_once():
    made = harness_with().outage(0, 50.0, 300.0).outage(0, 100.0, 300.0).submit(job("a").lasting(500.0)).run()
    told = [(event.time, type(event)) for event in made.journal if isinstance(event, (ev.NodeLost, ev.NodeRepaired))]
    assert told == [(50.0, ev.NodeLost), (300.0, ev.NodeRepaired)]


def test_random_faults_follow_their_seed():
    def first(seed: int, count: int = 40) -> list[tuple[float, str, int]]:
        process = random_process(5, 3600.0, 600.0, seed)
        return [(event.time, type(event).__name__, event.node) for event in itertools.islice(process, count)]

    assert first(3) == first(3)
    assert first(3) != first(4)
    times = [time for time, _, _ in first(3)]
    assert times == sorted(times)


def test_a_random_node_is_lost_and_repaired_in_turns_and_as_often_as_its_means_say():
    events = list(itertools.islice(random_process(3, 1000.0, 250.0, 1), 12_000))
    for node in range(3):
        mine = [event for event in events if event.node == node]
        assert [isinstance(event, ev.NodeLost) for event in mine[:10]] == [True, False] * 5
        gaps = np.diff([0.0, *(event.time for event in mine)])
        assert abs(gaps[::2].mean() / 1000.0 - 1.0) < 0.1
        assert abs(gaps[1::2].mean() / 250.0 - 1.0) < 0.1


def test_one_more_node_does_not_change_when_the_others_fail():
    few = [(e.time, e.node) for e in itertools.islice(random_process(2, 1000.0, 100.0, 9), 60)]
    more = [(e.time, e.node) for e in itertools.islice(random_process(3, 1000.0, 100.0, 9), 120) if e.node < 2]
    both = min(len(few), len(more))
    assert both > 30
    assert more[:both] == few[:both]


def run_with_random_faults(seed: int) -> Loop:
    cluster = Cluster.parse("8xv100:2")
    table = ThroughputTable.timed(cluster.type_names)
    jobs = [Job(f"j{i}", 97.0 * i, 500.0 + 31.0 * i, workers=1 + i % 4) for i in range(40)]
    faults = random_process(4, 3000.0, 400.0, seed)
    backend = SimulatedBackend(cluster, table, jobs, costs=Costs(checkpoint_every_s=200.0), faults=faults)
    loop = Loop(State(cluster), backend, SchedulerConfig(Part("srtf"), round_s=60.0).build(table), journal=MemoryJournal())
    loop.record(ev.JournalOpened(0.0, cluster, {}, "faults", None))
    loop.run()
    return loop


def test_a_run_with_random_faults_is_reproducible_and_ends():
    first, second, other = run_with_random_faults(1), run_with_random_faults(1), run_with_random_faults(2)
    logs = [[encode(event) for event in loop.journal] for loop in (first, second, other)]
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]
    assert (first.state.all_jobs().phase == int(Phase.FINISHED)).all()
    assert any(isinstance(event, ev.JobsInterrupted) for event in first.journal)
    assert check_events(first.journal).digest() == first.state.digest()


def test_a_node_that_never_comes_back_ends_a_run_that_needs_it():
    made = harness_with().outage(0, 50.0, math.inf).submit(job("a").lasting(500.0)).run()
    assert made.phase("a") is Phase.WAITING
    assert made.state.busy


@pytest.mark.parametrize("seed", range(20))
def test_listed_outages_and_random_ones_are_both_there(seed: int):
    rng = np.random.default_rng(seed)
    numbers = rng.integers((0, 0, 1), (3, 9000, 3000), (5, 3)).tolist()
    listed = [Outage(node, float(start), float(start + length)) for node, start, length in numbers]
    drawn = list(itertools.takewhile(lambda e: e.time < 12_000.0, random_process(3, 2000.0, 500.0, seed)))
    found = list(either(outage_events(listed), drawn))
    assert [e.time for e in found] == sorted(e.time for e in found)

    def down(events: list[NodeLost | NodeRepaired], node: int, second: float) -> bool:
        past = [e for e in events if e.node == node and e.time <= second]
        return bool(past) and isinstance(past[-1], NodeLost)

    for node, second in itertools.product(range(3), np.arange(0.25, 12_000.0, 131.0).tolist()):
        both = down(list(outage_events(listed)), node, second) or down(drawn, node, second)
        assert down(found, node, second) == both
    for node in range(3):
        kinds = [type(e) for e in found if e.node == node]
        assert all(one is not other for one, other in itertools.pairwise(kinds)), "a node is lost and repaired by turns"


def test_a_simulation_has_both_kinds_of_faults():
    faults = Faults([Outage(0, 3600.0, 7200.0)], mean_up_s=50_000.0)
    plain, both = (list(itertools.islice(one.events(4, 0), 40)) for one in (replace(faults, outages=()), faults))
    assert NodeLost(3600.0, 0) in both
    assert [e for e in both if e.node][:20] == [e for e in plain if e.node][:20]
