"""A cluster that is a child of another process does not outlive it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.embedded import embedded
from foundry import ends, environment

HOLDS_ONE = """
import sys, time
from pathlib import Path
from fairlead.runtime.embedded import embedded

with embedded(Path(sys.argv[1]), "--cluster", "2xv100:1") as plane:
    print(len(plane.nodes()), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_cluster_ends_with_whoever_holds_it_however_they_end(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-c", HOLDS_ONE, str(tmp_path / "cluster")]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"2\n"
        (cluster,) = _children(process.pid)
        agents = _children(cluster)
        assert len(agents) == 2
        os.kill(process.pid, number)
    for one in (cluster, *agents):
        assert ends(one, 180.0)


def test_ports_that_somebody_takes_before_it_listens_are_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, taken = subprocess.Popen, list[socket.socket]()

    def after_somebody_else(command: list[str], **about: Any) -> subprocess.Popen[bytes]:
        for word in command:
            host, _, port = word.partition(":")
            if host == "127.0.0.1":
                taken.append(socket.create_server((host, int(port))))
        return start(command, **about)

    monkeypatch.setattr(subprocess, "Popen", after_somebody_else)
    with embedded(tmp_path / "cluster", "--cluster", "1xv100:1") as plane:
        assert [node["up"] for node in plane.nodes()] == [True]
    for one in taken:
        one.close()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for each in found for number in each.read_text().split()]
