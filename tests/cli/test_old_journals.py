"""`fairlead serve` on journals of other times."""

from __future__ import annotations

import math
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
from command import environment

from fairlead.config.cluster import read_cluster
from fairlead.core import events as ev
from fairlead.core.job import Job
from fairlead.engine.state import State
from fairlead.journals.sqlite import SqliteJournal
from fairlead.workloads.catalogue import accelerator_types

PATIENCE_S = 60.0


def test_a_journal_of_which_only_a_snapshot_is_left_is_gone_on_with(tmp_path: Path) -> None:
    machines, journal = read_cluster("1xv100:1", accelerator_types()), SqliteJournal(tmp_path / "journal.sqlite")
    state, job = State(machines), Job("old", command='{"run":["true"]}', user="admin")
    for event in (ev.Opened(0.0, machines, {"policy": "las"}), ev.NodeLost(0.0, 0), ev.JobSubmitted(1.0, 0, job)):
        journal.append(event)
        state.apply(event)
    journal.snapshot(state)
    journal.retain(1, math.inf)
    journal.close()
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ports.append(f"127.0.0.1:{listener.getsockname()[1]}")
    command = [sys.executable, "-m", "fairlead.cli.main", "serve", "--cluster", "1xv100:1", "--root", str(tmp_path)]
    command += ["--http", ports[0], "--agents", ports[1]]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                headers = {"Authorization": f"Bearer {(tmp_path / 'admin.token').read_text()}"}
                answer = httpx.get(f"http://{ports[0]}/v1/jobs/old", headers=headers)
                break
            except (httpx.TransportError, OSError):
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.05)
        assert (answer.status_code, answer.json()["number"]) == (200, 0)
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert not re.search("Traceback", said), said
