"""What each format's columns become."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trace_samples as samples

from fairlead.core.errors import FairleadError, InputError, UnknownName
from fairlead.core.job import TIMED, Job
from fairlead.workloads.formats import BUILT_IN, read_trace_file, read_trace_skipping_bad
from fairlead.workloads.formats.base import timed_job
from fairlead.workloads.formats.gavel_traces import GavelTrace
from fairlead.workloads.trace import OnBad, Trace, raise_bad_line

NAMES = ["native", "gavel", "shockwave", "pollux", "philly", "tiresias", "swf", "helios", "pai", "sacct"]


def test_there_are_these_formats_and_each_says_what_it_is() -> None:
    assert list(BUILT_IN) == NAMES
    for name, each in BUILT_IN.items():
        assert each.name == name
        assert len(each.summary) > 20
        assert "\n" not in each.summary


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_recognised_by_its_own_format_and_by_no_other(name: str, tmp_path: Path) -> None:
    path = samples.write(tmp_path, name)
    head = path.read_text()
    assert [each.name for each in BUILT_IN.values() if each.sniff(path, head)] == [name]
    assert read_trace_file(path).jobs == read_trace_file(path, name).jobs


def test_gavel(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "gavel"))
    assert trace.name == "small"
    assert trace.jobs == (
        Job("job-0", 0.0, 5000.0, "ResNet-18 (batch size 64)", 2, 1.0, command="run.py -b 64"),
        Job("job-1", 61.25, 800.0, "LM (batch size 10)", 1, 2.5, command="run.py -b 10"),
    )


def test_gavel_of_old_has_seven_columns(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "gavel", samples.OLDER_GAVEL))
    assert trace.jobs[0] == Job("job-0", 7.0, 300.0, "LM (batch size 5)", 4, command="cd text && run.py -b 5")


def test_a_gavel_slo_is_a_multiple_of_the_run_time(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "gavel", samples.GAVEL.replace("\t2.5\t-1.000000", "\t2.5\t1.2"))
    with pytest.raises(InputError, match="only a throughput table has"):
        read_trace_file(path)
    trace = GavelTrace(run_time=lambda kind, workers, steps: steps / 4 * workers).read(path, raise_bad_line)
    assert [job.deadline_s for job in trace.jobs] == [math.inf, pytest.approx(1.2 * 200)]


def test_shockwave(tmp_path: Path) -> None:
    first, second = read_trace_file(samples.write(tmp_path, "shockwave")).jobs
    assert (first.name, first.mode, first.workers, first.deadline_s) == ("job-1", "static", 4, 600.0)
    assert second == Job("job-0", 5.0, 800.0, "LM (batch size 10)", 1, mode="gns", command="run.py")


def test_pollux(tmp_path: Path) -> None:
    assert read_trace_file(samples.write(tmp_path, "pollux")).jobs == (
        Job("vision-0", 12.0, 1.0, "vision (batch size 256)", 4),
        Job("speech-1", 40.0, 1.0, "speech (batch size 32)", 1),
    )


def test_philly_starts_with_the_earliest(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "philly"))
    assert trace.origin == "2017-10-09T07:00:00"
    assert trace.jobs == (
        Job("job-1", 0.0, 90.5, TIMED, 8, account="west"),
        Job("job-0", 30.0, 60.0, TIMED, 1, account="east"),
    )


def test_times_with_a_zone_are_compared_as_moments(tmp_path: Path) -> None:
    text = samples.PHILLY.replace("07:00:30", "07:00:30+02:00").replace("07:00:00", "06:00:00+01:00")
    trace = read_trace_file(samples.write(tmp_path, "philly", text))
    assert trace.origin == "2017-10-09T05:00:00"
    assert [job.submitted_s for job in trace.jobs] == [0.0, 30.0]


def test_tiresias(tmp_path: Path) -> None:
    jobs = read_trace_file(samples.write(tmp_path, "tiresias")).jobs
    assert jobs == (Job("0", 0.0, 160.0), Job("7", 30.0, 140.0, workers=8))


def test_swf(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "swf"))
    assert trace.origin == "2001-09-09T01:46:40"
    assert trace.jobs == (Job("1", 10.0, 100.0, workers=4, user="3", account="2"), Job("2", 20.0, 50.0, workers=16))


def test_helios_lists_jobs_without_accelerators_and_those_that_never_ran(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "helios"))
    assert trace.origin == "2020-06-09T18:41:00"
    assert trace.jobs == (
        Job("13", 0.0, 7.0, workers=8, user="ub", account="vc2", cpus=4.0),
        Job("11", 30.0, 120.0, workers=2, user="ua", account="vc1", cpus=8.0),
    )
    assert [(problem.line, problem.field) for problem in trace.skipped] == [(3, "gpu_num"), (5, "duration")]


def test_lucid_counts_seconds_in_the_same_columns(tmp_path: Path) -> None:
    text = "job_id,user,vc,jobname,gpu_num,submit_time,duration,model\na,u,v,n,2,500.0,60,bert\nb,u,v,n,1,400,5,bert\n"
    trace = read_trace_file(samples.write(tmp_path, "helios", text))
    assert trace.origin is None
    assert [(job.name, job.submitted_s) for job in trace.jobs] == [("b", 0.0), ("a", 100.0)]


def test_pai_joins_the_two_tables(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "pai"))
    whole, parts = trace.jobs
    assert (whole.name, whole.submitted_s, whole.steps, whole.workers) == ("whole", 0.0, 570.0, 3)
    assert (whole.user, whole.allowed_types) == ("ann", ("v100",))
    assert whole.cpus == pytest.approx((4 + 3 * 6) / 3)
    assert whole.host_memory_gb == pytest.approx(70 / 3)
    assert (parts.workers, parts.allowed_types, parts.submitted_s) == (1, (), 100.0)  # 2 × 25 % of any accelerator
    assert [problem.line for problem in trace.skipped] == [3, 4, 5]


def test_pai_may_have_headers_and_may_be_given_by_its_folder(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "pai")
    plain = read_trace_file(path)
    path.write_text("job_name,inst_id,user,status,start_time,end_time\n" + samples.PAI_JOBS)
    assert read_trace_file(tmp_path).jobs == plain.jobs
    assert read_trace_file(tmp_path / "pai_task_table.csv").jobs == plain.jobs


def test_a_pai_job_with_a_bad_task_is_not_read_by_halves(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "pai")
    tasks = tmp_path / "pai_task_table.csv"
    tasks.write_text(samples.PAI_TASKS.replace("1590.0,600.0", "1590.0,many"))
    trace = read_trace_skipping_bad(path)
    assert [job.name for job in trace.jobs] == ["parts"]
    assert {(Path(p.source).name, p.line, p.field) for p in trace.skipped} >= {
        ("pai_task_table.csv", 2, "plan_cpu"),
        ("pai_job_table.csv", 1, "job_name"),
    }


def test_sacct(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "sacct"))
    assert trace.origin == "2024-03-01T09:00:00"
    used_up, asked = trace.jobs
    assert asked == Job(
        "100",
        10.0,
        3600.0,
        workers=2,
        user="ann",
        account="lab",
        allowed_types=("a100",),
        cpus=4.0,
        host_memory_gb=32.0,
        time_limit_s=7200.0,
    )
    assert (used_up.name, used_up.allowed_types) == ("101_3", ())  # it got a v100, but would have taken any
    assert used_up.time_limit_s == math.inf
    assert [(problem.line, problem.field) for problem in trace.skipped] == [
        (5, "AllocTRES"),
        (6, "ElapsedRaw"),
        (7, "State"),
    ]


@pytest.mark.parametrize(
    ("columns", "values", "seconds"),
    [
        ("Elapsed", "1-02:03:04", 93784.0),
        ("Elapsed", "03:04", 184.0),
        ("Start|End", "2024-03-01T09:00:00|2024-03-01T09:01:30", 90.0),
    ],
)
def test_sacct_tells_the_run_time_in_several_ways(columns: str, values: str, seconds: float, tmp_path: Path) -> None:
    text = f"jobidraw|submit|{columns}|alloctres|\n7|2024-03-01T09:00:00|{values}|gres/gpu:h100=3|\n"
    (job,) = read_trace_file(samples.write(tmp_path, "sacct", text)).jobs
    assert (job.steps, job.workers, job.allowed_types) == (seconds, 3, ("h100",))


def test_native_fills_in_what_is_left_out(tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, "native"))
    assert trace.origin == "2024-01-01T00:00:00"
    assert trace.jobs == (
        Job("a", 0.0, 1000.0, "LM (batch size 5)", 2, allowed_types=("v100", "p100")),
        Job("job-1", 60.5, 90.0, deadline_s=3600.0),
    )


def test_a_mark_of_byte_order_is_no_part_of_the_header(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "philly", "\ufeff" + samples.PHILLY)
    assert len(read_trace_file(path)) == 2


def test_an_unknown_format_is_answered_with_near_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'philly'"):
        read_trace_file(samples.write(tmp_path, "philly"), "phily")


def test_formats_can_be_added(tmp_path: Path) -> None:
    class Durations:
        name = "durations"
        summary = "a duration a line, behind a first line that says so"

        def sniff(self, path: Path, head: str) -> bool:
            return head.startswith("durations\n")

        def read(self, path: Path, on_bad: OnBad) -> Trace:
            lines = path.read_text().splitlines()[1:]
            return Trace.of(Job(f"job-{n}", steps=float(line)) for n, line in enumerate(lines))

    path = tmp_path / "x"
    path.write_text("durations\n5\n7\n")
    more = {**BUILT_IN, "durations": Durations()}
    assert [job.steps for job in read_trace_file(path, formats=more).jobs] == [5.0, 7.0]
    assert read_trace_file(path, "durations", formats=more) == read_trace_file(path, formats=more)


def test_a_quick_job_is_a_job() -> None:
    fields = {"user": "u", "account": "e", "allowed_types": ("v100",), "cpus": 4.0, "host_memory_gb": 5.0, "time_limit_s": 6.0}
    quick, slow = timed_job("a", 1.0, 2.0, 3, **fields), Job("a", 1.0, 2.0, TIMED, 3, **fields)
    assert type(quick) is Job
    assert quick == slow
    assert hash(quick) == hash(slow)
    with pytest.raises(AttributeError):
        quick.name = "b"  # type: ignore[misc]


@pytest.mark.skipif(not samples.SHARED.exists(), reason=samples.NO_PUBLIC_DATA)
@pytest.mark.parametrize(
    ("pattern", "name", "count"),
    [
        ("gavel/continuous_single_seed0_lam900.trace", "gavel", 2000),
        ("gavel/continuous_single_seed1_lam643.trace", "gavel", 6000),
        ("gavel/minimize_makespan.trace", "gavel", 100),
        ("gavel/max_min_fairness.trace", "gavel", 96),
        ("gavel/msr_ee9e8c_seed0.trace", "gavel", 2000),
        ("shockwave/120_*.trace", "shockwave", 120),
        ("shockwave/220_*.trace", "shockwave", 220),
        ("shockwave/460_*.trace", "shockwave", 460),
        ("shockwave/900_*.trace", "shockwave", 900),
        ("pollux/workloads/workload-6.csv", "pollux", 160),
        ("philly/philly.csv", "philly", 82_247),
        ("tiresias/60_job.csv", "tiresias", 60),
    ],
)
def test_the_public_traces_are_read_whole(pattern: str, name: str, count: int) -> None:
    (path,) = samples.SHARED.glob(pattern)
    assert [each.name for each in BUILT_IN.values() if each.sniff(path, path.read_text()[:60_000])] == [name]
    trace = read_trace_file(path)
    assert len(trace) == count
    assert trace.skipped == ()
    assert len({job.name for job in trace.jobs}) == count


@pytest.mark.skipif(not samples.SHARED.exists(), reason=samples.NO_PUBLIC_DATA)
@pytest.mark.parametrize("file", ["tiresias/yarn-gput1000.csv", "gavel/cluster_specs.json", "pollux/bert/placements.csv"])
def test_public_files_that_are_no_traces_are_told_apart(file: str) -> None:
    with pytest.raises(FairleadError, match="a trace of a known format"):
        read_trace_file(samples.SHARED / file)
