"""Tables with column names of their own: --columns, and the proposal of it in errors."""

from __future__ import annotations

import json
from datetime import datetime

import pyarrow
import pyarrow.parquet
import pytest

import fairlead
from cli.command import answer
from cli.command import fairlead as command
from fairlead.core.errors import InputError
from fairlead.workloads.formats.own_columns import parse_columns

TABLE = "job,submit,runtime,gpus,state\na,0,600,2,ok\nb,60,1200,1,gone\n"
COLUMNS = {"job": "name", "submit": "submitted_s", "runtime": "duration_s", "gpus": "workers"}
WORDS = "job=name,submit=submitted_s,runtime=duration_s,gpus=workers"
NATIVE = {"name": ["a", "b"], "submitted_s": [0.0, 60.0], "duration_s": [600.0, 1200.0], "workers": [2, 1]}


def test_own_names_of_columns_are_mapped_and_other_columns_are_not_read(tmp_path):
    (tmp_path / "own.csv").write_text(TABLE)
    table = pyarrow.table({own: NATIVE[column] for own, column in COLUMNS.items()} | {"state": ["ok", "gone"]})
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    wanted = fairlead.simulate(pyarrow.table(NATIVE), "4xv100:4", "las").summary["average_jct_s"]
    for trace in (tmp_path / "own.csv", tmp_path / "own.parquet", table):
        assert fairlead.simulate(trace, "4xv100:4", "las", columns=COLUMNS).summary["average_jct_s"] == wanted
        result = fairlead.compare(trace, "4xv100:4", ["las"], columns=COLUMNS, processes=1)
        assert result.rows[0]["average_jct_s"] == wanted
    assert [job.name for job in fairlead.read_trace(tmp_path / "own.csv", columns=COLUMNS).jobs] == ["a", "b"]


def test_calendar_times_of_submission_count_from_the_earliest(tmp_path):
    times = ["2026-03-01T10:00:00+01:00", "2026-03-01 09:01:00"]
    path = tmp_path / "own.csv"
    path.write_text("submit,runtime\n" + "".join(f"{time},600\n" for time in times))
    columns = {"submit": "submitted_s", "runtime": "duration_s"}
    assert [job.submitted_s for job in fairlead.read_trace(path, columns=columns).jobs] == [0.0, 60.0]
    table = pyarrow.table({"submit": [datetime(2026, 3, 1, 9), datetime(2026, 3, 1, 9, 1)], "runtime": [600.0, 600.0]})
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    assert [job.submitted_s for job in fairlead.read_trace(tmp_path / "own.parquet", columns=columns).jobs] == [0.0, 60.0]
    path.write_text("submit,runtime\n2026-13-01,600\n")
    with pytest.raises(InputError, match=r"own\.csv:2: field 'submitted_s' is '2026-13-01': expected a time such as"):
        fairlead.read_trace(path, columns=columns)


def test_commands_take_columns_and_an_error_proposes_them(tmp_path):
    (tmp_path / "own.csv").write_text(TABLE)
    given = ("--trace", "own.csv", "--columns", WORDS, "--cluster", "4xv100:4")
    assert answer("simulate", "--policy", "las", *given, cwd=tmp_path)["finished"] == 2
    assert len(answer("compare", "--policies", "las,fifo", *given, cwd=tmp_path)["cases"]) == 2
    assert answer("trace", "check", "own.csv", "--columns", WORDS, cwd=tmp_path)["jobs"] == 2
    (tmp_path / "more.csv").write_text("submit,runtime,mood,queue,gpus\n0,60,good,a,1\n")
    more = ("trace", "check", "more.csv", "--columns", "submit=submitted_s,runtime=duration_s,gpus=workers")
    assert answer(*more, cwd=tmp_path)["unread_columns"] == ["mood", "queue"]
    assert command(*more, cwd=tmp_path).stdout.splitlines()[0] == "columns that are not read: mood, queue"
    assert answer("trace", "convert", "own.csv", "--columns", WORDS, "-o", "native.csv", cwd=tmp_path)["jobs"] == 2
    assert (tmp_path / "native.csv").read_text().startswith("name,submitted_s,duration_s,workers\na,0")
    told = command("trace", "check", "own.csv", cwd=tmp_path)
    assert (told.returncode, "try --columns submit=submitted_s,runtime=duration_s,gpus=workers,job=name" in told.stderr) == (
        2,
        True,
    )
    (tmp_path / "half.csv").write_text("name,submitted_s,duration_s,gpus\na,0,60,1\n")
    assert "try --columns gpus=workers" in command("simulate", "--policy", "las", "--trace", "half.csv", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("submit=submited_s", "did you mean 'submitted_s'"),
        ("when=submitted_s", "the header has job, submit, runtime, gpus, state"),
        ("submit=submitted_s,runtime=submitted_s", "one column for each native column"),
        ("submit=submitted_s", "a column steps or duration_s"),
    ],
)
def test_a_wrong_mapping_is_told(tmp_path, words, said):
    (tmp_path / "own.csv").write_text(TABLE)
    with pytest.raises(InputError, match=said):
        fairlead.read_trace(tmp_path / "own.csv", columns=parse_columns(words))


@pytest.mark.parametrize("text", ["", "submit", "=workers", "a=b,a=c"])
def test_a_mapping_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="--columns"):
        parse_columns(text)


def test_equal_errors_are_told_once_with_their_lines(tmp_path):
    rows = "".join(f"j{n},{n},,1\n" for n in range(300))
    (tmp_path / "many.csv").write_text(f"name,submitted_s,duration_s,workers\n{rows}z,-1,5,1\n")
    told = command("trace", "check", "many.csv", cwd=tmp_path)
    assert told.returncode == 1
    first, other, last = told.stdout.splitlines()
    assert first.startswith("many.csv:2: field 'steps'")
    assert first.endswith("(300 lines: 2, 3, 4, 5, 6, …)")
    assert other.startswith("many.csv:302: field 'submitted_s'")
    assert last == "many.csv: 0 jobs; lines skipped: 301"
    assert len(json.loads(command("trace", "check", "many.csv", "--json", cwd=tmp_path).stdout)["problems"]) == 301


def test_own_columns_may_hold_unix_times(tmp_path):
    (tmp_path / "own.csv").write_text(TABLE.replace("a,0", "a,1700000300").replace("b,60", "b,1700000000"))
    run = fairlead.simulate(tmp_path / "own.csv", "4xv100:4", "las", columns=COLUMNS)
    assert dict(zip(run.jobs["name"].to_pylist(), run.jobs["submitted_s"].to_pylist())) == {"a": 300.0, "b": 0.0}
