"""`fairlead up` with a scheduler that lets jobs share accelerators: what it is told of jobs beforehand, and what people see."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from pathlib import Path

import command
import httpx
import pytest
from cluster_up import LOG, cluster_up, until

from fairlead.journal.recovery import read_journal

pytestmark = pytest.mark.long

SILENT = "no job is predicted, so no job shares a GPU before an agent has measured its job type through NVML"


def test_a_scheduler_that_shares_by_predictions_says_that_it_has_none(tmp_path):
    with cluster_up(tmp_path, "--preset", "horus", cluster="1xv100:1"):
        until(lambda: "node joined" in (tmp_path / LOG).read_text(), tmp_path)
    said = (tmp_path / LOG).read_text()
    assert said.count(f"horus(rounds=1): {SILENT}") == 1
    assert "--estimator 'monitored:usage=" in said


def test_what_jobs_take_can_be_told_beforehand_and_then_they_share(tmp_path):
    answer, fairlead = (functools.partial(ask, cwd=tmp_path) for ask in (command.answer, command.fairlead))
    uses = "monitored:usage={sleep: [25, 2]}"
    with cluster_up(tmp_path, "--preset", "horus", "--estimator", uses, cluster="1xv100:1"):
        for name in ("one", "two"):
            assert fairlead("submit", "--name", name, "--", "sleep", "1000").returncode == 0

        def phases() -> Counter[str]:
            return Counter(job["phase"] for job in answer("queue")["jobs"])

        until(lambda: phases() == {"running": 2}, tmp_path)
    assert SILENT not in (tmp_path / LOG).read_text()


def test_an_estimation_for_simulations_is_refused_with_the_one_that_is_meant(tmp_path):
    done = command.fairlead("up", "--preset", "horus", "--estimator", "predicted:usage={sleep: [25, 2]}", cwd=tmp_path)
    assert done.returncode == 2
    assert "an estimator without a throughput table, because a real cluster has none: monitored" in done.stderr


SLOWED = """
import sys, time
from pathlib import Path
import fairlead

mine, other = (Path(sys.argv[1], name) for name in sys.argv[2:])
for step in fairlead.lease(range(100_000), save=lambda folder: None, every_steps=5):
    mine.write_text(str(time.time()))  # it runs
    shared = other.exists() and time.time() - float(other.read_text() or 0) < 1.0
    time.sleep(0.3 if shared else 0.05)
"""


def test_a_job_slower_than_its_max_slowdown_is_shown_counted_and_separated(tmp_path):
    """The two jobs make each other six times slower; the policy itself does not look at slowdowns."""
    answer, fairlead = (functools.partial(ask, cwd=tmp_path) for ask in (command.answer, command.fairlead))
    (tmp_path / "slowed.py").write_text(SLOWED)
    uses = "monitored:usage={careful: [25, 2], noisy: [25, 2]}"

    def submit(name: str, other: str, *words: str) -> None:
        run = (sys.executable, "slowed.py", str(tmp_path), f"{name}.runs", f"{other}.runs")
        sent = fairlead("submit", "--name", name, "--kind", name, "--steps", "100000", *words, "--code", ".", "--", *run)
        assert sent.returncode == 0, sent.stderr

    with cluster_up(tmp_path, "--policy", "opportunistic-packing", "--estimator", uses, cluster="1xv100:1"):
        submit("careful", "noisy", "--max-slowdown", "2")
        until(lambda: any(rate["kind"] == "careful" for rate in asked(tmp_path, "/v1/rates").json()["rates"]), tmp_path)
        submit("noisy", "careful")
        seen = until(lambda: answer("why", "careful").get("separations"), tmp_path)
        assert seen["count"] == 1
        assert seen["last_took_s"] > 0
        until(lambda: answer("why", "noisy")["phase"] == "waiting", tmp_path)
        assert answer("info", "careful")["phase"] == "running"
        said = (tmp_path / LOG).read_text()
        assert "job slower than its max_slowdown" in said
        metrics = asked(tmp_path, "/metrics").text
        assert "fairlead_slowdown_exceeded_total 1.0" in metrics
        assert "fairlead_slowdown_separation_seconds_count 1.0" in metrics
    events = [type(event).__name__ for event in read_journal(str(tmp_path / ".fairlead" / "journal.sqlite"))]
    assert "SlowdownExceeded" in events


def asked(folder: Path, path: str) -> httpx.Response:
    about = json.loads((folder / ".fairlead" / "connection.json").read_text())
    return httpx.get(about["url"] + path, headers={"Authorization": f"Bearer {about['token']}"})
