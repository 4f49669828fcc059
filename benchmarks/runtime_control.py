"""What a control plane holds: submissions, agents, and how soon it is back. Part of `runtime.py`; by itself it measures
emulated agents with jobs, and prints JSON:

    python benchmarks/runtime_control.py --agents 5000 --jobs 3000 --policy las
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from control_plane_process import Served, serving
from journals import fill, run_of

from fairlead.engine.apply import replay_events

HERE = Path(__file__).resolve().parent
CLIENTS = 8
SUBMIT_S = 10.0
AGENT_PROCESSES, PATIENCE_S = 2, 600.0
GANGS = (1, 1, 1, 1, 1, 1, 2, 2, 4, 8)  # workers of jobs in turn: 2.2 on average


def submissions(folder: Path, batch: int) -> dict[str, Any]:
    """Jobs a second that eight clients over eight connections have acknowledged: each is in an SQLite journal then, on disk."""
    counts = [0] * CLIENTS
    problems: list[BaseException] = []
    with serving(folder, "400xv100:8", "--policy", "las") as plane:
        until, cpu_s, began = time.monotonic() + SUBMIT_S, plane.cpu_s, time.monotonic()

        def work(client: int) -> None:
            try:
                counts[client] = _submit_until(plane, f"client{client}", batch, until)
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, cpu_s = time.monotonic() - began, plane.cpu_s - cpu_s
    if problems:
        raise problems[0]
    total = sum(counts)
    return {"batch": batch, "jobs_per_s": total / took, "jobs": total, "control_plane_cpu_ms_per_job": 1e3 * cpu_s / total}


def _submit_until(plane: Served, stem: str, batch: int, until: float) -> int:
    headers = {"Authorization": f"Bearer {plane.token('admin')}", "Content-Type": "application/json"}
    connection, count = plane.connection(), 0
    while time.monotonic() < until:
        names = (f"{stem}-{number}" for number in range(count, count + batch))
        jobs = [{"name": name, "run": ["python", "train.py", "--lr", "0.1"], "steps": 1000} for name in names]
        connection.request("POST", "/v1/jobs", json.dumps({"jobs": jobs}), headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 201:
            raise RuntimeError(said.decode())
        count += batch
    connection.close()
    return count


class Emulators:
    """Processes with emulated agents, and what they count."""

    def __init__(self, plane: Served, cluster: str, agents: int) -> None:
        self._status: list[dict[str, Any]] = [{} for _ in range(AGENT_PROCESSES)]
        self._processes = []
        bounds = [agents * number // AGENT_PROCESSES for number in range(AGENT_PROCESSES + 1)]
        for number, (first, last) in enumerate(pairwise(bounds)):
            about = [f"127.0.0.1:{plane.agents_port}", cluster, str(first), str(last)]
            command = [sys.executable, str(HERE / "agent_emulator.py"), *about]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdin is not None
            process.stdin.write(plane.token("agent") + "\n")
            process.stdin.flush()
            self._processes.append(process)
            threading.Thread(target=self._follow, args=(number, process), daemon=True).start()

    def _follow(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._status[number] = json.loads(line)

    def __getitem__(self, name: str) -> float:
        """A count of all agents, or the largest number of seconds."""
        values = [float(status.get(name, 0)) for status in self._status]
        return max(values) if name.endswith("_s") else sum(values)

    def until(self, name: str, value: float, within_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + within_s
        while self[name] != value:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"{name} is {self[name]:g}, not {value:g}: {self._status}")
            time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


@dataclass(frozen=True)
class Load:
    """What the emulated agents do: `jobs` in the cluster at any time (0: none), each for `mean_s` seconds of work."""

    agents: int = 1000
    cluster: str = ""
    policy: str = "las"
    jobs: int = 0
    mean_s: float = 600.0
    round_s: float = 6.0
    seconds: float = 60.0

    @property
    def nodes(self) -> str:
        return self.cluster or f"{self.agents}xv100:1"


def many_agents(folder: Path, load: Load) -> dict[str, Any]:
    """Agents that send three heartbeats in a lease of 15 s, and report the progress of their jobs: what the control plane
    takes, and how long its decisions take. Then it is killed and starts again, and all agents connect again."""
    options = ["--policy", load.policy, "--round", f"{load.round_s:g}", "--lease", "15"]
    told: dict[str, Any] = {"agents": load.agents, "policy": load.policy, "jobs": load.jobs}
    with serving(folder, load.nodes, *options) as plane:
        began = time.monotonic(), plane.cpu_s
        emulators = Emulators(plane, load.nodes, load.agents)
        try:
            emulators.until("joined", load.agents)
            told |= {"joining_s": time.monotonic() - began[0], "joining_cpu_s": plane.cpu_s - began[1]}
            work = _Work(plane, load)
            work.begin()
            told |= _watched(plane, load, emulators, work)
            running = emulators["launches"]
            plane.process.kill()
            plane.process.wait()
            before = {name: emulators[name] for name in ("fenced", "Launch", "Kill", "lost")}
            with serving(folder, load.nodes, *options, agents_port=plane.agents_port) as again:
                emulators.until("joined", load.agents)
                told |= {
                    "restart_s": again.started_s,
                    "rejoining_cpu_s": again.cpu_s,
                    "longest_away_s": emulators["longest_away_s"],
                }
                time.sleep(3 * load.round_s)
                told |= {f"after_restart_{name}": emulators[name] - count for name, count in before.items()}
                told["after_restart_interrupted"] = _Meter(again).read().get("fairlead_jobs_interrupted_total", 0.0)
                told["launches_before_restart"] = running
        finally:
            emulators.close()
    return told


def _watched(plane: Served, load: Load, emulators: Emulators, work: _Work) -> dict[str, Any]:
    meter, decisions, answers = _Meter(plane), list[float](), list[float]()
    names = ("sent", "received", "Heartbeat", "ReportBatch", "fenced", "lost", "Launch", "Revoke")
    if load.jobs:  # until the first jobs run, and those that they displaced have left
        time.sleep(4 * load.round_s)
    counts = {name: emulators[name] for name in names}
    count, total = meter.decisions()
    began, cpu_s = time.monotonic(), plane.cpu_s
    while (now := time.monotonic()) < began + load.seconds:
        work.renew(now - began)
        time.sleep(max(0.0, now + 1.0 - time.monotonic()))
        answers.append(emulators["slowest_answer_s"])
        later, sum_s = meter.decisions()
        if later > count:
            decisions += int(later - count) * [(sum_s - total) / (later - count)]
        count, total = later, sum_s
    took, cpu_s = time.monotonic() - began, plane.cpu_s - cpu_s
    told: dict[str, Any] = {name: (emulators[name] - counts[name]) / took for name in names[:4]}
    told |= {name: emulators[name] - counts[name] for name in names[4:]}
    told |= {"seconds": took, "cores": cpu_s / took, "cpu_us_per_message": 1e6 * cpu_s / took / max(1e-9, told["sent"])}
    told |= {"memory_mb": plane.memory_mb, "launches": emulators["launches"], "busy": emulators["busy"]}
    told |= {"slowest_answer_s": max(answers), "decisions": len(decisions)}
    if decisions:
        ordered = sorted(decisions)
        told |= {f"decision_p{part}_s": ordered[min(len(ordered) - 1, len(ordered) * part // 100)] for part in (50, 90, 99)}
    return told


class _Work:
    """Submits jobs with gangs of one to eight workers, and new ones as they end."""

    def __init__(self, plane: Served, load: Load) -> None:
        self._plane, self._load, self._count = plane, load, 0

    def begin(self) -> None:
        while self._count < self._load.jobs:
            self._submit(min(500, self._load.jobs - self._count))

    def renew(self, second: float) -> None:
        ended = self._load.jobs * (2 / 3) * second / self._load.mean_s  # about two thirds of the jobs run
        if (new := int(self._load.jobs + ended) - self._count) > 0:
            self._submit(new)

    def _submit(self, count: int) -> None:
        numbers = range(self._count, self._count + count)
        shared = {"run": ["train", f"{self._load.mean_s:g}"], "steps": 1_000_000}
        jobs = [{"name": f"train-{n}", "workers": GANGS[n % len(GANGS)], "kind": f"kind{n % 26}", **shared} for n in numbers]
        headers = {"Authorization": f"Bearer {self._plane.token('admin')}", "Content-Type": "application/json"}
        connection = self._plane.connection()
        connection.request("POST", "/v1/jobs", json.dumps({"jobs": jobs}), headers)
        answer = connection.getresponse()
        if answer.status != 201:
            raise RuntimeError(answer.read().decode())
        connection.close()
        self._count += count


class _Meter:
    """Reads the control plane's own metrics."""

    def __init__(self, plane: Served) -> None:
        self._plane = plane

    def read(self) -> dict[str, float]:
        connection = self._plane.connection()
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {self._plane.token('admin')}"})
        text, found = connection.getresponse().read().decode(), dict[str, float]()
        connection.close()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def decisions(self) -> tuple[float, float]:
        found = self.read()
        return found["fairlead_decision_seconds_count"], found["fairlead_decision_seconds_sum"]


def recovery(folder: Path, jobs: int) -> dict[str, Any]:
    """From the start of `fairlead serve` to its first answer, with a journal of so many jobs: a snapshot and a twentieth of the
    events behind it, or all events and no snapshot."""
    events = run_of(jobs)
    cut = len(events) - len(events) // 20
    told: dict[str, Any] = {"jobs": jobs, "events": len(events)}
    for kind in ("snapshot", "no_snapshot"):
        root = folder / kind
        root.mkdir(parents=True)
        where = str(root / "journal.sqlite")
        fill(where, events[:cut])
        fill(where, events[cut:], replay_events(events[:cut]) if kind == "snapshot" else None)
        with serving(root, "400xv100:8", "--policy", "las") as plane:
            told[f"{kind}_s"], told[f"{kind}_cpu_s"] = plane.started_s, plane.cpu_s
    return told


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--agents", type=int, default=Load.agents)
    options.add_argument("--cluster", default="", help="their nodes; default: v100:1 each")
    options.add_argument("--policy", default=Load.policy)
    options.add_argument("--jobs", type=int, default=Load.jobs, help="in the cluster, running or not")
    options.add_argument("--mean-s", type=float, default=Load.mean_s, help="that a job works")
    options.add_argument("--round-s", type=float, default=Load.round_s)
    options.add_argument("--seconds", type=float, default=Load.seconds, help="that are measured")
    options.add_argument("--root", type=Path, help="keep the files of the control plane here")
    given = vars(options.parse_args())
    root = given.pop("root")
    Path("out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="out") as folder:
        print(json.dumps(many_agents(root or Path(folder), Load(**given)), indent=1))


if __name__ == "__main__":
    main()
