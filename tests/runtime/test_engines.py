"""A control plane on an engine that starts the agent of every launch: plain processes here, and everything else as it is."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import ClusterAtWork, wait_for

from fairlead.config.schedulers import parse_part
from fairlead.core.cluster import Cluster, Node
from foundry import ends, foundry

pytestmark = pytest.mark.long


@contextmanager
def on_engine(root: Path, machines: int = 2, gone: str = "", **about: Any) -> Iterator[tuple[ClusterAtWork, Path]]:
    folder = root / "engine"
    folder.mkdir()
    (folder / "gone").write_text(gone)
    options = {"lease_s": 90.0, "grace_s": 6.0, "round_s": 0.5, **about}
    engine = f"processes:folder={folder},machines={machines}"
    try:
        with ClusterAtWork(root, machines="", engine=engine, **options) as cluster:
            there = machines - len(gone.split())
            wait_for(lambda: len(cluster.nodes()) == there and all(n["up"] for n in cluster.nodes().values()), "nodes")
            yield cluster, folder
    finally:
        for path in folder.glob("tasks/*/pid"):
            if not (path.parent / "code").exists():
                try:
                    os.kill(int(path.read_text()), signal.SIGKILL)
                except (ProcessLookupError, ValueError):
                    continue


def test_jobs_gangs_and_failures_end_as_they_should(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, folder):
        cluster.submit(cluster.job("one", steps=20), cluster.job("gang", steps=20, workers=4))
        cluster.submit(cluster.job("fails", steps=5, fails_at=2, retries=0), ends="failed")
        jobs = cluster.until_all_ended()
        assert jobs["gang"]["starts"] == 1
    assert not list((tmp_path / "plane").glob("**/twice"))
    logs = [path.read_text() for path in folder.glob("tasks/*/log")]
    assert len(logs) == 4, "one for each machine of each launch"


def test_what_the_engine_starts_twice_runs_once(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, folder):
        (folder / "twice").touch()
        cluster.submit(*(cluster.job(f"one-{n}", steps=10) for n in range(3)))
        cluster.until_all_ended()
        codes = ("tasks/*/code", "tasks/*/copy1/code")
        wait_for(lambda: all(len(list(folder.glob(code))) == 3 for code in codes), "both copies of each end")
    for path in folder.glob("tasks/*"):
        copies = (path, path / "copy1")
        assert [(copy / "code").read_text().strip() for copy in copies] == ["0", "0"]
        assert sum("is not started here" in (copy / "log").read_text() for copy in copies) == 1


def test_running_launches_are_adopted_after_kill_9(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, _):
        cluster.submit(cluster.job("one", steps=200, step_s=0.1), cluster.job("gang", steps=200, step_s=0.1, workers=3))
        cluster.until("both run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        cluster.kill_plane()
        cluster.start_plane()
        for name in ("one", "gang"):
            cluster.hurry(name)
        jobs = cluster.until_all_ended()
        assert {name: job["starts"] for name, job in jobs.items()} == {"one": 1, "gang": 1}


def test_an_engine_that_is_away_touches_no_running_job(tmp_path: Path) -> None:
    with on_engine(tmp_path, lease_s=14.0, grace_s=1.0) as (cluster, folder):
        cluster.submit(cluster.job("runs", steps=400, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["runs"]["steps_done"] > 2)
        (folder / "away").touch()
        cluster.submit(cluster.job("waits", steps=5))
        cluster.until("longer than a lease and a grace", lambda jobs: jobs["runs"]["steps_done"] > 170)
        assert cluster.jobs()["waits"]["steps_done"] == 0
        (folder / "away").unlink()
        cluster.until("the order is carried out", lambda jobs: jobs["waits"]["phase"] == "finished")
        cluster.hurry("runs")
        assert cluster.until_all_ended()["runs"]["starts"] == 1
    assert "is unavailable: processes: connection refused" in (tmp_path / "plane.log").read_text()


def test_a_cordoned_machine_is_drained_and_one_that_is_gone_is_removed(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, folder):
        cluster.submit(cluster.job("moves", steps=600, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["moves"]["steps_done"] > 2)
        here = next(name for name, node in cluster.nodes().items() if node["jobs"])
        (folder / "cordoned").write_text(here)
        cluster.until("it has moved", lambda jobs: jobs["moves"]["starts"] == 2 and jobs["moves"]["steps_done"] > 2)
        assert cluster.nodes()[here]["drained"]
        (folder / "cordoned").unlink()
        wait_for(lambda: not cluster.nodes()[here]["drained"], "the drain ends")
        (folder / "gone").write_text(here)
        wait_for(lambda: here not in cluster.nodes(), "the node is removed")
        cluster.hurry("moves")


def test_a_launch_that_is_deleted_in_the_engine_before_its_agent_connects_is_started_again(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, folder):
        (folder / "stuck").touch()
        cluster.submit(cluster.job("deleted", steps=5))
        wait_for(lambda: bool(list(folder.glob("tasks/*/spawned"))), "it is in the engine's queue")
        (folder / "stuck").unlink()
        (place,) = folder.glob("tasks/*")
        shutil.rmtree(place)
        job = cluster.until_all_ended()["deleted"]
        assert (job["starts"], job["failures"]) == (1, 0)


def test_an_engine_and_home_agents_run_jobs_of_one_control_plane(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, folder):
        cluster.cluster = Cluster((*Cluster.parse("2xk80:2").nodes, Node("m0", "v100", 2)))
        cluster.start_agent("m0")
        assert ends(cluster.agents["m0"], 120.0)
        assert foundry().status(cluster.agents.pop("m0")) != 0
        assert "'m0' is a machine of processes, which starts its agents" in (tmp_path / "m0.log").read_text()
        cluster.start_agent("k80-0")
        wait_for(lambda: len(cluster.nodes()) == 3 and cluster.nodes()["k80-0"]["up"], "the agent joins")
        names = ("engine", "home", "either")
        types = {"engine": ["v100"], "home": ["k80"], "either": ["k80", "v100"]}
        cluster.submit(*(cluster.job(name, steps=400, step_s=0.1, types=types[name]) for name in names))
        cluster.until("all run", lambda jobs: all(job["steps_done"] > 2 for job in jobs.values()))
        here = next(name for name, node in cluster.nodes().items() if "engine" in node["jobs"])
        (folder / "cordoned").write_text(here)
        cluster.until("it has moved", lambda jobs: jobs["engine"]["starts"] == 2 and jobs["engine"]["steps_done"] > 2)
        (folder / "gone").write_text(here)
        wait_for(lambda: here not in cluster.nodes(), "the engine's node is removed")
        cluster.end_agent("k80-0", signal.SIGTERM)
        wait_for(lambda: not cluster.nodes()["k80-0"]["up"], "the agent has left")
        for name in names:
            cluster.hurry(name)
        cluster.until("others go on", lambda jobs: all(jobs[name]["phase"] == "finished" for name in ("engine", "either")))
        assert cluster.jobs()["home"]["phase"] == "waiting"
        cluster.start_agent("k80-0")
        assert all(job["failures"] == 0 for job in cluster.until_all_ended().values())


def test_an_engine_that_refuses_a_job_is_quoted_to_its_user(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, folder):
        (folder / "wrong").touch()
        cluster.submit(cluster.job("refused", steps=5), ends="failed")
        job = cluster.until_all_ended()["refused"]
        assert "no such queue: ask your operator" in str(job)


SHARING = ("max-min-fairness-perf:space_sharing=true", "horus", "gandiva-packing", "opportunistic-packing")


@pytest.mark.parametrize("policy", SHARING)
def test_a_policy_that_shares_is_refused_on_an_engine_that_cannot(tmp_path: Path, policy: str) -> None:
    serve = ["serve", "--root", tmp_path, "--engine", f"slurm:log_folder={tmp_path}", "--agents", "127.0.0.1:0"]
    done = foundry().run(*serve, "--policy", policy, "--http", "127.0.0.1:0")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"fairlead: error: {policy.partition(':')[0]} lets jobs share GPUs, and slurm cannot: choose another"
    )


def test_a_switch_to_a_policy_that_shares_is_refused_and_jobs_keep_running(tmp_path: Path) -> None:
    with on_engine(tmp_path) as (cluster, _):
        cluster.submit(cluster.job("runs", steps=300, step_s=0.1))
        cluster.until("it runs", lambda jobs: jobs["runs"]["steps_done"] > 2)
        before = cluster.ask("GET", "/v1/scheduler")["scheduler"]
        for policy in SHARING:
            with pytest.raises(AssertionError, match="lets jobs share GPUs, and processes cannot"):
                cluster.ask("POST", "/v1/scheduler", {"scheduler": {**before, "policy": parse_part(policy).to_data()}})
        cluster.kill_plane()
        cluster.start_plane()
        cluster.hurry("runs")
        assert cluster.until_all_ended()["runs"]["starts"] == 1
        assert cluster.ask("GET", "/v1/scheduler")["scheduler"] == before


@pytest.mark.parametrize("policy", ["las", "max-min-fairness"])
def test_a_preempted_job_saves_and_resumes_on_the_engine(tmp_path: Path, policy: str) -> None:
    with on_engine(tmp_path, machines=1, policy=policy) as (cluster, _):
        cluster.submit(*(cluster.job(f"turn-{n}", steps=300, step_s=0.1, workers=2) for n in range(2)))
        cluster.until("one was preempted", lambda jobs: sum(job["preemptions"] for job in jobs.values()) > 0)
        for n in range(2):
            cluster.hurry(f"turn-{n}")
        cluster.until_all_ended()
