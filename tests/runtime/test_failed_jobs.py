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


def between_tries(cluster: ClusterAtWork, name: str) -> dict[str, Any]:
    """The reason of a job that has failed and is about to be tried again; empty if it was not seen then."""
    run = [sys.executable, "-c", SAYS]
    cluster.submit({"name": name, "run": run, "retries": 1, "directory": str(cluster.root)}, ends="failed")
    reason: dict[str, Any] = {}

    def told(jobs: dict[str, dict[str, Any]]) -> bool:
        nonlocal reason
        reason = jobs[name].get("reason") or {}
        return jobs[name]["phase"] == "failed" or (reason.get("code") == "retrying" and "in_s" in reason["facts"])

    found = cluster.until("it is tried again", told)
    return {} if found[name]["phase"] == "failed" else reason


def test_who_fails_is_told_of_with_its_status_and_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    round_s = 4.0  # between a failure and the next try there is time to look
    with ClusterAtWork(tmp_path, "1xv100:1", "fifo", round_s=round_s) as cluster:
        monkeypatch.setenv("FAIRLEAD_URL", f"http://127.0.0.1:{cluster.http}")
        monkeypatch.setenv("FAIRLEAD_TOKEN", (tmp_path / "plane" / "admin.token").read_text())
        assert asked("queue") == "no jobs\n"
        for name in ("fails", "again", "once-more"):  # on a busy machine, the moment between two tries may be missed
            reason = between_tries(cluster, name)
            if reason:
                break
        facts = reason["facts"]
        assert (facts["status"], facts["next"], facts["attempts"]) == (3, 2, 2)
        assert 0 < facts["in_s"] <= 2 * round_s, "a decision that was being made just then does not know of it"
        assert reason["text"].endswith(f"attempt 2 of 2 at the next decision, in {math.ceil(facts['in_s'])} s")
        job = cluster.until_all_ended()[name]
        expected = f"worker 0 ended with status 3 on {facts['node']}, in attempt 2 of 2"
        assert job["reason"]["text"] == expected
        lines = "  [/no/data]: it is not there\n"
        assert asked("why", name) == f"{name} is failed: {expected}\n{lines}"
        cluster.kill_plane()
        cluster.start_plane()
        assert cluster.jobs()[name]["reason"] == job["reason"]
        cluster.until_connected()
        assert asked("why", name) == f"{name} is failed: {expected}\n{lines}"
        known = orjson.loads(asked("info", name, "--json"))
        failure = {"why": "worker 0 ended with status 3", "status": 3, "node": facts["node"], "rank": 0, "launch": 2}
        assert known["last_failure"] == failure
        assert known["last_lines"] == [lines.strip()]
        assert expected in asked("info", name)
        listed = orjson.loads(asked("queue", "--all", "--json"))["jobs"]
        assert {one["reason"]["facts"]["status"] for one in listed} == {3}
        cluster.end_agent(facts["node"])
        assert asked("why", name).splitlines()[0] == f"{name} is failed: {expected}", "its log is away, its reason is not"
