"""One user floods a real control plane: bodies of 8 MiB, idle connections, and dry runs of the largest submissions. Meanwhile
another user's requests are timed, and an agent must keep its lease and its job. `python benchmarks/hostile_load.py` runs for
5 minutes."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from control_plane_process import Served, serving

SENDERS, BODY, IDLE = 30, 8 << 20, 2000
LARGEST = json.dumps({"jobs": [{"run": "true " + "x" * 32_000} for _ in range(250)], "dry_run": True}).encode()
JOB = "import time\nfor step in range(10**9):\n    time.sleep(0.5)\n"


def issue(root: Path, user: str) -> str:
    """A token for a user."""
    words = [sys.executable, "-m", "fairlead.cli.main", "token", "add", user, "--root", str(root), "--json"]
    token: str = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["token"]
    return token


def ask(port: int, token: str, method: str, path: str, body: bytes | None = None) -> int:
    """The status of an answer, which is read to its end; 0 where there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


def flood(port: int, token: str, end: Event, counts: Any) -> None:
    """Attack until the end: large bodies from 30 threads, idle connections, dry runs from 4 threads."""
    seen: Counter[str] = Counter()
    large = b'{"jobs": [{"run": "' + b"x" * BODY + b'"}]}'

    def send(kind: str, path: str, body: bytes) -> None:
        while not end.is_set():
            seen[f"{kind} {ask(port, token, 'POST', path, body)}"] += 1

    def idle() -> None:
        held: list[socket.socket] = []
        while not end.is_set():
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port), 5.0)
                one.send(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n")
                held.append(one)
                seen["connections opened"] += 1
            if len(held) >= IDLE:
                for one in held[: IDLE // 10]:
                    one.close()
                del held[: IDLE // 10]
                time.sleep(0.5)

    threads = [threading.Thread(target=send, args=("8 MiB body", "/v1/jobs", large), daemon=True) for _ in range(SENDERS)]
    threads += [threading.Thread(target=send, args=("largest dry run", "/v1/jobs", LARGEST), daemon=True) for _ in range(4)]
    threads.append(threading.Thread(target=idle, daemon=True))
    for thread in threads:
        thread.start()
    end.wait()
    counts.update(dict(seen))


def timed_requests(served: Served, user: str, seconds: float) -> tuple[list[float], Counter[int]]:
    """A user's requests for a time, one every quarter of a second: how long each took, in order, and their statuses."""
    took, statuses, until = list[float](), Counter[int](), time.monotonic() + seconds
    requests = [("GET", "/v1/jobs", None), ("GET", "/v1/jobs/train", None), ("GET", "/v1/nodes", None)]
    for number in count():
        if time.monotonic() >= until:
            break
        method, path, body = requests[number % len(requests)]
        if number % 8 == 7:
            method, path, body = "POST", "/v1/jobs", json.dumps({"jobs": [{"run": "true", "after": ["train"]}]}).encode()
        begin = time.monotonic()
        statuses[ask(served.http_port, user, method, path, body)] += 1
        took.append(time.monotonic() - begin)
        time.sleep(0.25)
    return sorted(took), statuses


def measure(served: Served, minutes: float) -> dict[str, Any]:
    """Time a user's requests before and during the attack of another one."""
    attacker, user = issue(served.root, "mallory"), issue(served.root, "ann")
    job = json.dumps({"jobs": [{"name": "train", "run": [sys.executable, "-c", JOB], "directory": "/tmp"}]}).encode()
    assert ask(served.http_port, user, "POST", "/v1/jobs", job) == 201
    wait_until(lambda: status(served, user)["phase"] == "running", "the job runs")
    calm, _ = timed_requests(served, user, min(60 * minutes, 15.0))
    with multiprocessing.Manager() as manager:
        end, counts = manager.Event(), manager.dict()
        process = multiprocessing.get_context("spawn").Process(
            target=flood, args=(served.http_port, attacker, end, counts), daemon=True
        )
        process.start()
        cpu_s = served.cpu_s
        took, statuses = timed_requests(served, user, 60 * minutes)
        cpu_s = served.cpu_s - cpu_s
        end.set()
        process.join(30)
        attack = dict(counts)
    final = status(served, user)
    return {
        "minutes": minutes,
        "requests": len(took),
        "statuses": dict(statuses),
        "calm_median_s": round(statistics.median(calm), 3),
        "calm_largest_s": round(calm[-1], 3),
        "server_cpu_s": round(cpu_s, 1),
        "median_s": round(statistics.median(took), 3),
        "p99_s": round(took[int(0.99 * (len(took) - 1))], 3),
        "largest_s": round(took[-1], 3),
        "attack": attack,
        "job": {name: final.get(name) for name in ("phase", "starts")},
        "memory_mib": round(int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * 4096 / 2**20),
    }


def status(served: Served, token: str) -> dict[str, Any]:
    """What the control plane says of the job."""
    connection = http.client.HTTPConnection("127.0.0.1", served.http_port, timeout=60.0)
    connection.request("GET", "/v1/jobs/train", headers={"Authorization": f"Bearer {token}"})
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def wait_until(reached: Any, what: str) -> None:
    """Wait up to two minutes."""
    until = time.monotonic() + 120.0
    while not reached():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    root = Path(tempfile.mkdtemp(prefix="fairlead-hostile-"))
    with serving(root, "1xv100:1", "--round", "5") as served:
        words = ["agent", "--control", f"127.0.0.1:{served.agents_port}", "--node", "v100-0", "--accelerators", "v100:1"]
        words += ["--root", str(root / "agent"), "--token-file", str(root / "agent.token"), "--end-jobs"]
        with (root / "agent.log").open("wb") as log:
            environment = {**os.environ, "FAIRLEAD_ALLOW_ROOT_JOBS": "1"}
            agent = subprocess.Popen([sys.executable, "-m", "fairlead.cli.main", *words], stderr=log, env=environment)
        try:
            result = measure(served, given.minutes)
        finally:
            agent.terminate()
            agent.wait(60)
    result["leases_lost"] = (root / "agent.log").read_text().count("lease expired")
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["leases_lost"] or result["job"]["starts"] != 1 else 0)


if __name__ == "__main__":
    main()
