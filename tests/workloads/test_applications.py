"""Applications that were measured: their speed on a placement, their best batch size, and jobs that train them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import ELASTIC, Job
from fairlead.core.plan import TUNED
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.models.goodput import LOCAL, STEP
from fairlead.simulator.costs import Costs
from fairlead.workloads.applications import (
    Application,
    ApplicationDynamics,
    BatchSplit,
    application_table,
    consolidated_placement,
    read_applications,
    with_applications,
)
from fairlead.workloads.dynamics import RunConditions, Speed
from fairlead.workloads.trace import Trace
from toy_applications import EPOCHS, STEPS_OF_AN_EPOCH, times, write_applications

pytestmark = pytest.mark.long

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture
def toy(tmp_path) -> Application:
    return read_applications(write_applications(tmp_path))["toy"]


def test_at_the_smallest_batch_a_step_is_worth_one(toy):
    assert (toy.smallest, toy.largest, toy.min_local, toy.max_local) == (32, 512, 8, 128)
    assert toy.rate((4,), BatchSplit(8, 1), 0) == pytest.approx(1 / times(1, 4, 8)[0])


def test_a_larger_batch_is_worth_more_the_noisier_gradients_are(toy):
    gains = [toy.rate((4,), BatchSplit(32, 1), epoch) * times(1, 4, 32)[0] for epoch in range(EPOCHS)]
    assert gains == pytest.approx([(v + 1) / (v / 4 + 1) for v in (2.0 * 4**epoch for epoch in range(EPOCHS))])


def test_a_batch_that_does_not_fit_is_done_in_passes(toy):
    assert toy.split(512, 4) == BatchSplit(128, 1)
    assert toy.split(512, 2) == BatchSplit(128, 2)
    assert toy.split(512, 1) == BatchSplit(128, 4)
    assert toy.split(64, 1) == BatchSplit(32, 2), "one worker cannot tell noise from a single pass"
    assert toy.split(32, 1) == BatchSplit(32, 1)
    for size in range(32, 513, 7):
        for workers in range(1, 33):
            assert toy.split(size, workers).batch_size(workers) <= 512


def tuned_speeds(app: Application, per_node: tuple[int, ...], learned: object, count: int) -> list[Speed]:
    """Those of a job of the first epoch that tunes its batch size on a placement, one after the other."""
    found = list[Speed]()
    for _ in range(count):
        conditions = RunConditions(0.0, "v100", sum(per_node), per_node, TUNED, learned=learned)
        found.append(ApplicationDynamics(app, 512).speed(conditions))
        learned = found[-1].learned
    return found


@pytest.mark.parametrize("per_node", [(1,), (4,), (4, 4), (4,) * 6])
def test_what_a_job_tunes_itself_to_is_close_to_the_best_once_it_has_measured(toy, per_node):
    workers = sum(per_node)
    splits = [BatchSplit(local, passes) for local in range(8, 129) for passes in range(1, 5)]
    fit = [s for s in splits if 32 <= s.batch_size(workers) <= 512 and (workers > 1 or s.passes > 1 or s.local <= 32)]
    speeds = tuned_speeds(toy, per_node, None, 5)
    assert speeds[0].batch_size == max(32, 8 * workers), "it has measured nothing, and begins with the smallest batch"
    assert speeds[-1].rate >= 0.97 * max(toy.rate(per_node, split, 0) for split in fit)
    assert speeds[-1].until == toy.ends[0], "nothing new to learn before the epoch ends"


def test_a_job_tunes_itself_by_what_it_measured_elsewhere_until_it_has_measured_here(toy):
    learned = tuned_speeds(toy, (1,), None, 2)[-1].learned
    first, second, *_ = tuned_speeds(toy, (4, 4), learned, 3)
    assert first.until == pytest.approx(30.0 * first.rate)
    assert first.batch_size < second.batch_size, "it does not know yet how long the exchange between nodes takes"
    assert first.rate < second.rate
    assert tuned_speeds(toy, (4, 4), second.learned, 1)[0].batch_size == second.batch_size


def test_an_application_that_the_authors_keep_rigid_is_not_elastic(tmp_path):
    apps = read_applications(write_applications(tmp_path, ("toy", "ncf")))
    jobs = [Job(name, 0.0, 1.0, f"{name} (batch size 256)", 1) for name in ("toy", "ncf")]
    assert [job.mode for job in with_applications(Trace.of(jobs), apps).jobs] == [ELASTIC, jobs[1].mode]


def test_between_measured_numbers_of_nodes_times_are_in_between(toy):
    for nodes in (4, 6, 7):
        step, sync = toy.curve((4,) * nodes).at(32)
        assert (float(step), float(sync)) == pytest.approx(times(nodes, 4 * nodes, 32))
    assert float(toy.curve((2, 1, 2, 1)).at(24)[0]) == pytest.approx(times(4, 6, 24)[0])
    assert toy.curve((4,) * 12).at(32) == toy.curve((4,) * 8).at(32), "beyond them, as at the edge"


def test_the_order_of_nodes_does_not_matter(toy):
    assert toy.curve((3, 1, 2)).at(16) == toy.curve((1, 2, 3)).at(16)


def test_speed_turns_at_the_ends_of_epochs_and_is_told(toy):
    job_dynamics = ApplicationDynamics(toy, 128)
    steps, turns = 0.0, []
    while steps < toy.steps:
        speed = job_dynamics.speed(RunConditions(steps, "v100", 4, (4,)))
        assert (speed.batch_size, speed.reports[LOCAL]) == (128, 32.0)
        assert speed.reports[STEP] == pytest.approx(times(1, 4, 32)[0])
        turns.append(speed.until)
        steps = min(speed.until, toy.steps)
    assert turns == [STEPS_OF_AN_EPOCH * (epoch + 1) for epoch in range(EPOCHS - 1)] + [math.inf]
    assert job_dynamics.speed(RunConditions(0.0, "v100", 4, (4,), 256)).batch_size == 256


def test_a_job_alone_takes_as_long_as_its_application(tmp_path):
    apps = read_applications(write_applications(tmp_path))
    trace = with_applications(Trace.of([Job("a", 10.0, 1.0, "toy (batch size 256)", 8)]), apps)
    assert (trace.jobs[0].steps, trace.jobs[0].mode) == (EPOCHS * STEPS_OF_AN_EPOCH, ELASTIC)
    machine = Cluster.parse("8xv100:4")
    expected = apps["toy"].run_s((4, 4), apps["toy"].split(256, 8))
    scheduler = SchedulerConfig.from_data({"policy": "fifo", "rounds": 60})
    journals = []
    for skip in (True, False):
        journal = MemoryJournal()
        given = Simulation(trace, machine, scheduler, costs=Costs(launch_s=30.0), skip_quiet_rounds=skip)
        run = run_simulation(given, journal=journal)
        assert run.record.jobs.ended_s[0] == pytest.approx(60.0 + 30.0 + expected)
        journals.append(journal.events)
    assert [str(event) for event in journals[0]] == [str(event) for event in journals[1]]
    table = application_table(trace, machine)
    assert trace.jobs[0].steps / table.alone[table.row("toy (batch size 256)", 8), 0] == pytest.approx(expected)
    assert application_table(Trace.of([Job("a")]), machine) is None


def test_fewest_nodes():
    assert consolidated_placement(10, 4) == (4, 4, 2)
    assert consolidated_placement(4, 4) == (4,)


def test_what_is_wrong_is_told_by_file_and_field(tmp_path):
    folder = write_applications(tmp_path / "apps")
    with pytest.raises(InputError, match="a folder of applications"):
        read_applications(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"folders of applications with placements\.csv"):
        read_applications(tmp_path / "empty")
    apps = read_applications(folder)
    with pytest.raises(InputError, match=r"job 'a': field 'kind' is 'tow \(batch size 32\)': .*did you mean 'toy'"):
        with_applications(Trace.of([Job("a", kind="tow (batch size 32)")]), apps)
    with pytest.raises(InputError, match="a batch size from 32 to 512"):
        with_applications(Trace.of([Job("a", kind="toy (batch size 8)")]), apps)
    placements = folder / "toy" / "placements.csv"
    placements.write_text("placement,local_bsz,step_time,sync_time\n1,8,fast,0\n")
    with pytest.raises(InputError, match=r"placements\.csv:2: field 'step_time' is 'fast': expected a number of at least 0"):
        read_applications(folder)
    placements.write_text("placement,local_bsz,step_time\n1,8,0.1\n")
    with pytest.raises(InputError, match="field 'sync_time'"):
        read_applications(folder)


@pytest.fixture(scope="module")
def workload() -> Trace:
    folder = SHARED / "data" / "pollux"
    if not folder.is_dir():
        pytest.skip(f"Pollux' measurements are not at {folder}")
    return TraceFile(folder / "workloads" / "workload-6.csv", applications=folder).read()


def average_jct(trace: Trace, scheduler: dict[str, object]) -> tuple[float, dict[str, float]]:
    machine = Cluster.parse("64xv100:4")
    given = Simulation(trace, machine, SchedulerConfig.from_data(scheduler), costs=Costs(launch_s=30.0, restart_s=30.0))
    run = run_simulation(given)
    jct = run.record.jobs.ended_s - run.record.jobs.submitted_s
    assert np.isfinite(jct).all()
    return float(jct.mean()), {run.state.job_of[at].name: one for at, one in enumerate(jct.tolist())}


def test_tiresias_takes_as_long_as_in_the_simulator_of_pollux(workload):
    expected = json.loads((SHARED / "expected" / "pollux" / "tiresias_w6.json").read_text())
    policy = {"name": "tiresias", "thresholds": [57600], "first": "submitted"}
    mean, jct = average_jct(workload, {"policy": policy, "rounds": 60})
    assert mean == pytest.approx(expected["avg_jct"], rel=0.05)
    close = [abs(jct[name] - theirs) <= 0.05 * theirs for name, theirs in expected["jcts"].items()]
    assert np.mean(close) > 0.85


@pytest.mark.parametrize(
    ("scheduler", "theirs"),
    [({"preset": "pollux"}, 2446.13), ({"policy": {"name": "optimus", "oracle": True}, "rounds": 60}, 5301.88)],
    ids=["pollux", "optimus"],
)
def test_elastic_policies_take_as_long_as_in_the_simulator_of_pollux(workload, scheduler, theirs):
    mean, _ = average_jct(workload, scheduler)
    assert mean == pytest.approx(theirs, rel=0.03)
