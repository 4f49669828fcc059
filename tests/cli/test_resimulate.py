"""`fairlead resimulate` on the journal of a real cluster whose scheduler was switched."""

from __future__ import annotations

import sys

import command
import pytest
from cluster_up import cluster_up, until

import fairlead


def test_a_recorded_run_with_a_switch_has_a_control(tmp_path):
    journal = tmp_path / ".fairlead" / "journal.sqlite"
    run = [sys.executable, "-m", "fairlead.demo.demo_job", "--steps", "20", "--step-s", "0.05"]
    with cluster_up(tmp_path, "--policy", "las", cluster="1xv100:1"):
        sent = command.fairlead("submit", "--array", "3", "--kind", "small", "--steps", "20", "--", *run, cwd=tmp_path)
        assert sent.returncode == 0, sent.stderr
        assert command.fairlead("scheduler", "set", "--policy", "srtf", cwd=tmp_path).returncode == 0
        until(lambda: not command.answer("queue", cwd=tmp_path)["jobs"], tmp_path)
    page = tmp_path / "again.html"
    given = ("--policies", "fifo", "--processes", "1", "--report", page)
    again = command.answer("resimulate", journal, *given, cwd=tmp_path)
    control = "control: the same schedulers, simulated"
    assert [row["scheduler"] for row in again["runs"]] == ["recorded: las, then srtf", control, "fifo"]
    assert {row["finished"] for row in again["runs"]} == {3}
    assert {"average_jct_s", "p99_jct_s", "makespan_s", "preemptions"} <= again["control"]["errors"].keys()
    printed = command.fairlead("resimulate", journal, "--policies", "fifo", "--processes", "1", cwd=tmp_path)
    assert "error of the control: avg JCT" in printed.stdout
    too_far = [name for name, error in again["control"]["errors"].items() if error is None or abs(error) > 0.1]
    assert bool(too_far) == (again["control"]["warning"] is not None) == ("warning: the control differs" in printed.stderr)
    assert "error of the control" in page.read_text(encoding="utf-8")


def test_an_error_above_ten_percent_is_named_everywhere(tmp_path):
    """The journal of a run under srtf that says that fifo decided: simulated under fifo, it comes out otherwise."""
    journal, page = tmp_path / "run.jsonl", tmp_path / "again.html"
    recorded = command.fairlead(
        "simulate", "--policy", "srtf", "--jobs", "60", "--load", "9", "--events", journal, cwd=tmp_path
    )
    assert recorded.returncode == 0, recorded.stderr
    first, rest = journal.read_text(encoding="utf-8").split("\n", 1)
    journal.write_text(first.replace('"policy":"srtf"', '"policy":"fifo"') + "\n" + rest, encoding="utf-8")
    given = ("resimulate", journal, "--policies", "las", "--processes", "1")
    printed = command.fairlead(*given, "--report", page, cwd=tmp_path)
    said = "the control differs from the recorded run by more than 10 %: first start +"
    assert f"warning: {said}" in printed.stderr
    warning = command.answer(*given, cwd=tmp_path)["control"]["warning"]
    assert warning.startswith(said)
    assert said in page.read_text(encoding="utf-8")
    with pytest.warns(UserWarning, match="the control differs from the recorded run by more than 10 %"):
        result = fairlead.resimulate(journal, ["las"], processes=1)
    assert result.control_errors["average_responsiveness_s"] > 0.1
