"""Optimus and Pollux with jobs that change their size: what they give to whom, and what comes of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import ELASTIC, Job, Phase
from fairlead.core.observations import observation_name
from fairlead.core.plan import TUNED
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal, NoJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.simulate import Faults, Outage, Simulation, SimulationRun, begin, run_simulation
from fairlead.models import goodput
from fairlead.policies.elastic.optimus import Optimus
from fairlead.policies.elastic.pollux import Pollux
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing import check_events
from fairlead.testing.builders import cluster, random_table
from fairlead.workloads.applications import read_applications, with_applications
from fairlead.workloads.dynamics import LossCurve
from fairlead.workloads.trace import Trace
from toy_applications import write_applications

MACHINE = Cluster.parse("16xv100:4")


@pytest.fixture(scope="module")
def workload(tmp_path_factory) -> Trace:
    """Twenty-four elastic jobs that come faster than they end."""
    apps = read_applications(write_applications(tmp_path_factory.mktemp("apps")))
    sizes = itertools.cycle((64, 256, 512))
    jobs = [Job(f"job-{n}", 7.0 * n, 1.0, f"toy (batch size {size})", 1 + n % 4) for n, size in zip(range(24), sizes)]
    return with_applications(Trace.of(jobs), apps)


def run(
    trace: Trace, scheduler: dict[str, object], machine: Cluster = MACHINE, **changes: object
) -> tuple[SimulationRun, list[ev.Event]]:
    journal = MemoryJournal()
    given = Simulation(trace, machine, SchedulerConfig.from_data(scheduler), costs=Costs(launch_s=5.0, restart_s=5.0))
    return run_simulation(replace(given, **changes), journal=journal), journal.events


def few(trace: Trace) -> Trace:
    """So few that they can have several nodes each."""
    return replace(trace, jobs=trace.jobs[:2])


def launches(events: list[ev.Event]) -> list[tuple[int, int, int, list[int]]]:
    """Job, workers, batch size and accelerators of every start."""
    found = []
    for event in events:
        if isinstance(event, ev.RoundPlanned):
            starts = event.plan.launches
            for at, job in enumerate(starts.jobs.tolist()):
                size = 0 if starts.batch_sizes is None else int(starts.batch_sizes[at])
                places = starts.accelerators[starts.offsets[at] : starts.offsets[at + 1]].tolist()
                found.append((job, len(places), size, places))
    return found


SCHEDULERS = (
    {"policy": {"name": "optimus", "oracle": True}, "rounds": 20},
    {"policy": "optimus", "estimator": "fitted", "rounds": 20},
    {"policy": "pollux", "estimator": "fitted", "rounds": 20},
    {"policy": {"name": "pollux", "power": 0.5}, "estimator": "fitted", "rounds": 20},
)
EAGER = {"policy": {"name": "pollux", "restart_s": 1.0}, "estimator": "fitted", "rounds": 10}


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=("optimus", "optimus-fitted", "pollux", "pollux-greedy"))
def test_everybody_ends_whatever_happens_to_nodes_and_a_replay_gives_the_same(workload, scheduler):
    faults = Faults((Outage(1, 60.0, 150.0), Outage(3, 100.0, 400.0)))
    runs = [run(workload, scheduler, faults=faults, skip_quiet_rounds=skip) for skip in (True, False)]
    state, events = runs[0][0].state, runs[0][1]
    assert set(runs[0][0].record.jobs.phase.tolist()) == {int(Phase.FINISHED)}
    assert check_events(events).digest() == state.digest()
    assert [encode(event) for event in events] == [encode(event) for event in runs[1][1]]
    assert len({workers for _, workers, _, _ in launches(events)}) > 2, "nobody changed its size"


def test_elastic_jobs_are_done_sooner(workload):
    means = {}
    for scheduler in ({"policy": "fifo", "rounds": 20}, *SCHEDULERS[:3]):
        jobs = run(workload, scheduler)[0].record.jobs
        means[str(scheduler)] = float((jobs.ended_s - jobs.submitted_s).mean())
    fifo, optimus, fitted, pollux = means.values()
    assert pollux < optimus < fifo
    assert fitted < fifo


def test_pollux_starts_with_one_worker_and_at_most_doubles(workload):
    _, events = run(few(workload), EAGER)
    seen: dict[int, int] = {}
    for job, workers, size, _ in launches(events):
        assert size == TUNED
        assert workers <= max(1, 2 * seen.get(job, 0))
        seen[job] = max(seen.get(job, 0), workers)
    assert max(seen.values()) >= 8


def test_no_two_jobs_of_pollux_that_stand_on_several_nodes_share_one(workload):
    result, events = run(few(workload), EAGER)
    held: dict[int, set[int]] = {}
    most = 0
    for event in events:
        if isinstance(event, ev.RoundPlanned):
            for job in (*event.plan.suspended.tolist(), *event.plan.ended.tolist()):
                held.pop(job, None)
            starts = event.plan.launches
            for at, job in enumerate(starts.jobs.tolist()):
                places = starts.accelerators[starts.offsets[at] : starts.offsets[at + 1]]
                held[job] = set(MACHINE.node_of[places].tolist())
            wide = [node for nodes in held.values() if len(nodes) > 1 for node in nodes]
            assert len(wide) == len(set(wide))
            most = max(most, len(wide))
        elif isinstance(event, ev.JobsFinished):
            for job in event.jobs.tolist():
                held.pop(job, None)
    assert most >= 4
    assert any(observation_name("steps", 0) in event.values for event in events if isinstance(event, ev.ObservationsRecorded))
    assert not result.state.observations  # of those who have ended nothing is kept
    assert replay_events(events).digest() == result.state.digest()


def test_who_is_not_elastic_has_the_size_that_it_asked_for(workload):
    some = [replace(job, mode="static") if n % 2 else job for n, job in enumerate(workload.jobs)]
    mixed = replace(workload, jobs=tuple(some))
    for scheduler in SCHEDULERS:
        result, events = run(mixed, scheduler)
        rigid = {n for n in range(len(some)) if result.state.job_of[n].mode != ELASTIC}
        assert all(w == some[job].workers and size == 0 for job, w, size, _ in launches(events) if job in rigid)


def test_optimus_gives_workers_where_they_shorten_the_most():
    """Against all ways to deal out eight accelerators: with concave speeds greedy is the best."""
    machine, table = cluster("v100:8"), random_table(5, ("v100",), sizes=tuple(range(1, 9)))
    jobs = [
        Job(f"j{n}", 0.0, steps, kind, 1, mode=ELASTIC) for n, (steps, kind) in enumerate(zip((9e3, 4e3, 1e3), table.kinds))
    ]
    _, events = run(Trace.of(jobs), {"policy": "optimus", "rounds": 60}, machine, table=table)
    first = {job: workers for job, workers, _, _ in launches(events)[:3]}

    def total(sizes: tuple[int, ...]) -> float:
        return sum(job.steps / table.alone[table.row(job.kind, w), 0] for job, w in zip(jobs, sizes))

    best = min((sizes for sizes in itertools.product(range(1, 7), repeat=3) if sum(sizes) <= 8), key=total)
    assert tuple(first[job] for job in range(3)) == best


def test_optimus_lets_whoever_ends_first_have_the_first_worker():
    machine, table = cluster("v100:2"), random_table(5, ("v100",))
    jobs = [Job(f"j{n}", 0.0, steps, table.kinds[0], 1) for n, steps in enumerate((9e3, 4e3, 1e3, 6e3))]
    _, events = run(Trace.of(jobs), {"policy": "optimus", "rounds": 60}, machine, table=table)
    assert {job for job, *_ in launches(events)[:2]} == {1, 2}


def test_optimus_restarts_equal_jobs_only_where_that_saves_time():
    """Each in turn has less left to do; a worker that goes to and fro costs two restarts every time."""
    machine, table = cluster("v100:8"), random_table(5, ("v100",), sizes=tuple(range(1, 9)))
    jobs = [Job(f"j{n}", 0.0, 10_000.0 + n, table.kinds[0], 1, mode=ELASTIC) for n in range(3)]
    starts, ends = {}, {}
    for restart_s in (0.0, 30.0):
        scheduler = {"policy": {"name": "optimus", "restart_s": restart_s}, "rounds": 60}
        result, events = run(Trace.of(jobs), scheduler, machine, table=table)
        starts[restart_s], ends[restart_s] = len(launches(events)), result.record.jobs.ended_s.max()
    assert 5 * starts[30.0] < starts[0.0]
    assert ends[30.0] < ends[0.0]


def test_optimus_believes_losses_more_than_declared_steps():
    """Both declare as much; the first is soon as good as it gets, so that workers do more for the second."""
    machine, table = cluster("v100:8"), random_table(5, ("v100",), sizes=tuple(range(1, 9)))
    jobs = [Job(f"j{n}", 0.0, 40_000.0, table.kinds[0], 1, mode=ELASTIC) for n in range(2)]
    trace = Trace.of(jobs, losses={"j0": LossCurve(2.0, 0.5, 0.01), "j1": LossCurve(2.0, 0.5, 0.9)})
    most = {}
    for oracle in (False, True):
        scheduler = {"policy": {"name": "optimus", "oracle": oracle}, "estimator": "fitted", "rounds": 300}
        _, events = run(trace, scheduler, machine, table=table)
        before = itertools.takewhile(lambda event: not isinstance(event, ev.JobsFinished), events)
        most[oracle] = max(workers for job, workers, _, _ in launches(list(before)) if job == 1)
    assert most == {False: 7, True: 4}


def test_a_fork_that_knows_no_natures_goes_on_at_the_sizes_that_were_given(workload):
    """A forecast has the table alone: jobs that tune their batch size run at their own there."""
    scheduler = SchedulerConfig.from_data(SCHEDULERS[2])
    begun = begin(Simulation(workload, MACHINE, scheduler), NoJournal())
    begun.loop.run(stop=lambda state: int(state.columns["held"].max()) >= 2)
    view = begun.loop.state.snapshot(begun.loop.backend.now).detached()
    coming = [job for job in workload.jobs if job.submitted_s > view.time]
    backend = SimulatedBackend.from_snapshot(view, begun.table, coming)
    fork = Loop(State.from_snapshot(view), backend, scheduler.build(begun.table))
    fork.run()
    assert (fork.state.all_jobs().phase > int(Phase.RUNNING)).all()


def test_a_job_that_tells_nonsense_still_runs():
    machine, table = cluster("v100:4"), random_table(5, ("v100",))
    jobs = [Job(f"j{n}", 0.0, 2e3, table.kinds[0], 2, mode=ELASTIC) for n in range(2)]
    told = {
        goodput.NODES: 1,
        goodput.WORKERS: 1,
        goodput.LOCAL: 8,
        goodput.COMPUTE: 0.1,
        goodput.STEP: 0.1,
        goodput.SQR: 1,
        goodput.VAR: 1,
    }
    told |= {goodput.SMALLEST: 64, goodput.LARGEST: 8, goodput.LEAST_LOCAL: 4, goodput.MOST_LOCAL: 8}
    both = np.arange(2)
    others = [ev.MetricsReported(70.0, name, both, np.full(2, float(value))) for name, value in told.items()]
    result, events = run(
        Trace.of(jobs), {"policy": "pollux", "estimator": "fitted", "rounds": 20}, machine, table=table, others=others
    )
    assert set(result.record.jobs.phase.tolist()) == {int(Phase.FINISHED)}
    assert any(observation_name("steps", 0) in event.values for event in events if isinstance(event, ev.ObservationsRecorded))


def test_wrong_parameters_are_told():
    with pytest.raises(InputError, match=r"policy pollux: field 'power' is 2: expected a number from -100 to 1"):
        Pollux(power=2)
    with pytest.raises(InputError, match="field 'restart_s'"):
        Pollux(restart_s=-1.0)
    with pytest.raises(InputError, match="policy optimus: field 'restart_s'"):
        Optimus(restart_s=-1.0)
    assert Optimus() == Optimus(oracle=False, resizes_all=False)


@pytest.mark.long
def test_optimus_takes_as_long_as_in_the_simulator_of_pollux():
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "pollux"
    if not folder.is_dir():
        pytest.skip(f"Pollux' measurements are not at {folder}")
    from fairlead.experiments.inputs import TraceFile

    trace = TraceFile(folder / "workloads" / "workload-6.csv", applications=folder).read()
    given = Simulation(
        trace,
        Cluster.parse("64xv100:4"),
        SchedulerConfig.from_data({"policy": {"name": "optimus", "oracle": True}, "rounds": 60}),
        costs=Costs(launch_s=30.0, restart_s=30.0),
    )
    jobs = run_simulation(given).record.jobs
    assert np.mean(jobs.ended_s - jobs.submitted_s) == pytest.approx(5301.88, rel=0.03)
    assert max(jobs.preemptions + jobs.moves) < 200  # 146 there
