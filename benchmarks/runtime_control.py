"""What a control plane holds: submissions, idle agents, and how soon it is back. Part of `runtime.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from control_plane_process import Served, serving
from journals import fill, run_of

from fairlead.engine.apply import replay_events

HERE = Path(__file__).resolve().parent
CLIENTS = 8
SUBMIT_S = 10.0
AGENTS, AGENT_PROCESSES = 1000, 2
AGENT_CLUSTER = f"{AGENTS}xv100:1"


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


def idle_agents(folder: Path, seconds: float) -> dict[str, Any]:
    """A thousand agents that beat every five seconds, each on a connection of its own: the control plane's CPU seconds."""
    with serving(folder, AGENT_CLUSTER, "--policy", "las", "--lease", "15") as plane:
        began, cpu_s = time.monotonic(), plane.cpu_s
        share = AGENTS // AGENT_PROCESSES
        players = [_players(plane, share * number, share * (number + 1), seconds) for number in range(AGENT_PROCESSES)]
        for player in players:
            _line(player)
        joining_s, joining_cpu_s = time.monotonic() - began, plane.cpu_s - cpu_s
        began, cpu_s = time.monotonic(), plane.cpu_s
        beats = sum(int(_line(player)) for player in players)
        took, cpu_s = time.monotonic() - began, plane.cpu_s - cpu_s
        for player in players:
            player.communicate(timeout=60)
    return {
        "agents": AGENTS,
        "beats": beats,
        "seconds": took,
        "cores": cpu_s / took,
        "joining_s": joining_s,
        "joining_cpu_s": joining_cpu_s,
    }


def _players(plane: Served, first: int, last: int, seconds: float) -> subprocess.Popen[str]:
    about = [f"127.0.0.1:{plane.agents_port}", AGENT_CLUSTER, str(first), str(last), str(seconds)]
    command = [sys.executable, str(HERE / "fake_agents.py"), *about]
    player = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert player.stdin is not None
    player.stdin.write(plane.token("agent") + "\n")
    player.stdin.close()
    player.stdin = None
    return player


def _line(player: subprocess.Popen[str]) -> str:
    assert player.stdout is not None
    line = player.stdout.readline()
    if not line:
        raise RuntimeError(f"the played agents ended with status {player.wait()}")
    return line


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
