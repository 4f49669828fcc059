"""`fairlead shadow` on a journal and next to a running cluster, also while its control plane is away."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial

import command
import pytest
from cluster_up import LOG, cluster_up, until
from typer.testing import CliRunner

from fairlead.cli import cmd_shadow
from fairlead.cli.main import app
from fairlead.experiments.live_inputs import JournalFollower
from fairlead.experiments.shadow import ShadowComparison
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest, Unreachable
from foundry import free_port, running

pytestmark = pytest.mark.long


def test_a_shadow_of_a_journal_is_the_same_scheduler_simulated(journal, tmp_path):
    found = command.answer("shadow", journal, "--policy", "srtf", cwd=tmp_path)
    assert found["compared"] == found["jobs"] == 40
    assert found["model_error"] == 0
    jct = found["metrics"]["average_jct_s"]
    assert jct["low"] < jct["difference"] < jct["high"]
    rerun = ("--policy", "srtf", "--jobs", "40", "--load", "20", "--cluster", "8xv100:4,8xp100:4")
    alone = command.answer("simulate", *rerun, cwd=tmp_path)
    assert jct["shadow"] == pytest.approx(alone["average_jct_s"], rel=0.05)
    printed = command.fairlead("shadow", journal, "--policy", "srtf", cwd=tmp_path)
    assert "shadow srtf next to las, 40 of 40 jobs compared" in printed.stdout
    assert "error of the control +0.0 %" in printed.stdout


def test_a_journal_without_events_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    done = command.fairlead("shadow", tmp_path / "empty.jsonl", "--policy", "srtf", cwd=tmp_path)
    assert done.returncode == 2
    assert "a journal with events" in done.stderr


def test_a_shadow_follows_a_cluster_through_a_restart_and_is_promoted(tmp_path):
    addresses = ("--http", f"127.0.0.1:{free_port()}", "--agents", f"127.0.0.1:{free_port()}")
    up = ("up", "--round", 1, "--cluster", "1xv100:1", "--policy", "fifo", *addresses)
    log = tmp_path / "shadow.log"
    lines = lambda: [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]  # noqa: E731
    log.touch()

    def submit(name, seconds, steps):
        run = [sys.executable, "-m", "fairlead.demo.demo_job", "--steps", str(steps), "--step-s", str(seconds / steps)]
        sent = command.fairlead("submit", "--name", name, "--kind", "demo", "--steps", steps, "--", *run, cwd=tmp_path)
        assert sent.returncode == 0, sent.stderr

    with running(tmp_path, *up, log=LOG) as first:
        until(lambda: command.fairlead("nodes", "--json", cwd=tmp_path).returncode == 0, tmp_path)
        submit("one", 1, 10)
        watch = ("shadow", "--policy", "srtf", "--every", "0.5s", "--cpu", 100, "--json")
        with running(tmp_path, *watch, log="shadow.log", end=signal.SIGTERM):
            until(lambda: any(line["compared"] == 1 for line in lines()), tmp_path)
            first.send_signal(signal.SIGINT)
            first.wait()
            until(lambda: "waiting for the control plane" in log.read_text(), tmp_path)
            with running(tmp_path, *up, log=LOG):
                until(lambda: command.fairlead("nodes", "--json", cwd=tmp_path).returncode == 0, tmp_path)
                submit("two", 1, 10)
                until(lambda: any(line["compared"] == 2 for line in lines()), tmp_path)
                once = command.fairlead("shadow", "--policy", "srtf", "--for", "0", cwd=tmp_path)
                assert "2 of 2 jobs compared" in once.stdout
                assert "to use this scheduler: fairlead scheduler set --policy srtf" in once.stderr
                seen = lines()[-1]
                assert seen["live_scheduler"] == "fifo"
                assert seen["cpu_s"] > 0
                promoted = command.fairlead("shadow", "--policy", "srtf", "--promote", cwd=tmp_path)
                assert promoted.returncode == 0, promoted.stderr
                assert command.answer("scheduler", "show", cwd=tmp_path)["scheduler"]["policy"] == "srtf"
                again = command.fairlead("shadow", "--policy", "srtf", "--promote", cwd=tmp_path)
                assert "another scheduler than the one in use" in again.stderr


@pytest.mark.parametrize("answers", [0, 1])
def test_a_shadow_is_not_promoted_if_the_control_plane_did_not_answer_last(monkeypatch, answers):
    asked, switched = [], []

    class Plane:
        def scheduler(self):
            return {"policy": "fifo"}

        def journal(self, after):
            asked.append(after)
            if len(asked) > answers:
                raise Unreachable("cannot reach it")
            return [b"an event"]

        def switch(self, *about, **more):
            switched.append(about)

    now = [0.0]  # the time between two comparisons passes at once, and nothing else takes any

    def sleep(seconds):
        now[0] += seconds

    pace = partial(cmd_shadow.Pace, clock=lambda: now[0], cpu=lambda: 0.0, sleep=sleep)
    monkeypatch.setattr(cmd_shadow, "Pace", pace)
    monkeypatch.setattr(cmd_shadow, "control_plane", Plane)
    monkeypatch.setattr(JournalFollower, "catch_up", lambda self: bool(self._fetch(0)))
    monkeypatch.setattr(cmd_shadow, "compare_shadow", lambda *about, **more: ShadowComparison("srtf", "fifo", 1.0, 0, 0, {}))
    words = ["shadow", "--policy", "srtf", "--promote", "--every", "0.01s", "--for", "0.1s", "--json"]
    done = CliRunner().invoke(app, words)
    assert len(asked) > answers
    assert not switched
    assert done.exit_code == 1
    assert "not promoted" in str(done.exception)


def test_only_admins_read_the_journal(tmp_path):
    with cluster_up(tmp_path, cluster="1xv100:1"):
        user = command.answer("token", "add", "ann", cwd=tmp_path)["token"]
        url = json.loads((tmp_path / ".fairlead" / "connection.json").read_text())["url"]
        with pytest.raises(RefusedRequest, match="admin token"):
            ControlPlaneClient(url, user).journal()
