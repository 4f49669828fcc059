"""`fairlead up` with nodes of two kinds and a dozen real jobs, among them a gang, a training, one that fails, one that is
cancelled and one that is killed, under a policy that preempts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import SOURCE, ClusterAtWork

pytestmark = pytest.mark.long

TORCH = importlib.util.find_spec("torch") is not None
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "jobs" / "train_torch.py"

TWIN = """
import argparse, time
from pathlib import Path
import numpy as np
import fairlead

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int)
options.add_argument("--log", type=Path)
options.add_argument("--directory", type=Path)
chosen = options.parse_args()
places = np.random.default_rng(1).normal(size=(2048, 2))
batches = np.split(places, 32)
model = {"w": np.zeros(2)}

def save(folder):
    np.save(folder / "w.npy", model["w"])

def load(folder):
    model["w"] = np.load(folder / "w.npy")

lease = fairlead.lease(batches, load=load, save=save, epochs=chosen.epochs, directory=chosen.directory)
for batch in lease:
    off = batch @ model["w"] - batch @ np.array([1.0, -2.0])
    model["w"] = model["w"] - 0.01 * batch.T @ off / len(batch)
    with chosen.log.open("a") as log:
        log.write(f"{lease.steps} {float((off**2).mean())!r}\\n")
    time.sleep(0.02)
"""


def training(folder: Path, log: str) -> list[str]:
    """PyTorch's where it is installed, or a twin of it in numpy."""
    script = EXAMPLE
    if not TORCH:
        script = folder / "train_numpy.py"
        script.write_text(TWIN)
    return [sys.executable, str(script), "--epochs", "60" if TORCH else "3", "--log", str(folder / log)]


def test_a_dozen_jobs_on_an_embedded_cluster_all_end_as_they_should(tmp_path: Path) -> None:
    environment: dict[str, Any] = {"env": {"PYTHONPATH": SOURCE}, "directory": str(tmp_path)}
    with ClusterAtWork(tmp_path, policy="las", round_s=2.0, embedded=True) as cluster:
        counts = [f"count-{n}" for n in range(7)]
        cluster.submit(*(cluster.job(name, steps=400, step_s=0.08) for name in counts))
        cluster.submit(cluster.job("gang", steps=400, step_s=0.08, workers=2))
        cluster.submit({"name": "training", "run": training(tmp_path, "parts"), "steps": 96, **environment})
        cluster.submit(cluster.job("fails", steps=5, fails_at=2, retries=0), ends="failed")
        cluster.submit(cluster.job("cancelled", steps=10_000), ends="cancelled")
        cluster.submit(cluster.job("killed", steps=400, step_s=0.08, save_every=5))
        cluster.until("it is past a checkpoint", lambda jobs: jobs["killed"]["steps_done"] > 7)
        cluster.harmed.add("killed")
        for worker in cluster.workers_of("killed"):
            with contextlib.suppress(ProcessLookupError):  # it was preempted at this very moment
                os.kill(worker, signal.SIGKILL)
        cluster.cancel("cancelled")
        cluster.until("several were preempted", lambda jobs: sum(jobs[name]["preemptions"] for name in counts) > 3)
        for name in (*counts, "gang", "killed"):
            cluster.hurry(name)
        assert len(cluster.until_all_ended()) == 12
        told = (tmp_path / "plane.log").read_text()
        assert f"export FAIRLEAD_URL=http://127.0.0.1:{cluster.http} " in told, "how it is found"
    whole = [*training(tmp_path, "whole"), "--directory", str(tmp_path / "other")]
    subprocess.run(whole, env={**os.environ, "PYTHONPATH": SOURCE}, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "parts").read_text() == (tmp_path / "whole").read_text(), "another training than one that ran through"


@pytest.mark.parametrize("policy", ["las", "max-min-fairness-perf"])
def test_the_dozen_that_runs_on_every_engine_ends_with_home_agents(tmp_path: Path, policy: str) -> None:
    with ClusterAtWork(tmp_path, policy=policy, round_s=1.0) as cluster:
        cluster.run_the_dozen(widen=1)
