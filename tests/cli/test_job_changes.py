"""`fairlead hold`, `release`, `requeue` and `update` on a cluster of real processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cluster_up import cluster_up, until
from command import answer, fairlead

from foundry import SOURCE

pytestmark = pytest.mark.long

SCRIPT = """
import os, pathlib, sys, time, fairlead
sys.path.insert(0, {source!r})
for step in fairlead.lease(range(1_000_000), save=lambda folder: None):
    with open("steps-" + os.environ["JOB"], "a") as log:
        print(step, file=log, flush=True)
    if pathlib.Path("finish-" + os.environ["JOB"]).exists():
        break
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("changes")
    (place / "work.py").write_text(SCRIPT.format(source=SOURCE))
    with cluster_up(place, "--policy", "fifo", cluster="1xv100:1"):  # no preemption in between
        yield place


def submit(folder: Path, name: str) -> None:
    task = {"name": name, "run": [sys.executable, "work.py"], "env": {"JOB": name, "PYTHONPATH": SOURCE}}
    task["directory"] = str(folder)
    (folder / f"{name}.yaml").write_text(json.dumps(task))
    done = fairlead("submit", f"{name}.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr


def until_phase(folder: Path, name: str, phase: str) -> dict:
    def reached() -> dict | None:
        job = answer("info", name, cwd=folder)
        return job if job["phase"] == phase else None

    return until(reached, folder)


def steps(folder: Path, name: str) -> list[int]:
    path = folder / f"steps-{name}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def finish(folder: Path, name: str) -> None:
    (folder / f"finish-{name}").touch()
    until_phase(folder, name, "finished")


def test_a_held_job_starts_only_after_its_release(folder: Path) -> None:
    submit(folder, "blocker")
    until_phase(folder, "blocker", "running")
    submit(folder, "patient")
    done = fairlead("hold", "patient", cwd=folder)
    assert (done.returncode, done.stdout.strip()) == (0, "patient (number 1) is held")
    assert "Held by admin" in fairlead("why", "patient", cwd=folder).stdout
    refused = fairlead("hold", "blocker", cwd=folder)
    assert refused.returncode == 4
    assert "requeue --hold" in refused.stderr
    finish(folder, "blocker")
    submit(folder, "later")  # runs although it was submitted after the held job
    until_phase(folder, "later", "running")
    assert answer("info", "patient", cwd=folder)["held_by"] == "admin"
    finish(folder, "later")
    assert fairlead("release", "patient", cwd=folder).returncode == 0
    until_phase(folder, "patient", "running")
    assert fairlead("release", "patient", cwd=folder).returncode == 4
    finish(folder, "patient")


def test_a_requeued_job_checkpoints_and_resumes_and_a_finished_one_begins_again(folder: Path) -> None:
    submit(folder, "moved")
    until(lambda: len(steps(folder, "moved")) > 5, folder)
    assert fairlead("requeue", "--hold", "moved", cwd=folder).returncode == 0
    held = until_phase(folder, "moved", "queued")
    assert held["held_by"] == "admin"
    assert fairlead("requeue", "moved", cwd=folder).returncode == 4  # it waits already
    before = answer("info", "moved", cwd=folder)
    assert fairlead("release", "moved", cwd=folder).returncode == 0
    until(lambda: answer("info", "moved", cwd=folder)["starts"] == before["starts"] + 1, folder)
    finish(folder, "moved")
    done = steps(folder, "moved")
    assert done == sorted(set(done)), "every step once: it resumed from its checkpoint"
    (folder / "finish-moved").unlink()
    assert fairlead("requeue", "moved", cwd=folder).returncode == 0
    until(lambda: steps(folder, "moved")[len(done) :], folder)
    assert steps(folder, "moved")[len(done)] == 0
    assert fairlead("cancel", "moved", cwd=folder).returncode == 0
    until_phase(folder, "moved", "cancelled")


def test_an_update_changes_a_running_job_and_its_time_limit_is_kept(folder: Path) -> None:
    submit(folder, "limited")
    until_phase(folder, "limited", "running")
    done = fairlead("update", "limited", "--priority", 5, "--weight", 2, "--account", "lab", "--name", "renamed", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    job = answer("info", "renamed", cwd=folder)
    assert (job["priority"], job["weight"], job["account"]) == (5, 2.0, "lab")
    assert fairlead("info", "limited", cwd=folder).returncode == 3
    assert fairlead("update", "renamed", "--time", "soon", cwd=folder).returncode == 2
    assert fairlead("update", "renamed", cwd=folder).returncode == 2
    assert fairlead("update", "renamed", "--time", "0.2s", cwd=folder).returncode == 0
    failed = until_phase(folder, "renamed", "failed")
    assert "time limit" in failed["reason"]["text"]
    assert fairlead("update", "renamed", "--time", "2h", cwd=folder).returncode == 4


def test_info_shows_the_task_the_times_and_the_result_in_groups(folder: Path) -> None:
    submit(folder, "seen")
    until(lambda: len(steps(folder, "seen")) > 2, folder)
    job = answer("info", "seen", cwd=folder)
    assert (job["command"], job["directory"], job["gpus"]) == ([sys.executable, "work.py"], str(folder), {"v100-0": [0]})
    assert job["environment"] == ["JOB", "PYTHONPATH"]
    assert job["checkpoint"].endswith(f"/{job['number']}")
    assert job["outputs"] == []
    assert job["submitted_at"] <= job["started_at"]
    shown = fairlead("info", "seen", cwd=folder).stdout
    assert SOURCE not in shown, "names of variables, not their values"
    groups = [line for line in shown.splitlines() if line and not line.startswith(" ")]
    assert groups == ["Job", "Task", "Resources", "Time", "Progress", "Scheduling"]
    assert "  nodes             v100-0: GPU 0" in shown
    finish(folder, "seen")
    job = answer("info", "seen", cwd=folder)
    assert (job["exit_code"], job["last_node"]) == (0, "v100-0")


def test_a_node_is_drained_and_used_again_by_pattern(folder: Path) -> None:
    assert fairlead("drain", "v100-*", cwd=folder).returncode == 0
    assert [node["drained"] for node in answer("nodes", "v100-0", cwd=folder)["nodes"]] == [True]
    assert "v100-0 accepts jobs again" in fairlead("undrain", "v100-0", cwd=folder).stdout
    assert [node["drained"] for node in answer("nodes", cwd=folder)["nodes"]] == [False]
    for command in ("nodes", "drain", "undrain"):
        assert fairlead(command, "nowhere", cwd=folder).returncode == 3


def test_history_and_usage_account_for_what_ran(folder: Path) -> None:
    submit(folder, "counted")
    until(lambda: len(steps(folder, "counted")) > 2, folder)
    finish(folder, "counted")
    (job,) = [job for job in answer("history", "--since", "1h", cwd=folder)["jobs"] if job["name"] == "counted"]
    assert (job["state"], job["exit_code"], job["gpus"]) == ("finished", 0, 1)
    assert job["submitted_at"] <= job["started_at"] < job["ended_at"]
    assert 3600 * job["gpu_hours"] == pytest.approx(job["ran_s"])
    heading, *rows = fairlead("history", "--csv", "--state", "finished", cwd=folder).stdout.splitlines()
    assert heading.startswith("number,name,user,account,state,exit_code")
    fields = next(row.split(",") for row in rows if ",counted," in row)
    assert datetime.fromisoformat(fields[6]).timestamp() == pytest.approx(job["submitted_at"], abs=1e-3)
    assert (datetime.fromisoformat(fields[6]).tzinfo is not None, float(fields[-2])) == (True, round(job["gpu_hours"], 6))
    assert "counted" in fairlead("history", cwd=folder).stdout
    submit(folder, "more")
    finish(folder, "more")
    ended = len(answer("history", cwd=folder)["jobs"])
    for limit, shown in (("1", 1), ("0", ended)):
        done = fairlead("history", "--csv", "--limit", limit, cwd=folder)
        assert len(done.stdout.splitlines()) == 1 + shown
        assert (f"the last 1 of {ended} jobs; --limit 0 shows all" in done.stderr) == (limit == "1")
    (row,) = [
        row for row in answer("usage", "--since", "1h", "--by", "job,gpu-type", cwd=folder)["usage"] if row["job"] == "counted"
    ]
    assert (row["gpu-type"], row["gpu_hours"]) == ("v100", pytest.approx(job["gpu_hours"]))
    total = sum(row["gpu_hours"] for row in answer("usage", "--by", "user,day", cwd=folder)["usage"])
    assert total == pytest.approx(sum(row["gpu_hours"] for row in answer("usage", cwd=folder)["usage"]))
    assert fairlead("usage", "--by", "colour", cwd=folder).returncode == 2
    assert fairlead("history", "--since", "soonish", cwd=folder).returncode == 2
