"""`fairlead up` with a scheduler that lets jobs share accelerators: what it is told of jobs beforehand, and what people see."""

from __future__ import annotations

import functools
from collections import Counter

import command
from cluster_up import LOG, cluster_up, until

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
