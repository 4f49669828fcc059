"""`fairlead trace …`: made, converted, changed, described and checked; and the public traces run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from command import answer, fairlead

from fairlead.core.job import Job
from fairlead.workloads.formats import read_trace_file, write_trace
from fairlead.workloads.trace import Trace

TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n" + "".join(
    f"{i},{1 + i % 4},{60 * i},100,vgg,{120 + i},30\n" for i in range(20)
)


@pytest.fixture
def sample(tmp_path) -> Path:
    path = tmp_path / "sample.csv"
    path.write_text(TIRESIAS)
    return path


def test_a_workload_is_generated_and_can_be_simulated(tmp_path):
    made = answer(
        "trace", "generate", "-o", "w.parquet", "--jobs", "40", "--load", "12", "--workers", "multiple", "--users", "3",
        "--entities", "lab=0.5,shop=0.5", "--slos", "1.2,2", "--priorities", "0.2", "--seed", "5", cwd=tmp_path,
    )  # fmt: skip
    assert (made["jobs"], made["file"]) == (40, "w.parquet")
    trace = read_trace_file(tmp_path / "w.parquet")
    assert {job.account for job in trace.jobs} == {"lab", "shop"}
    assert all(job.deadline_s < float("inf") and job.user for job in trace.jobs)
    again = fairlead(
        "trace", "generate", "-o", "again.csv", "--jobs", "40", "--load", "12", "--workers", "multiple", "--users", "3",
        "--entities", "lab=0.5,shop=0.5", "--slos", "1.2,2", "--priorities", "0.2", "--seed", "5", cwd=tmp_path,
    )  # fmt: skip
    assert again.returncode == 0
    assert again.stdout == ""
    assert read_trace_file(tmp_path / "again.csv").jobs == trace.jobs
    assert answer("simulate", "--policy", "fifo", "--trace", "w.parquet", cwd=tmp_path)["finished"] == 40


def test_a_trace_of_any_format_becomes_a_native_one(sample, tmp_path):
    told = answer("trace", "convert", sample, "-o", tmp_path / "native.csv")
    assert told["jobs"] == 20
    converted = read_trace_file(tmp_path / "native.csv", "native")
    assert [(job.name, job.workers, job.submitted_s, job.steps) for job in converted.jobs] == [
        (str(i), 1 + i % 4, 60.0 * i, 120.0 + i) for i in range(20)
    ]


def test_a_trace_is_changed_in_the_order_of_the_options(sample, tmp_path):
    told = answer(
        "trace", "transform", sample, "-o", tmp_path / "t.csv", "--keep-workers", "1,2", "--slice", "2:6", "--scale-time", "0.5"
    )
    assert told["jobs"] == 4
    changed = read_trace_file(tmp_path / "t.csv").jobs
    assert [job.name for job in changed] == ["4", "5", "8", "9"]
    assert [job.submitted_s for job in changed] == [0.0, 30.0, 120.0, 150.0]


def test_a_trace_gets_kinds_and_another_load(sample, tmp_path):
    how = (
        "--keep-workers",
        "1,2,4",
        "--random-kinds",
        "--load",
        "30",
        "--daily-spike",
        "3@1",
        "--bursts",
        "2",
        "--thin",
        "0.9",
    )
    told = answer("trace", "transform", sample, "-o", tmp_path / "t.csv", *how, "--seed", "3")
    assert told["jobs"] >= 10
    assert all(job.kind for job in read_trace_file(tmp_path / "t.csv").jobs)


def test_a_trace_is_described(sample):
    told = answer("trace", "stats", sample, "--accelerators", "8")
    assert told["jobs"] == 20
    assert told["workers"] == {"1": 5, "2": 5, "3": 5, "4": 5}
    hours = sum((1 + i % 4) * (120 + i) for i in range(20)) / 3600
    assert told["accelerator_hours"] == pytest.approx(hours)
    assert told["offered_load"] == pytest.approx(hours * 3600 / (8 * told["span_s"]), rel=0.1)


def test_a_good_trace_is_found_good_and_a_bad_one_is_told_line_by_line(sample, tmp_path):
    good = fairlead("trace", "check", sample)
    assert good.returncode == 0
    assert "20 jobs" in good.stdout
    bad = tmp_path / "bad.csv"
    bad.write_text(TIRESIAS + "x,one,0,1,vgg,5,1\ny,1,0,1,vgg,-5,1\n")
    found = fairlead("trace", "check", bad, "--json")
    assert found.returncode == 1
    told = json.loads(found.stdout)
    assert told["jobs"] == 20
    first = told["problems"][0]
    assert (first["line"], first["field"], first["value"]) == (22, "num_gpu", "one")
    assert len(told["problems"]) == 2
    for_people = fairlead("trace", "check", bad)
    assert for_people.returncode == 1
    assert "bad.csv:22: field 'num_gpu' is 'one'" in for_people.stdout


LIGHT = {"device": "h200", "allocated_mb": 1.0, "reserved_mb": 1.0, "memory_mb": 2.0}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predictions_in_a_trace_are_checked_as_those_of_submitted_jobs(tmp_path, ending):
    texts = [json.dumps({**LIGHT, **change}) for change in ({}, {"utilization": 130}, {"surprise": 1}, {"memory_mb": "much"})]
    jobs = [Job(f"j{n}", 0.0, 10.0, "m", prediction=text) for n, text in enumerate([*texts, "{", ""])]
    write_trace(Trace.of(jobs), tmp_path / f"jobs.{ending}")
    done = fairlead("trace", "check", f"jobs.{ending}", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (done.returncode, told["jobs"]) == (1, 2)
    fields = ["prediction.utilization", "prediction", "prediction.memory_mb", "prediction"]
    assert [one["field"] for one in told["problems"]] == fields
    shown = fairlead("trace", "check", f"jobs.{ending}", cwd=tmp_path).stdout
    line = 3 if ending == "csv" else 2
    assert f"jobs.{ending}:{line}: field 'prediction.utilization' is 130: expected a percentage, from 0 to 100" in shown
    refused = fairlead("simulate", "--policy", "fifo", "--trace", f"jobs.{ending}", cwd=tmp_path)
    assert refused.returncode == 2
    assert "prediction.utilization" in refused.stderr


ONE_TYPE = "kind,workers,type,placement,steps_per_s\nnet,1,h200,consolidated,2.0\nnet,1,h200,spread,2.0\n"


@pytest.mark.parametrize(
    "command", [["generate"], ["transform", "sample.csv", "--random-kinds"]], ids=["generate", "transform"]
)
def test_a_table_without_the_usual_type_says_which_option_names_another(sample, tmp_path, command):
    (tmp_path / "one.csv").write_text(ONE_TYPE)
    (tmp_path / "two.csv").write_text(ONE_TYPE + "net,1,b200,consolidated,3.0\nnet,1,b200,spread,3.0\n")
    gangs = () if command == ["generate"] else ("--keep-workers", "1")
    asked = ("trace", *command, "-o", "made.csv", *gangs, "--throughputs")
    done = fairlead(*asked, "two.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "--reference-type 'v100': expected a type of the throughput table (" in done.stderr
    assert fairlead(*asked, "two.csv", "--reference-type", "h200", cwd=tmp_path).returncode == 0
    assert fairlead(*asked, "one.csv", cwd=tmp_path).returncode == 0, "there is no other"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["trace", "generate", "-o", "made.csv", "--load", "0"], "--load 0"),
        (["trace", "generate", "-o", "made.csv", "--kinds", "LN"], "--kinds 'LN'"),
        (["trace", "generate", "-o", "made.csv", "--load", "1e-300"], "--load 1e-300"),
        (["simulate", "--policy", "fifo", "--load", "0"], "--load 0"),
        (["simulate", "--policy", "fifo", "--workers", "many"], "--workers 'many'"),
    ],
)
def test_what_a_generator_refuses_is_told_by_the_option_that_says_it(tmp_path, arguments, told):
    done = fairlead(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.startswith(f"fairlead: error: {told}: expected ")) == (2, True), done.stderr


# The public traces, where they are.


def test_gavels_trace_runs_on_its_own_throughputs(public_data):
    gavel = public_data / "gavel"
    found = answer(
        "simulate", "--policy", "las", "--trace", gavel / "small_test.trace", "--format", "gavel",
        "--throughputs", gavel / "simulation_throughputs.json", "--cluster", "4xv100:4,4xp100:4,4xk80:4", "--round", "360",
    )  # fmt: skip
    assert found["jobs"] == found["finished"] > 0


def test_shockwaves_trace_runs_on_its_own_throughputs(public_data):
    folder = public_data / "shockwave"
    trace = min(folder.glob("120_*.trace"))
    found = answer(
        "simulate", "--policy", "srtf", "--trace", trace, "--throughputs", folder / "tacc_throughputs.json",
        "--cluster", "32xv100:4", "--round", "120", "--fill-workers",
    )  # fmt: skip
    assert found["jobs"] == found["finished"] == 120


def test_the_beginning_of_phillys_trace_runs(public_data, tmp_path):
    with (public_data / "philly" / "philly.csv").open(encoding="utf-8") as file:
        (tmp_path / "philly.csv").write_text("".join(itertools.islice(file, 3000)), encoding="utf-8")
    found = answer("simulate", "--policy", "tiresias", "--trace", tmp_path / "philly.csv", "--cluster", "160xv100:8")
    assert found["jobs"] == found["finished"] == 2999
    assert 0 < found["utilization"] <= 1


def test_regimes_are_read_converted_and_followed(tmp_path):
    line = "LM (batch size 10)\tpython3 main.py\tlm\t--steps\t1\t20000\t1\tgns\t1\t-1.000000\t300\t0\n"
    (tmp_path / "one.trace").write_text(line)
    regimes = [{"batch_size": 10, "epochs": 2}, {"batch_size": 20, "epochs": 1}, {"batch_size": 10, "epochs": 1}]
    told = {"job": 0, "job_type": "LM (batch size 10)", "samples_per_epoch": 50000, "regimes": regimes}
    (tmp_path / "regimes.json").write_text(json.dumps([told]))
    answer("trace", "convert", "one.trace", "--regimes", "regimes.json", "-o", "one.csv", cwd=tmp_path)
    assert "10@0.5|20@0.25|10@0.25" in (tmp_path / "one.csv").read_text()
    beside = answer(
        "simulate", "--policy", "fifo", "--trace", "one.trace", "--regimes", "regimes.json", "--cluster", "1xv100:1",
        cwd=tmp_path,
    )  # fmt: skip
    inside = answer("simulate", "--policy", "fifo", "--trace", "one.csv", "--cluster", "1xv100:1", cwd=tmp_path)
    assert beside["makespan_s"] == inside["makespan_s"]
    assert beside["flagged_jobs"] == [{"name": "job-0", "flags": ["declared gns, and its batch size fell to 10"]}]


def test_an_expert_schedule_is_generated(tmp_path):
    answer(
        "trace", "generate", "-o", "w.csv", "--jobs", "5", "--kinds", "ResNet-18 (batch size 16)", "--modes", "expert=1",
        "--schedule", "1@0.25|4@0.75", cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "w.csv").read_text().count("16@0.25|64@0.75,16@0.25|64@0.75") == 5, "declared, and true"


def test_jobs_of_mode_expert_without_a_schedule_are_refused_with_an_example(tmp_path):
    refused = fairlead("trace", "generate", "-o", "w.csv", "--modes", "expert=1", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'none': expected one, such as '1@0.3|4@0.7'" in refused.stderr
