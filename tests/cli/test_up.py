"""`fairlead up` and the verbs for people, as processes: a cluster on this machine, jobs submitted from the command line."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import command
import httpx
import pytest
from cluster_up import cluster_up, until

from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest, Unreachable
from foundry import SOURCE

JOB = """
import sys, time
import fairlead

for step in fairlead.lease(range(int(sys.argv[1])), save=lambda folder: None):
    with open(sys.argv[2], "a") as log:
        print(step, file=log)
    time.sleep(0.05)
"""


def test_jobs_from_the_command_line_run_end_and_are_told_of(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "task.yaml").write_text(
        f"name: from-file\nrun: [{sys.executable}, job.py, '5', file.steps]\nenv: {{PYTHONPATH: {SOURCE}}}\n"
    )
    answer, fairlead = (functools.partial(ask, cwd=tmp_path) for ask in (command.answer, command.fairlead))
    with cluster_up(tmp_path) as process:
        assert answer("submit", "task.yaml") == {"jobs": [{"number": 0, "name": "from-file"}]}
        long = fairlead("submit", "--name", "long", "--", "sleep", "1000")
        assert long.returncode == 0, long.stderr
        wide = fairlead("submit", "--workers", "9", "--", "true")
        assert (wide.returncode, "needs 9 GPUs" in wide.stderr) == (4, True)
        dry = fairlead("submit", "--dry-run", "--json", "--types", "k80", "--", "true")
        assert json.loads(dry.stdout)["jobs"][0]["types"] == ["k80"]
        until(lambda: answer("info", "from-file")["phase"] == "finished", tmp_path)
        assert (tmp_path / "file.steps").read_text().split() == [str(n) for n in range(5)]
        until(lambda: answer("info", "long")["phase"] == "running", tmp_path)
        assert [job["name"] for job in answer("queue")["jobs"]] == ["long"]
        assert "long is running" in fairlead("why", "long").stdout
        assert answer("usage")["usage"][0]["jobs"] == 2
        assert fairlead("cancel", "long").returncode == 0
        assert fairlead("info", "nobody").returncode == 3
        both = {"v100-0": True, "k80-1": True}  # the one that ran no job may just be starting
        until(lambda: {node["name"]: node["up"] for node in answer("nodes")["nodes"]} == both, tmp_path)
        run = f"name: goes-on\nrun: [{sys.executable}, job.py, '9999', more.steps]\nenv: {{PYTHONPATH: {SOURCE}}}\n"
        (tmp_path / "task.yaml").write_text(run)
        answer("submit", "task.yaml")
        until((tmp_path / "more.steps").exists, tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, 130)
    told = (tmp_path / "up.log").read_text()
    said = [line for line in told.splitlines() if "slow decision" not in line]  # a busy machine's first one may be
    assert said[0].startswith("console: http://")
    assert "no control plane" not in told.partition("node joined")[0]
    steps = len((tmp_path / "more.steps").read_text().split())
    assert f"goes-on has stopped with {steps:,} steps saved" in told
    assert "resumes the jobs" in told
    gone = fairlead("queue")
    assert (gone.returncode, "fairlead up" in gone.stderr) == (5, True)


@pytest.mark.parametrize(
    ("url", "written", "said"),
    [
        ("http://exämple .com", "", "is the control plane running?"),
        ("http://127.0.0.1:1", "", "is the control plane running?"),
        ("", "{", "not a file of `fairlead up`"),
        ("", '{"token": "x"}', "not a file of `fairlead up`"),
        ("", "[]", "not a file of `fairlead up`"),
    ],
)
def test_a_control_plane_that_cannot_be_found_is_told(tmp_path, monkeypatch, url, written, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLEAD_URL", url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_x")
    (tmp_path / ".fairlead").mkdir()
    (tmp_path / ".fairlead" / "connection.json").write_text(written)
    with pytest.raises(Unreachable, match=said):
        ControlPlaneClient.from_environment().jobs()


def connection_in(folder: Path, **tokens: str) -> Path:
    """What `fairlead up` leaves in a folder: how to connect as admin, and the digests of all tokens."""
    (folder / ".fairlead").mkdir(mode=0o755)
    (folder / ".fairlead" / "connection.json").write_text('{"url": "http://127.0.0.1:1", "token": "fl_admin"}')
    (folder / ".fairlead" / "connection.json").chmod(0o600)
    known = Tokens(FolderFiles(folder / ".fairlead"))
    for user, token in tokens.items():
        known.accept(token, Role.USER, user)
    return folder / ".fairlead"


def test_a_token_in_the_environment_is_used_on_the_cluster_of_this_directory_if_it_is_one_of_its_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.delenv("FAIRLEAD_TOKEN", raising=False)
    connection_in(tmp_path, ann="fl_ann")
    assert ControlPlaneClient.from_environment().token == "fl_admin"
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_ann")
    assert ControlPlaneClient.from_environment().token == "fl_ann"
    monkeypatch.setenv("FAIRLEAD_TOKEN", "")  # of a command that failed: it does not become the admin's
    with pytest.raises(Unreachable, match="FAIRLEAD_TOKEN is set, but empty"):
        ControlPlaneClient.from_environment()
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_of_another_cluster")
    with pytest.raises(RefusedRequest, match=r"does not accept this token.*set FAIRLEAD_URL too") as refused:
        ControlPlaneClient.from_environment()
    assert refused.value.exit_code == 4


def test_a_connection_that_another_user_may_have_planted_is_not_used(tmp_path, monkeypatch):
    (below := tmp_path / "below").mkdir()
    monkeypatch.chdir(below)
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.delenv("FAIRLEAD_TOKEN", raising=False)
    folder = connection_in(tmp_path)
    assert ControlPlaneClient.from_environment().token == "fl_admin"
    for path, why in ((folder / "connection.json", "connection.json"), (folder, r"\.fairlead")):
        before = path.stat().st_mode
        path.chmod(before | 0o020)
        with pytest.raises(Unreachable, match=rf"other users can write \S*{why} \(chmod go-w\), so it is not used"):
            ControlPlaneClient.from_environment()
        path.chmod(before)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    if os.getuid() == 0:  # a file of root is as good as one's own
        assert ControlPlaneClient.from_environment().token == "fl_admin"
        os.chown(folder / "connection.json", 4243, 4243)
    with pytest.raises(Unreachable, match="belongs to another user, so it is not used"):
        ControlPlaneClient.from_environment()


def test_a_client_waits_and_asks_again_if_it_asked_too_often(monkeypatch):
    answers = [httpx.Response(429, headers={"Retry-After": "7"}, json={"detail": "too many"})] * 2 + [
        httpx.Response(200, json={"nodes": [1]})
    ]
    slept: list[float] = []
    monkeypatch.setattr(httpx, "request", lambda *request, **options: answers.pop(0))
    monkeypatch.setattr(time, "sleep", slept.append)
    assert ControlPlaneClient("http://127.0.0.1:1", "fl_x").nodes() == [1]
    assert slept == [7, 7]
    monkeypatch.setattr(httpx, "request", lambda *request, **options: httpx.Response(429, json={"detail": "too many"}))
    with pytest.raises(RefusedRequest, match="too many") as refused:
        ControlPlaneClient("http://127.0.0.1:1", "fl_x", timeout_s=0.0).nodes()
    assert (refused.value.status, refused.value.exit_code) == (429, 5)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(RefusedRequest, match="cannot be sent"):
        ControlPlaneClient("http://127.0.0.1:1", "fl_x").switch({"policy": {"name": "las", "x": math.inf}})


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("submit",), "a program", 2),
        (("submit", "absent.yaml"), "absent.yaml", 2),
        (("queue",), "no control plane", 5),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, said, code):
    done = command.fairlead(*words, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
