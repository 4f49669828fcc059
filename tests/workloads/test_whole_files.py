"""What is written is there whole, or what was there before still is."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError, JournalError
from fairlead.core.job import Job
from fairlead.files import atomic_write
from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.results import MEASURED
from fairlead.workloads.formats import write_trace
from fairlead.workloads.table_files import write_throughputs
from fairlead.workloads.throughput_tables import MeasuredTraining, colocation_table
from fairlead.workloads.trace import Trace

TABLE = colocation_table("gpu", [MeasuredTraining(f"kind {n}", 1.0, 50.0, 1.0) for n in range(40)], lambda one, other: 1.2)
TRACE = Trace.of([Job(f"job {n}", 0.0, 60.0) for n in range(400)])


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a disk that is nearly full: a part is written, and then no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    cached = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # of a module that is imported meanwhile, a part would be cached
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = cached


def test_modules_that_are_imported_meanwhile_leave_no_half_in_the_bytecode_cache(tmp_path: Path, monkeypatch):
    (tmp_path / "long_module_of_a_test.py").write_text("".join(f"name_{n} = {n}\n" for n in range(1000)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with files_of_at_most(1000):
        __import__("long_module_of_a_test")
    assert not list(tmp_path.rglob("*.pyc*"))
    assert not sys.dont_write_bytecode


WRITERS: dict[str, Callable[[Path], object]] = {
    "bytes": lambda path: atomic_write(path, bytes(4096)),
    "predictor.json": lambda path: shipped_predictor().save(path),
    "table.csv": lambda path: write_throughputs(TABLE, path),
    "table.parquet": lambda path: write_throughputs(TABLE, path),
    "trace.csv": lambda path: write_trace(TRACE, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_what_was_there_stays(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text("as it was")
    with files_of_at_most(1000), pytest.raises((OSError, InputError)) as told:
        WRITERS[name](path)
    assert "\n" not in str(told.value)
    assert path.read_text() == "as it was"
    assert [each.name for each in tmp_path.iterdir()] == [name]
    WRITERS[name](path)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("jobs", [5, 400], ids=["at its end", "half-way"])
def test_an_event_log_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, jobs: int):
    write_trace(Trace.of([Job(f"job {n}", 60.0 * n, 60.0) for n in range(jobs)]), tmp_path / "jobs.csv")
    asked = ["simulate", "--policy", "fifo", "--trace", str(tmp_path / "jobs.csv"), "--events", str(tmp_path / "log.jsonl")]
    with files_of_at_most(1000):
        done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, JournalError)
    assert "cannot write the journal: File too large" in str(done.exception)
    assert [each.name for each in tmp_path.iterdir()] == ["jobs.csv"]
    assert CliRunner().invoke(app, asked).exit_code == 0


def test_a_disk_without_any_room_is_told_before_the_work(tmp_path: Path):
    (tmp_path / "former.html").write_text("former")
    for report in (tmp_path / "former.html", tmp_path / "new" / "report.html"):
        with files_of_at_most(0):
            done = CliRunner().invoke(app, ["simulate", "--policy", "las", "--jobs", "3", "--report", str(report)])
        assert str(done.exception) == f"output '{report}': expected a writable path; {tmp_path}: File too large"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("former.html", "former")]


def test_a_reproduction_on_a_full_disk_keeps_no_half_of_a_case(tmp_path: Path):
    asked = ["reproduce", "horus", "--scale", "tiny", "--only", "slo", "--processes", "1", "--out", str(tmp_path / "out")]
    with files_of_at_most(1000):
        done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, OSError)
    assert str(done.exception.filename).startswith(str(tmp_path / "out" / "cases"))
    assert not list((tmp_path / "out" / "cases").iterdir())


def test_what_cannot_be_written_is_told_by_the_name_it_was_asked_for(tmp_path: Path):
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large") as told:
        atomic_write(tmp_path / "mine", bytes(4096))
    assert told.value.filename == str(tmp_path / "mine")
    with pytest.raises(FileNotFoundError) as told:
        atomic_write(tmp_path / "nowhere" / "mine", b"")
    assert told.value.filename == str(tmp_path / "nowhere" / "mine")


def test_a_link_leads_to_what_is_replaced_and_a_pipe_takes_it_as_it_comes(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=atomic_write, args=(tmp_path / "pipe", b"through"), daemon=True)
    writer.start()
    assert (tmp_path / "pipe").read_bytes() == b"through"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("which", ["--alone", "--pairs"])
def test_measurements_are_not_overwritten_by_the_table_that_is_made_of_them(tmp_path: Path, which: str):
    files = {"--alone": tmp_path / "alone.jsonl", "--pairs": tmp_path / "pairs.jsonl"}
    for path, shipped in zip(files.values(), ("h200", "h200_pairs")):
        path.write_bytes((MEASURED / f"{shipped}.jsonl").read_bytes())
    before = files[which].read_bytes()
    asked = [word for option, path in files.items() for word in (option, str(path))]
    done = CliRunner().invoke(app, ["profile", "table", *asked, "--out", str(files[which])])
    assert isinstance(done.exception, InputError)
    assert "a path that is not also another input or output" in str(done.exception)
    assert files[which].read_bytes() == before
