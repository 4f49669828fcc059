"""What people are told of a job that fails, is tried again, and fails for good: while it waits, when it has ended, and after
the control plane was killed and has read its journal again."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from cluster_at_work import ClusterAtWork
from typer.testing import CliRunner

from fairlead.cli.main import app

pytestmark = pytest.mark.long

SAYS = "import sys; print('[/no/data]: it is not there', flush=True); sys.exit(3)"


def asked(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output or done.exception
    return done.stdout


def test_who_fails_is_told_of_with_its_status_and_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    round_s = 4.0  # between a failure and the next try there is time to look, also where all takes long
    with ClusterAtWork(tmp_path, "1xv100:1", "fifo", round_s=round_s) as cluster:
        monkeypatch.setenv("FAIRLEAD_URL", f"http://127.0.0.1:{cluster.http}")
        monkeypatch.setenv("FAIRLEAD_TOKEN", (tmp_path / "plane" / "admin.token").read_text())
        assert asked("queue") == "no jobs\n"
        told: list[dict[str, Any]] = []

        def retrying(jobs: dict[str, dict[str, Any]]) -> bool:
            told.append(jobs["fails"].get("reason", {}))
            return told[-1].get("code") == "retrying" and "in_s" in told[-1]["facts"]

        run = [sys.executable, "-c", SAYS]
        cluster.submit({"name": "fails", "run": run, "retries": 1, "directory": str(tmp_path)}, ends="failed")
        cluster.until("it is tried again", retrying)
        facts = told[-1]["facts"]
        assert (facts["status"], facts["next"], facts["attempts"]) == (3, 2, 2)
        assert 0 < facts["in_s"] <= 2 * round_s, "a decision that was being made just then does not know of it"
        assert told[-1]["text"].endswith(f"attempt 2 of 2 at the next decision, in {math.ceil(facts['in_s'])} s")
        job = cluster.until_all_ended()["fails"]
        expected = f"worker 0 ended with status 3 on {facts['node']}, in attempt 2 of 2"
        assert job["reason"]["text"] == expected
        lines = "  [/no/data]: it is not there\n"
        assert asked("why", "fails") == f"fails is failed: {expected}\n{lines}"
        cluster.kill_plane()
        cluster.start_plane()
        assert cluster.jobs()["fails"]["reason"] == job["reason"]
        cluster.until_connected()
        assert asked("why", "fails") == f"fails is failed: {expected}\n{lines}"
        known = orjson.loads(asked("info", "fails", "--json"))
        failure = {"why": "worker 0 ended with status 3", "status": 3, "node": facts["node"], "rank": 0, "launch": 2}
        assert known["last_failure"] == failure
        assert known["last_lines"] == [lines.strip()]
        assert expected in asked("info", "fails")
        listed = orjson.loads(asked("queue", "--all", "--json"))["jobs"]
        assert [one["reason"]["facts"]["status"] for one in listed] == [3]
        cluster.end_agent(facts["node"])
        assert asked("why", "fails").splitlines()[0] == f"fails is failed: {expected}", "its log is away, its reason is not"
