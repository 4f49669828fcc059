"""A cluster that is a child of another process does not outlive it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.runtime.embedded import embedded
from foundry import PATIENCE_S, ends, environment

pytestmark = pytest.mark.long

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
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"2\n"
            (cluster,) = _children(process.pid)
            agents = _children(cluster)
            assert len(agents) == 2
            os.kill(process.pid, number)
            assert ends(process.pid, PATIENCE_S)
        except BaseException:
            process.kill()  # otherwise its end is waited for
            raise
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
    """By their parents: the kernel's list of children may leave some out while others end."""
    found = []
    for about in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(about.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(about.parent.name))
    return found
