"""`fairlead demo`, once through: real jobs, the same ones simulated, a report; and `fairlead resimulate` on what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import answer, environment, fairlead

from fairlead.core.job import Phase
from fairlead.demo.story import Story
from fairlead.journal.jsonl import read_events

pytestmark = pytest.mark.long

PATIENCE_S = 180.0


def test_real_jobs_run_and_the_same_ones_are_simulated(tmp_path: Path) -> None:
    done = fairlead("demo", "--quick", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("is preempted", "resumes from step", "fails and will be retried", "is cancelled by", "a gang of 2"):
        assert said in done.stdout, done.stdout
    for said in (
        "trains with a batch size of 64",
        "recorded: las",
        "control: the same scheduler, simulated",
        "max-min-fairness-perf",
        "largest-first",
    ):
        assert said in done.stdout, done.stdout
    page = (tmp_path / "out" / "demo.html").read_text(encoding="utf-8")
    assert ('data-name="the real run, and other policies"' in page, 'data-name="seven schedulers"' in page) == (True, True)
    story = Story()
    for event in read_events(tmp_path / "out" / "demo.jsonl"):
        story.add(event)
    assert story.state is not None
    phases = {job.name: story.state.columns["phase"][number] for number, job in story.state.job_of.items()}
    assert phases.pop("endless") == int(Phase.CANCELLED)
    assert set(phases.values()) == {int(Phase.FINISHED)}

    again = answer("resimulate", "out/demo.jsonl", "--policies", "las,fifo", "--processes", "1", cwd=tmp_path)
    assert [run["scheduler"] for run in again["runs"]] == [
        "recorded: las",
        "control: the same scheduler, simulated",
        "las",
        "fifo",
    ]
    assert {(run["finished"], run["cancelled"]) for run in again["runs"]} == {(5, 1)}
    assert again["costs"]["launch_s"] > 0


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fairlead.cli.main", "demo", "--quick", "--out", "out"]
    around = environment() | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        while b"starts on" not in process.stdout.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert not list(tmp_path.glob("fairlead-demo-*"))
    until_gone(process.pid)


def until_gone(group: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("processes of the demo are still there")


def test_a_journal_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"e": "submitted"}) + "\n")
    for where in ("x.jsonl", "absent.jsonl", "absent.sqlite", "x.csv"):
        done = fairlead("resimulate", where, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
