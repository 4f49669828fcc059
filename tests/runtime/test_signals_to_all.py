"""Signals that reach an agent, all its shims and all its jobs at the same moment, in any order, as Slurm sends them to every
process of a job step. Leases are so long that nothing else ends a job."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from cluster_at_work import SOURCE, ClusterAtWork, wait_for

from fairlead.runtime.agent.processes import descendants, find_process
from foundry import ends, foundry

pytestmark = pytest.mark.long

EACH = int(os.environ.get("FAIRLEAD_SIGNALLED_JOBS", "4"))  # jobs with a lease, and as many without
TIMES = int(os.environ.get("FAIRLEAD_SIGNALLED_TIMES", "2"))
AT_SIGTERM = ("trap 'exit 0' TERM", "trap 'exit 143' TERM", "trap 'sleep 0.2; exit 7' TERM", ":")


def _processes(agent: int) -> list[int]:
    """The shims of an agent and their jobs, in a random order."""
    process = find_process(agent)
    assert process is not None
    found = [one.pid for one in descendants(process.pid, process.started)]
    random.shuffle(found)
    return found


def _signal(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def test_jobs_that_get_the_signal_of_their_agent_save_and_have_not_failed_or_finished(tmp_path: Path) -> None:
    machine = f"{2 * EACH}xv100:{2 * EACH}"
    with ClusterAtWork(tmp_path, machine, "fifo", lease_s=900.0, grace_s=900.0) as cluster:
        cluster.until_up()
        leased, plain = [f"leased-{n}" for n in range(EACH)], [f"plain-{n}" for n in range(EACH)]
        cluster.submit(*(cluster.job(name, steps=3000) for name in leased))
        for n, name in enumerate(plain):
            script = f"{AT_SIGTERM[n % 4]}; echo >> {name}.starts; while [ ! -e go ]; do sleep 0.1; done"
            about = {"name": name, "run": ["sh", "-c", script], "cooperative": False, "directory": str(tmp_path)}
            cluster.submit(about)
        for times in range(1, TIMES + 1):
            _until_scripts_run(cluster, plain, times)
            _until_more_steps(cluster, leased)
            agent = cluster.agents.pop("v100-0")
            _signal(signal.SIGUSR1, _processes(agent))
            _until_more_steps(cluster, leased)
            assert all(job["starts"] >= times for job in cluster.jobs().values())
            everything = [*_processes(agent), agent]
            random.shuffle(everything)
            _signal(signal.SIGTERM, everything)
            assert ends(agent, 180.0), cluster._logs()
            foundry().status(agent)
            jobs = cluster.until("all wait", lambda jobs: all(job["phase"] == "waiting" for job in jobs.values()))
            assert {name: job["failures"] for name, job in jobs.items() if job["failures"]} == {}
            saved = {name: jobs[name]["steps_done"] for name in leased}
            assert saved == {name: len(cluster.steps_of(name)) for name in leased}, "each has saved its last step"
            cluster.start_agent("v100-0")
        # A script that gets the signal long before its agent is started once more, which the agent refuses.
        cluster.until("all run", lambda jobs: all(job["starts"] > TIMES for job in jobs.values()))
        (tmp_path / "go").touch()
        for name in leased:
            cluster.hurry(name)
        assert all(job["failures"] == 0 for job in cluster.until_all_ended().values())


def test_an_agent_takes_sigusr1_as_an_order_to_leave(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, "2xv100:2", "fifo", lease_s=900.0, grace_s=900.0) as cluster:
        cluster.until_up()
        os.kill(cluster.agents["v100-0"], signal.SIGUSR2)  # without effect
        cluster.end_agent("v100-0", signal.SIGUSR1)
        wait_for(lambda: not cluster.nodes()["v100-0"]["up"], "the node is given up")
        cluster.start_agent("v100-0")
        cluster.until_up()


def _until_scripts_run(cluster: ClusterAtWork, names: list[str], times: int) -> None:
    """Each has written a line for the last of its starts."""
    files = [cluster.root / f"{name}.starts" for name in names]
    reached = lambda: all(file.exists() and len(file.read_text().splitlines()) >= times for file in files)  # noqa: E731
    wait_for(reached, "all scripts run", cluster._logs)


def _until_more_steps(cluster: ClusterAtWork, names: list[str]) -> None:
    before = {name: len(cluster.steps_of(name)) for name in names}
    wait_for(lambda: all(len(cluster.steps_of(name)) > before[name] + 2 for name in names), "all make steps", cluster._logs)


LOADER = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import fairlead

torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.arange(1200.0)), batch_size=1, num_workers=2)
log = open("loads.steps", "a")
for batch in fairlead.lease(loader, save=lambda folder: None):
    print(int(batch[0][0]), file=log, flush=True)
    time.sleep(0 if os.path.exists("loads.hurry") else 0.1)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")
def test_a_training_whose_loader_processes_die_of_the_signal_saves_its_last_step(tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text(LOADER)
    with ClusterAtWork(tmp_path, "2xv100:2", "fifo", lease_s=900.0, grace_s=900.0) as cluster:
        cluster.until_up()
        about = {"directory": str(tmp_path), "env": {"PYTHONPATH": SOURCE}, "steps": 1200}
        cluster.submit({"name": "loads", "run": [sys.executable, str(tmp_path / "loader.py")], **about})
        for _ in range(TIMES):
            _until_more_steps(cluster, ["loads"])
            agent = cluster.agents.pop("v100-0")
            everything = [*_processes(agent), agent]
            random.shuffle(everything)
            _signal(signal.SIGTERM, everything)
            assert ends(agent, 180.0), cluster._logs()
            foundry().status(agent)
            jobs = cluster.until("it waits", lambda jobs: jobs["loads"]["phase"] == "waiting")
            assert (jobs["loads"]["failures"], jobs["loads"]["steps_done"]) == (0, len(cluster.steps_of("loads")))
            cluster.start_agent("v100-0")
        cluster.hurry("loads")
        cluster.until_all_ended()
        assert cluster.steps_of("loads") == list(range(1200))
