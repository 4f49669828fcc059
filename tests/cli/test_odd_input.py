"""Input that somebody tried once and that broke something: a line that says what is wrong, and nothing worse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import environment
from typer.testing import CliRunner

from fairlead.cli.main import app, run
from fairlead.cli.options import SchedulerOptions
from fairlead.config.schedulers import SchedulerConfig
from fairlead.config.yaml_source import parse_yaml
from fairlead.core.errors import FairleadError, InputError
from fairlead.runtime.http_client import ControlPlaneClient, Unreachable

BIG = "1" + 400 * "0"


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, FairleadError), (done.exception, done.output)
    return str(done.exception)


def test_a_number_beyond_all_numbers_is_no_number():
    with pytest.raises(InputError, match="seconds"):
        parse_yaml(f"rounds: {BIG}", "x").mapping()["rounds"].number("seconds")


def test_half_a_character_is_told_with_its_line():
    with pytest.raises(InputError, match="x:2"):
        parse_yaml('policy: las\nname: "\\ud800"', "x")


def test_too_many_seeds_are_refused():
    assert "seeds" in refused("compare", "--jobs", "5", "--seeds", "100000000000x")


@pytest.mark.parametrize(
    "admission", [f"user-job-quota:default={BIG}", f"job-resource-quota:limit={BIG}", "accept-up-to:factor=.inf"]
)
def test_limits_without_limit_are_refused(admission: str):
    assert "expected" in refused("simulate", "--policy", "las", "--jobs", "3", "--admission", admission)


def test_names_may_have_brackets_and_dollars(tmp_path: Path):
    (tmp_path / "odd.yaml").write_text('name: "[/red] $\\\\frac a$"\npolicy: las\n')
    asked = ["compare", "--config", "odd.yaml", "--policies", "fifo", "--jobs", "4", "--seeds", "2x", "--processes", "1"]
    done = CliRunner().invoke(app, [*asked[:2], str(tmp_path / "odd.yaml"), *asked[3:], "--png", str(tmp_path / "plots")])
    assert done.exit_code == 0, (done.exception, done.output)
    assert "frac a$" in done.stdout


@pytest.mark.parametrize("token", ["", "ü", "x\ny", "two words"])
def test_a_token_that_is_none_is_not_printed(token: str):
    with pytest.raises(Unreachable, match="expected a token") as told:
        ControlPlaneClient("http://127.0.0.1:1", token).scheduler()
    assert not token or token not in str(told.value)


def test_a_variant_of_a_preset_does_not_go_by_its_name():
    varied = SchedulerOptions(60.0, admission="accept-up-to:factor=1.2", placement="spread").apply(
        SchedulerConfig.preset("las")
    )
    assert varied.label == "las(placement=spread, admission=accept-up-to(factor=1.2), rounds=60)"
    assert SchedulerOptions().apply(SchedulerConfig.preset("las")).label == "las"


@pytest.mark.parametrize(
    "words",
    [
        ("reproduce", "blox", "--only", "table3", "--out"),
        ("compare", "--sweep", "sweep.yaml", "--out"),
        ("simulate", "--policy", "las", "--jobs", "3", "--png"),
        ("compare", "--policies", "las", "--jobs", "3", "--png"),
    ],
)
def test_a_folder_that_cannot_be_made_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text("schedulers: [las]\njobs: 3\n")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place in ("file", "file/below", "link", "link/below"):
        assert f"output '{place}': expected a writable path; " in refused(*words, place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "sweep.yaml"]


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--policy", "las", "--jobs", "3", "--report"),
        ("simulate", "--policy", "las", "--jobs", "3", "--out"),
        ("compare", "--policies", "las", "--jobs", "3", "--png"),
        ("trace", "generate", "--out"),
        ("trace", "convert", "absent.csv", "--out"),
        ("trace", "transform", "absent.csv", "--out"),
    ],
)
def test_a_folder_is_written_to_before_the_work(words):
    """By its rights alone, root may write everywhere."""
    assert refused(*words, "/proc/new/out").startswith("output '/proc/new/out': expected a writable path; /proc: ")


def test_links_in_a_circle_are_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for words in (("simulate", "--policy", "las", "--jobs", "3"), ("trace", "generate", "--jobs", "3")):
        assert "loop is a broken link" in refused(*words, "--out", "loop/below.csv")
    assert "Too many levels of symbolic links" in refused("simulate", "--policy", "las", "--trace", "loop")


@pytest.mark.parametrize("paper", ["gavel", "blox", "shockwave", "horus"])
@pytest.mark.parametrize("only", ["", ",", " , "])
def test_studies_of_no_name_are_told(tmp_path: Path, paper: str, only: str):
    told = refused("reproduce", paper, "--only", only, "--out", str(tmp_path / "out"))
    assert told == f"--only {only!r}: expected names of studies, separated by commas"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("paper", "lacks"),
    [("blox", "philly/philly.csv"), ("shockwave", "shockwave/tacc_throughputs.json")],
    ids=["blox", "shockwave"],
)
def test_a_folder_of_traces_that_has_none_is_told_what_it_lacks(paper: str, lacks: str, tmp_path: Path):
    told = refused("reproduce", paper, "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert told == f"--data {tmp_path}: expected a folder with {lacks} in it"


def test_an_array_without_end_is_told():
    told = refused("submit", "--array", "100000000", "--", "true")
    assert (
        told
        == "command line: field 'array' is '100000000': expected a number of jobs from 1 to 10,000, or indices such as 0-19"
    )


@pytest.mark.parametrize("option", ["--events", "--report"])
def test_a_file_below_a_file_is_told_before_the_work(tmp_path: Path, option: str):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "y")
    for place in ("file/x", "link", "link/x"):
        assert "a writable path" in refused("synthesize", "--jobs", "3", option, str(tmp_path / place))


def test_an_event_log_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "new" / "log.jsonl"
    asked = ["simulate", "--policy", "las", "--jobs", "5", "--events", str(log)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    before = log.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise FairleadError("half-way")

    monkeypatch.setattr("fairlead.cli.cmd_simulate.run_simulation", fail)
    assert refused(*asked) == "half-way"
    assert log.read_bytes() == before
    assert [path.name for path in log.parent.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize(
    ("words", "busy"),
    [
        (("simulate", "--policy", "las", "--jobs", "3"), "fairlead.cli.cmd_simulate.run_simulation"),
        (("compare", "--policies", "las", "--jobs", "3"), "fairlead.cli.cmd_compare.run_comparison"),
        (("trace", "stats", "jobs.csv"), "fairlead.cli.cmd_trace.TraceFile"),
    ],
)
def test_an_interrupt_is_one_line(words, busy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(busy, interrupt)
    monkeypatch.setattr("sys.argv", ["fairlead", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    assert (ended.value.code, capsys.readouterr().err) == (130, "fairlead: interrupted\n")


@pytest.mark.parametrize(
    ("words", "busy"),
    [
        (("reproduce", "horus", "--only", "table6", "--out", "out/mine"), "fairlead_papers.command.run_reproduction"),
        (("compare", "--sweep", "mine.yaml"), "fairlead.cli.cmd_compare.run_sweep"),
    ],
)
def test_an_interrupted_study_says_where_what_has_ended_is_kept(
    words, busy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("schedulers: [las]\n")
    monkeypatch.setattr(busy, interrupt)
    monkeypatch.setattr("sys.argv", ["fairlead", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    kept = "finished runs are kept in out/mine/cases; run the same command again to resume\n"
    assert (ended.value.code, capsys.readouterr().err) == (130, kept + "fairlead: interrupted\n")


def test_an_interrupted_synthesis_says_nothing_of_its_workers_and_leaves_no_half_a_log(tmp_path: Path):
    asked = ("synthesize", "--load", "40", "--jobs", "2000", "--cluster", "16xv100:4", "--processes", "2", "--no-alone")
    command = [sys.executable, "-m", "fairlead.cli.main", *asked, "--events", "log.jsonl"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 3:  # one looks after what they share
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, while they are still starting
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (130, b"fairlead: interrupted\n")
    assert not list(tmp_path.iterdir())
