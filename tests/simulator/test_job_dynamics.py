"""Jobs whose speed follows from their nature: turning points, batch sizes, overruns, and that nobody else notices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import FairleadError
from fairlead.core.job import BATCH_SIZE, Job, Regime
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.dynamics_tracker import DynamicsTracker
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import cluster, random_jobs, random_table
from fairlead.testing.invariants import check_events
from fairlead.workloads.dynamics import JobDynamics, RunConditions, Speed
from fairlead.workloads.throughput_tables import ThroughputTable


@dataclass(frozen=True)
class Stairs(JobDynamics):
    """Twice as fast after every `each` steps, at twice the batch size, up to a limit."""

    each: float
    more: float = 1.0  # times the declared steps
    limit: int = 3

    def speed(self, conditions: RunConditions) -> Speed:
        stair = min(int(conditions.steps / self.each + 1e-12), self.limit)
        until = math.inf if stair == self.limit else (stair + 1) * self.each
        return Speed(float(conditions.workers * 2**stair), until, 8 * 2**stair)

    def work(self, declared: float) -> float:
        return self.more * declared


@dataclass(frozen=True)
class Apprentice(JobDynamics):
    """As fast as the speeds at which it made progress are many."""

    def speed(self, conditions: RunConditions) -> Speed:
        lessons = conditions.learned if isinstance(conditions.learned, int) else 0
        return Speed(1.0 + lessons, conditions.steps + 100.0 if lessons < 2 else math.inf, learned=lessons + 1)


def opened(jobs: list[Job], dynamics: dict[str, JobDynamics], policy: str, *, skip: bool = True, **options: object) -> Loop:
    machine = cluster("v100:4,v100:4")
    table = random_table(3, machine.type_names) if any(job.kind for job in jobs) else ThroughputTable.timed(machine.type_names)
    backend = SimulatedBackend(machine, table, jobs, dynamics=dynamics, **options)  # type: ignore[arg-type]
    stages = SchedulerConfig(Part(policy), round_s=300.0).build(table)
    loop = Loop(State(machine), backend, stages, journal=MemoryJournal(), skip_quiet_rounds=skip)
    loop.record(ev.JournalOpened(0.0, machine, {}, "dynamics", None))
    return loop


def log_of(loop: Loop) -> list[ev.Event]:
    journal = loop.journal
    assert isinstance(journal, MemoryJournal)
    return journal.events


def test_a_job_turns_at_the_second_in_which_its_nature_says_so_and_tells_its_batch_size():
    loop = opened([Job("stairs", steps=700.0)], {"stairs": Stairs(100.0)}, "fifo")
    loop.run()
    told = [(e.time, e.steps.tolist(), e.rates.tolist()) for e in log_of(loop) if isinstance(e, ev.ProgressReported)]
    assert told == [(0.0, [0.0], [1.0]), (100.0, [100.0], [2.0]), (150.0, [200.0], [4.0]), (175.0, [300.0], [8.0])]
    sizes = [(e.time, e.values.tolist()) for e in log_of(loop) if isinstance(e, ev.MetricsReported) and e.name == BATCH_SIZE]
    assert sizes == [(0.0, [8.0]), (100.0, [16.0]), (150.0, [32.0]), (175.0, [64.0])]
    assert float(loop.state.columns["ended_s"][0]) == 175.0 + 400.0 / 8.0


def test_a_policy_can_look_up_the_regimes_so_far_and_nothing_else():
    loop = opened([Job("stairs", steps=7000.0)], {"stairs": Stairs(1000.0)}, "fifo")
    loop.run(until=1700.0)
    view = loop.state.snapshot(1700.0)
    assert view.regimes == {0: (Regime(8, 0.0), Regime(16, 1000.0), Regime(32, 2000.0))}
    assert view.detached().regimes == view.regimes
    assert State.from_snapshot(view.detached()).snapshot(1700.0).regimes == view.regimes
    assert load(save(loop.state)).digest() == loop.state.digest()
    assert load(save(loop.state)).adaptations.regimes == loop.state.adaptations.regimes


def mixed(seed: int) -> tuple[list[Job], dict[str, JobDynamics]]:
    jobs = random_jobs(seed, 24, table=random_table(3, ("v100",)))
    dynamics: dict[str, JobDynamics] = {
        job.name: Stairs(job.steps / (2.0 + index), 1.0 + 0.5 * (index % 3)) for index, job in enumerate(jobs) if index % 2
    }
    return jobs, dynamics


@pytest.mark.parametrize("policy", ["las", "fifo", "srtf", "max-min-fairness", "tiresias", "gandiva-packing"])
def test_rounds_are_skipped_exactly_and_all_that_must_hold_holds(policy):
    jobs, dynamics = mixed(5)
    logs = []
    for skip in (True, False):
        faults = outage_events([Outage(0, 2000.0, 5000.0)])
        costs = Costs(restart_s=30.0, checkpoint_s=5.0, checkpoint_every_s=600.0)
        loop = opened(jobs, dynamics, policy, skip=skip, costs=costs, faults=faults)
        loop.run()
        logs.append(log_of(loop))
    assert [encode(event) for event in logs[0]] == [encode(event) for event in logs[1]]
    state = check_events(logs[0], residents=2)
    assert not state.busy


def test_a_job_that_overruns_is_scheduled_on_and_flagged():
    loop = opened([Job("longer", steps=1000.0), Job("as said", steps=1000.0)], {"longer": Stairs(5000.0, 2.0)}, "srtf")
    loop.run(until=1500.0)
    view = loop.state.snapshot(1500.0)
    assert view.jobs.number.tolist() == [0]
    assert view.jobs.overran.tolist() == [True]
    assert view.jobs.steps_left.tolist() == [0.0]
    loop.run()
    everybody = loop.state.all_jobs()
    assert everybody.overran.tolist() == [True, False]
    assert everybody.ended_s.tolist() == [2000.0, 1000.0]
    assert float(everybody.base_steps[0]) == 2000.0


@pytest.mark.parametrize("policy", ["fifo", "las", "srtf"])
def test_a_fork_goes_on_as_the_run_it_was_taken_from(policy):
    jobs, dynamics = mixed(7)
    jobs = [job for job in jobs if job.time_limit_s == math.inf]
    whole = opened(jobs, dynamics, policy)
    whole.run()
    begun = opened(jobs, dynamics, policy)
    begun.run(until=6000.0)
    view = begun.state.snapshot(begun.backend.now).detached()
    world = begun.backend.world  # type: ignore[attr-defined]
    later = [job for job in jobs if job.submitted_s > view.time]
    fork = SimulatedBackend.from_snapshot(view, world.table, later, dynamics=dynamics)
    loop = Loop(State.from_snapshot(view), fork, begun.stages)
    loop.run()
    left = np.concatenate((view.jobs.number, view.queued.number, np.arange(view.next_number, len(jobs))))
    ours, theirs = (each.state.columns["ended_s"][left] for each in (loop, whole))
    assert np.allclose(ours, theirs, rtol=1e-9)
    assert len(left) > 5


def test_a_job_that_falls_back_behind_a_turn_runs_as_it_did_there():
    faults = outage_events([Outage(0, 1500.0, 1600.0)])
    machine_jobs = [Job("gang", steps=70_000.0, workers=8)]
    loop = opened(machine_jobs, {"gang": Stairs(10_000.0)}, "fifo", faults=faults)
    loop.run()
    told = [(e.time, e.values.tolist()) for e in log_of(loop) if isinstance(e, ev.MetricsReported)]
    assert told[:4] == [(0.0, [8.0]), (1250.0, [16.0]), (1800.0, [8.0]), (3050.0, [16.0])]
    assert loop.state.adaptations.regimes[0][:2] == (Regime(8, 0.0), Regime(16, 10_000.0))


def test_dynamics_that_never_advance_are_an_error():
    @dataclass(frozen=True)
    class Stuck(JobDynamics):
        def speed(self, conditions: RunConditions) -> Speed:
            return Speed(1.0, min(conditions.steps, 100.0))

    with pytest.raises(FairleadError, match="dynamics of job 'stuck' must give a speed that lasts beyond step 0"):
        opened([Job("stuck")], {"stuck": Stuck()}, "fifo").run()


def test_what_a_job_learns_outlives_its_runs_and_needs_progress():
    tracker, job = DynamicsTracker({"a": Apprentice()}), Job("a", steps=1000.0)
    tracker.add({0: job}, np.array([1000.0]))

    def rate(steps: float) -> float:
        return tracker.rate(0, job, RunConditions(steps, "v100", 1, (1,)))

    assert [rate(0.0), rate(0.0)] == [1.0, 1.0], "stopped before its first step, it has learned nothing"
    assert rate(40.0) == 2.0
    tracker.stop(np.array([0]))
    assert [rate(40.0), rate(140.0)] == [2.0, 3.0]


def test_a_job_that_learns_runs_as_fast_as_it_has_learned():
    loop = opened([Job("a", steps=1000.0, kind="")], {"a": Apprentice()}, "fifo")
    loop.run()
    assert loop.state.all_jobs().ended_s[0] == pytest.approx(100 / 1 + 100 / 2 + 800 / 3)
