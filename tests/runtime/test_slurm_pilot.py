"""Pilots on a real Slurm cluster of 4 nodes with 4 GPUs each: jobs run there, save when an allocation ends, and resume."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cluster_at_work import wait_for
from pilot_at_work import PilotAtWork

from slurm_bed import SlurmBed

pytestmark = pytest.mark.long

POLICIES = ("las", "max-min-fairness-perf")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_dozen_ends_on_a_pilot_that_leaves_again(
    tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch, policy: str
):
    (tmp_path / "nodes").mkdir()
    with PilotAtWork(tmp_path, slurm, monkeypatch, policy=policy) as cluster:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "nodes"))
        pilot = cluster.up(4)
        cluster.until_joined(pilot, 4)
        assert len(list((tmp_path / "nodes").iterdir())) == 4
        assert cluster.status()[pilot].items() >= {"state": "RUNNING", "nodes": 4, "joined": 4}.items()
        secret = (tmp_path / "plane" / "agent.token").read_text()
        seen = slurm.run("scontrol", "show", "job", pilot) + slurm.run("scontrol", "write", "batch_script", pilot, "-")
        assert secret not in seen
        cluster.run_the_dozen()
        cluster.submit({"name": "says", "run": ["sh", "-c", "echo something"]})
        cluster.until_all_ended()
        assert cluster.command("down")["ended"] == [pilot]
        cluster.until_left()
        assert slurm.jobs()[pilot] == "COMPLETED"
        assert not list((tmp_path / "nodes").iterdir()), "agents delete their folders"
        wait_for(lambda: (tmp_path / "plane" / "logs").exists(), "the ends of logs are stored")
        assert cluster.ask("GET", "/v1/jobs/says/logs")["text"] == "something\n", "its node is gone"


def test_jobs_save_when_a_pilot_is_cancelled_and_resume_on_the_next(
    tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch
):
    with PilotAtWork(tmp_path, slurm, monkeypatch, policy="max-min-fairness") as cluster:
        pilot = cluster.up(2)
        cluster.until_joined(pilot, 2)
        names = cluster.counts(6)
        cluster.until_counting(names)
        slurm.run("scancel", pilot)
        cluster.until_left()
        jobs = cluster.jobs()
        assert {(jobs[name]["phase"], jobs[name]["failures"]) for name in names} == {("waiting", 0)}
        cluster.up(4)
        for name in names:
            cluster.hurry(name)
        cluster.until_all_ended()


def test_a_chain_resumes_jobs_before_the_time_of_a_pilot_is_over(
    tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch
):
    with PilotAtWork(tmp_path, slurm, monkeypatch, grace_s=5.0) as cluster:
        first = cluster.up(1, "--chain", 2, "--overlap", 0, time="2m")
        cluster.until_joined(first, 1)
        names = cluster.counts(4)
        cluster.until_counting(names)
        slurm.until("the first pilot ends by itself", lambda: slurm.jobs()[first] not in ("RUNNING", "COMPLETING"))
        assert slurm.jobs()[first] == "COMPLETED", "the agents left before the walltime"
        (second,) = (job for job, state in slurm.jobs().items() if int(job) > int(first))
        cluster.until_joined(second, 1)
        for name in names:
            cluster.hurry(name)
        cluster.until_all_ended()


def test_a_gang_on_a_pilot_and_at_home_resumes_at_home_before_its_time_is_over(
    tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch
):
    with PilotAtWork(tmp_path, slurm, monkeypatch, policy="fifo", machines="4xv100:2", grace_s=5.0) as cluster:
        cluster.until_up()
        cluster.end_agent("v100-1", signal.SIGTERM)
        pilot = cluster.up(1, gpus=2, time="2m")
        cluster.until_joined(pilot, 1)
        cluster.submit(cluster.job("gang", steps=2000, step_s=0.1, workers=4))
        wait_for(lambda: all(len(cluster.steps_of("gang", str(rank))) > 2 for rank in range(4)), "it runs", cluster._logs)
        assert {node in cluster.agents for node in cluster.jobs()["gang"]["nodes"]} == {True, False}, "one gang on both"
        cluster.start_agent("v100-1")
        slurm.until("the pilot ends by itself", lambda: slurm.jobs()[pilot] not in ("RUNNING", "COMPLETING"))
        assert slurm.jobs()[pilot] == "COMPLETED"
        jobs = cluster.until("it runs at home", lambda jobs: jobs["gang"]["starts"] == 2)
        assert (jobs["gang"]["failures"], set(jobs["gang"]["nodes"])) == (0, set(cluster.agents))
        cluster.hurry("gang")
        cluster.until_all_ended()


def test_a_missing_partition_is_refused_with_the_words_of_slurm(
    tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch
):
    with PilotAtWork(tmp_path, slurm, monkeypatch) as cluster, pytest.raises(AssertionError, match="invalid partition"):
        cluster.up(1, "--partition", "nope")
