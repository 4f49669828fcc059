"""A cluster that somebody has for a while is gone when they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foundry import ends, environment

KILLED = """
import os, sys
from pathlib import Path
from fairlead.runtime.embedded import embedded

def children(number):
    return Path(f"/proc/{number}/task/{number}/children").read_text().split()

with embedded(Path(sys.argv[1]), "--cluster", "1xv100:1", "--policy", "fifo"):
    started = children(os.getpid())
    print(*started, *(other for one in started for other in children(one)), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_cluster_ends_with_whoever_has_started_it_killed_or_not(tmp_path: Path, how: signal.Signals) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "up"], env=environment(), **pipes) as process:
        assert process.stdout is not None
        started = [int(number) for number in process.stdout.readline().split()]
        assert len(started) >= 2  # the control plane and its agent
        os.kill(process.pid, how)
    left = [number for number in started if not ends(number, 30.0)]
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left
