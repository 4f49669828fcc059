"""What a lease costs a training loop: nanoseconds for each step, and system calls.

    python benchmarks/lease.py            # a table
    python benchmarks/lease.py --json     # the same as one JSON object

The same empty loop is walked bare and under a lease with a real page, alone and as a worker of a gang; the difference is the
cost, in CPU time, the best of some tries. System calls are counted with strace, where it is there: those of two runs of
different length, subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from itertools import repeat
from pathlib import Path
from unittest import mock

from fairlead.client import lease
from fairlead.client.page import Page

STEPS, REPEATS = 500_000, 7
LIMIT_NS = 1000.0

TRACED = """
import sys
from itertools import repeat
from fairlead.client import lease
for _ in lease(repeat(0, int(sys.argv[1]))):
    pass
"""


def bare_ns() -> float:
    began = time.thread_time_ns()
    for _ in repeat(0, STEPS):
        pass
    return (time.thread_time_ns() - began) / STEPS


def leased_ns() -> float:
    walk = iter(lease(repeat(0, STEPS + 1)))
    next(walk)  # the first one joins the gang
    began = time.thread_time_ns()
    for _ in walk:
        pass
    return (time.thread_time_ns() - began) / STEPS


def in_gang_ns() -> float:
    """As rank 0 of two. The other is a thread of this process that walks slowly enough to be out of the way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    common = {"WORLD_SIZE": "2", "FAIRLEAD_GANG_PORT": str(port), "MASTER_ADDR": "127.0.0.1"}
    with mock.patch.dict(os.environ, {**common, "RANK": "1", "FAIRLEAD_LEASE": ""}):
        other = lease(repeat(0, 0))
    thread = threading.Thread(target=lambda: list(other))
    thread.start()
    with mock.patch.dict(os.environ, {**common, "RANK": "0"}):
        measured = leased_ns()
    thread.join()
    return measured


def system_calls_per_step(page: Path) -> float | None:
    if shutil.which("strace") is None:
        return None
    counts = []
    for steps in (1_000, 201_000):
        with tempfile.NamedTemporaryFile("r") as table:
            command = ["strace", "-f", "-c", "-o", table.name, sys.executable, "-c", TRACED, str(steps)]
            if subprocess.run(command, env={**os.environ, "FAIRLEAD_LEASE": str(page)}, check=False).returncode:
                return None
            total = table.read().splitlines()[-1].split()
            counts.append(int(total[3] if total[0].startswith("100") else total[2]))
    return (counts[1] - counts[0]) / 200_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        page = Path(folder) / "lease"
        Page.create(page)
        os.environ["FAIRLEAD_LEASE"] = str(page)
        bare = min(bare_ns() for _ in range(REPEATS))
        alone = min(leased_ns() for _ in range(REPEATS)) - bare
        gang = min(in_gang_ns() for _ in range(REPEATS)) - bare
        calls = system_calls_per_step(page)
    if chosen.json:
        print(json.dumps({"alone_ns": alone, "gang_ns": gang, "system_calls_per_step": calls, "limit_ns": LIMIT_NS}))
        return
    print(f"a step under a lease, alone    {alone:7.0f} ns   (at most {LIMIT_NS:.0f})")
    print(f"a step under a lease, in gang  {gang:7.0f} ns   (at most {LIMIT_NS:.0f})")
    print(f"system calls for each step     {'no strace here' if calls is None else f'{calls:7.4f}'}")


if __name__ == "__main__":
    main()
