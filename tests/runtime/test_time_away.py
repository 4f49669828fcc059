"""A cluster that is ended and started again much later: only the time in which jobs ran counts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from cluster_at_work import ClusterAtWork, wait_for

from fairlead.core import events as ev
from fairlead.engine.apply import replay_events
from fairlead.engine.fairness_ledger import nanoseconds
from fairlead.journal.recovery import read_journal

pytestmark = pytest.mark.long

AWAY_S = 5000.0


def let_time_pass(root: Path, seconds: float) -> None:
    """Everything on disk that has a time is that much older, as if nobody had started the cluster for so long."""
    origin = root / "plane" / "origin"
    second, boot, monotonic = origin.read_text().split()
    origin.write_text(f"{float(second) - seconds!r} {boot} {float(monotonic) - seconds!r}\n")
    for path in root.rglob("ended.json"):
        ended = json.loads(path.read_text())
        path.write_text(json.dumps({**ended, "ended_at": ended["ended_at"] - seconds}))
    alive = root / "plane" / "alive"
    at = alive.stat().st_mtime - seconds
    os.utime(alive, (at, at))


def test_a_job_with_a_time_limit_survives_a_long_time_without_its_cluster(tmp_path: Path) -> None:
    with ClusterAtWork(tmp_path, "1xv100:1", embedded=True) as cluster:
        cluster.submit(cluster.job("limited", steps=100_000, time_limit_s=600.0))
        cluster.until("it works", lambda jobs: len(cluster.steps_of("limited")) > 5)
        os.kill(cluster.plane, signal.SIGTERM)
        assert cluster.plane_ended() == 0
        let_time_pass(tmp_path, AWAY_S)
        cluster.start_plane()
        done = len(cluster.steps_of("limited"))
        jobs = cluster.until("it works again", lambda jobs: len(cluster.steps_of("limited")) > done)
        assert jobs["limited"]["phase"] == "running"
        assert jobs["limited"]["now_s"] > AWAY_S
        (usage,) = cluster.ask("GET", "/v1/usage")["usage"]
        for seconds in (jobs["limited"]["accelerator_s"], 3600 * usage["accelerator_hours"]):
            assert 0 < seconds < AWAY_S / 2
        ledger = cluster.ask("GET", "/v1/ledger")
        for name in ("received_ns", "deserved_ns"):
            assert 0 < ledger["users"][0][name] == ledger["total"][name] < AWAY_S / 2 * 1e9
        assert ledger["total"]["available_ns"] < AWAY_S / 2 * 1e9
        cluster.hurry("limited")


def test_a_job_that_runs_on_without_a_control_plane_receives_and_deserves_its_gpu(tmp_path: Path) -> None:
    """It is alone, so it deserves what it holds, also in the time that no control plane ran."""
    with ClusterAtWork(tmp_path, "2xv100:2", policy="fair-share", lease_s=120.0, grace_s=60.0) as cluster:
        cluster.until_up()
        cluster.submit(cluster.job("long", steps=2000))
        cluster.until("it works", lambda jobs: len(cluster.steps_of("long")) > 5)
        cluster.kill_plane()
        done = len(cluster.steps_of("long"))
        wait_for(lambda: len(cluster.steps_of("long")) > done + 20, "it works without a control plane")
        cluster.start_plane()
        cluster.until_connected()
        cluster.hurry("long")
        jobs = cluster.until_all_ended()
        ledger = cluster.ask("GET", "/v1/ledger")
        (row,) = ledger["users"]
        assert jobs["long"]["starts"] == 1
        assert row["received_ns"] / 1e9 == pytest.approx(jobs["long"]["accelerator_s"])
        cluster.kill_plane()
        events = list(read_journal(str(cluster.journal)))
        (down,) = (event for event in events if isinstance(event, ev.ControlPlaneRestarted))
        assert down.stopped_s is not None
        assert down.stopped_s < down.time
        plans = [event.plan for event in events if isinstance(event, ev.RoundPlanned)]
        admitted_s, launched_s = (
            next(p.time for p in plans if len(of(p))) for of in (lambda p: p.admitted, lambda p: p.launches)
        )
        (end,) = (event for event in events if isinstance(event, ev.JobsFinished))
        assert row["received_ns"] == ledger["total"]["physical_ns"] == nanoseconds(end.at[0]) - nanoseconds(launched_s)
        assert row["deserved_ns"] == nanoseconds(end.time) - nanoseconds(admitted_s)  # its end was reported later
        replayed = replay_events(events)
        assert replayed.ledger is not None
        assert replayed.ledger.rows[row["account"], row["user"]].received == row["received_ns"]
        cluster.start_plane()
