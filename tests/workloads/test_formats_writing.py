"""What is written is what is read, and nothing is written by halves."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trace_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InputError
from fairlead.core.job import Job, is_account
from fairlead.workloads.dynamics import LossCurve
from fairlead.workloads.formats import read_trace_file, write_trace
from fairlead.workloads.formats.native_trace import COLUMNS, MODES
from fairlead.workloads.trace import Trace

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NAME = TEXT.filter(bool)
TYPE = st.text(st.characters(codec="utf-8", exclude_characters="\0|"), min_size=1, max_size=6)
ABOVE_0 = st.floats(min_value=0, max_value=1e15, exclude_min=True, allow_nan=False)
FROM_0 = st.floats(min_value=0, max_value=1e11, allow_nan=False)
WHOLE = st.integers(-(2**53), 2**53)

PLANS = st.sampled_from([("expert", ()), ("expert", ((32, 0.3), (256, 0.7))), ("expert", ((8, 1 / 3), (1, 1 / 3), (8, 1 / 3)))])


def _job(how: tuple[str, Any], **said: Any) -> Job:
    return Job(mode=how[0], schedule=how[1], **said)


JOB = st.builds(
    _job,
    how=st.sampled_from(MODES).map(lambda mode: (mode, ())) | PLANS,
    name=NAME,
    submitted_s=FROM_0,
    steps=ABOVE_0,
    kind=st.sampled_from(["", "LM (batch size 5)", 'odd, "kind"\nof a name']),
    workers=st.integers(1, 1_000_000),
    weight=st.floats(min_value=1e-3, max_value=1e3),
    priority=WHOLE,
    user=TEXT,
    account=TEXT.filter(is_account),
    deadline_s=ABOVE_0 | st.just(math.inf),
    allowed_types=st.lists(TYPE, max_size=3).map(tuple),
    memory_gb=FROM_0,
    cpus=FROM_0,
    host_memory_gb=FROM_0,
    time_limit_s=ABOVE_0 | st.just(math.inf),
    retry_limit=st.integers(0, 2**53),
    min_run_s=FROM_0,
    group=TEXT,
    group_order=WHOLE,
    command=TEXT,
)
JOBS = st.lists(JOB, max_size=5, unique_by=lambda job: job.name)
PLAIN = st.lists(st.builds(Job, name=NAME, submitted_s=FROM_0, steps=ABOVE_0), max_size=5, unique_by=lambda job: job.name)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(jobs=JOBS | PLAIN, origin=st.none() | st.just("2017-09-04T10:30:41"))
def test_a_trace_comes_back_as_it_was(suffix: str, jobs: list[Job], origin: str | None, tmp_path: Path) -> None:
    trace = Trace.of(jobs, "jobs", origin=origin)
    path = tmp_path / f"jobs{suffix}"
    write_trace(trace, path)
    assert read_trace_file(path, "native") == trace
    assert read_trace_file(path) == trace
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [name for name in samples.FILES if name != "native"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_every_format_converts_to_the_native_one(name: str, suffix: str, tmp_path: Path) -> None:
    trace = read_trace_file(samples.write(tmp_path, name))
    path = tmp_path / f"converted.{suffix}"
    write_trace(trace, path)
    again = read_trace_file(path)
    assert again.jobs == trace.jobs
    assert again.origin == trace.origin


def test_only_columns_that_say_something_are_written(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    write_trace(Trace.of([Job("a", 0.0, 90.0), Job("b", 1.0, 90.0, user="ann")]), path)
    assert path.read_text() == "name,submitted_s,duration_s,workers,user\na,0.0,90.0,1,\nb,1.0,90.0,1,ann\n"
    write_trace(Trace.of([Job("a", 0.0, 90.0), Job("b", 1.0, 90.0, "LM (batch size 5)")]), path)
    assert path.read_text().splitlines()[0] == "name,submitted_s,steps,kind,workers"


def test_the_columns_are_the_fields_of_a_job() -> None:
    assert set(COLUMNS) == {field.name for field in fields(Job)} | {"duration_s", "loss_curve", "regimes"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_loss_curves_come_back_beside_the_jobs_and_no_job_has_one(suffix: str, tmp_path: Path) -> None:
    trace = Trace.of([Job("a", 0.0, 90.0), Job("b", 1.0, 90.0)], "jobs", losses={"b": LossCurve(1 / 3, 0.1, 2.5e-7)})
    path = tmp_path / f"jobs{suffix}"
    write_trace(trace, path)
    again = read_trace_file(path)
    assert again == trace
    assert not any("loss" in field.name for field in fields(Job))


@pytest.mark.parametrize("cell", ["1|2", "1|2|x", "1|2|0.5", "1|0|0.5", "2|1|0", "nan|1|1"])
def test_a_curve_that_no_loss_could_follow_is_a_bad_field(cell: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"submitted_s,duration_s,loss_curve\n0,10,{cell}\n")
    with pytest.raises(InputError, match=r"jobs\.csv:2: field 'loss_curve'"):
        read_trace_file(path, "native")


def test_parquet_keeps_numbers_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    write_trace(Trace.of([Job("a", 0.5, 90.0, workers=2, priority=3)]), path)
    schema = pq.read_schema(path)
    assert [str(schema.field(name).type) for name in ("name", "submitted_s", "workers", "priority")] == [
        "string",
        "double",
        "int64",
        "int64",
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mode": ""}, "mode"),
        ({"mode": "banana"}, "mode"),
        ({"name": ""}, "name"),
        ({"name": "nul\0"}, "name"),
        ({"user": "\ud800"}, "user"),
        ({"command": "x" * 40_000}, "command"),
        ({"allowed_types": ("v|100",)}, "allowed_types"),
        ({"allowed_types": ("v100", "")}, "allowed_types"),
        ({"workers": 2_000_000}, "workers"),
        ({"priority": 2**60}, "priority"),
        ({"steps": math.nan}, "duration_s"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"name": "other"}, "name"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_would_not_come_back_is_refused(change: dict[str, Any], field: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"jobs.{suffix}"
    path.write_text("as before")
    trace = Trace.of([Job("other"), replace(Job("a"), **change)])
    with pytest.raises(InputError) as caught:
        write_trace(trace, path)
    assert (caught.value.line, caught.value.field) == (2, field)
    assert path.read_text() == "as before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_suffix_says_how_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in .csv or .parquet"):
        write_trace(Trace.of([Job("a")]), tmp_path / "jobs.xlsx")


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a writable path"):
        write_trace(Trace.of([Job("a")]), tmp_path / "nowhere" / "jobs.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="a writable path"):
        write_trace(Trace.of([Job("a")]), tmp_path / "folder.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_an_origin_that_is_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="field 'origin'"):
        write_trace(Trace.of([Job("a")], origin="long ago"), tmp_path / "jobs.csv")
