"""What came from outside, found in a journal: simulated again under the same scheduler, the same comes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import JournalError
from fairlead.core.job import ELASTIC, TIMED, Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments import launch_observer
from fairlead.experiments.compare import run_comparison
from fairlead.experiments.fork import ForkChanges
from fairlead.experiments.launch_observer import ObservedLaunch, startup_costs
from fairlead.experiments.metrics import summarize
from fairlead.experiments.resimulate import (
    ControlCheck,
    ExogenousInputs,
    RecordedRun,
    comparison_rows,
    exogenous_inputs,
    resimulation,
)
from fairlead.experiments.simulate import Faults, Simulation, SimulationRun, run_simulation
from fairlead.experiments.whatif import WhatIfOptions, past_fork, what_if
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

CLUSTER = Cluster.parse("8xv100:4,8xk80:4")


def run_of(**given) -> tuple[SimulationRun, list[ev.Event]]:
    journal = MemoryJournal()
    trace = Generator(jobs=40, jobs_per_hour=8.0, workers="multiple").trace(3)
    run = run_simulation(Simulation(**{"trace": trace, "cluster": CLUSTER, "table": catalogue(), **given}), journal=journal)
    return run, journal.events


def again(world: ExogenousInputs, scheduler: SchedulerConfig) -> SimulationRun:
    faults = Faults(world.outages)
    return run_simulation(
        Simulation(world.trace, world.cluster, scheduler, world.table, world.costs, faults, others=world.others), gantt=True
    )


def close(one, other) -> bool:
    return np.allclose(one, other, rtol=1e-9, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("policy", ["srtf", "las", "tiresias", "max-min-fairness-perf"])
@pytest.mark.parametrize("costs", [Costs(), Costs(launch_s=20.0, restart_s=45.0)], ids=["free", "costly"])
def test_the_same_scheduler_ends_every_job_at_the_same_second(policy: str, costs: Costs) -> None:
    scheduler = SchedulerConfig(Part(policy))
    others = (ev.JobCancelled(9_000.0, 4), ev.NodeDrained(20_000.0, 1), ev.NodeDrained(40_000.0, 1, undo=True))
    first, events = run_of(scheduler=scheduler, costs=costs, others=others)
    world, record = exogenous_inputs(events)
    second = again(world, scheduler).record
    assert close(second.jobs.ended_s, first.record.jobs.ended_s)
    assert (second.jobs.phase == first.record.jobs.phase).all()
    assert second.jobs.preemptions.sum() == first.record.jobs.preemptions.sum()
    assert (world.guessed, Phase.CANCELLED in second.jobs.phase) == ((), True)
    assert close(record.jobs.exclusive_s, first.record.jobs.exclusive_s)
    assert summarize(record).worst_ftf == pytest.approx(summarize(first.record).worst_ftf)


def test_outages_and_time_limits_come_again() -> None:
    scheduler = SchedulerConfig(Part("las"))
    trace = Generator(jobs=30, jobs_per_hour=8.0).trace(5)
    jobs = [Job("limited", kind=trace.jobs[0].kind, steps=1e9, time_limit_s=5_000.0), *trace.jobs]
    outages = (Outage(0, 5_000.0, 30_000.0), Outage(2, 50_000.0))
    first, events = run_of(trace=trace.with_jobs(jobs), scheduler=scheduler, faults=Faults(outages))
    world, _ = exogenous_inputs(events)
    assert (world.outages, first.state.columns["phase"][0]) == (outages, int(Phase.FAILED))
    assert close(again(world, scheduler).record.jobs.ended_s, first.record.jobs.ended_s)


def test_a_changed_cluster_is_simulated_again_with_all_nodes_that_it_ever_had() -> None:
    scheduler = SchedulerConfig(Part("las"))
    first, events = run_of(scheduler=scheduler, faults=Faults((Outage(3, 0.0, 30_000.0), Outage(1, 60_000.0))))
    grown = Cluster(CLUSTER.nodes[:3], CLUSTER.types)  # the same run, as if a node had come later and one had gone
    recorded: list[ev.Event] = []
    for event in events:
        if isinstance(event, ev.JournalOpened):
            recorded.append(replace(event, cluster=grown))
        elif isinstance(event, ev.NodeRepaired):
            recorded += [ev.NodeAdded(event.time, 3, CLUSTER.nodes[3]), event]
        elif isinstance(event, ev.NodeLost) and event.node == 3:
            continue
        elif isinstance(event, ev.JobsInterrupted):
            gone = len(recorded) - 1  # a job leaves before its node does
            recorded.append(event)
            recorded.append(recorded.pop(gone))
        else:
            recorded.append(event)
    recorded = [ev.NodeRemoved(e.time, e.node) if isinstance(e, ev.NodeLost) else e for e in recorded]
    world, record = exogenous_inputs(recorded)
    assert world.cluster == CLUSTER
    assert world.outages == (Outage(3, 0.0, 30_000.0), Outage(1, 60_000.0))
    assert str(record.cluster) == "4 × v100, 8 × k80"
    assert record.cluster.nodes[3].name == CLUSTER.nodes[3].name
    assert close(again(world, scheduler).record.jobs.ended_s, first.record.jobs.ended_s)
    assert close(record.jobs.ended_s, first.record.jobs.ended_s)


# What real jobs do and simulated ones do not, as a control plane writes it down.

NODE = Cluster.parse("2xv100:2,2xk80:2")


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def launched(second: float, job: int, *places: int) -> ev.RoundPlanned:
    one, kind = np.array([job]), np.array([0 if places[0] < 2 else 1])
    starts = Launches(one, kind, np.array([0, len(places)]), np.array(places), None)
    return ev.RoundPlanned(RoundPlan(second, launches=starts))


def told(second: float, job: int, steps: float, rate: float) -> ev.ProgressReported:
    return ev.ProgressReported(second, np.array([job]), numbers(steps), numbers(rate), numbers(second))


def real_run(*happened: ev.Event, jobs: Sequence[Job]) -> list[ev.Event]:
    opened = ev.JournalOpened(0.0, NODE, {"policy": "las", "estimator": "measured", "rounds": 2.0})
    come = [ev.JobSubmitted(1.0, number, job) for number, job in enumerate(jobs)]
    admitted = ev.RoundPlanned(RoundPlan(2.0, admitted=np.arange(len(jobs))))
    return [opened, *come, admitted, *happened]


def finished(second: float, job: int) -> ev.JobsFinished:
    return ev.JobsFinished(second, np.array([job]), numbers(second))


def test_batch_sizes_of_a_schedule_need_no_rates_when_the_days_are_simulated_again() -> None:
    schedule = ((8, 0.5), (64, 0.5))
    job = Job("grows", kind="m (batch size 8)", steps=100.0, mode="expert", schedule=schedule)
    world, _ = exogenous_inputs(real_run(launched(2.0, 0, 0), told(4.0, 0, 20.0, 10.0), finished(12.0, 0), jobs=[job]))
    assert again(world, SchedulerConfig(Part("las"))).record.jobs.phase.tolist() == [int(Phase.FINISHED)]


def test_work_rates_and_costs_are_as_they_turned_out() -> None:
    events = real_run(
        launched(2.0, 0, 0),
        told(4.0, 0, 10.0, 10.0),  # so a second went by before the first step
        launched(4.0, 1, 1),
        launched(4.0, 2, 2),
        ev.RoundPlanned(RoundPlan(6.0, suspended=np.array([0]))),
        told(6.1, 0, 30.0, 0.0),
        finished(9.0, 1),
        launched(10.0, 0, 0),
        told(12.0, 0, 30.0, 10.0),
        finished(14.0, 0),
        ev.JobsFailed(20.0, np.array([2]), numbers(20.0), "exit code 1"),
        jobs=[Job("counts", kind="count", steps=1e6), Job("silent", kind="plain", steps=1e6), Job("fails", kind="count")],
    )
    world, record = exogenous_inputs(events)
    counts, silent, fails = world.trace.jobs
    assert (counts.kind, counts.steps) == ("count", 50.0)
    assert (silent.kind, silent.steps) == (TIMED, 5.0)
    assert (fails.time_limit_s, world.guessed) == (16.0, ("1 × count on k80",))
    assert world.table.alone[world.table.row("count", 1)].tolist() == [10.0, 10.0]
    assert (world.costs.of("count").launch_s, world.costs.of("count").restart_s) == pytest.approx((1.0, 2.0))
    run = again(world, SchedulerConfig(Part("fifo"), round_s=2.0))
    assert run.record.jobs.phase.tolist() == record.jobs.phase.tolist() == [Phase.FINISHED, Phase.FINISHED, Phase.FAILED]


def test_steps_that_a_failure_cost_are_work_too_and_who_never_ends_leaves_with_the_journal() -> None:
    events = real_run(
        launched(2.0, 0, 0),
        launched(2.0, 1, 1),
        told(3.0, 0, 10.0, 10.0),
        ev.JobsInterrupted(5.0, np.array([0]), numbers(5.0), own_fault=True),
        launched(6.0, 0, 0),
        told(7.0, 0, 5.0, 10.0),
        finished(16.5, 0),
        jobs=[Job("retried", kind="count", steps=100.0), Job("endless", kind="count", steps=1e6)],
    )
    world, _ = exogenous_inputs(events)
    assert world.trace.jobs[0].steps == pytest.approx(125.0)
    assert world.others == (ev.JobCancelled(16.5, 1),)
    ended = again(world, SchedulerConfig(Part("fifo"), round_s=2.0)).record.jobs
    assert ended.phase.tolist() == [Phase.FINISHED, Phase.CANCELLED]
    assert not math.isnan(ended.ended_s.sum())


def test_everybody_who_decided_is_named_and_not_only_the_last() -> None:
    switched = [ev.SchedulerSwitched(20.0 + at, {"policy": policy}) for at, policy in enumerate(("srtf", "las", "fifo"))]
    named = [exogenous_inputs(real_run(*switched[:many], jobs=[Job("one")]))[1].scheduler for many in range(4)]
    assert named == ["las", "las, then srtf", "las, then srtf", "las, then 2 others"]


def test_the_control_replays_scheduler_switches_and_ends_every_job_at_the_same_second() -> None:
    srtf = SchedulerConfig(Part("srtf"), placement=Part("spread"), round_s=600.0)
    switch = ev.SchedulerSwitched(15_000.0, srtf.to_data())
    first, events = run_of(scheduler=SchedulerConfig(Part("las")), costs=Costs(restart_s=45.0), others=(switch,))
    world, record = exogenous_inputs(events)
    run = RecordedRun(world, record)
    given = resimulation(run, [run.under(Part("fifo"))])
    outcomes = run_comparison(given, processes=1, keep_records=True)
    [(_, recorded), (label, control), (_, other)] = comparison_rows(run, given, outcomes)
    assert label == "control: the same schedulers, simulated"
    kept = outcomes[0].record
    assert kept is not None
    assert close(kept.jobs.ended_s, first.record.jobs.ended_s)
    check = ControlCheck.of(recorded, control)
    assert (check.warning, max(abs(error or 0.0) for error in check.errors.values())) == ("", pytest.approx(0.0, abs=1e-9))
    assert given.schedulers[1].round_s == 600.0  # the last scheduler's parts stay
    assert "avg JCT" in ControlCheck.of(recorded, other).warning
    without = run_comparison(replace(given, switches={}), processes=1)
    assert ControlCheck.of(recorded, without[0].summary).warning


@pytest.mark.parametrize("reports", [True, False])
def test_a_job_is_not_preempted_in_the_control_before_it_reported(reports: bool) -> None:
    """A cluster protects a job until its first report, here 2.5 s after its launch; a job that never reports, for 120 s."""
    opened = ev.JournalOpened(
        0.0, Cluster.parse("1xv100:1"), {"policy": "las", "estimator": "measured", "rounds": 1.0, "first_step_s": 120.0}
    )
    come = [ev.JobSubmitted(0.5, number, Job(f"job-{number}", kind="count", steps=40.0)) for number in range(2)]
    events: list[ev.Event] = [opened, *come, ev.RoundPlanned(RoundPlan(1.0, admitted=np.arange(2)))]
    for number, second in enumerate((1.0, 6.0)):
        events.append(launched(second, number, 0))
        events += [told(second + 2.5, number, 20.0, 10.0)] if reports else []
        events.append(finished(second + 4.5, number))
    world, record = exogenous_inputs(events)
    assert [job.min_run_s for job in world.trace.jobs] == [2.5 if reports else 120.0] * 2
    run = RecordedRun(world, record)
    [outcome] = run_comparison(resimulation(run, []), processes=1)
    assert outcome.summary.preemptions <= 2  # without the protection: one a second


def test_a_journal_of_a_cluster_at_work_is_simulated_up_to_its_end() -> None:
    jobs = [Job(f"job-{number}", kind="count", steps=1000.0) for number in range(2)]
    world, _ = exogenous_inputs(real_run(launched(2.0, 0, 0), told(4.0, 0, 20.0, 10.0), finished(20.0, 0), jobs=jobs))
    assert world.until_s == 20.0
    assert exogenous_inputs(real_run(launched(2.0, 0, 0), finished(20.0, 0), jobs=jobs[:1]))[0].until_s == math.inf


def test_a_journal_without_its_beginning_is_refused() -> None:
    with pytest.raises(JournalError, match="beginning"):
        exogenous_inputs(real_run(jobs=[])[1:], "x.sqlite")


def test_an_event_that_cannot_have_happened_is_told_with_its_place() -> None:
    events = real_run(jobs=[Job("one")])
    number = next(place for place, event in enumerate(events) if isinstance(event, ev.JobSubmitted))
    with pytest.raises(JournalError, match=rf"x.jsonl:{number + 2}: an event that cannot have happened: job number 0 was"):
        exogenous_inputs([*events[: number + 1], *events[number:]], "x.jsonl")


def test_an_elastic_job_is_simulated_at_the_size_it_asked_for_though_it_never_had_it() -> None:
    """A real journal has no rates but those that were seen; two jobs that ask for all of it shared it all along."""
    kind = "ResNet-50 (batch size 64)"
    jobs = [Job(f"job-{n}", kind=kind, steps=20_000.0, workers=4, mode=ELASTIC) for n in range(2)]
    scheduler = SchedulerConfig(Part("optimus"), estimator=Part("fitted"), round_s=600.0)
    _, (opened, *events) = run_of(trace=Trace.of(jobs), scheduler=scheduler, cluster=Cluster.parse("4xv100:4"))
    assert isinstance(opened, ev.JournalOpened)
    early = [event for event in events if event.time < 1_000.0]
    world, _ = exogenous_inputs([replace(opened, rates=None), *early])
    assert [(job.kind, job.steps, job.mode) for job in world.trace.jobs] == [(kind, 20_000.0, ELASTIC)] * 2
    assert world.guessed == (f"4 × {kind} on v100",)
    sizes = sorted(workers for _, workers in world.table.row_of if workers != 4)
    nearest, row = world.table.row(kind, sizes[-1]), world.table.row(kind, 4)
    assert world.table.alone[row, 0] == pytest.approx(world.table.alone[nearest, 0] * 4 / sizes[-1])
    assert (again(world, SchedulerConfig(Part("las"))).record.jobs.phase == int(Phase.FINISHED)).all()


def test_the_last_report_counts_as_work_and_a_rate_that_changes_is_a_mean_over_time() -> None:
    """A job that doubles its batch size makes more steps than it declared, and its last report has no rate."""
    events = real_run(
        launched(2.0, 0, 0),
        told(2.0, 0, 0.0, 10.0),
        told(8.0, 0, 60.0, 30.0),
        told(10.0, 0, 120.0, 0.0),
        finished(10.0, 0),
        jobs=[Job("grows", kind="count", steps=60.0)],
    )
    world, _ = exogenous_inputs(events)
    assert world.trace.jobs[0].steps == 120.0
    assert world.table.alone[world.table.row("count", 1), 0] == pytest.approx(15.0)


@pytest.mark.parametrize(
    "stop",
    [
        ev.JobCancelled(12.0, 0),
        ev.JobsFailed(12.0, np.array([0]), numbers(12.0), "exit code 1"),
        ev.JobsInterrupted(12.0, np.array([0]), numbers(20.0)),
        ev.RoundPlanned(RoundPlan(12.0, suspended=np.array([0]))),
    ],
)
def test_a_rate_counts_only_as_long_as_its_job_runs(stop: ev.Event) -> None:
    jobs = [Job("stops", steps=100.0, kind="m"), Job("grows", submitted_s=1.0, steps=100.0, kind="m")]
    events = [launched(2.0, 0, 0), told(2.0, 0, 0.0, 2.0), stop, launched(20.0, 1, 0), told(20.0, 1, 0.0, 10.0)]
    world, _ = exogenous_inputs(real_run(*events, finished(30.0, 1), ev.ObservationsRecorded(1000.0, {"x": 1.0}), jobs=jobs))
    assert world.table.alone[world.table.row("m", 1)][0] == pytest.approx(6.0), "ten seconds at each rate"


def test_of_jobs_with_equally_many_rounds_the_running_one_has_the_least_service() -> None:
    """A real plan is carried out a little after its round began, so a running job has had a little less than its rounds."""
    jobs = [Job(f"job-{number}", kind=TIMED, steps=100.0) for number in range(3)]

    def fourth_plan(costs: Costs) -> tuple[float, list[int]]:
        journal = MemoryJournal()
        given = Simulation(
            Trace(tuple(jobs), "three"), Cluster.parse("2xv100:2"), SchedulerConfig(Part("las"), round_s=10.0), costs=costs
        )
        run_simulation(given, journal=journal)
        plan = [event.plan for event in journal.events if isinstance(event, ev.RoundPlanned)][3]
        return plan.time, plan.launches.jobs.tolist()

    assert fourth_plan(Costs()) == (30.0, [0])  # all have had two rounds, and the first job comes first
    assert fourth_plan(Costs(decision_s=0.01)) == (40.01, [0])


def test_starts_and_decisions_take_as_long_as_in_the_journal() -> None:
    opened = ev.JournalOpened(0.0, Cluster.parse("2xv100:2"), {"policy": "fifo", "estimator": "measured", "rounds": 2.0})
    events: list[ev.Event] = [opened]
    for number, (late, delay) in enumerate(((0.01, 0.5), (0.02, 1.5), (0.03, 1.0))):
        at = 10.0 * number + 2.0
        events += [ev.JobSubmitted(at - 1, number, Job(f"job-{number}", kind="count", steps=50.0))]
        plan = launched(at + late, number, 0).plan
        events += [ev.RoundPlanned(replace(plan, admitted=np.array([number])))]
        events += [told(at + late + delay, number, 0.0, 10.0), finished(at + late + delay + 5.0, number)]
    costs = exogenous_inputs(events)[0].costs
    assert (costs.decision_s, costs.of("count").launch_s) == pytest.approx((0.02, 1.0))
    assert sorted(costs.starts_vary_s) == pytest.approx([-0.5 * math.sqrt(1.5), 0.0, 0.5 * math.sqrt(1.5)])
    fork = past_fork(events, 11.5)
    simulated = [jct_s for _, jct_s, _ in fork.simulated(8)]
    assert len({*simulated}) > 1
    assert min(simulated) <= fmean(fork.recorded_jct_s.values()) <= max(simulated)
    found = what_if(fork.fork, ForkChanges(submit=(Job("more", kind=TIMED, steps=5.0),)), WhatIfOptions(4))
    assert found.metrics["average_jct_s"][2].half_width > 0


def test_jobs_that_still_run_at_the_end_hold_their_gpus_until_then() -> None:
    jobs = (Job("short", 0.0, 100.0, kind=TIMED), Job("long", 0.0, 1e6, kind=TIMED))
    given = Simulation(Trace(jobs), Cluster.parse("2xv100:2"), SchedulerConfig(Part("fifo"), round_s=60.0), until_s=1000.0)
    for gantt in (True, False):
        found = run_simulation(given, gantt=gantt).record
        assert summarize(found).utilization == pytest.approx(1100 / 2000, abs=0.05)
    kept = run_simulation(given, gantt=True).record.device_intervals
    assert kept is not None
    assert kept.end_s.max() == 1000.0


def test_of_many_starts_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_observer, "MAX_OBSERVED", 2)
    table = ThroughputTable.timed(("v100",))
    starts = [("a", 1.0), ("b", 5.0), ("a", 3.0), ("b", 9.0)]
    launches = [ObservedLaunch(TIMED, 1, "v100", False, kind == "a", 10.0 + cost, 10.0, 0) for kind, cost in starts]
    costs = startup_costs(launches, table, ("v100",))
    assert costs.starts_vary_s == pytest.approx([math.sqrt(2), 2 * math.sqrt(2)]), "of each kind the last start"


def test_a_fork_in_the_past_switches_the_scheduler_as_it_was_switched() -> None:
    switch = ev.SchedulerSwitched(15_000.0, SchedulerConfig(Part("srtf"), round_s=600.0).to_data())
    _, events = run_of(scheduler=SchedulerConfig(Part("las")), others=(switch,))
    [(recorded, simulated, jobs)] = past_fork(events, 8_000.0).simulated(5)
    assert jobs > 10
    assert simulated == pytest.approx(recorded, rel=1e-6)


def test_few_observed_starts_leave_their_mean_uncertain() -> None:
    costs = Costs(2.0, 2.0, starts_vary_s=(-0.5, 0.5, 0.0), unseen_s=1.0, by_kind={"count": Costs(3.0, 3.0)})
    drawn = [costs.drawn(seed) for seed in range(200)]
    launches, restarts = (np.array([getattr(one, name) for one in drawn]) for name in ("launch_s", "restart_s"))
    assert launches.mean() == pytest.approx(2.0, abs=0.1)
    assert 0.1 < launches.std() < 0.4
    assert restarts.mean() == pytest.approx(2.5, abs=0.15)
    assert [one.of("count").launch_s - one.launch_s for one in drawn] == pytest.approx([1.0] * 200)
