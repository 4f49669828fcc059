"""Jobs whose batch size changes: how they are written down, made up, and run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.events import MetricsReported
from fairlead.core.job import Job, batch_size_of, kind_of
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.workloads.dynamics import Regimes, RunConditions, parse_regimes, run_time_s
from fairlead.workloads.formats import read_trace_file, write_trace
from fairlead.workloads.formats.gavel_traces import with_regimes
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

SHOCKWAVE = Path(__file__).parents[3] / "shared" / "data" / "shockwave"
PUBLISHED = Path(__file__).parents[3] / "shared" / "expected" / "shockwave" / "tacc_32gpus.json"


def table(rates: dict[int, float], types: tuple[str, ...] = ("v100",)) -> ThroughputTable:
    """Of one model, by batch size."""
    keys = (("", 1), *((kind_of("Net", size), 1) for size in rates))
    alone = np.repeat(np.array([1.0, *rates.values()])[:, None], len(types), axis=1)
    return ThroughputTable(types, keys, alone, alone, np.zeros((len(keys), len(keys), len(types))))


def net(parts: str, steps: float = 1000.0, name: str = "net") -> tuple[Job, Regimes]:
    job = Job(name, 0.0, steps, kind_of("Net", 8), mode="gns")
    return job, Regimes.of(job, parse_regimes(parts))


def test_the_work_stays_and_the_speed_changes_with_the_batch_size():
    job, regimes = net("8@0.5|16@0.25|32@0.25")
    rates = table({8: 10.0, 16: 8.0, 32: 6.0})
    trace = Trace.of([job], dynamics={"net": regimes})
    journal = MemoryJournal()
    run = run_simulation(Simulation(trace, Cluster.parse("1xv100:1"), table=rates), journal=journal)
    seconds = 500 / 10 + 250 / (8 * 2) + 250 / (6 * 4)
    assert float(run.record.jobs.ended_s[0]) == pytest.approx(seconds, rel=1e-12)
    assert float(run.record.jobs.exclusive_s[0]) == pytest.approx(seconds, rel=1e-12)
    told = [(e.time, e.values.tolist()) for e in journal.events if isinstance(e, MetricsReported)]
    assert told == [(0.0, [8.0]), (50.0, [16.0]), (50 + 250 / 16, [32.0])]


@pytest.mark.parametrize(("parts", "work"), [("8@0.5|16@1.0", 1500.0), ("8@0.3|16@0.3", 600.0), ("8@0.1|16@0.2|8@0.7", 1000.0)])
def test_shares_need_not_add_up_to_what_was_declared(parts, work):
    job, regimes = net(parts)
    assert regimes.work(job.steps) == pytest.approx(work)
    run = run_simulation(
        Simulation(Trace.of([job], dynamics={"net": regimes}), Cluster.parse("1xv100:1"), table=table({8: 1.0, 16: 1.0}))
    )
    assert run.state.all_jobs().overran.tolist() == [work > 1000.0]
    assert not run.state.busy


def test_a_batch_size_that_a_plan_gives_stays():
    _, regimes = net("8@0.5|16@0.5")
    speed = regimes.speed(RunConditions(0.0, "v100", 1, (1,), 32, lambda size: 100.0 / size))
    assert (speed.rate, speed.until, speed.batch_size) == (100.0 / 32 * 4, math.inf, 32)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_regimes_come_back_as_they_were_written(tmp_path, suffix):
    job, regimes = net("8@0.1|16@0.7000000000000001|8@0.2")
    trace = Trace.of([job, Job("other", 3.0, 5.0)], dynamics={"net": regimes})
    write_trace(trace, tmp_path / f"jobs.{suffix}")
    again = read_trace_file(tmp_path / f"jobs.{suffix}")
    assert again.jobs == trace.jobs
    assert again.dynamics == trace.dynamics


def test_a_nature_that_cannot_be_written_is_told(tmp_path):
    job, regimes = net("8@1.0")
    with pytest.raises(InputError, match="field 'regimes' is 'net': expected regimes of its own batch size and steps"):
        write_trace(Trace.of([replace(job, steps=5.0)], dynamics={"net": regimes}), tmp_path / "jobs.csv")


@pytest.mark.parametrize(
    "cell", ["8", "8@", "@0.5", "8@0.5|", "8@x", "0@0.5", "8@0", "8@-1", "8@nan", "8@inf", "8@0.5|1.5@0.5"]
)
def test_a_cell_that_says_no_regimes_is_told(tmp_path, cell):
    (tmp_path / "jobs.csv").write_text(f"submitted_s,steps,kind,regimes\n0,10,Net (batch size 8),{cell}\n")
    with pytest.raises(InputError, match=r"jobs.csv:2: field 'regimes' is .*expected batch sizes and shares of the steps"):
        read_trace_file(tmp_path / "jobs.csv")


def test_a_job_without_a_batch_size_has_no_regimes(tmp_path):
    (tmp_path / "jobs.csv").write_text("submitted_s,duration_s,regimes\n0,10,8@1\n")
    with pytest.raises(InputError, match="nothing, for a job whose kind has no batch size"):
        read_trace_file(tmp_path / "jobs.csv")


def test_a_batch_size_without_a_throughput_is_told_before_anything_runs():
    job, regimes = net("8@0.5|64@0.5")
    trace = Trace.of([job], dynamics={"net": regimes})
    with pytest.raises(InputError, match=r"field 'regimes' is 'Net \(batch size 64\)': expected batch sizes at which 'Net'"):
        run_simulation(Simulation(trace, Cluster.parse("1xv100:1"), table=table({8: 1.0})))


def entry(**other: object) -> dict[str, object]:
    regimes = [{"batch_size": 8, "epochs": 3}, {"batch_size": 16, "epochs": 1}]
    return {"job": 0, "job_type": "Net (batch size 8)", "samples_per_epoch": 800, "regimes": regimes, **other}


def test_a_file_of_regimes_gives_jobs_whole_epochs(tmp_path):
    (tmp_path / "regimes.json").write_text(json.dumps([entry()]))
    trace = with_regimes(Trace.of([net("8@1", 390.0, "job-0")[0]]), tmp_path / "regimes.json")
    assert trace.jobs[0].steps == 400.0
    assert trace.dynamics == {"job-0": Regimes(8, 400.0, ((8, 0.75), (16, 0.25)))}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("{", "expected JSON"),
        ("{}", "expected a list of objects with 'job' and 'regimes'"),
        ("[" * 100_000, r"expected JSON that can be read \(RecursionError\)"),
        ('[{"job": 0, "regimes": [{"epochs": 1, "epochs": 2}]}]', "field 'key' is 'epochs': expected each name only once"),
        ("[3]", "expected a list of objects with 'job' and 'regimes'"),
        ([entry(job=7)], "field 'job' is 7: expected the number of a job of trace"),
        ([entry(job="x")], "field 'job' is 'x': expected a whole number from 0"),
        ([entry(job_type="Other (batch size 8)")], "field 'job_type' is 'Other"),
        ([entry(samples_per_epoch=0)], "field 'samples_per_epoch' is 0: expected a whole number from 1"),
        ([entry(samples_per_epoch=1e400)], "field 'samples_per_epoch' is inf"),
        ([entry(samples_per_epoch=10**400)], "field 'samples_per_epoch' is '1000"),
        ([entry(job=10**400)], "field 'job' is '1000"),
        ([entry(job=math.nan)], "field 'job' is nan"),
        ([entry(regimes=[])], r"field 'regimes' is \[\]: expected a list of objects"),
        ([entry(regimes=[{"batch_size": 8}])], "field 'epochs': expected a whole number from 1"),
        ([entry(regimes=[{"batch_size": 0, "epochs": 1}])], "field 'batch_size' is 0"),
    ],
)
def test_a_file_of_regimes_that_is_wrong_is_told(tmp_path, told, message):
    path = tmp_path / "regimes.json"
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    with pytest.raises(InputError, match=message):
        with_regimes(Trace.of([net("8@1", 390.0, "job-0")[0]]), path)


@pytest.mark.parametrize("mode", ["accordion", "gns", "expert"])
def test_generated_jobs_change_as_their_mode_says_and_last_as_long_as_they_should(mode):
    schedule = ((1.0, 0.3), (4.0, 0.7)) if mode == "expert" else ()
    made = Generator(jobs=60, durations=(3600.0,), workers="multiple", modes={mode: 1.0}, schedule=schedule)
    trace = made.trace(3)
    column = made.table.types.index("v100")
    changing = 0
    for job in trace.jobs:
        if job.mode == "static":
            assert job.name not in trace.dynamics
            continue
        regimes = trace.dynamics[job.name]
        assert isinstance(regimes, Regimes)
        sizes, declared = [size for size, _ in regimes.parts], batch_size_of(job.kind)
        changing += len(sizes) > 1
        assert sizes[0] == declared
        assert regimes.work(job.steps) == job.steps
        if mode == "gns":
            assert sizes == [declared * 2**power for power in range(len(sizes))]
        if mode == "accordion":
            assert sizes[::2] == [declared] * len(sizes[::2])
            assert len(set(sizes[1::2])) <= 1

        def rate(size: int, job: Job = job) -> float:
            kind = kind_of(job.kind.rpartition(" (")[0], size)
            return float(made.table.alone[made.table.row(kind, job.workers), column])

        alone = run_time_s(regimes, job.steps, RunConditions(0.0, "v100", job.workers, (job.workers,), table=rate))
        assert alone == pytest.approx(3600.0, rel=0.01), "steps are whole"
    assert changing > 20
    again = made.trace(3)
    assert again.dynamics == trace.dynamics


def test_a_mode_moves_no_other_draw():
    plain, other = (Generator(jobs=40, modes=modes).trace(1) for modes in ({"static": 1.0}, {"static": 0.5, "gns": 0.5}))
    assert [(j.submitted_s, j.kind, j.workers) for j in plain.jobs] == [(j.submitted_s, j.kind, j.workers) for j in other.jobs]


@pytest.mark.parametrize("wrong", [{"modes": {"expert": 1.0}}, {"schedule": ((1.0, 1.0),)}])
def test_a_schedule_and_its_mode_go_together(wrong):
    with pytest.raises(InputError, match="field 'schedule'"):
        Generator(**wrong)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs ../shared")
def test_max_min_fairness_on_shockwaves_trace_comes_out_as_published():
    """Gavel's mechanism as Shockwave's authors ran it: allocations at least 1,000 s apart, and new jobs wait for them."""
    rates = read_table(SHOCKWAVE / "tacc_throughputs.json")
    source = next(SHOCKWAVE.glob("120_*.trace"))
    trace = TraceFile(source, regimes=SHOCKWAVE / "trace120_regimes.json").read(rates)
    mechanism = parse_part("gavel-rounds:min_interval_s=1000:newcomers=wait:lease_s=120:types=in-order")
    scheduler = SchedulerConfig(parse_part("max-min-fairness"), mechanism=mechanism, round_s=120.0)
    run = run_simulation(Simulation(trace, Cluster.parse("32xv100:32"), scheduler, rates, Costs(restart_s=20.0)))
    published = json.loads(PUBLISHED.read_text())["max_min_fairness"]
    jobs = run.record.jobs
    took = jobs.ended_s - jobs.submitted_s
    assert float(jobs.ended_s.max()) == pytest.approx(published["makespan"], rel=0.03)
    assert float(took.mean()) == pytest.approx(published["avg_jct"], rel=0.03)
    assert float(np.corrcoef(took, published["jct_list"])[0, 1]) > 0.95
    told = {each["job"]: each["exclusive_seconds"] for each in json.loads((SHOCKWAVE / "trace120_regimes.json").read_text())}
    assert np.allclose(jobs.exclusive_s, [told[number] for number in range(len(told))], rtol=1e-4)
