"""The synthesizer beside a running cluster: the state goes out over HTTP, and a better scheduler comes back as a switch."""

from __future__ import annotations

import json

import httpx
import pytest
from serving import served
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.events import SchedulerSwitched
from fairlead.runtime.people import ControlPlane
from fairlead.study.synthesizer.live import live_jobs, rates_of, state_of


@pytest.fixture
def busy(monkeypatch):
    """Four accelerators, held by one long gang, with short jobs behind it that a strict order would let wait."""
    with served("v100:4") as cluster:
        monkeypatch.setenv("FAIRLEAD_URL", cluster.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", cluster.token)
        plane = ControlPlane(cluster.url, cluster.token)
        cluster.plane.live.joined(0, ())
        plane.switch({"policy": "fifo", "estimation": "measured", "rounds": 0.2})
        jobs = [{"name": "long", "run": "sleep 99", "workers": 4, "kind": "slow", "steps": 36_000}]
        jobs += [{"name": f"short-{n}", "run": "sleep 1", "kind": "slow", "steps": 10} for n in range(3)]
        plane.submit(jobs)
        yield cluster, plane


def test_the_state_that_is_told_is_the_state(busy):
    cluster, plane = busy
    told = state_of(plane)
    with cluster.plane.live.lock:
        mine = cluster.plane.loop.state
        assert told.next_number == mine.next_number == 4
        assert [job.name for job in live_jobs(told)] == ["long", "short-0", "short-1", "short-2"]
        assert told.scheduler == mine.scheduler
    table = rates_of(plane.rates(), told)
    assert table.alone[table.row("slow", 4), 0] == pytest.approx(10.0)  # nobody has measured it: an hour's run
    assert table.types == ("v100",)


def test_only_an_admin_gets_it(busy):
    cluster, _ = busy
    assert httpx.get(f"{cluster.url}/v1/state").status_code == 401
    assert httpx.get(f"{cluster.url}/v1/state", headers={"Authorization": "Bearer nobody"}).status_code == 401


def test_advice_is_told_and_followed_when_wanted(busy):
    cluster, plane = busy
    asked = ["advise", "--policies", "fifo,srtf", "--admissions", "accept-all", "--looks", "1", "--processes", "1", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert (told["running"], told["chosen"], told["switch"]) == ("fifo", "srtf", True)
    assert plane.scheduler()["policy"] == "fifo", "a dry run touches nothing"
    done = CliRunner().invoke(app, [*asked, "--switch"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert plane.scheduler()["policy"] == "srtf"
    (last,) = [event for event in cluster.journal if isinstance(event, SchedulerSwitched)][1:]
    assert "synthesizer: srtf instead of fifo" in last.why
