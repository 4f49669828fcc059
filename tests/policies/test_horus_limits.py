"""What keeps over-commitment in bounds once jobs run: limits that turn out to be passed, hosts, and speeds nobody has seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_horus import believed, machine, of, scene, table, together

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.events import MetricsReported, ObservationsRecorded
from fairlead.core.job import Job
from fairlead.core.observed_slowdowns import observed_slowdowns
from fairlead.core.plan import BUSY, TAKEN_GB, Observations, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.estimators.measured import Measured as MeasuredRates
from fairlead.estimators.predicted import Predicted
from fairlead.policies.colocation.pairing.colocation_cost import (
    MAX_UNCERTAINTY,
    ColocationCost,
    ColocationLimits,
    job_signatures,
)
from fairlead.policies.colocation.pairing.slots import SlotFinder, running_groups
from fairlead.simulator.costs import Costs
from fairlead.testing import Harness
from scenes import state_of


def seen(harness: Harness, name: str, busy: float, memory_gb: float) -> None:
    """An agent tells what a job takes of its accelerator."""
    number = np.array([harness.number(name)])
    for metric, value in ((BUSY, busy), (TAKEN_GB, memory_gb)):
        harness.loop.record(MetricsReported(harness.loop.backend.now, metric, number, np.array([value])))


@pytest.mark.parametrize(
    ("limits", "busy", "memory_gb"), [({"max_utilization": 100.0}, 0.95, 2.0), ({"max_memory": 0.5}, 0.2, 7.5)]
)
def test_the_most_recent_job_leaves_where_measured_usage_exceeds_a_limit(limits, busy, memory_gb):
    harness = scene(on=machine(size=1), **limits).submit(of("light", "first"), of("middle", "last"))
    assert harness.round().running == {"first", "last"}
    assert not harness.round().suspended, "as predicted, they fit"
    seen(harness, "last", busy, memory_gb)
    assert harness.round().suspended == {"last"}
    assert together(harness) == {frozenset({"first"})}
    harness.run()


def test_a_job_that_left_moves_to_an_idle_accelerator():
    harness = scene(on=machine(size=2), max_utilization=100.0)
    harness.submit(of("light", "first"), of("heavy", "short", seconds=100.0), of("middle", "last")).round()
    assert frozenset({"first", "last"}) in together(harness)
    for _ in range(2):
        harness.round()
    seen(harness, "last", 0.95, 4.0)
    now = harness.round()
    assert (now.suspended, now.launched) == ({"last"}, {"last"})
    harness.run()


def test_host_memory_limits_colocation():
    nodes = (Node("n", "gpu", 2, memory_gb=10.0),)
    harness = scene(on=Cluster(nodes, (AcceleratorType("gpu", 16.0),)))
    harness.submit(*(of("light", f"l{i}", host_memory_gb=4.0) for i in range(4)))
    assert harness.round().running == {"l0", "l1"}, "a third one would find two places and too little memory of its host"
    harness.run()


@pytest.mark.parametrize("asked", [{"cpus": 2.0}, {"host_memory_gb": 4.0}, {"cpus": 1e308}, {"cpus": 1e-320}])
def test_a_host_of_unknown_size_has_enough(asked: dict[str, float]):
    harness = scene(on=Cluster((Node("n", "gpu", 2),), (AcceleratorType("gpu", 16.0),)))
    harness.submit(*(of("light", f"l{i}", **asked) for i in range(4)))
    assert harness.round().running == {"l0", "l1", "l2", "l3"}
    harness.run()


class Unsure(Predicted):
    """Knows how fast kinds are alone only once they were seen so; until then it thinks that they do 20 steps in a second."""

    def observe(self, view: Snapshot) -> Observations:
        jobs = view.jobs.runners
        holders = view.device_map.occupancy
        alone = [holders[view.device_map.of(number)[0]] == 1 for number in jobs.number.tolist()]
        kinds = {
            view.names.kinds[code] for code, one, rate in zip(jobs.kind.tolist(), alone, jobs.rate.tolist()) if one and rate
        }
        return Observations({f"alone {kind}": 1.0 for kind in sorted(kinds) if f"alone {kind}" not in view.observations})

    def rates(self, view: Snapshot) -> Rates:
        rates = super().rates(view)
        known = np.array([[f"alone {kind}" in view.observations] for kind, _ in self.table.keys])
        factor, off = np.where(known, 1.0, 20.0), np.where(known, 0.0, 4 * MAX_UNCERTAINTY)
        found = {"alone": rates.alone * factor, "paired": rates.paired * factor[:, None]}
        return Rates(
            rates.row, spread=rates.spread, uncertainty=np.broadcast_to(off, rates.alone.shape), usage=rates.usage, **found
        )


def unsure(**parameters) -> Harness:
    harness = scene(on=machine(size=1), **parameters)
    loop = harness.loop
    given = loop.stages.estimator
    loop.stages = replace(loop.stages, estimator=Unsure(given.table, given.usage))
    return harness


def test_a_limit_is_not_checked_against_an_unknown_rate():
    harness = unsure()
    harness.submit(of("light", "l"), of("middle", "m"))
    assert harness.round().running == {"l", "m"}, "nobody has a limit"
    harness.submit(of("light", "strict", max_slowdown=1.5))
    assert [harness.round().suspended for _ in range(3)] == [set()] * 3
    assert together(harness) == {frozenset({"l", "m"})}


@pytest.mark.parametrize(("facts", "factor"), [({"": 4.0}, 0.0), ({"": 4.0, " spread": 2.0}, 2.0), ({" spread": 2.0}, 2.0)])
def test_a_spread_gang_is_compared_with_its_spread_rate(facts, factor):
    machines = Cluster((Node("n0", "gpu", 2), Node("n1", "gpu", 2)), (AcceleratorType("gpu", 16.0),))
    state = state_of(machines, [Job("gang", 0.0, 1e6, "light", 2)], {0: [0, 2]})
    apply_event(state, ObservationsRecorded(0.0, {f"measured 2 × light on gpu{how}": rate for how, rate in facts.items()}))
    view = state.snapshot(10.0).with_changes(estimate=MeasuredRates().rates)
    group = running_groups(view, job_signatures(view, {}))[0]
    assert observed_slowdowns(view, group.members, group.places, group.type) == [factor], "it makes one step in a second"


def test_a_job_with_a_limit_runs_alone_until_its_rate_is_known():
    harness = unsure(slo=1.5)
    harness.submit(of("light", "l"), of("middle", "m", seconds=1000.0))
    assert harness.round().running == {"l"}, "neither was seen alone"
    assert harness.round().running == {"l"}, "the other one was not"
    harness.run()
    known = scene(on=machine(size=1), slo=1.5, estimator=believed()).submit(of("light", "l"), of("middle", "m"))
    assert known.round().running == {"l", "m"}


def test_cost_is_the_share_of_memory_and_the_mean_slowdown_in_equal_parts():
    """Equations 7 to 10: of 16 GB a light one takes 2 and a heavy one 8; what company does to them is the estimation's."""
    harness = scene(on=machine(size=1)).submit(of("light", "l"), of("heavy", "h"))
    harness.round()
    view = harness.state.snapshot(harness.loop.backend.now)
    view = view.admitting(np.zeros(0, dtype=np.int64), estimate=harness.loop.stages.estimator.rates)
    signatures = job_signatures(view, {})
    light, heavy = signatures[harness.number("l")], signatures[harness.number("h")]
    costs = ColocationCost(view, ColocationLimits(), 0.5, 0.5, {})
    slower = [
        float(view.rates.alone[a.row, 0] / view.rates.paired[a.row, b.row, 0]) for a, b in ((light, heavy), (heavy, light))
    ]
    assert costs.cost((light,), 0) == pytest.approx(0.5 * 2 / 16)
    assert costs.cost((light, heavy), 0) == pytest.approx(0.5 * 10 / 16 + 0.5 * (sum(slower) / 2 - 1))
    observed = ColocationCost(view, ColocationLimits(), 0.5, 0.5, {("light", "heavy", 0): 3.0})
    assert observed.cost((light, heavy), 0) == pytest.approx(0.5 * 10 / 16 + 0.5 * ((3.0 + slower[1]) / 2 - 1)), (
        "as it was seen"
    )


def test_no_job_makes_room_for_one_before_its_first_step():
    """It is the last to come and to leave; until it may, whom it slows down is better off where it is than in the queue."""
    config = SchedulerConfig(Part("horus", {"slo": 1.5}), estimator=believed(), round_s=60.0, first_step_s=200.0)
    costs = Costs(launch_s=150.0, restart_s=150.0)
    harness = Harness(config, table=table(), costs=costs, residents=2).cluster(machine(size=1)).submit(of("light", "l"))
    for _ in range(4):
        harness.round()
    harness.submit(of("worse", "w"))
    assert [harness.round().suspended for _ in range(4)] == [set(), set(), set(), {"w"}]
    assert harness.state.all_jobs().starts.tolist()[0] == 1
    harness.run()


def test_of_equal_gangs_the_one_on_fewer_nodes_is_joined():
    nodes = tuple(Node(f"n{i}", "gpu", 2) for i in range(3))
    jobs = [Job(name, 0.0, 1e6, "light", 2) for name in ("spread", "near", "new")]
    state = state_of(Cluster(nodes, (AcceleratorType("gpu", 16.0),)), jobs, {0: [0, 2], 1: [4, 5]})
    view = state.snapshot(10.0).with_changes(estimate=Predicted(table(), {"light": (20.0, 2.0)}).rates)
    signatures = job_signatures(view, {})
    slots = SlotFinder(view, ColocationCost(view, ColocationLimits(), 0.5, 0.5, {}), 2, running_groups(view, signatures))
    slot = slots.best(signatures[2])
    assert slot is not None
    assert (slot.places, slot.extra_nodes) == ((4, 5), 0)


def test_reported_utilization_is_at_most_100_percent():
    harness = scene(on=machine(size=1)).submit(of("light", "l"))
    harness.round()
    seen(harness, "l", 1.4, 2.0)
    harness.round()
    assert harness.state.observations["use of light on gpu"] == [100.0, 2.0]
    harness.run()
