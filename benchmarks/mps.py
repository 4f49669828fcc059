"""Two PyTorch jobs on one accelerator under a real agent: alone, by turns, and through NVIDIA's MPS.

    python benchmarks/mps.py [--seconds 10] [--width 2048] [--out mps.json]

An agent finds the accelerator through NVML, a control plane's policy puts both jobs on it, and the agent starts the MPS daemon
for them where there is one (`nvidia-cuda-mps-control`). What is told: steps per second of each job, what the agent reports of
utilization and memory, which MPS server runs, and that nothing of it is left when the agent has ended. It needs PyTorch, the
extra `nvml`, and of the extra `cluster` grpcio and prometheus-client."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from single_gpu_cluster import PATIENCE_S, agent_of, machine_or_why_not, options_of, passed_on, plane_on, until, write_figures

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.core.events import Memo
from fairlead.core.job import ENDED, Phase
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot

WARM_UP_S = 3.0
DAEMON = "nvidia-cuda-mps"

JOB = """
import os, sys, time
import torch
import fairlead

width = int(sys.argv[1])
device = "cuda" if torch.cuda.is_available() else "cpu"
network = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))).to(device)
adam = torch.optim.Adam(network.parameters())
batch = torch.randn(512, width, device=device)
name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
print("#", name, os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "no MPS"), flush=True)
told = time.monotonic()
for step in fairlead.lease(range(10**9), save=lambda folder: None):
    adam.zero_grad()
    network(batch).square().mean().backward()
    adam.step()
    if step % 8 == 0:
        if device == "cuda":
            torch.cuda.synchronize()
        if time.monotonic() > told + 0.25:
            told = time.monotonic()
            print(step, told, flush=True)
"""


class Together:
    """All jobs on the same accelerator."""

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        jobs = view.jobs
        one = np.zeros(len(jobs), dtype=np.int64)
        return Selection(jobs.number, one, jobs.workers, combination=one), memo


class Scene:
    """A control plane in this process and an agent in another; `jobs` run on its first accelerator."""

    def __init__(self, folder: Path, machine: str, environment: dict[str, str]) -> None:
        self.folder, self.machine, self.environment = folder, machine, environment
        (folder / "job.py").write_text(JOB)

    @contextmanager
    def running(self, names: list[str], width: int) -> Iterator[Any]:
        scheduler = SchedulerConfig.from_data({"policy": "fifo", "estimator": "measured", "rounds": 1})
        stages = replace(scheduler.build(None), policy=Together())
        with (
            plane_on(Cluster.parse(self.machine), scheduler.to_data(), stages) as (plane, port),
            agent_of(plane, port, self.folder, self.environment),
        ):
            self._submit(plane, names, width)
            yield plane

    def _submit(self, plane: Any, names: list[str], width: int) -> None:
        from fairlead.runtime.protocol.task_file import TaskSpec

        run = [sys.executable, str(self.folder / "job.py"), str(width)]
        tasks = [TaskSpec(name=name, run=run, directory=str(self.folder), env=passed_on(), retries=0) for name in names]
        plane.live.submit_jobs([task.job(task.name, "benchmark", ()) for task in tasks], lambda events: None)

    def printed(self, number: int) -> str:
        found = sorted((self.folder / "agent" / "jobs" / str(number)).glob("*/0/log/*"))
        return "".join(path.read_text(errors="replace") for path in found)

    def marks(self, number: int) -> list[tuple[int, float]]:
        """Steps and when they were done."""
        lines = [line.split() for line in self.printed(number).splitlines(keepends=True) if line.endswith("\n")]
        return [(int(line[0]), float(line[1])) for line in lines if len(line) == 2 and line[0].isdigit()]

    def since(self, number: int, begin: float) -> list[tuple[int, float]]:
        return [mark for mark in self.marks(number) if mark[1] >= begin]

    def _log(self) -> str:
        return (self.folder / "agent.log").read_text()[-2000:]


def measure(scene: Scene, names: list[str], seconds: float, width: int) -> dict[str, Any]:
    """Steps per second of each while all of them run, and what the agent and MPS say meanwhile."""
    with scene.running(names, width) as plane:

        def all_go() -> bool:
            phases = plane.loop.state.columns["phase"][: len(names)].tolist()
            if any(Phase(phase) in ENDED for phase in phases):
                raise FairleadError(f"a job has ended:\n{''.join(scene.printed(n) for n in range(len(names)))[-2000:]}")
            return all(len(scene.marks(number)) > 2 for number in range(len(names)))

        until(all_go, "all jobs to train", scene._log)
        time.sleep(WARM_UP_S)
        begin = time.monotonic()
        busy, memory = list[float](), list[float]()
        while time.monotonic() < begin + seconds or any(len(scene.since(n, begin)) < 3 for n in range(len(names))):
            if time.monotonic() > begin + seconds + PATIENCE_S:
                raise FairleadError("a job does hardly a step")
            time.sleep(0.5)
            used = plane.hub.used.get(0)
            if used is not None and used.utilization:
                busy.append(used.utilization[0])
                memory.append(used.memory_gb[0])
        end, servers = time.monotonic(), _processes(DAEMON)
    speeds = {}
    for number, name in enumerate(names):
        inside = [mark for mark in scene.since(number, begin) if mark[1] <= end]
        (first, began), (last, ended) = inside[0], inside[-1]
        speeds[name] = round((last - first) / (ended - began), 2)
    return {
        "steps_per_s": speeds,
        "on": [next(iter(scene.printed(number).splitlines()), "") for number in range(len(names))],
        "utilization": round(float(np.mean(busy)), 3) if busy else None,
        "memory_gb": round(max(memory), 2) if memory else None,
        "mps_while_it_runs": servers,
        "mps_afterwards": _gone(DAEMON),
    }


def _gone(name: str) -> list[str]:
    """What is left of it a few seconds after its end was asked for."""
    deadline = time.monotonic() + 10.0
    while (left := _processes(name)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _processes(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if Path(words[0]).name.startswith(name):
            found.append(f"{Path(words[0]).name} (process {path.parent.name})")
    return sorted(found)


def main() -> int:
    chosen = options_of(__doc__, "that are measured of each case", width=(2048, "of the network's layers"))
    machine, why_not = machine_or_why_not()
    if why_not:
        print(why_not, file=sys.stderr)
        return 2
    from fairlead.profiling.sharing_mode import MPS_CONTROL

    with_mps = dict(os.environ)
    without = {**with_mps, "PATH": "/nowhere"}  # so that the agent finds no daemon; everything else is called by its path
    cases = {
        "alone": (["one"], without),
        "by turns": (["one", "two"], without),
        "through MPS": (["one", "two"], with_mps),
    }
    figures: dict[str, Any] = {"machine": machine, "width": chosen.width}
    for case, (names, environment) in cases.items():
        with tempfile.TemporaryDirectory(prefix="mps-") as folder:  # short: sockets' names are
            figures[case] = measure(Scene(Path(folder), machine, environment), names, chosen.seconds, chosen.width)
        print(f"{case}: {json.dumps(figures[case])}", flush=True)
    write_figures(figures, chosen.out)
    both = figures["through MPS"]
    if not both["mps_while_it_runs"]:
        print(f"there is no {MPS_CONTROL} here, or it did not start: the last case was by turns too", file=sys.stderr)
        return 1
    alone = figures["alone"]["steps_per_s"]["one"]
    for case in ("by turns", "through MPS"):
        together = sum(figures[case]["steps_per_s"].values()) / alone
        print(f"{case}: both together do {together:.2f} times the steps of one alone")
    print(f"left of MPS when the agent has ended: {', '.join(both['mps_afterwards']) or 'nothing'}")
    return 1 if both["mps_afterwards"] else 0


if __name__ == "__main__":
    sys.exit(main())
