"""Whatever is wrong with a file, the answer is one line that says where and what was expected."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trace_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InputError
from fairlead.workloads.formats import BUILT_IN, read_trace_file, read_trace_skipping_bad
from fairlead.workloads.formats.text_fields import LONGEST_LINE

SCRIBBLES = [
    b"",
    b"\n",
    b",",
    b"\t",
    b"|",
    b'"',
    b"-",
    b"nan",
    b"inf",
    b"1e999",
    b"9" * 400,
    b"\0",
    b"\r",
    "ü".encode(),
    b"\xe9",
]
TOO_LONG = "x" * (LONGEST_LINE + 5)

# format, what is replaced in the usual file, by what, and then the line and the field of the answer
BAD_LINES = [
    ("gavel", "\t5000\t", "\tmany\t", 1, "total_steps"),
    ("gavel", "\t5000\t", "\t0\t", 1, "total_steps"),
    ("gavel", "\t5000\t", "\tnan\t", 1, "total_steps"),
    ("gavel", "\t61.25", "\t-61.25", 2, "arrival_time"),
    ("gavel", "\t61.25", "\tinf", 2, "arrival_time"),
    ("gavel", "\t61.25", "", 2, "columns"),
    ("gavel", "\t2\t1\t-1", "\t1.5\t1\t-1", 1, "scale_factor"),
    ("gavel", "\t2\t1\t-1", "\t2\t0\t-1", 1, "priority_weight"),
    ("gavel", "\t2.5\t-1.000000", "\t2.5\t3", 2, "SLO"),
    ("gavel", "LM (batch size 10)", "", 2, "job_type"),
    ("shockwave", "\tgns\t", "\tgnome\t", 1, "mode"),
    ("shockwave", "\t120\t5", "\t120\t5\t6", 1, "columns"),
    ("shockwave", "\t300\t0", "\t-300\t0", 2, "duration"),
    ("pollux", "vision,4,256", "vision,4,0", 2, "batch_size"),
    ("pollux", "speech-1,", "vision-0,", 3, "name"),
    ("pollux", ",speech,", ",,", 3, "application"),
    ("philly", "2017-10-09 07:00:30", "2017-13-09 07:00:30", 2, "timestamp"),
    ("philly", "2017-10-09 07:00:30", "0017-10-09 07:00:30", 2, "timestamp"),
    ("philly", ",90.5,", ",-90.5,", 3, "duration"),
    ("philly", ",90.5,", ",9_0.5,", 3, "duration"),
    ("philly", ",8,724.0,west", ",8,724.0,west,", 3, "columns"),
    ("philly", ",8,724.0,", ",2000000,724.0,", 3, "num_gpus"),
    ("tiresias", "7,8,30", "7,0,30", 3, "num_gpu"),
    ("tiresias", "7,8,30", "0,8,30", 3, "name"),
    ("swf", "2   20  -1   50", "2   20  -1   -1", 4, "run_time"),
    ("swf", "2   20  -1   50", "2   20   -1    0", 4, "run_time"),
    ("swf", "-1  16  200", "-1  -1  200", 4, "requested_processors"),
    ("swf", "2   20  -1   50", "2   20  50", 4, "columns"),
    ("swf", "    1   10", "    1   -1", 3, "submit_time"),
    ("helios", "2,16,1,COMPLETED", "two,16,1,COMPLETED", 2, "gpu_num"),
    ("helios", "2,16,1,COMPLETED", "2,-16,1,COMPLETED", 2, "cpu_num"),
    ("helios", "2020-06-09 18:41:30", "yesterday", 2, "submit_time"),
    ("helios", "13,ub", ",ub", 4, "job_id"),
    ("pai", "ann,Terminated,1000.0", "ann,Done,1000.0", 1, "status"),
    ("pai", "bob,Failed,1100.0,1190.0", "bob,Failed,1100.0,1090.0", 2, "end_time"),
    ("pai", "bob,Failed,1100.0", "bob,Failed,", 2, "start_time"),
    ("sacct", "2024-03-01T09:00:10", "Unknown", 2, "Submit"),
    ("sacct", "|3600|02:00:00", "|an hour|02:00:00", 2, "ElapsedRaw"),
    ("sacct", "|3600|02:00:00", "|3600|two hours", 2, "Timelimit"),
    ("sacct", "gres/gpu:v100=1,", "gres/gpu:v100=half,", 4, "AllocTRES"),
    ("sacct", "|TIMEOUT", "|TIMEOUT|x", 4, "columns"),
    ("native", "60.5,,90", "60.5,5,90", 4, "duration_s"),
    ("native", "60.5,,90", "60.5,,", 4, "steps"),
    ("native", ",60.5,", ",,", 4, "submitted_s"),
    ("native", "a,0,", "job-1,0,", 4, "name"),
    ("native", "v100|p100", "v100||p100", 3, "allowed_types"),
    ("native", ",3600", ",-3600", 4, "deadline_s"),
    ("native", "size 5),2,", "size 5),2.5,", 3, "workers"),
]


@pytest.mark.parametrize("mode", ["banana", "Static", "elastic "])
def test_a_mode_that_nobody_knows(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"submitted_s,duration_s,mode\n0,60,elastic\n0,60,\n0,60,{mode}\n")
    with pytest.raises(
        InputError, match=rf"jobs.csv:4: field 'mode' is '{mode}': expected static, accordion, gns, expert or elastic"
    ):
        read_trace_file(path, "native")


@pytest.mark.parametrize(("name", "old", "new", "line", "field"), BAD_LINES)
def test_a_bad_line(name: str, old: str, new: str, line: int, field: str, tmp_path: Path) -> None:
    usual = samples.FILES[name][1]
    assert usual.count(old) == 1, "the sample has changed"
    path = samples.write(tmp_path, name, usual.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_trace_file(path, name)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: field '{field}'")
    assert "expected" in message
    assert "\n" not in message
    assert (caught.value.line, caught.value.field) == (line, field)

    good = read_trace_file(samples.write(tmp_path, name))
    path = samples.write(tmp_path, name, usual.replace(old, new))
    skipping = read_trace_skipping_bad(path, name)
    assert len(skipping) == len(good) - 1
    assert message in [str(problem) for problem in skipping.skipped]
    assert len(skipping.skipped) == len(good.skipped) + 1


# format, the whole file, and then the line and the field of the answer
BAD_HEADERS = [
    ("native", "name,submited_s,steps\na,0,1\n", 1, "submited_s"),
    ("native", "name,submitted_s\na,0\n", 1, "steps"),
    ("native", "name,submitted_s,submitted_s,steps\na,0,0,1\n", 1, "submitted_s"),
    ("native", 'name,"submitted_s\n",steps,"wor\nkers"\na,0,1,1\n', 1, "header"),
    ("native", "# origin: once upon a time\nsubmitted_s,steps\n0,1\n", 1, "origin"),
    ("philly", "timestamp,duration,gpus\n2017-10-09 07:00:30,1,1\n", 1, "num_gpus"),
    ("tiresias", "job_id,num_gpu,duration\n1,1,1\n", 1, "submit_time"),
    ("pollux", "name,time\na,1\n", 1, "application"),
    ("helios", "job_id,user\n1,u\n", 1, "gpu_num"),
    ("sacct", "JobID|Submit|Elapsed\n1|2024-03-01T09:00:00|5\n", 1, "AllocTRES"),
    ("sacct", "JobID|Submit|End|AllocTRES\n1|2024-03-01T09:00:00|5|\n", 1, "Start"),
    ("pai", "job_name,user\na,b\n", 1, "header"),
]


@pytest.mark.parametrize(("name", "text", "line", "field"), BAD_HEADERS)
def test_a_bad_header_is_raised_even_where_bad_lines_are_skipped(
    name: str, text: str, line: int, field: str, tmp_path: Path
) -> None:
    path = samples.write(tmp_path, name, text)
    with pytest.raises(InputError) as caught:
        read_trace_skipping_bad(path, name)
    assert str(caught.value).startswith(f"{path}:{line}: field '{field}'")
    assert "\n" not in str(caught.value)


def test_a_misspelt_column_is_answered_with_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'submitted_s'"):
        read_trace_file(samples.write(tmp_path, "native", "submited_s,steps\n0,1\n"), "native")


@pytest.mark.parametrize("name", list(BUILT_IN))
@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "text in UTF-8, or a Parquet file"),
        ("name,time".encode("utf-16"), "text in UTF-8, or a Parquet file"),
        (b"\x1f\x8b\x08" + b"x" * 200, "text in UTF-8, or a Parquet file"),
    ],
)
def test_a_file_that_is_no_text(name: str, contents: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(contents)
    for format in (name, None):
        with pytest.raises(InputError, match=expected):
            read_trace_file(path, format)


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_no_file_or_no_plain_file(name: str, tmp_path: Path) -> None:
    for format in (name, None):
        for path in (tmp_path / "none.csv", tmp_path, tmp_path / "none.csv" / "below"):
            with pytest.raises(InputError) as caught:
                read_trace_file(path, format)
            assert "\n" not in str(caught.value)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = samples.write(tmp_path, "philly")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        read_trace_file(path)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (b"\xff\xfe bytes", "text in UTF-8"),
        (b"2017-10-09 07:00:40,5,1\0,5,east", "there is a NUL byte"),
        (TOO_LONG.encode(), "at most 1,048,576 bytes"),
        (b"2017-10-09 07:00:40,5,1,5,ea\rst", "a row of cells"),
        (b'2017-10-09 07:00:40,5,1,5,"' + b"x" * 140_000 + b'"', "a row of cells"),
    ],
)
def test_a_line_that_is_no_text_is_one_bad_line_among_good_ones(bad: bytes, expected: str, tmp_path: Path) -> None:
    header, first, second = samples.PHILLY.encode().splitlines()[:3]
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\n".join([header, first, bad, second, second.replace(b"8", b"0.5")]))
    trace = read_trace_skipping_bad(path, "philly")
    assert len(trace) == 2
    assert [problem.line for problem in trace.skipped] == [3, 5]
    assert expected in str(trace.skipped[0])
    with pytest.raises(InputError, match=r"jobs\.csv:3: expected"):
        read_trace_file(path, "philly")


@pytest.mark.parametrize("ending", ["", "\n"])
def test_lines_are_counted_right_over_the_blocks_of_a_long_file(ending: str, tmp_path: Path) -> None:
    good = "2017-10-09 07:00:30,60.0,1,60.0," + "ü" * 300
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster", *[good] * 2_000]
    lines[1_500] = TOO_LONG
    lines[1_999] = good.replace("60.0", "x", 1)
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(lines) + ending, encoding="utf-8")
    trace = read_trace_skipping_bad(path)
    assert len(trace) == 1_998
    assert [problem.line for problem in trace.skipped] == [1_501, 2_000]
    assert trace.jobs[-1].name == "job-1999"


def test_a_quote_without_an_end_says_how_far_it_reached(tmp_path: Path) -> None:
    text = samples.PHILLY.replace("60.0,east", '60.0,"east') + "2017-10-09 07:00:40,5,1,5,east\n"
    path = samples.write(tmp_path, "philly", text)
    with pytest.raises(InputError, match=r"jobs\.csv:2: expected a row of cells up to line 5"):
        read_trace_file(path)
    assert len(read_trace_skipping_bad(path)) == 0


@pytest.mark.parametrize("name", list(BUILT_IN))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_scribbled_into_a_file_there_is_no_traceback(name: str, data: st.DataObject, tmp_path: Path) -> None:
    path = samples.write(tmp_path, name)
    targets = [path, tmp_path / "pai_task_table.csv"] if name == "pai" else [path]
    for target in targets:
        contents = bytearray(target.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(contents)))
            scribble = data.draw(st.sampled_from(SCRIBBLES) | st.binary(max_size=4))
            contents[at : at + data.draw(st.integers(0, 6))] = scribble
        target.write_bytes(contents)
    for format in (name, None):
        told: list[InputError] = []
        try:
            trace = read_trace_skipping_bad(path, format)
        except InputError as problem:
            told.append(problem)
        else:
            told.extend(trace.skipped)
            assert all(math.isfinite(job.steps) and job.submitted_s >= 0 for job in trace.jobs)
        assert all("\n" not in str(problem) for problem in told)


def test_pai_wants_both_tables(tmp_path: Path) -> None:
    path = samples.write(tmp_path, "pai")
    (tmp_path / "pai_task_table.csv").unlink()
    with pytest.raises(InputError, match=r"pai_task_table\.csv: expected this file in the same folder"):
        read_trace_file(path)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    path.write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(InputError, match="a Parquet file that can be read") as caught:
        read_trace_file(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "field"),
    [
        ("steps", [1.0, float("nan")], "steps"),
        ("steps", ["1", "x"], "steps"),
        ("workers", [1.0, 1.5], "workers"),
        ("workers", [True, True], "workers"),
        ("kind", [1, 2], "kind"),
        ("allowed_types", [["v100"], [""]], "allowed_types"),
        ("colour", ["red", "blue"], "colour"),
    ],
)
def test_a_parquet_table_with_wrong_values(column: str, value: list[object], field: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    pq.write_table(pa.table({"submitted_s": [0, 1], "steps": [1, 2], column: value}), path)
    with pytest.raises(InputError) as caught:
        read_trace_file(path)
    assert caught.value.field == field
