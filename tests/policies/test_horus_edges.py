"""Horus where something is lacking or goes: types that are slower, hosts that are full, nodes that are left, memory that nobody
knows, speeds that are not to be seen yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_horus import believed, machine, of, scene, table, together

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.events import JobsInterrupted, NodeDrained, RoundPlanned
from fairlead.core.job import Job
from fairlead.core.observed_slowdowns import observed_slowdowns
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.estimators.oracle import Oracle
from fairlead.estimators.predicted import Predicted
from fairlead.policies.colocation.horus import _features, clustered, critical_jobs
from fairlead.policies.colocation.pairing.colocation_cost import ColocationCost, ColocationLimits, job_signatures
from fairlead.policies.colocation.pairing.slots import SlotFinder, running_groups
from fairlead.policies.colocation.pairing.slowdown_monitor import ColocationMemo, slowdowns_with
from fairlead.simulator.costs import Costs
from fairlead.testing import Harness
from scenes import state_of, table_of

USES = {"light": (20.0, 2.0), "middle": (55.0, 4.0), "heavy": (95.0, 8.0)}


def seen_by(view: Snapshot, spread: float = 1.0) -> Snapshot:
    """With predictions; gangs on more nodes than they need have a part of their speed."""
    known = replace(table(), spread=table().alone * spread)
    return view.with_changes(estimate=Predicted(known, USES).rates)


def costs_of(view: Snapshot) -> ColocationCost:
    return ColocationCost(view, ColocationLimits(), 0.5, 0.5, {})


def slots_of(view: Snapshot, local_from: int = 8) -> SlotFinder:
    return SlotFinder(view, costs_of(view), local_from, running_groups(view, job_signatures(view, {})))


def at_work(jobs: list[Job], running: dict[int, list[int]], *nodes: Node) -> Snapshot:
    return state_of(Cluster(nodes, (AcceleratorType("gpu", 16.0),)), jobs, running).snapshot(10.0)


# Places.


def test_a_job_goes_to_its_fastest_type():
    rates = table_of(("slow", "fast"), {("net", 1): (1.0, 2.0)})
    config = SchedulerConfig(Part("horus"), estimator=Part("oracle"), round_s=60.0)
    harness = Harness(config, table=rates).cluster(Cluster((Node("s", "slow", 1), Node("f", "fast", 1))))
    harness.submit(Job("j", 0.0, 100.0, "net")).round()
    assert harness.places("j") == [1]


@pytest.mark.parametrize(("part", "places"), [(0.25, (4, 5)), (1.0, (1, 3))])
def test_a_gang_is_colocated_rather_than_spread_where_that_costs_less(part, places):
    jobs = [Job("a", 0.0, 1e6, "light", 1), Job("b", 0.0, 1e6, "light", 1), *(Job(n, 0.0, 1e6, "light", 2) for n in "cd")]
    view = seen_by(at_work(jobs, {0: [0], 1: [2], 2: [4, 5]}, *(Node(f"n{i}", "gpu", 2) for i in range(3))), part)
    slot = slots_of(view).best(job_signatures(view, {})[3])
    assert slot is not None
    assert slot.places == places


def test_the_search_for_a_group_ends_at_one_on_the_fewest_nodes(monkeypatch):
    """Else a decision takes as long as gangs that wait times gangs that run."""
    jobs = [Job(f"j{n}", 0.0, 1e6, "light", 2) for n in range(5)]
    running = {0: [1, 2], **{n: [2 * n + 1, 2 * n + 2] for n in (1, 2, 3)}}
    nodes = [Node("n0", "gpu", 2), Node("n1", "gpu", 3), *(Node(f"n{i}", "gpu", 2) for i in range(2, 5))]
    view = seen_by(at_work(jobs, running, *nodes))
    looked: list[tuple[int, ...]] = []
    slot = SlotFinder._slot
    monkeypatch.setattr(SlotFinder, "_slot", lambda self, *about: looked.append(about[2]) or slot(self, *about))
    found = slots_of(view).best(job_signatures(view, {})[4])
    beside = [places for places in looked if places in {tuple(held) for held in running.values()}]
    assert beside == [(1, 2), (3, 4)], "the first is spread over two nodes, the second is not"
    assert found is not None


def test_a_gang_is_placed_where_hosts_have_enough_resources():
    """The first node has two idle accelerators, and CPUs for one worker."""
    jobs = [Job("gang", 0.0, 1e6, "light", 2, cpus=4.0)]
    view = seen_by(at_work(jobs, {}, Node("n0", "gpu", 2, cpus=7.0), Node("n1", "gpu", 3, cpus=8.0)))
    slot = slots_of(view).best(job_signatures(view, {})[0])
    assert slot is not None
    assert slot.places == (2, 3)


def test_accelerators_of_several_nodes_are_reserved_for_a_wide_gang():
    jobs = [Job("there", 0.0, 1e6, "light"), Job("wide", 0.0, 1e6, "light", 4), Job("widest", 0.0, 1e6, "light", 8)]
    view = seen_by(at_work(jobs, {0: [0]}, *(Node(f"n{i}", "gpu", 2) for i in range(3))))
    slots, signatures = slots_of(view), job_signatures(view, {})
    slots.reserve_for(signatures[1])
    assert slots.reserved == {1, 2, 3, 4}, "those that nobody uses"
    slots.reserve_for(signatures[2])
    assert slots.reserved == set(), "there are not so many"


def test_a_job_on_a_drained_node_moves_in_the_same_decision():
    harness = scene(on=machine(nodes=2, size=1)).submit(of("light", "stays"), of("light", "leaves"))
    harness.round()
    assert together(harness) == {frozenset({"stays"}), frozenset({"leaves"})}
    harness.loop.record(NodeDrained(harness.state.time, harness.places("leaves")[0]))
    now = harness.round()
    assert (now.suspended, now.launched) == ({"leaves"}, {"leaves"})
    assert together(harness) == {frozenset({"stays", "leaves"})}
    harness.run()


def test_a_sensitive_job_is_critical_sooner():
    """Alone it lasts 100 s of the 145 that everybody has left; in company, which slows it most, 205 of 202."""
    slowly = np.zeros((3, 3, 1))
    slowly[1:, 1:, 0] = [[1 / 3, 1 / 3], [1.0, 1.0]]
    rates = table_of(("gpu",), {("touchy", 1): (1.0,), ("easy", 1): (1.0,)}, paired=slowly)
    jobs = [Job("long", 0.0, 100.0, "touchy"), *(Job(str(at), 0.0, 10.0, "easy") for at in range(19))]
    view = at_work(jobs, {}, Node("n", "gpu", 1)).with_changes(estimate=Oracle(rates).rates)
    assert critical_jobs(view, costs_of(view), job_signatures(view, {})) == [0]
    alone = ColocationCost(view, ColocationLimits(slo=1.0), 0.5, 0.5, {})
    assert critical_jobs(view, alone, job_signatures(view, {})) == [], (
        "where nobody has company, everybody is one after the other"
    )


# Memory.


def test_requested_memory_counts_without_a_prediction():
    said, silent = Job("says", 0.0, 1e6, "worse", memory_gb=3.0), Job("silent", 0.0, 1e6, "worse")
    more, less = Job("more", 0.0, 1e6, "light", memory_gb=5.0), Job("less", 0.0, 1e6, "light", memory_gb=1.0)
    view = seen_by(at_work([said, silent, more, less], {}, Node("n", "gpu", 2)))
    costs, signatures = costs_of(view), job_signatures(view, {})
    assert [costs.memory_gb(signatures[number], 0) for number in range(4)] == [3.0, np.inf, 5.0, 2.0]


def test_queues_are_made_with_unknown_memory():
    kinds = ("light", "worse", "heavy", "worse")
    view = seen_by(at_work([Job(str(at), 0.0, 1e6, kind) for at, kind in enumerate(kinds)], {}, Node("n", "gpu", 2)))
    features = _features(view, costs_of(view), view.jobs.number)
    assert np.isfinite(features).all()
    assert features[:, 3].tolist() == [2.0, 16.0, 8.0, 16.0], "who needs nobody knows how much needs all there is"
    queue = clustered(features, 3)
    assert queue[1] == queue[3]
    assert len(set(queue.tolist())) == 3


def test_queues_move_to_where_most_of_their_jobs_are():
    """The second of five is nearer to the first at the start, and to the middle of the others once that is a centre."""
    queue = clustered(np.array([[0.0], [14.0], [20.0], [20.5], [30.0]]), 2)
    assert len(set(queue[1:].tolist())) == 1
    assert queue[0] != queue[1]


def test_memory_after_a_failure_exceeds_what_others_left():
    jobs = [Job("heavy", 0.0, 1e6, "heavy"), Job("light", 0.0, 1e6, "light", retry_limit=9)]
    state = state_of(Cluster((Node("n", "gpu", 2),), (AcceleratorType("gpu", 16.0),)), jobs, {0: [0], 1: [0]})

    def after(seen: ColocationMemo) -> ColocationMemo:
        apply_event(state, JobsInterrupted(state.time, np.array([1]), np.zeros(1), own_fault=True))
        view = seen_by(state.snapshot())
        return seen.with_failures(view, costs_of(view))

    first = after(ColocationMemo())
    assert first.min_memory_gb["1"] == pytest.approx(8.0, rel=1e-5)
    assert first.min_memory_gb["1"] > 8.0, "16 less what the heavy one takes, and a little"
    view = seen_by(state.snapshot())
    assert not costs_of(view).fits(tuple(job_signatures(view, first.min_memory_gb).values()), 0)
    assert first.with_failures(view, costs_of(view)) is first, "once for each failure"
    known = replace(first, min_memory_gb={"1": 12.0})
    assert after(known).min_memory_gb["1"] == 12.0, "what was known is not forgotten"


# Speeds.


def test_a_loading_job_is_not_too_slow():
    config = SchedulerConfig(Part("horus", {"slo": 1.5}), estimator=believed(), round_s=60.0)
    costs = Costs(launch_s=150.0, restart_s=150.0)
    harness = Harness(config, table=table(), costs=costs, residents=2).cluster(machine(size=1))
    harness.submit(of("light", "l"), of("worse", "w")).run()
    suspended = [
        event.plan.time for event in harness.journal.events if isinstance(event, RoundPlanned) and len(event.plan.suspended)
    ]
    assert suspended[0] == 180.0, "at the first look after they have loaded, and somebody signatures then"


def test_a_rate_counts_once_it_is_current():
    view = seen_by(at_work([Job(name, 0.0, 1e6, "light") for name in "ab"], {0: [0], 1: [0]}, Node("n", "gpu", 1)))
    (group,) = running_groups(view, job_signatures(view, {}))
    assert observed_slowdowns(view, group.members, group.places, group.type) == [1.0, 1.0]
    rates = replace(view.rates, current_since_s=np.array([view.time + 1.0, view.time]))
    assert observed_slowdowns(view.with_changes(estimate=lambda _: rates), group.members, group.places, group.type) == [
        0.0,
        1.0,
    ]


def test_slowdowns_of_both_jobs_are_recorded():
    jobs = [Job("a", 0.0, 1e6, "light"), Job("b", 0.0, 1e6, "heavy")]
    view = seen_by(at_work(jobs, {0: [0], 1: [0]}, Node("n", "gpu", 1)))
    (group,) = running_groups(view, job_signatures(view, {}))
    assert slowdowns_with(group, [1.8, 2.5], 1) == {("light", "heavy", 0): 1.8, ("heavy", "light", 0): 2.5}
    assert slowdowns_with(group, [1.8, 0.0], 1) == {("light", "heavy", 0): 1.8}, "of the other nothing was seen"


def test_a_protected_job_does_not_move_to_an_idle_accelerator():
    jobs = (of("heavy", "h1"), of("middle", "m", seconds=100.0, max_slowdown=1.0), of("heavy", "h2", min_run_s=600.0))
    harness = scene(unpack=1.2).submit(*jobs)
    moved = [now.time for now in (harness.round() for _ in range(15)) if "h2" in now.suspended]
    assert moved == [600.0]
    harness.run()
