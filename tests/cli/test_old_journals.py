"""`fairlead serve` on journals of other times."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import httpx
import pytest
from cluster_up import LOG, until

from fairlead.config.clusters import read_cluster
from fairlead.core import events as ev
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.journal.sqlite import SqliteJournal
from fairlead.workloads.catalogue import accelerator_types
from foundry import free_port, running


def test_a_journal_of_which_only_a_snapshot_is_left_is_gone_on_with(tmp_path: Path) -> None:
    machines, journal = read_cluster("1xv100:1", accelerator_types()), SqliteJournal(tmp_path / "journal.sqlite")
    state, job = State(machines), Job("old", command='{"run":["true"]}', user="admin")
    opened = ev.JournalOpened(0.0, machines, {"policy": "las"}, origin=1e9)
    for event in (opened, ev.NodeLost(0.0, 0), ev.JobSubmitted(1.0, 0, job)):
        journal.append(event)
        apply_event(state, event)
    journal.snapshot(state)
    journal.retain(1, math.inf)
    journal.close()
    http, agents = (f"127.0.0.1:{free_port()}" for _ in range(2))
    words = ("serve", "--cluster", "1xv100:1", "--root", ".", "--http", http, "--agents", agents)
    with running(tmp_path, *words, log=LOG) as process:

        def told() -> httpx.Response | None:
            assert process.poll() is None, (tmp_path / LOG).read_text()
            with contextlib.suppress(httpx.TransportError, OSError):
                headers = {"Authorization": f"Bearer {(tmp_path / 'admin.token').read_text()}"}
                return httpx.get(f"http://{http}/v1/jobs/old", headers=headers)
            return None

        answer = until(told, tmp_path)
        assert (answer.status_code, answer.json()["number"]) == (200, 0)
        assert answer.json()["submitted_at"] == pytest.approx(1e9 + 1, abs=0.01)  # by the journal alone
    assert "Traceback" not in (tmp_path / LOG).read_text()
