"""The simulator beside a real cluster: jobs that sleep, what a run tells of the machine, and how two sides are compared."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import scheduler_of
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import TIMED, Job
from fairlead.engine.apply import replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.dynamics import Regimes
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead_papers.fidelity import Measured, NotFinished, RealCluster, beside, in_whole_steps, measured
from fairlead_papers.fidelity.sleepers import parts_of

pytestmark = pytest.mark.long

CLUSTER = Cluster.parse("2xv100:2")
LAS = {"policy": "las", "rounds": 5.0}
COSTS = Costs(launch_s=0.5, restart_s=1.25)


def table(faster: float = 1.0) -> ThroughputTable:
    """A model at three batch sizes, alone and in gangs of two: 10, 8 and 5 steps a second, each twice with two workers."""
    rates = {("net (batch size 8)", 1): 10.0, ("net (batch size 16)", 1): 8.0, ("net (batch size 32)", 1): 5.0}
    rates |= {(kind, 2): 2 * rate for (kind, _), rate in rates.items()}
    keys = ((TIMED, 1), *rates)
    alone = faster * np.array([[1.0 / faster], *([rate] for rate in rates.values())])
    return ThroughputTable(("v100",), keys, alone, alone, np.zeros((len(keys), len(keys), 1)), "made up")


def job(name: str, steps: float, workers: int = 1, submitted_s: float = 2.5, **about: object) -> Job:
    return Job(name, submitted_s, steps, "net (batch size 8)", workers, **about)  # type: ignore[arg-type]


def trace() -> Trace:
    """Two that stay as they are, two that grow, one of these a gang."""
    jobs = [job("still", 300), job("grows", 400, mode="gns"), job("gang", 700, 2, mode="gns"), job("late", 150, 1, 7.5)]
    parts = {"grows": [(8, 0.25), (16, 0.25), (32, 0.5)], "gang": [(8, 0.3), (32, 0.7)]}
    dynamics = {one.name: Regimes.of(one, parts[one.name]) for one in jobs if one.name in parts}
    return in_whole_steps(Trace.of(jobs, "made up", dynamics=dynamics), table())


def events_of(jobs: Trace, rates: ThroughputTable, costs: Costs = COSTS) -> list[ev.Event]:
    journal = MemoryJournal()
    run_simulation(Simulation(jobs, CLUSTER, scheduler_of(LAS), rates, costs), journal=journal)
    return list(journal)


def test_a_process_does_whole_steps_at_every_batch_size_and_the_trace_says_so():
    jobs = trace()
    (grows,) = (one for one in jobs.jobs if one.name == "grows")
    parts = parts_of(grows, jobs.dynamics["grows"], table())
    assert [(part.batch_size, part.steps) for part in parts] == [(8, 100), (16, 50), (32, 50)]
    assert [part.step_s["v100"] for part in parts] == pytest.approx([0.1, 0.125, 0.2])
    assert grows.steps == 100 + 50 * 2 + 50 * 4
    uneven = Trace.of([job("odd", 101.0)], dynamics={"odd": Regimes.of(job("odd", 101.0), [(8, 0.999), (32, 0.001)])})
    (odd,) = in_whole_steps(uneven, table()).jobs
    assert odd.steps == 101 + 4, "one step at least, of four times the size"


def test_what_nobody_announces_is_one_stretch_without_a_size():
    (still, *_) = trace().jobs
    assert [(part.batch_size, part.steps) for part in parts_of(still, None, table())] == [(0, 300)]


def test_a_run_tells_how_fast_jobs_are_at_every_size_and_what_starts_cost():
    true = table(0.9)
    told = measured(events_of(trace(), true), table())
    for row, key in enumerate(true.keys):
        if key not in ((TIMED, 1), ("net (batch size 16)", 2)):
            assert told.table.alone[told.table.row_of[key]] == pytest.approx(true.alone[row]), key
    assert told.costs.launch_s == pytest.approx(0.5, abs=0.01)
    assert told.costs.restart_s == pytest.approx(1.25, abs=0.01)


def test_what_nobody_was_seen_at_is_slower_than_meant_by_as_much_as_the_others():
    told = measured(events_of(trace(), table(0.8)), table())
    assert told.table.alone[told.table.row_of["net (batch size 16)", 2], 0] == pytest.approx(0.8 * 16.0)


def test_a_run_beside_its_own_simulation_is_not_apart():
    jobs, events = trace(), events_of(trace(), table())
    found = beside(jobs, LAS, Measured(table(), COSTS), events)
    assert found.by_job.tolist() == [0.0] * 4
    assert found.real.jobs.exclusive_s.tolist() == found.simulated.jobs.exclusive_s.tolist()
    grows = found.real.jobs.names.index("grows")
    assert found.real.jobs.exclusive_s[grows] == pytest.approx(100 * 0.1 + 50 * 0.125 + 50 * 0.2)


def test_a_simulation_that_is_told_wrong_costs_is_apart():
    found = beside(trace(), LAS, Measured(table(), Costs(launch_s=3.0, restart_s=4.0)), events_of(trace(), table()))
    assert found.by_job.max() > 0.02


def test_who_did_not_finish_cannot_be_compared():
    events = events_of(trace(), table())
    cut = events[: next(at for at, event in enumerate(events) if isinstance(event, ev.JobsFinished))]
    with pytest.raises(NotFinished, match="still, grows, gang, late"):
        beside(trace(), LAS, Measured(table(), COSTS), cut)


def test_real_processes_sleep_as_they_are_told_and_announce_their_sizes():
    """Three jobs on two accelerators that are not there, so that somebody is preempted or waits."""
    small = Trace.of(  # a batch size that lasts a few seconds is seen on a busy machine, too
        [job("grows", 240, 1, 0.5, mode="gns"), job("gang", 60, 2, 0.5), job("still", 20, 1, 0.5)],
        dynamics={"grows": Regimes.of(job("grows", 240), [(8, 0.25), (32, 0.75)])},
    )
    said = list[str]()
    jobs = in_whole_steps(small, table())
    events = RealCluster("2xv100:2", table()).run(jobs, {"policy": "las", "rounds": 2.0}, said.append)
    state = replay_events(events)
    (grew,) = (past for past in state.adaptations.regimes.values())
    assert [regime.batch_size for regime in grew] == [8, 32]
    told = measured(events, table())
    assert told.table.alone[told.table.row_of["net (batch size 32)", 1], 0] == pytest.approx(5.0, rel=0.3)
    assert told.costs.launch_s > 0
    found = beside(jobs, {"policy": "las", "rounds": 2.0}, told, events)
    assert found.real.jobs.names == ("grows", "gang", "still")
    assert said[-1] == "3 of 3 jobs"
